"""RNN, GRU and LSTM, unrolled over their sequence.

The whole sequence is multiplied by the input weights W at once, only the product with the
recurrence weights R is repeated in each step. So the gradient of W is one product too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan_cli.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable

    from memplan_cli.features.training.tape import Call


@dataclass(frozen=True, slots=True)
class Cell:
    """The tensors of one direction of a recurrent node that all its steps share.

    Attributes:
        call: the recurrent node.
        recurrent: R^T, [hidden, gates * hidden].
        recurrent_bias: the bias of H R^T, [gates * hidden], if it is not added to X W^T; else empty.
        activations: operators of this direction.
    """

    call: Call
    recurrent: str
    recurrent_bias: str
    activations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RecurrentOperator:
    """How RNN, GRU and LSTM differ.

    Attributes:
        gates: products with weights in a step.
        state_count: 2 for an LSTM (H and C), else 1 (H).
        activations: the defaults.
        step: from a cell, X W^T of one step, [batch, gates * hidden], and the state before it to the
            state after it; each state is [batch, hidden].
        separates_bias: whether the bias of H R^T is not added to X W^T.
    """

    gates: int
    state_count: int
    activations: tuple[str, ...]
    step: Callable[[Cell, str, list[str]], list[str]]
    separates_bias: bool = False


def rnn(call: Call) -> None:
    """H' = f(X W^T + H R^T + B)."""
    _unroll(call, RecurrentOperator(1, 1, ("Tanh",), _rnn_step))


def gru(call: Call) -> None:
    """H' = (1 - z) h + z H with gates z, r and candidate h."""
    separates_bias = bool(call.attribute("linear_before_reset", 0))
    _unroll(call, RecurrentOperator(3, 1, ("Sigmoid", "Tanh"), _gru_step, separates_bias))


def lstm(call: Call) -> None:
    """C' = f C + i c, H' = o h(C') with gates i, o, f and candidate c."""
    _unroll(call, RecurrentOperator(4, 2, ("Sigmoid", "Tanh", "Tanh"), _lstm_step))


def _unroll(call: Call, operator: RecurrentOperator) -> None:
    """Write the steps of all directions, and the node's outputs Y, Y_h and Y_c.

    Raises:
        ModelError: the node has an attribute or input that is not supported.
        UnknownShapeError: the shape of the input is not known.
    """
    tape, node = call.tape, call.node
    _reject_unsupported(call)
    x = call.input(0)
    length = tape.sizes(x, why="a recurrence is unrolled")[0]
    # For each direction, whether it reads the sequence backwards.
    reversals = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
    is_reversed = reversals[call.attribute("direction", "forward")]
    # Input 5 is the initial H, input 6 the initial C.
    initial = [_initial_state(call, 5 + index) for index in range(operator.state_count)]
    sequences: list[list[str]] = []  # of each direction: H of each step
    final_states: list[list[str]] = []
    for direction, backwards in enumerate(is_reversed):
        cell, products = _cell(call, operator, x, length, direction)
        state = [_of_direction(call, tensor, direction) for tensor in initial]
        hidden_states = []
        for product in products[::-1] if backwards else products:
            state = operator.step(cell, product, state)
            hidden_states.append(state[0])
        sequences.append(hidden_states[::-1] if backwards else hidden_states)
        final_states.append(state)
    if node.output[0]:
        steps = [tape.stack(parts) for parts in zip(*sequences, strict=True)]
        tape.copy_to(node.output[0], tape.stack(steps))
    for index, name in enumerate(node.output[1:]):
        if name:
            tape.copy_to(name, tape.stack([state[index] for state in final_states]))


def _cell(
    call: Call, operator: RecurrentOperator, x: str, length: int, direction: int
) -> tuple[Cell, list[str]]:
    """Return the cell of a direction, and X W^T + B of each step, [batch, gates * hidden].

    The node has a bias of X W^T and a bias of H R^T. B is the sum of both biases. If the operator has
    `RecurrentOperator.separates_bias`, B is the former alone, and the cell gets the latter.
    """
    tape = call.tape
    weight, recurrent = (
        tape.emit("Transpose", _of_direction(call, call.input(i), direction), perm=[1, 0])
        for i in (1, 2)
    )
    product = tape.emit("MatMul", x, weight)
    recurrent_bias = ""
    if call.input(3):  # both biases in one vector: that of X W^T, then that of H R^T
        width = operator.gates * _hidden_size(call)
        both_biases = _of_direction(call, call.input(3), direction)
        input_bias, recurrent_bias = tape.emit_many(
            "Split", [both_biases, tape.ints(width, width)], 2, axis=0
        )
        if not operator.separates_bias:
            input_bias, recurrent_bias = tape.emit("Add", input_bias, recurrent_bias), ""
        product = tape.emit("Add", product, input_bias)
    cell = Cell(call, recurrent, recurrent_bias, _activations(call, operator, direction))
    return cell, tape.unstack(product, length)


def _activations(call: Call, operator: RecurrentOperator, direction: int) -> tuple[str, ...]:
    """Return the operators of the activations of a direction: those of the node, or the defaults.

    A node lists the activations of the first direction, then those of the second.
    """
    count = len(operator.activations)
    named = [_ACTIVATIONS[name.lower()] for name in _activation_names(call)]
    return tuple(named[direction * count : (direction + 1) * count]) or operator.activations


def _rnn_step(cell: Cell, product: str, state: list[str]) -> list[str]:
    """Return [H'] = [f(X W^T + H R^T + B)], with ``product`` X W^T + B."""
    tape = cell.call.tape
    total = tape.emit("Add", product, tape.emit("MatMul", state[0], cell.recurrent))
    return [tape.emit(cell.activations[0], total)]


