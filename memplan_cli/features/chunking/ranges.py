"""What each piece of a region computes: ranges of tensors, from its results back to its inputs.

A piece is asked for its ranges of the region's results. Each op computes the range of its split
that covers what its consumers need, and what is made beyond what a consumer needs is cut off by that
consumer. A halo is computed by both pieces that read it where it is small; where it is more work
than a copy of the piece, an op goes on where the piece before ended, and its consumers get the last
rows of that one, which are kept, and the piece's own, joined.

    computed twice     0..18      14..34      30..48
    kept               0..18      18..34      34..48     14..18 and 30..34 from the piece before
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.analysis.cost import FLOPS_PER_BYTE, op_cost
from memplan_cli.features.chunking.kernels import keeps_bits

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from memplan_cli.core.program import Op, VarId
    from memplan_cli.features.chunking.axes.terms import Part, Range, Split
    from memplan_cli.features.chunking.graph import Graph
    from memplan_cli.features.chunking.region import Region


@dataclass(frozen=True, slots=True)
class Piece:
    """One piece of a region.

    Attributes:
        computed: The range of its split that each op computes.
        wanted: The range of each result that is the piece's own.
        kept: The range of each var that the piece before has made and this one reads.
    """

    computed: Mapping[int, Range]
    wanted: Mapping[VarId, Range]
    kept: Mapping[VarId, Range]


def pieces_of(graph: Graph, region: Region, count: int) -> tuple[Piece, ...] | None:
    """Return a region in so many pieces; None where kernels would change bits in one of them."""
    cuts = {var: _cuts(graph, region, var, count) for var in region.results}
    if any(len(at) <= count for at in cuts.values()):
        return None
    wanted = [
        {var: (at[number], at[number + 1]) for var, at in cuts.items()}
        for number in range(count)
    ]
    # Where what is left of a piece is too narrow for a kernel, halos are computed twice.
    ways = (_pieces(graph, region, wanted, keeping) for keeping in (None, frozenset[int]()))
    return next((way for way in ways if way and _keep_bits(graph, region, way)), None)


def _pieces(
    graph: Graph,
    region: Region,
    wanted: Sequence[Mapping[VarId, Range]],
    keeping: Collection[int] | None,
) -> tuple[Piece, ...] | None:
    """Return what pieces compute; ``keeping`` says which ops go on where the last one ended."""
    found: list[Piece] = []
    for each in wanted:
        before = _Before(found[-1].computed, keeping) if found else None
        ranges = _ranges(graph, region, each, before)
        if ranges is None:
            return None
        keeping = ranges.keeping if before else keeping
        found.append(Piece(ranges.computed, each, _kept(graph, region, ranges)))
    return tuple(found)


def result_part(graph: Graph, region: Region, var: VarId) -> Part:
    """Return how a result of a region is put together."""
    at = graph.flow.producer[var]
    part = region.splits[at].outputs[graph.ops[at].outputs.index(var)]
    if part is None:
        raise ValueError(f"{var!r} is made whole by every piece")
    return part


def _cuts(graph: Graph, region: Region, var: VarId, count: int) -> list[int]:
    """Return where a result is cut, on the grid that all of the region's ops share if it can."""
    dim = graph.dims(var)[result_part(graph, region, var).axis]
    grid = gcd(dim, *(split.extent for split in region.splits.values()))
    grid = grid if grid >= count else dim
    cuts = [number * grid // count * (dim // grid) for number in range(count + 1)]
    return sorted(set(cuts))


class _Before(NamedTuple):
    """What the piece before has computed, and who goes on there; None where that is open."""

    computed: Mapping[int, Range]
    keeping: Collection[int] | None

    def keeps(self, graph: Graph, at: int, piece: Range) -> bool:
        """Whether an op goes on: what is there already is more work than a copy of the rest."""
        if self.keeping is not None:
            return at in self.keeping
        op, done = graph.ops[at], self.computed[at][1]
        again = op_cost(op, graph.program.vars).work * (done - piece[0])
        copied = sum(graph.bytes(var) for var in op.outputs if var) * (piece[1] - done)
        return again > 2 * FLOPS_PER_BYTE * copied > 0


class _Ranges(NamedTuple):
    """What each op computes, what is needed of each var, and who goes on where one ended."""

    computed: dict[int, Range]
    needed: dict[VarId, Range]
    keeping: frozenset[int]


def _ranges(
    graph: Graph, region: Region, wanted: Mapping[VarId, Range], before: _Before | None
) -> _Ranges | None:
    found = _Ranges({}, dict(wanted), frozenset())
    keeping = set()
    for at in sorted(region.splits, reverse=True):
        op, split = graph.ops[at], region.splits[at]
        piece = _hull_of_needs(op, split, found.needed)
        if piece is not None and before is not None and before.keeps(graph, at, piece):
            keeping.add(at)
            piece = max(piece[0], before.computed[at][1]), piece[1]
        if piece is None or piece[0] >= piece[1]:
            return None
        found.computed[at] = piece
        for var, part in zip(op.inputs, split.inputs, strict=True):
            if part is None:
                continue
            read = part.range(piece, graph.dims(var)[part.axis])
            if read[0] >= read[1]:
                return None
            if graph.flow.producer.get(var) in region.splits:
                found.needed[var] = _hull(found.needed.get(var, read), read)
    return found._replace(keeping=frozenset(keeping))


def _hull_of_needs(op: Op, split: Split, needed: Mapping[VarId, Range]) -> Range | None:
    """Return the range of a split that makes what is needed of an op; None for nothing."""
    ranges = [
        _turns(needed[var], part)
        for var, part in zip(op.outputs, split.outputs, strict=True)
        if var in needed and part is not None
    ]
    if not ranges:
        return None
    starts, stops = zip(*ranges, strict=True)
    return max(min(starts), 0), min(max(stops), split.extent)


def _kept(graph: Graph, region: Region, ranges: _Ranges) -> dict[VarId, Range]:
    """Return what is needed of vars before that which a piece makes of them."""
    found = {}
    for at in ranges.keeping:
        op, split = graph.ops[at], region.splits[at]
        for var, part in zip(op.outputs, split.outputs, strict=True):
            if var in ranges.needed and part is not None:
                dim = graph.dims(var)[part.axis]
                start, own = ranges.needed[var][0], part.range(ranges.computed[at], dim)[0]
                if start < own:
                    found[var] = start, own
    return found


def _turns(needed: Range, part: Part) -> Range:
    """Return the range of a split that makes a range of an output."""
    return needed[0] // part.scale, -(-needed[1] // part.scale)


def _hull(one: Range, other: Range) -> Range:
    return min(one[0], other[0]), max(one[1], other[1])


def _keep_bits(graph: Graph, region: Region, pieces: Sequence[Piece]) -> bool:
    for at, split in region.splits.items():
        node = graph.node(at)
        if node is None or not keeps_bits(node, split, [p.computed[at] for p in pieces]):
            return False
    return True
