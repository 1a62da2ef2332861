"""What each piece of a region computes: ranges of tensors, from its results back to its inputs.

A piece is asked for its ranges of the region's results. Each op computes the range of its split
that covers what its readers need, so a halo is computed by both pieces that read it, and what
is made beyond what a reader needs is cut off by that reader.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING

from memplan_cli.transforms.chunking.kernels import keeps_bits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memplan_cli.core.program import VarId
    from memplan_cli.transforms.chunking.axes.terms import Part, Range
    from memplan_cli.transforms.chunking.graph import Graph
    from memplan_cli.transforms.chunking.region import Region


@dataclass(frozen=True, slots=True)
class Piece:
    """One piece of a region.

    Attributes:
        computed: The range of its split that each op computes.
        wanted: The range of each result that is the piece's own.
    """

    computed: Mapping[int, Range]
    wanted: Mapping[VarId, Range]


def pieces_of(graph: Graph, region: Region, count: int) -> tuple[Piece, ...] | None:
    """Return a region in so many pieces; None where kernels would change bits in one of them."""
    cuts = {var: _cuts(graph, region, var, count) for var in region.results}
    if any(len(at) <= count for at in cuts.values()):
        return None
    found = []
    for number in range(count):
        wanted = {var: (at[number], at[number + 1]) for var, at in cuts.items()}
        computed = computed_for(graph, region, wanted)
        if computed is None:
            return None
        found.append(Piece(computed, wanted))
    pieces = tuple(found)
    return pieces if _keep_bits(graph, region, pieces) else None


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


def computed_for(
    graph: Graph, region: Region, wanted: Mapping[VarId, Range]
) -> dict[int, Range] | None:
    """Return the range of its split that each op computes; None where one makes nothing."""
    needed = dict(wanted)
    computed: dict[int, Range] = {}
    for at in sorted(region.splits, reverse=True):
        op, split = graph.ops[at], region.splits[at]
        ranges = [
            _turns(needed[var], part)
            for var, part in zip(op.outputs, split.outputs, strict=True)
            if var in needed and part is not None
        ]
        if not ranges:
            return None
        starts, stops = zip(*ranges, strict=True)
        piece = max(min(starts), 0), min(max(stops), split.extent)
        computed[at] = piece
        for var, part in zip(op.inputs, split.inputs, strict=True):
            if part is None:
                continue
            read = part.range(piece, graph.dims(var)[part.axis])
            if read[0] >= read[1]:
                return None
            if graph.flow.producer.get(var) in region.splits:
                needed[var] = _hull(needed.get(var, read), read)
    return computed


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
