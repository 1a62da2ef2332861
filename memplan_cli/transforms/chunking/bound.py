"""What no choice of regions gets below: the bytes that one op needs whole.

An op that stays whole has its inputs and results live at once, and an op that is split still
reads whole what its split reads whole. The bound is the largest of these needs, each op split
the way that needs least. Two splits of one op at once are not tried, here and by the search.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.analysis.aliasing import VIEWS
from memplan_cli.core.program import Origin

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from memplan_cli.analysis.aliasing import Aliasing
    from memplan_cli.core.program import Op, VarId
    from memplan_cli.transforms.chunking.graph import Graph


class Bound(NamedTuple):
    """The least that a budget can be, and the op that makes it."""

    bytes: int
    op: str
    tensors: tuple[VarId, ...]
    """What it has live at once, the largest first."""


def lower_bound(graph: Graph, planned: Collection[VarId], aliasing: Aliasing) -> Bound:
    """Return the most that one op needs whole, whatever is put in pieces.

    Args:
        graph: The program as it is.
        planned: The vars that count.
        aliasing: Which results may take the memory of an input.
    """
    least = Bound(0, "", ())
    for at, op in enumerate(graph.ops):
        if op.bodies:
            continue  # what its subgraphs make of what they are given is for them to say
        whole = _of_all(graph, op, planned, aliasing)
        for split in graph.splits(at):
            pairs = zip(op.inputs, split.inputs, strict=True)
            kept = _counted(graph, (var for var, part in pairs if part is None), planned)
            if kept.bytes < whole.bytes:
                whole = kept._replace(op=op.label)
        if whole.bytes > least.bytes:
            least = whole
    return least


def _of_all(graph: Graph, op: Op, planned: Collection[VarId], aliasing: Aliasing) -> Bound:
    found = _counted(graph, (*op.inputs, *op.outputs), planned)
    shared = 0
    if aliasing.views and op.outputs:
        made = op.outputs[0]
        may = range(len(op.inputs)) if op.type in VIEWS else aliasing.in_place.get(op.type, ())
        inputs = {op.inputs[at] for at in may if at < len(op.inputs)}
        shared = max((min(graph.bytes(v), graph.bytes(made)) for v in inputs if v), default=0)
    return Bound(found.bytes - shared, op.label, found.tensors)


def _counted(graph: Graph, vars_: Iterable[VarId], planned: Collection[VarId]) -> Bound:
    found = [
        var
        for var in dict.fromkeys(vars_)
        if var in planned and graph.program.vars[var].origin is not Origin.WEIGHT
    ]
    found.sort(key=lambda var: (-graph.bytes(var), var))
    return Bound(sum(map(graph.bytes, found)), "", tuple(found))
