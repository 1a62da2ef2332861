"""What no choice of regions gets below: the bytes that one op needs whole, or the results.

An op that stays whole has its inputs and results live at once. One in pieces reads whole, at its
first piece, what its split reads whole and what the op above can make only whole; after its last
piece, what it has made is there whole where a consumer cannot take it in pieces or the graph gives
it. The bound is the largest of these needs, each op split the way that needs least. Two splits
of one op at once are not tried, here and by the search.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.core.operators import operator
from memplan_cli.core.program import Origin

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from memplan_cli.analysis.aliasing import Aliasing
    from memplan_cli.core.program import Op, VarId
    from memplan_cli.features.chunking.axes.terms import Part, Split
    from memplan_cli.features.chunking.graph import Graph


class Bound(NamedTuple):
    """The least that a budget can be, and the op that makes it."""

    bytes: int
    op: str
    """Its label; none where the results of the graph make the bound."""
    tensors: tuple[VarId, ...]
    """What it has live at once, the largest first."""


def lower_bound(graph: Graph, planned: Collection[VarId], aliasing: Aliasing) -> Bound:
    """Return the most that one op or the end needs whole, whatever is put in pieces.

    Args:
        graph: The program as it is.
        planned: The vars that count.
        aliasing: Which results may take the memory of an input.
    """
    needs = _Needs(graph, planned, aliasing)
    at_end = needs.counted(graph.program.body.outputs, "")
    each = (needs.of(at) for at, op in enumerate(graph.ops) if not op.bodies)
    # What an op's subgraphs make of what they are given is for them to say.
    return max((at_end, *each), key=lambda need: need.bytes)


class _Needs:
    """What ops need whole."""

    def __init__(self, graph: Graph, planned: Collection[VarId], aliasing: Aliasing) -> None:
        self.graph, self.planned, self.aliasing = graph, planned, aliasing

    def of(self, at: int) -> Bound:
        """Return the least that an op needs, whole or in pieces."""
        in_pieces = (self._of_split(at, split) for split in self.graph.splits(at))
        # Of equal needs the one of fewer tensors says better what has to be whole.
        needs = (self._of_all(at), *in_pieces)
        return min(needs, key=lambda need: (need.bytes, len(need.tensors)))

    def _of_all(self, at: int) -> Bound:
        op = self.graph.ops[at]
        found = self.counted((*op.inputs, *op.outputs), op.label)
        return found._replace(bytes=found.bytes - self._shared(op))

    def _of_split(self, at: int, split: Split) -> Bound:
        op = self.graph.ops[at]
        pairs = tuple(zip(op.inputs, split.inputs, strict=True))
        kept = [var for var, part in pairs if part is None]
        given = [var for var, part in pairs if part and not self._is_made_so(var, part)]
        made = [
            var
            for var, part in zip(op.outputs, split.outputs, strict=True)
            if var and part and not self._is_taken_so(var, part)
        ]
        first, last = self.counted((*kept, *given), op.label), self.counted(kept, op.label)
        if made:
            # The last piece may take the place of something that is read whole.
            last = self.counted((*kept, *made), op.label)
            last = last._replace(bytes=last.bytes - self._shared(op))
        return max(first, last, key=lambda need: need.bytes)

    def _is_made_so(self, var: VarId, part: Part) -> bool:
        """Whether the op above may make a var along an axis; what no op makes is not counted."""
        at = self.graph.flow.producer.get(var)
        return at is not None and any(
            own is not None and own.axis == part.axis
            for split in self.graph.splits(at)
            for made, own in zip(self.graph.ops[at].outputs, split.outputs, strict=True)
            if made == var
        )

    def _is_taken_so(self, var: VarId, part: Part) -> bool:
        """Whether every consumer of a var may take it along an axis."""
        return var not in self.graph.results and all(
            any(own == part.axis for own in self._axes_read(at, var))
            for at in self.graph.consumers(var)
        )

    def _axes_read(self, at: int, var: VarId) -> Iterator[int]:
        for split in self.graph.splits(at):
            for read, own in zip(self.graph.ops[at].inputs, split.inputs, strict=True):
                if read == var and own is not None:
                    yield own.axis

    def _shared(self, op: Op) -> int:
        """Return the bytes that an input that may hold what an op makes."""
        if not self.aliasing.views or not op.outputs:
            return 0
        graph, made = self.graph, op.outputs[0]
        in_place = self.aliasing.in_place_inputs(op)
        may = range(len(op.inputs)) if operator(op).is_view else in_place
        inputs = {op.inputs[at] for at in may if at < len(op.inputs)}
        return max((min(graph.bytes(v), graph.bytes(made)) for v in inputs if v), default=0)

    def counted(self, vars_: Iterable[VarId], label: str) -> Bound:
        """Return the bytes of the vars that count, views of one another once."""
        graph = self.graph
        largest: dict[VarId, VarId] = {}
        for var in vars_:
            if var in self.planned and graph.program.vars[var].origin is not Origin.WEIGHT:
                root = self._root(var)
                known = largest.get(root, var)
                largest[root] = max(known, var, key=lambda each: (graph.bytes(each), each))
        found = sorted(largest.values(), key=lambda var: (-graph.bytes(var), var))
        return Bound(sum(map(graph.bytes, found)), label, tuple(found))

    def _root(self, var: VarId) -> VarId:
        """Return the var whose bytes a view shows."""
        while self.aliasing.views and (at := self.graph.flow.producer.get(var)) is not None:
            op = self.graph.ops[at]
            if not operator(op).is_view or var != op.outputs[0]:
                break
            var = op.inputs[0]
        return var