def _gru_step(cell: Cell, product: str, state: list[str]) -> list[str]:
    """Return [H'] = [h + z (H - h)], with the gates z and r, and the candidate h.

        z = f(X_z + P_z(H))     r = f(X_r + P_r(H))     h = g(X_h + P_h(r H))

    With linear_before_reset, h = g(X_h + r P_h(H)). X_z, X_r, X_h are the thirds of ``product``. P_i(H) is
    H R_i^T, plus a bias with linear_before_reset: else ``product`` has the bias already.
    """
    tape, hidden, (f, g) = cell.call.tape, state[0], cell.activations
    x_z, x_r, x_h = tape.emit_many("Split", [product], 3, axis=-1, num_outputs=3)
    weights = tape.emit_many("Split", [cell.recurrent], 3, axis=-1, num_outputs=3)
    biases: tuple[str, ...] = ("", "", "")
    if cell.recurrent_bias:
        biases = tape.emit_many("Split", [cell.recurrent_bias], 3, axis=0, num_outputs=3)

    def recurrent_product(left: str, gate: int) -> str:
        without_bias = tape.emit("MatMul", left, weights[gate])
        return tape.emit("Add", without_bias, biases[gate]) if biases[gate] else without_bias

    update = tape.emit(f, tape.emit("Add", x_z, recurrent_product(hidden, 0)))
    reset = tape.emit(f, tape.emit("Add", x_r, recurrent_product(hidden, 1)))
    if cell.call.attribute("linear_before_reset", 0):
        past = tape.emit("Mul", reset, recurrent_product(hidden, 2))
    else:
        past = recurrent_product(tape.emit("Mul", reset, hidden), 2)
    candidate = tape.emit(g, tape.emit("Add", x_h, past))
    change = tape.emit("Mul", update, tape.emit("Sub", hidden, candidate))
    return [tape.emit("Add", candidate, change)]


def _lstm_step(cell: Cell, product: str, state: list[str]) -> list[str]:
    """Return [H', C'] of the next step, from [H, C].

    X_i, X_o, X_f, X_c are the quarters of X W^T + H R^T + B. The gates are i = s(X_i), f = s(X_f) and
    o = s(X_o), with the activation s. Then C' = f C + i g(X_c) and H' = o h(C').
    """
    tape, (hidden, memory), (s, g, h) = cell.call.tape, state, cell.activations
    total = tape.emit("Add", product, tape.emit("MatMul", hidden, cell.recurrent))
    x_i, x_o, x_f, x_c = tape.emit_many("Split", [total], 4, axis=-1, num_outputs=4)
    input_gate, forget_gate, output_gate = (tape.emit(s, x) for x in (x_i, x_f, x_o))
    new_memory = tape.emit(
        "Add",
        tape.emit("Mul", forget_gate, memory),
        tape.emit("Mul", input_gate, tape.emit(g, x_c)),
    )
    return [tape.emit("Mul", output_gate, tape.emit(h, new_memory)), new_memory]


def _initial_state(call: Call, index: int) -> str:
    """Return the initial state at an input as [directions, batch, hidden]; zeros if it is omitted."""
    tape, name = call.tape, call.input(index)
    if name:
        return name
    x = call.input(0)
    _, batch, _ = tape.sizes(x, why="a recurrence is unrolled")
    shape = tape.ints(_direction_count(call), batch, _hidden_size(call))
    return tape.emit("Expand", tape.scalar(0, x), shape)


_ACTIVATIONS = {
    name.lower(): name
    for name in (
        *("Elu", "HardSigmoid", "LeakyRelu", "Relu", "Sigmoid"),
        *("Softplus", "Softsign", "Tanh"),
    )
}
"""Activations that are operators with the same defaults, by their names in lower case.

ThresholdedRelu is missing: its default threshold is 0 in ONNX Runtime's RNN, and 1 as an operator."""


def _activation_names(call: Call) -> list[str]:
    """Return the activations as the node names them; empty: the defaults."""
    names = call.attribute("activations", [])
    return [name.decode() if isinstance(name, bytes) else str(name) for name in names]


def _hidden_size(call: Call) -> int:
    """Return the width of the state, from the shape of R if there is no attribute."""
    size = call.attribute("hidden_size")
    return int(size or call.tape.sizes(call.input(2), why="a recurrence is unrolled")[-1])


def _direction_count(call: Call) -> int:
    return 2 if call.attribute("direction", "forward") == "bidirectional" else 1


def _of_direction(call: Call, name: str, direction: int) -> str:
    """Return one direction's slice of a tensor whose first axis has the directions."""
    tape, count = call.tape, _direction_count(call)
    if count > 1:
        name = tape.emit_many("Split", [name], count, axis=0, num_outputs=count)[direction]
    return tape.emit("Squeeze", name, tape.ints(0))


def _reject_unsupported(call: Call) -> None:
    """Raise ModelError if a node has a form that no current exporter writes, or sequence lengths."""
    attributes = ["clip", "activation_alpha", "activation_beta", "layout"]
    if call.node.op_type == "LSTM":
        attributes.append("input_forget")
    unsupported = [name for name in attributes if call.attribute(name)]
    if call.input(4):
        unsupported.append("sequence lengths")
    if call.input(7):
        unsupported.append("peepholes")
    unsupported.extend(
        f"activation {name}"
        for name in _activation_names(call)
        if name.lower() not in _ACTIVATIONS
    )
    if unsupported:
        raise ModelError(
            f"{call.node.op_type} {call.label!r} has {', '.join(unsupported)}:"
            " it cannot be unrolled for its gradient"
        )
