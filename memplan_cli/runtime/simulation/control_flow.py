"""If, Loop and Scan simulated: how their subgraphs run, and what they request of the arena.

An If's branch writes straight into the If's outputs, a Loop's turn makes results that the
next turn (or the concatenation at the end) reads, a Scan's turn writes into slices of the
Scan's outputs. As in ONNX Runtime's sources (core/providers/cpu/controlflow), measured on
1.31.1.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from memplan_cli.runtime.simulation.ledger import Ledger, UnknownBytesError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.core.program import Block, Op, VarId
    from memplan_cli.runtime.simulation.frame import ControlFlow, Frame

_TURN_NUMBER = 8
_CONDITION = 1
"""A Loop keeps both in the arena while it runs."""

_SETTLED = 3
"""After a turn that traces and one that starts from its state, turns are all alike."""


def branches(frame: Frame, op: Op) -> None:
    """Make the outputs whose shapes are known, and run one branch."""
    body = _branch(frame, op)
    given = _given(frame, op, body)
    for inner, var in zip(body.outputs, op.outputs, strict=True):
        if given[inner] is None:
            frame.make(var)
    extra = frame.runner.frame(body, op, given, frame)
    for var in op.outputs:
        frame.make(var)
    for ticket in extra.values():
        frame.runner.ledger.free(ticket)


def _branch(frame: Frame, op: Op) -> Block:
    """Return the branch that was seen to run, else the one that needs more."""
    turns = [frame.turns(body) for body in op.bodies]
    if None not in turns:
        # A branch without ops leaves no trace: it ran where no other one did.
        return next(
            (body for body, count in zip(op.bodies, turns, strict=True) if count),
            next((body for body in op.bodies if not body.ops), op.bodies[0]),
        )
    needs = [_trial(frame, body, op) for body in op.bodies]
    return op.bodies[needs.index(max(needs))]


def _given(frame: Frame, op: Op, body: Block) -> dict[VarId, VarId | None]:
    """Return whose memory a branch's results lie in; without a shape it is made late."""
    found: dict[VarId, VarId | None] = {}
    for inner, var in zip(body.outputs, op.outputs, strict=True):
        shape = frame.runner.model.program.vars[inner].shape
        is_known = shape is not None and all(isinstance(dim, int) for dim in shape)
        found[inner] = None if is_known else var
    return found


def _trial(frame: Frame, body: Block, op: Op) -> int:
    """Return the most bytes a branch needs, without running it for good."""
    ledger = Ledger()
    runner = replace(frame.runner, ledger=ledger, patterns={}, frames=Counter(), keys={})
    runner.frame(body, op, dict.fromkeys(body.outputs))
    return ledger.peak


def loop(frame: Frame, op: Op) -> None:
    """Run the turns: one makes the next one's state, all keep their scan outputs."""
    (body,) = op.bodies
    ledger, keys = frame.runner.ledger, frame.runner.keys
    carried = len(op.inputs) - 1
    states = frozenset(body.outputs[:carried])
    own = [ledger.allocate(_TURN_NUMBER)]
    before: list[int] = []
    state = [condition := ledger.allocate(_CONDITION)]
    slices: list[int] = []
    source = op.inputs[2:]
    for _ in range(_loop_turns(frame, op)):
        # What a turn was given stays until the next one was given its results.
        for ticket in before:
            ledger.free(ticket)
        found = [keys.get(var, 0) for var in source]
        keys.update(zip(body.inputs[2:], found, strict=True))
        source = body.outputs[1:carried]
        results = frame.runner.frame(body, op, {}, frame)
        if condition in state and body.outputs[0] not in results:
            # Passed on as it is, it lasts; else it goes like any state.
            state.remove(condition)
            own.append(condition)
        before = state
        state = [ticket for var, ticket in results.items() if var in states]
        slices += [ticket for var, ticket in results.items() if var not in states]
    for var in op.outputs:
        frame.make(var)
    for ticket in (*before, *state, *slices, *own):
        ledger.free(ticket)


def _loop_turns(frame: Frame, op: Op) -> int:
    """Return how often a Loop turns; what it collects cannot do without knowing."""
    turns = frame.turns(op.bodies[0])
    if turns is None and len(op.bodies[0].outputs) > len(op.inputs) - 1:
        raise UnknownBytesError(f"turns of {op.label}")
    return _SETTLED if turns is None else turns


def scan(frame: Frame, op: Op) -> None:
    """Run a few turns between two buffers a state; outputs are written in slices."""
    (body,) = op.bodies
    ledger = frame.runner.ledger
    for var in op.outputs:
        frame.make(var)
    states = len(op.inputs) - int(str(op.attributes["num_scan_inputs"]))
    turns = _scan_turns(frame, op)
    spare = min(max(turns - 1, 0), 2)
    own = [
        ledger.allocate(_state_bytes(frame, var))
        for var in body.outputs[:states]
        for _ in range(spare)
    ]
    left = turns
    while left:
        results = frame.runner.frame(body, op, dict.fromkeys(body.outputs), frame)
        for ticket in results.values():
            ledger.free(ticket)
        left -= 1
        if turns - left == _SETTLED and frame.runner.is_alike(body, left):
            frame.runner.frames[body.path] += left
            break
    for ticket in own:
        ledger.free(ticket)


def _scan_turns(frame: Frame, op: Op) -> int:
    """Return how often a Scan turns: as long as the axis that it goes along."""
    seen = frame.turns(op.bodies[0])
    if seen is not None:
        return seen
    axes = op.attributes.get("scan_input_axes", (0,))
    axis = axes[-1] if isinstance(axes, tuple) and axes else 0
    shape = frame.runner.model.program.vars[op.inputs[-1]].shape
    length = shape[int(axis)] if shape is not None else None
    return length if isinstance(length, int) else _SETTLED


def _state_bytes(frame: Frame, var: VarId) -> int:
    """Return the bytes of a state, which never changes its shape.

    Raises:
        UnknownBytesError: they depend on data, and nobody saw them.
    """
    model = frame.runner.model
    if var in model.bytes:
        return model.bytes[var]
    seen = model.observed.written.get(var, ()) if model.observed else ()
    if not seen:
        raise UnknownBytesError(str(var))
    return seen[0].bytes


CONTROL_FLOW: Mapping[str, ControlFlow] = {
    "If": branches,
    "Loop": loop,
    "Scan": scan,
}
