"""Which ranges the ops of a region compute in each chunk.

A chunk is assigned ranges of the region's outputs. From these, ranges are propagated
backwards: each op computes what its consumers read, including their halos. So neighbouring
chunks overlap, and compute the overlap twice. Rows of an op whose consumer has a halo of 2, in 3
chunks of 48 rows:

    0..18      14..34      30..48
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING

from memplan_cli.features.chunking.kernels import keeps_bits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memplan_cli.core.program import Op, VarId
    from memplan_cli.features.chunking.axes.split import AxisMap, Range, Split
    from memplan_cli.features.chunking.graph import Graph
    from memplan_cli.features.chunking.region import Region


@dataclass(frozen=True, slots=True)
class ChunkRanges:
    """The ranges of one chunk of a region.

    Attributes:
        computed: the range of its split that each op computes, by op index.
        outputs: the range of each region output that this chunk contributes.
    """

    computed: Mapping[int, Range]
    outputs: Mapping[VarId, Range]


def chunk_ranges(graph: Graph, region: Region, count: int) -> tuple[ChunkRanges, ...] | None:
    """Return the ranges of a region's chunks; None if ``count`` chunks would change the bits."""
    cuts = {var: _cut_positions(graph, region, var, count) for var in region.outputs}
    if any(len(positions) <= count for positions in cuts.values()):
        return None
    chunks = []
    for number in range(count):
        outputs = {
            var: (positions[number], positions[number + 1]) for var, positions in cuts.items()
        }
        computed = _computed_ranges(graph, region, outputs)
        if computed is None:
            return None
        chunks.append(ChunkRanges(computed, outputs))
    return tuple(chunks) if _all_keep_bits(graph, region, chunks) else None


def output_axis_map(graph: Graph, region: Region, var: VarId) -> AxisMap:
    """Return the axis along which the chunks of a region output are joined."""
    producer = graph.dataflow.producer[var]
    axis_map = graph.output_map(producer, region.splits[producer], var)
    if axis_map is None:
        raise ValueError(f"{var!r} is made whole by every chunk")
    return axis_map


def _cut_positions(graph: Graph, region: Region, var: VarId, count: int) -> list[int]:
    """Return the ``count + 1`` bounds of an output's chunks: ``[0, 6, 12, 18]`` for 3 of 18 rows.

    The axis is divided into equal blocks, and chunks consist of whole blocks. The number of
    blocks is the greatest that divides the axis and the extents of all splits, so that a block
    of any op belongs to one block of the output: for extents 6 (heads) and an axis of 768 (6 *
    128) there are 6 blocks of 128. If there are fewer blocks than chunks, each element is a
    block.

    Fewer than ``count + 1`` bounds mean that the axis is shorter than ``count``.
    """
    dim = graph.dims(var)[output_axis_map(graph, region, var).axis]
    block_count = gcd(dim, *(split.extent for split in region.splits.values()))
    if block_count < count:
        block_count = dim
    block_length = dim // block_count
    return sorted(
        {number * block_count // count * block_length for number in range(count + 1)}
    )


def _computed_ranges(
    graph: Graph, region: Region, outputs: Mapping[VarId, Range]
) -> dict[int, Range] | None:
    """Return the range of its split that each op computes in one chunk.

    Ops are visited from last to first, so all consumers of an op come before it.

    Args:
        graph: the graph.
        region: the region.
        outputs: the range of each region output that the chunk contributes.

    Returns:
        The ranges by op index; None if some op would compute or read an empty range.
    """
    computed: dict[int, Range] = {}
    needed = dict(outputs)  # the range of each tensor that its consumers in this chunk read
    for op_index in sorted(region.splits, reverse=True):
        op, split = graph.ops[op_index], region.splits[op_index]
        op_range = _range_for_outputs(op, split, needed)
        if op_range is None or op_range[0] >= op_range[1]:
            return None
        computed[op_index] = op_range
        for var, axis_map in zip(op.inputs, split.inputs, strict=True):
            if axis_map is None:
                continue
            read = axis_map.range(op_range, graph.dims(var)[axis_map.axis])
            if read[0] >= read[1]:
                return None
            if graph.dataflow.producer.get(var) in region.splits:
                needed[var] = _hull(needed.get(var, read), read)
    return computed


def _range_for_outputs(op: Op, split: Split, needed: Mapping[VarId, Range]) -> Range | None:
    """Return the range of a split that makes all needed ranges of an op's outputs.

    None if none of its outputs is needed. An output with scale 2 has 2 rows for each element
    of the split: rows 3..8 need the range 1..4.
    """
    ranges = [
        # The start is rounded down, the stop up.
        (needed[var][0] // axis_map.scale, -(-needed[var][1] // axis_map.scale))
        for var, axis_map in zip(op.outputs, split.outputs, strict=True)
        if var in needed and axis_map is not None
    ]
    if not ranges:
        return None
    starts, stops = zip(*ranges, strict=True)
    return max(min(starts), 0), min(max(stops), split.extent)


def _hull(first: Range, second: Range) -> Range:
    """Return the smallest range that contains both."""
    return min(first[0], second[0]), max(first[1], second[1])


def _all_keep_bits(graph: Graph, region: Region, chunks: Sequence[ChunkRanges]) -> bool:
    """Whether the kernels of all ops give the bits of the whole in these chunks."""
    for op_index, split in region.splits.items():
        node = graph.node(op_index)
        ranges = [chunk.computed[op_index] for chunk in chunks]
        if node is None or not keeps_bits(node, split, ranges):
            return False
    return True
