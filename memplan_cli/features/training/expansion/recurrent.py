"""RNN, GRU and LSTM, unrolled over their sequence.

All inputs are multiplied by their weights at once; only the recurrent product is in the
chain, so the input weights' gradient is one product too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan_cli.errors import ModelError
from memplan_cli.features.training.expansion.bodies import give, stacked, steps_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from memplan_cli.features.training.tape import Call, Tape


@dataclass(frozen=True, slots=True)
class Cell:
    """One direction's weights: ``recurrent`` is [hidden, gates hidden], bias of it or ""."""

    tape: Tape
    call: Call
    recurrent: str
    recurrent_bias: str
    peepholes: tuple[str, ...]
    activations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Plan:
    """What differs between the three: gates, default activations, one step, state count."""

    gates: int
    activations: tuple[str, ...]
    step: Callable[[Cell, str, list[str]], list[str]]
    bias_apart: int = 0


def rnn(call: Call) -> None:
    """H' = f(X W^T + H R^T + B)."""
    _unroll(call, _Plan(1, ("Tanh",), _rnn_step))


def gru(call: Call) -> None:
    """H' = (1 - z) h + z H with gates z, r and candidate h."""
    apart = 1 if call.attribute("linear_before_reset", 0) else 0
    _unroll(call, _Plan(3, ("Sigmoid", "Tanh"), _gru_step, apart))


def lstm(call: Call) -> None:
    """C' = f C + i c, H' = o h(C') with gates i, o, f and candidate c."""
    _unroll(call, _Plan(4, ("Sigmoid", "Tanh", "Tanh"), _lstm_step))


def _unroll(call: Call, plan: _Plan) -> None:
    tape, node = call.tape, call.node
    _refuse_rare_forms(call)
    batch_first = call.attribute("layout", 0)
    x = call.input(0)
    length = tape.sizes(x, "a recurrence is unrolled")[1 if batch_first else 0]
    if batch_first:
        x = tape.emit("Transpose", x, perm=[1, 0, 2])
    kinds = {"forward": (0,), "reverse": (1,), "bidirectional": (0, 1)}
    turned = kinds[call.attribute("direction", "forward")]
    starts = [_initial(call, index, batch_first) for index in (5, 6)][
        : 2 if plan.gates == 4 else 1
    ]
    sequences: list[list[str]] = []
    finals: list[list[str]] = []
    for direction, backwards in enumerate(turned):
        cell, inputs = _direction(call, plan, (direction, len(turned)), (x, length))
        state = [_pick(tape, start, direction, len(turned)) for start in starts]
        outputs = []
        for step in inputs[::-1] if backwards else inputs:
            state = plan.step(cell, step, state)
            outputs.append(state[0])
        sequences.append(outputs[::-1] if backwards else outputs)
        finals.append(state)
    if node.output[0]:
        steps = [stacked(tape, list(parts), 0) for parts in zip(*sequences, strict=True)]
        whole = stacked(tape, steps, 0)
        if batch_first:
            whole = tape.emit("Transpose", whole, perm=[2, 0, 1, 3])
        give(tape, whole, node.output[0])
    for index, name in enumerate(node.output[1:]):
        if name:
            axis = 1 if batch_first else 0
            give(tape, stacked(tape, [state[index] for state in finals], axis), name)


def _direction(
    call: Call, plan: _Plan, which: tuple[int, int], sequence: tuple[str, int]
) -> tuple[Cell, list[str]]:
    """Return one direction's cell and its weighted inputs, step by step."""
    tape, hidden = call.tape, _hidden(call)
    weight, recurrent = (
        tape.emit("Transpose", _pick(tape, call.input(i), *which), perm=[1, 0]) for i in (1, 2)
    )
    product = tape.emit("MatMul", sequence[0], weight)
    apart = ""
    if call.input(3):
        width = plan.gates * hidden
        bias = _pick(tape, call.input(3), *which)
        halves = tape.emit_many("Split", [bias, tape.ints(width, width)], 2, axis=0)
        second = halves[1]
        if plan.bias_apart:
            apart = second
            product = tape.emit("Add", product, halves[0])
        else:
            product = tape.emit("Add", product, tape.emit("Add", halves[0], second))
    peepholes: tuple[str, ...] = ()
    if plan.gates == 4 and call.input(7):
        flat = _pick(tape, call.input(7), *which)
        peepholes = tape.emit_many("Split", [flat], 3, axis=0, num_outputs=3)
    count = len(plan.activations)
    names = [_ACTIVATIONS[name.lower()] for name in _named(call)]
    chosen = names[which[0] * count : (which[0] + 1) * count] or list(plan.activations)
    cell = Cell(tape, call, recurrent, apart, peepholes, tuple(chosen))
    return cell, steps_of(tape, product, sequence[1], 0)


def _rnn_step(cell: Cell, x: str, state: list[str]) -> list[str]:
    tape = cell.tape
    total = tape.emit("Add", x, tape.emit("MatMul", state[0], cell.recurrent))
    return [tape.emit(cell.activations[0], total)]


