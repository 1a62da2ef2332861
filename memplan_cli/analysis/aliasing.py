"""Which vars share their bytes? Views always may; a result may replace what dies there.

Both rules are tables of operators. A wrong entry corrupts data in silence, so an entry is
a statement about the operator's definition (every result element depends on the input
element at the same place, or the result *is* the input), and the replay runs each of them
on top of its input.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan_cli.analysis.liveness import live_ranges, steps
from memplan_cli.ir import Origin
from memplan_cli.problem import BufferId

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from memplan_cli.analysis.liveness import Step
    from memplan_cli.ir import Op, Program, VarId
    from memplan_cli.problem import LiveRange
    from memplan_cli.sizes import Size

VIEWS: frozenset[str] = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
"""The first output holds the bytes of the first input, in the same order."""

_FIRST = (0,)
_BOTH = (0, 1)

IN_PLACE: Mapping[str, tuple[int, ...]] = {
    # One input, element by element.
    **dict.fromkeys(
        (
            "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BitwiseNot", "Ceil",
            "Celu", "Clip", "Cos", "Cosh", "Elu", "Erf", "Exp", "Floor", "Gelu",
            "HardSigmoid", "HardSwish", "LeakyRelu", "Log", "Mish", "Neg", "Not",
            "Reciprocal", "Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign", "Sin",
            "Sinh", "Softplus", "Softsign", "Sqrt", "Swish", "Tan", "Tanh",
            "ThresholdedRelu",
        ),
        _FIRST,
    ),
    # Two inputs, element by element; the one of the result's size may be replaced.
    **dict.fromkeys(("Add", "Div", "Mul", "Pow", "Sub"), _BOTH),
    "PRelu": _FIRST,
    # Sums begin with the first two inputs; later ones are read after the first write.
    **dict.fromkeys(("Max", "Mean", "Min", "Sum"), _BOTH),
    # A row is reduced before any element of it is written.
    **dict.fromkeys(("LogSoftmax", "Softmax"), _FIRST),
    # The result starts as a copy of the first input, then some elements change.
    **dict.fromkeys(("ScatterElements", "ScatterND", "Trilu"), _FIRST),
    # A change of type with elements as wide as before; the sizes are compared anyway.
    "Cast": _FIRST,
}  # fmt: skip
"""Operator -> positions of the inputs that its first output may replace."""

STANDARD_DOMAINS = frozenset({"", "ai.onnx"})


@dataclass(frozen=True, slots=True)
class Aliasing:
    """The two tables, so that a caller may plan with another set of operators."""

    views: Collection[str]
    in_place: Mapping[str, tuple[int, ...]]


SHARE_NOTHING = Aliasing(frozenset(), {})
"""Levels 0 and 1: every var has storage of its own."""

SHARE_SAFELY = Aliasing(VIEWS, IN_PLACE)
"""Level 2."""


def share_storage(
    program: Program,
    sizes: Mapping[VarId, Size],
    aliasing: Aliasing = SHARE_SAFELY,
    live: Mapping[VarId, LiveRange] | None = None,
) -> dict[VarId, BufferId]:
    """Return the buffer of each var in ``sizes``: the id of the first var that uses it.

    Args:
        program: The ops in the order in which they will run.
        sizes: The vars that may share: planned ones, their sizes known. What must keep
            memory of its own (inputs, results, excluded vars) is not in it.
        aliasing: The operators that share.
        live: The program's live ranges, if the caller has them.
    """
    groups = _Groups(live_ranges(program) if live is None else live, sizes)
    clock = steps(program)
    carried = {v for s in clock if s.op.repeats for body in s.op.bodies for v in body.outputs}
    received = {v for v in sizes if program.vars[v].origin is Origin.BODY_INPUT}
    for step in clock:
        view = _view(step.op, sizes, aliasing)
        if view is None:
            continue
        base, result = view
        # A body's result is copied into the body's input for the next turn. Two carried
        # values that change places would overwrite each other if they were views.
        if result in carried and groups.root(base) in received:
            continue
        groups.unite(base, result)
    for step in clock:
        for source in _replaceable(step, sizes, aliasing, groups):
            groups.unite(source, step.op.outputs[0])
            break
    return {var: BufferId(groups.root(var)) for var in sizes}


class _Groups:
    """Union-find over vars; a group's root is its oldest var and its end the latest."""

    def __init__(self, live: Mapping[VarId, LiveRange], sizes: Mapping[VarId, Size]) -> None:
        self._parent = {var: var for var in sizes}
        self._end = {var: live[var].end for var in sizes}

    def root(self, var: VarId) -> VarId:
        parent = self._parent
        while parent[var] != var:
            parent[var] = parent[parent[var]]
            var = parent[var]
        return var

    def unite(self, older: VarId, younger: VarId) -> None:
        old, young = self.root(older), self.root(younger)
        if old != young:
            self._parent[young] = old
            self._end[old] = max(self._end[old], self._end[young])

    def end(self, var: VarId) -> int:
        return self._end[self.root(var)]


def _view(
    op: Op, sizes: Mapping[VarId, Size], aliasing: Aliasing
) -> tuple[VarId, VarId] | None:
    if op.type not in aliasing.views or op.domain not in STANDARD_DOMAINS:
        return None
    if not op.inputs or not op.outputs:
        return None
    base, result = op.inputs[0], op.outputs[0]
    if base in sizes and result in sizes and sizes[base] == sizes[result]:
        return base, result
    return None


def _replaceable(
    step: Step, sizes: Mapping[VarId, Size], aliasing: Aliasing, groups: _Groups
) -> Iterator[VarId]:
    """Yield the inputs that die at this op and whose memory its first output may take."""
    op = step.op
    positions = aliasing.in_place.get(op.type)
    if not positions or op.domain not in STANDARD_DOMAINS or not op.outputs:
        return
    result = op.outputs[0]
    if result not in sizes:
        return
    for position in positions:
        if position >= len(op.inputs):
            return
        source = op.inputs[position]
        if source not in sizes or sizes[source] != sizes[result]:
            continue
        if groups.end(source) != step.start + 1:
            continue
        # Read again elsewhere (a scatter's updates, a sum's third term), it would be
        # read after the first write.
        if any(op.inputs[i] == source for i in range(len(op.inputs)) if i not in positions):
            continue
        # Another input on the same bytes is read in another pattern, or not at all.
        others = {other for other in op.inputs if other in sizes and other != source}
        if all(groups.root(other) != groups.root(source) for other in others):
            yield source
