"""Which ranges the ops of a region compute in each chunk.

A chunk is assigned ranges of the region's outputs. From these, ranges are propagated
backwards: each op computes what its consumers read, including their halos. So neighboring
chunks overlap. The overlap is computed by both chunks, or carried over if that is less work:
then an op begins where the previous chunk ended, and the previous chunk's last rows are kept
and joined with its own. Rows of an op whose consumer has a halo of 2, in 3 chunks of 48 rows:

    computed twice     0..18      14..34      30..48
    carried            0..18      18..34      34..48     with rows 14..18 and 30..34 carried
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
    from memplan_cli.features.chunking.axes.split import AxisMap, Range, Split
    from memplan_cli.features.chunking.graph import Graph
    from memplan_cli.features.chunking.region import Region


@dataclass(frozen=True, slots=True)
class ChunkRanges:
    """The ranges of one chunk of a region.

    Attributes:
        computed: the range of its split that each op computes, by op index; ops are left out of which
        the chunk needs nothing, or only what the previous chunk made.
        outputs: the range of each region output that this chunk contributes.
        carried: the range of each tensor that this chunk receives from the previous one.
    """

    computed: Mapping[int, Range]
    outputs: Mapping[VarId, Range]
    carried: Mapping[VarId, Range]


def chunk_ranges(graph: Graph, region: Region, count: int) -> tuple[ChunkRanges, ...] | None:
    """Return the ranges of a region's chunks.

    None if ``count`` chunks would change the bits, or if an output's axis is shorter than ``count``.
    """
    if any(_joined_length(graph, region, var) < count for var in region.outputs):
        return None
    cuts = {var: _cut_positions(graph, region, var, count) for var in region.outputs}
    outputs = [
        {var: (positions[number], positions[number + 1]) for var, positions in cuts.items()}
        for number in range(count)
    ]
    # To carry rows is to keep the last ones of a chunk for the next chunk, which would compute them again. At
    # first, rows are carried wherever that saves work. Ops then compute shorter ranges, which may be too
    # short for the bits of their kernels. In that case no op carries rows.
    every_op_that_saves_work, no_op = None, frozenset[int]()
    for carrying_ops in (every_op_that_saves_work, no_op):
        chunks = _ranges_for_outputs(graph, region, outputs, carrying_ops)
        if chunks and _all_keep_bits(graph, region, chunks):
            return chunks
    return None


def output_axis_map(graph: Graph, region: Region, var: VarId) -> AxisMap:
    """Return the axis along which the chunks of a region output are joined."""
    producer = graph.dataflow.producer[var]
    axis_map = graph.output_map(producer, region.splits[producer], var)
    if axis_map is None:
        raise ValueError(f"{var!r} is left out of chunks")
    return axis_map


def _joined_length(graph: Graph, region: Region, var: VarId) -> int:
    """Return the length of the axis along which the chunks of a region output are joined."""
    return graph.dims(var)[output_axis_map(graph, region, var).axis]


def _cut_positions(graph: Graph, region: Region, var: VarId, count: int) -> list[int]:
    """Return the ``count + 1`` bounds of an output's chunks: ``[0, 6, 12, 18]`` for 3 of 18 rows.

    Chunks consist of whole blocks (`_block_count`), of nearly equal numbers: 9 blocks in 2 chunks
    are 4 and 5. The axis has at least ``count`` elements.
    """
    block_count = _block_count(graph, region, var, count)
    block_length = _joined_length(graph, region, var) // block_count
    return [number * block_count // count * block_length for number in range(count + 1)]


def _block_count(graph: Graph, region: Region, var: VarId, chunk_count: int) -> int:
    """Return the number of equal blocks, such as heads, of which each chunk gets a whole number.

    The number divides the length of the axis and the extents of all splits. So no index of any split
    is cut: for an axis of 768 and splits of 6 heads there are 6 blocks of 128.

    For more chunks than such blocks, each element of the axis is a block. So 8 chunks of these 768
    elements have 96 each, and a head that lies in two chunks is computed in both.
    """
    length = _joined_length(graph, region, var)
    block_count = gcd(length, *(split.extent for split in region.splits.values()))
    return block_count if block_count >= chunk_count else length


def fewest_chunks(graph: Graph, region: Region, count: int) -> int:
    """Return the fewest chunks of which none is longer than the longest of ``count`` chunks.

    The longest of 16 chunks of 18 rows has 2 rows, as in 9 chunks. Of 3 rows there are at most 3. If
    chunks consist of longer blocks (`_block_count`), blocks are counted in place of rows.
    """

    def fewest(var: VarId) -> int:
        blocks = _block_count(graph, region, var, count)
        longest = -(-blocks // count)
        return -(-blocks // longest)

    return max(map(fewest, region.outputs))


def _ranges_for_outputs(
    graph: Graph,
    region: Region,
    outputs: Sequence[Mapping[VarId, Range]],
    carrying_ops: Collection[int] | None,
) -> tuple[ChunkRanges, ...] | None:
    """Return the ranges of all chunks; None if an op would have nothing to compute in one.

    ``outputs`` are the ranges of the region's outputs for each chunk. ``carrying_ops`` are the ops
    whose last rows are kept for the next chunk, so that their overlap is not computed again. None:
    all ops for which this saves work in the second chunk, the first that has a previous one.
    """
    chunks: list[ChunkRanges] = []
    previous: _PreviousChunk | None = None
    for chunk_outputs in outputs:
        ranges = _backward_ranges(graph, region, chunk_outputs, previous)
        if ranges is None:
            return None
        rows_from_previous = _carried_ranges(graph, region, ranges)
        chunks.append(ChunkRanges(ranges.computed, chunk_outputs, rows_from_previous))
        is_second = len(chunks) == 2
        if is_second and carrying_ops is None:
            carrying_ops = ranges.carrying_ops  # all later chunks carry rows of the same ops
        previous = _PreviousChunk(ranges.op_ranges, carrying_ops)
    return tuple(chunks)


class _PreviousChunk(NamedTuple):
    """What can be carried over from the previous chunk.

    Attributes:
        op_ranges: the range of its split that the chunk needed of each op; all its rows are there.
        carrying_ops: the ops that may begin where the chunk ended; None: all that save work by this.
    """

    op_ranges: Mapping[int, Range]
    carrying_ops: Collection[int] | None

    def should_carry(self, graph: Graph, op_index: int, needed: Range) -> bool:
        """Whether an op begins where it ended in the previous chunk, instead of computing the overlap again.

        ``needed`` is the range of the op's split, overlap included.
        """
        if op_index not in self.op_ranges:
            return False
        op, (previous_start, previous_stop) = graph.ops[op_index], self.op_ranges[op_index]
        start, stop = needed
        if start < previous_start:
            return False  # the previous chunk does not have the first rows
        if self.carrying_ops is not None:
            return op_index in self.carrying_ops
        if stop <= previous_stop:
            return True  # there is nothing to join
        # The cheaper way: the overlap is work, and so is the Concat of the carried rows and the new ones.
        # Work and bytes are of the whole op. Those of a range are less by the same factor, the range
        # divided by the extent of the split. The extent is left out, as it is the same on both sides.
        op_work = op_cost(op, graph.program.vars).work
        op_bytes = sum(graph.bytes(var) for var in op.outputs if var)
        overlap_work = op_work * (previous_stop - start)
        moved_bytes = 2 * op_bytes  # read and written
        concat_work = FLOPS_PER_BYTE * moved_bytes * (stop - start)
        return overlap_work > concat_work

    def remaining_range(self, op_index: int, needed: Range) -> Range:
        """Return the part of a needed range that the previous chunk does not have; it may be empty."""
        start, stop = needed
        return min(max(start, self.op_ranges[op_index][1]), stop), stop


class _BackwardRanges(NamedTuple):
    """Ranges of one chunk, propagated from the region's outputs to its inputs.

    Attributes:
        op_ranges: the range of its split that this chunk needs of each op.
        computed: the part of it that each op computes; ops that compute nothing are left out.
        carrying_ops: the ops that begin where the previous chunk ended.
    """

    op_ranges: dict[int, Range]
    computed: dict[int, Range]
    carrying_ops: frozenset[int]


def _backward_ranges(
    graph: Graph,
    region: Region,
    outputs: Mapping[VarId, Range],
    previous: _PreviousChunk | None,
) -> _BackwardRanges | None:
    """Return the range that one chunk needs of each op of a region, and the part of this range that the op computes.

    A *carrying op* computes only the rows that the previous chunk does not have. After a chunk 0..18, these are 18..34
    of the needed rows 14..34. If no rows remain, the op has no entry in ``computed``. An op of which this chunk
    needs no rows has no entry at all. The result is None if another range is empty, of an op or of what it reads.

    Args:
        graph: The program.
        region: The region.
        outputs: The range of each output of the region in this chunk.
        previous: The chunk before; None for the first one.
    """
    op_ranges: dict[int, Range] = {}
    computed: dict[int, Range] = {}
    needed = dict(outputs)  # of each tensor, by the ops that were visited
    carrying_ops = set()
    for op_index in sorted(region.splits, reverse=True):  # consumers before their producers
        op, split = graph.ops[op_index], region.splits[op_index]
        needed_range = _range_for_outputs(op, split, needed)
        if needed_range is None:  # a Concat reads nothing of this op's output in this chunk
            continue
        op_ranges[op_index] = computed_range = needed_range
        if previous is not None and previous.should_carry(graph, op_index, needed_range):
            carrying_ops.add(op_index)
            computed_range = previous.remaining_range(op_index, needed_range)
            if computed_range[0] == computed_range[1]:
                continue  # the previous chunk has all rows, so the op is left out of this chunk
        reads = _read_ranges(graph, op, split, computed_range)
        if op.type == "Concat":  # it omits inputs of which it reads nothing
            reads = [(var, read) for var, read in reads if read[0] < read[1]]
        ranges = (computed_range, *(read for _, read in reads))
        if any(start >= stop for start, stop in ranges):
            return None
        computed[op_index] = computed_range
        for var, read in reads:
            if graph.dataflow.producer.get(var) in region.splits:
                known = needed.get(var, read)
                needed[var] = min(known[0], read[0]), max(known[1], read[1])
    return _BackwardRanges(op_ranges, computed, frozenset(carrying_ops))


def _read_ranges(
    graph: Graph, op: Op, split: Split, op_range: Range
) -> list[tuple[VarId, Range]]:
    """Return the sliced inputs that an op reads to compute ``op_range`` of its split, with ranges."""
    return [
        (var, axis_map.range(op_range, graph.dims(var)[axis_map.axis]))
        for var, axis_map in zip(op.inputs, split.inputs, strict=True)
        if axis_map is not None
    ]


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


def _carried_ranges(
    graph: Graph, region: Region, ranges: _BackwardRanges
) -> dict[VarId, Range]:
    """Return for each tensor the rows that this chunk needs but the previous chunk made.

    ``ranges`` count elements of an op's split; the axis map of an output turns them into rows. If the chunk
    needs the rows 14..34 and computes 18..34, the rows 14..18 are carried. Outputs that this chunk does not
    read are included, as the next chunk may read their rows.
    """
    carried = {}
    for op_index in ranges.carrying_ops:
        op, split = graph.ops[op_index], region.splits[op_index]
        needed, computed = ranges.op_ranges[op_index], ranges.computed.get(op_index)
        for var, axis_map in zip(op.outputs, split.outputs, strict=True):
            if not var or axis_map is None:
                continue
            dim = graph.dims(var)[axis_map.axis]
            needed_start, needed_stop = axis_map.range(needed, dim)
            # If the chunk computes nothing, all needed rows are carried.
            computed_start = axis_map.range(computed, dim)[0] if computed else needed_stop
            if needed_start < computed_start:
                carried[var] = needed_start, computed_start
    return carried


def _all_keep_bits(graph: Graph, region: Region, chunks: Sequence[ChunkRanges]) -> bool:
    """Whether the kernels of all ops give the bits of the whole in these chunks."""
    for op_index, split in region.splits.items():
        ranges = [chunk.computed[op_index] for chunk in chunks if op_index in chunk.computed]
        if not keeps_bits(graph.node_with_shapes(op_index), split, ranges):
            return False
    return True