def _gru_step(cell: Cell, x: str, state: list[str]) -> list[str]:
    """Gates are z, r, h; the reset acts on H or, linear before reset, on H R^T + b."""
    tape, old, (gate, bend) = cell.tape, state[0], cell.activations
    parts = tape.emit_many("Split", [x], 3, axis=-1, num_outputs=3)
    weights = tape.emit_many("Split", [cell.recurrent], 3, axis=-1, num_outputs=3)
    biases: tuple[str, ...] = ("", "", "")
    if cell.recurrent_bias:
        biases = tape.emit_many("Split", [cell.recurrent_bias], 3, axis=0, num_outputs=3)

    def product(values: str, index: int) -> str:
        found = tape.emit("MatMul", values, weights[index])
        return tape.emit("Add", found, biases[index]) if biases[index] else found

    update = tape.emit(gate, tape.emit("Add", parts[0], product(old, 0)))
    reset = tape.emit(gate, tape.emit("Add", parts[1], product(old, 1)))
    if cell.call.attribute("linear_before_reset", 0):
        past = tape.emit("Mul", reset, product(old, 2))
    else:
        past = product(tape.emit("Mul", reset, old), 2)
    fresh = tape.emit(bend, tape.emit("Add", parts[2], past))
    change = tape.emit("Mul", update, tape.emit("Sub", old, fresh))
    return [tape.emit("Add", fresh, change)]


def _lstm_step(cell: Cell, x: str, state: list[str]) -> list[str]:
    """Gates are i, o, f, c; peepholes are of i, o, f."""
    tape, (old, memory), (gate, bend, out) = cell.tape, state, cell.activations
    total = tape.emit("Add", x, tape.emit("MatMul", old, cell.recurrent))
    enter, leave, forget, fresh = tape.emit_many("Split", [total], 4, axis=-1, num_outputs=4)

    def peeked(values: str, index: int, at: str) -> str:
        if not cell.peepholes:
            return values
        return tape.emit("Add", values, tape.emit("Mul", at, cell.peepholes[index]))

    entered = tape.emit(gate, peeked(enter, 0, memory))
    if cell.call.attribute("input_forget", 0):
        one = tape.scalar(1, cell.call.input(0))
        kept = tape.emit("Sub", one, entered)
    else:
        kept = tape.emit(gate, peeked(forget, 2, memory))
    new = tape.emit(
        "Add",
        tape.emit("Mul", kept, memory),
        tape.emit("Mul", entered, tape.emit(bend, fresh)),
    )
    left = tape.emit(gate, peeked(leave, 1, new))
    return [tape.emit("Mul", left, tape.emit(out, new)), new]


def _initial(call: Call, index: int, batch_first: int) -> str:
    """Return an initial state as [directions, batch, hidden], zeros where it is omitted."""
    tape = call.tape
    given = call.input(index)
    if given:
        return tape.emit("Transpose", given, perm=[1, 0, 2]) if batch_first else given
    x, hidden = call.input(0), _hidden(call)
    directions = 2 if call.attribute("direction", "forward") == "bidirectional" else 1
    axis = 0 if batch_first else 1
    batch = tape.shape(x)[axis]
    if isinstance(batch, int):
        shape = tape.ints(directions, batch, hidden)
    else:
        dim = tape.emit("Gather", tape.emit("Shape", x), tape.ints(axis))
        shape = tape.emit("Concat", tape.ints(directions), dim, tape.ints(hidden), axis=0)
    return tape.emit("Expand", tape.scalar(0, x), shape)


_ACTIVATIONS = {
    name.lower(): name
    for name in (
        *("Elu", "HardSigmoid", "LeakyRelu", "Relu", "Sigmoid"),
        *("Softplus", "Softsign", "Tanh"),
    )
}
"""Activations that are operators with the same defaults, by names in lower case.

ThresholdedRelu is none: without a number of its own ONNX Runtime takes 0, the operator 1."""


def _named(call: Call) -> list[str]:
    """Return the activations as the node names them."""
    given = call.attribute("activations", [])
    return [name.decode() if isinstance(name, bytes) else str(name) for name in given]


def _hidden(call: Call) -> int:
    """Return how wide the state is, from the weights where no attribute says so."""
    given = call.attribute("hidden_size")
    return int(given or call.tape.sizes(call.input(2), "a recurrence is unrolled")[-1])


def _pick(tape: Tape, name: str, direction: int, count: int) -> str:
    """Return one direction's part of a tensor whose first axis is directions."""
    if count > 1:
        name = tape.emit_many("Split", [name], count, axis=0, num_outputs=count)[direction]
    return tape.emit("Squeeze", name, tape.ints(0))


def _refuse_rare_forms(call: Call) -> None:
    numbers = ("clip", "activation_alpha", "activation_beta")
    rare = [name for name in numbers if call.attribute(name) is not None]
    if call.input(4):
        rare.append("sequence lengths")
    rare.extend(
        f"activation {name}" for name in _named(call) if name.lower() not in _ACTIVATIONS
    )
    if rare:
        raise ModelError(
            f"{call.node.op_type} {call.node.name or call.output()!r} has {', '.join(rare)}:"
            " it cannot be unrolled for its gradient"
        )
