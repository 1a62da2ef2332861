"""Rewriting of regions: inputs sliced, ops once per chunk, outputs joined.

    x -> Slice -> op -> op \\
    x -> Slice -> op -> op -> Concat -> y

Tensors that remain keep their names. Ops and vars that only the replaced ops used are removed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate, compress
from typing import TYPE_CHECKING

from memplan_cli.analysis.precedence import nearest_order
from memplan_cli.core.program import Op, VarId
from memplan_cli.features.chunking.axes.table import chunk_edit
from memplan_cli.features.chunking.ranges import chunk_ranges, output_axis_map
from memplan_cli.features.chunking.writer import ProgramWriter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memplan_cli.core.program import Program
    from memplan_cli.features.chunking.axes.split import AxisMap, Dims, Range, Split
    from memplan_cli.features.chunking.graph import Graph
    from memplan_cli.features.chunking.ranges import ChunkRanges
    from memplan_cli.features.chunking.region import Region


@dataclass(frozen=True, slots=True)
class ChunkedProgram:
    """A program with regions in chunks.

    Attributes:
        program: the ops; those of regions once per chunk.
        constants: the values of each new weight.
        region_ranges: for each region, in the order given to `rewrite_in_chunks`, the range of
        indices of its ops.
    """

    program: Program
    constants: Mapping[VarId, Dims] = field(default_factory=dict)
    region_ranges: tuple[Range, ...] = ()


def rewrite_in_chunks(
    graph: Graph, chosen: Sequence[tuple[Region, int]]
) -> ChunkedProgram | None:
    """Return the program with each region in its number of chunks (``chosen`` has pairs of both).

    None if a region cannot be cut into so many chunks without changing bits, or if two regions
    need outputs of each other. The regions share no op.
    """
    regions = [region for region, _ in chosen]
    order = _order_regions(graph, regions)
    if order is None:
        return None
    chunks_of_regions: list[tuple[ChunkRanges, ...]] = []
    for region, count in chosen:
        chunks = chunk_ranges(graph, region, count)
        if chunks is None:
            return None
        chunks_of_regions.append(chunks)
    writer = ProgramWriter(graph)
    # For each region the range of its ops in ``writer.ops``.
    written_ops: dict[int, Range] = {}
    for item in order:
        if isinstance(item, Op):
            writer.ops.append(item)
            continue
        start = len(writer.ops)
        _write_region(writer, regions[item], chunks_of_regions[item])
        written_ops[item] = start, len(writer.ops)
    return _without_unused(writer, [written_ops[number] for number in range(len(chosen))])


def _order_regions(graph: Graph, regions: Sequence[Region]) -> list[Op | int] | None:
    """Return ops and numbers of regions in a topological order; None if regions need each other.

    A region, that is ops computed chunk by chunk, stands in place of these ops. With 6 ops, of which
    the third to the fifth are region 0: ``[op, op, 0, op]``. Ops and regions stay as near as possible to their
    places in the program; a region's place is that of the first op that it replaces.
    """
    # ``splits`` has all ops of a region, by index. Its duplicated ops are not replaced: they run in the
    # chunks, and also whole, for ops outside the region that read them.
    replaced_ops = [region.splits.keys() - region.duplicated for region in regions]
    # The items to sort are the ops, by index, and behind them the regions: region ``n`` is item
    # ``op_count + n``. An op that a region replaces stays an item, which nothing waits for and which
    # waits for nothing; it is left out at the end.
    op_count = len(graph.ops)
    region_item_of_replaced_op = {
        index: item
        for item, replaced in enumerate(replaced_ops, start=op_count)
        for index in replaced
    }
    op_producers = [
        () if index in region_item_of_replaced_op else graph.producers(index)
        for index in range(op_count)
    ]
    # A region waits for the producers of its inputs, and for no op of its own, duplicated or not: each
    # chunk computes its slices of these.
    region_producers = [
        {op for index in region.splits for op in graph.producers(index)} - region.splits.keys()
        for region in regions
    ]
    successors: list[set[int]] = [set() for _ in range(op_count + len(regions))]
    for item, producers in enumerate((*op_producers, *region_producers)):
        for producer in producers:
            successors[region_item_of_replaced_op.get(producer, producer)].add(item)
    places = [*range(op_count), *map(min, replaced_ops)]
    order = nearest_order([sorted(after) for after in successors], places.__getitem__)
    if len(order) < len(successors):
        return None
    return [
        graph.ops[item] if item < op_count else item - op_count
        for item in order
        if item not in region_item_of_replaced_op
    ]


def _write_region(
    writer: ProgramWriter, region: Region, chunks: Sequence[ChunkRanges]
) -> None:
    """Add the ops of all chunks of a region to the writer, and join the region's outputs.

    ``chunks`` say which rows a chunk computes, and which are carried over from the chunk before it. All
    outputs of the region's original ops, and weights that these read, are added to
    ``writer.maybe_unused``; those that are still read stay in the program (`_without_unused`).
    """
    graph = writer.graph
    output_slices: dict[VarId, list[VarId]] = {var: [] for var in region.outputs}
    carried_vars: Mapping[VarId, VarId] = {}  # the rows that come from the chunk before
    # For each chunk the ranges of rows that the next one needs of it.
    next_carried = [*(chunk.carried for chunk in chunks[1:]), {}]
    for index, chunk in enumerate(chunks):
        chunk_writer = _ChunkWriter(writer, region, chunk, f"__chunk{index + 1}")
        carried_vars = chunk_writer.write(carried_vars, next_carried[index])
        for var, slices in output_slices.items():
            axis = output_axis_map(graph, region, var).axis
            slices.append(chunk_writer.slice_of(var, axis, chunk.outputs[var]))
    for var, slices in output_slices.items():
        axis = output_axis_map(graph, region, var).axis
        producer = graph.ops[graph.dataflow.producer[var]].label
        writer.concat(
            f"{producer}__chunks", tuple(slices), output=var, axis=axis, original=var
        )
    for index in region.splits:
        op = graph.ops[index]
        writer.maybe_unused.update(filter(None, op.outputs))
        writer.maybe_unused.update(var for var in op.inputs if var in graph.weights)


def _without_unused(writer: ProgramWriter, region_ranges: Sequence[Range]) -> ChunkedProgram:
    """Return the written program without the vars of ``writer.maybe_unused`` that no op reads now.

    If a Constant op makes such a var, which is a weight, the op is removed too. All of ``writer.constants``
    stay, as ops read them. ``region_ranges`` are the ops of each region, counted before the removal.
    """
    program = writer.graph.program
    read = {var for op in writer.ops for var in op.reads}
    unused = {
        var
        for var in writer.maybe_unused
        if var not in read
        and var not in program.overridable
        and var not in program.body.outputs
    }
    is_kept = [not op.outputs or not unused.issuperset(op.outputs) for op in writer.ops]
    # An op that stays for another output keeps its unused output too.
    unused -= {var for op in compress(writer.ops, is_kept) for var in op.outputs}
    # The index of each op once removed ops are gone.
    new_index = [0, *accumulate(map(int, is_kept))]
    return ChunkedProgram(
        program.with_ops(
            compress(writer.ops, is_kept),
            {var: record for var, record in writer.vars.items() if var not in unused},
        ),
        {var: values for values, var in writer.constants.items()},
        tuple((new_index[start], new_index[stop]) for start, stop in region_ranges),
    )


@dataclass(frozen=True, slots=True)
class _SlicedVar:
    """A var of the rewritten program that holds a slice of a tensor of the original one.

    Attributes:
        range: the range of the sliced axis, in elements of the original tensor.
    """

    var: VarId
    range: Range


class _ChunkWriter:
    """Adds the ops of one chunk of a region to a program, each behind the slices that it reads.

    The copy of an op has the ``source`` of the original, as recomputed ops do. Tensors are
    named by their vars in the original program.

    Attributes:
        _writer: the program that is written; ops and vars are added to it.
        _graph: the original program.
        _chunk: the ranges of this chunk.
        _name_suffix: appended to the names of all ops and vars of this chunk; a number may follow.
    """

    def __init__(
        self, writer: ProgramWriter, region: Region, chunk: ChunkRanges, name_suffix: str
    ) -> None:
        self._writer, self._graph = writer, writer.graph
        self._region, self._chunk = region, chunk
        self._name_suffix = name_suffix  # such as ``__chunk2``
        # For each tensor that the region makes, the rows that this chunk computes; if it computes none,
        # the rows that are carried over from the previous chunk.
        self._main_slices: dict[VarId, _SlicedVar] = {}
        # Carried and computed rows in one var, for tensors of which this chunk has both.
        self._joined_slices: dict[VarId, _SlicedVar] = {}
        # The output of each Slice that was added, by tensor, axis and range of the original program.
        self._added_slices: dict[tuple[VarId, int, Range], VarId] = {}

    def write(
        self, carried_vars: Mapping[VarId, VarId], next_carried: Mapping[VarId, Range]
    ) -> Mapping[VarId, VarId]:
        """Add the ops of the chunk, in order.

        Args:
            carried_vars: for each tensor of which the previous chunk carried rows over, the var
                that holds these rows.
            next_carried: for each tensor of which the next chunk needs rows of this one, the
                range of these rows.

        Returns:
            For each tensor in ``next_carried``, the var that holds these rows.
        """
        next_vars: dict[VarId, VarId] = {}
        # For each op of the region, ``split`` tells along which axes its inputs and outputs are sliced.
        for index, split in sorted(self._region.splits.items()):
            # The chunk may need nothing of an op, or only rows that the previous chunk has computed.
            is_computed = index in self._chunk.computed
            if is_computed:
                self._write_op(index, split)
            outputs = zip(self._graph.ops[index].outputs, split.outputs, strict=True)
            for var, axis_map in outputs:
                if axis_map is None:  # not sliced, so no rows are carried
                    continue
                if var in carried_vars:
                    carried = _SlicedVar(carried_vars[var], self._chunk.carried[var])
                    if is_computed:  # the chunk has more rows, which follow the carried ones
                        self._join_carried(var, axis_map.axis, carried)
                    else:  # the carried rows are all that the chunk needs
                        self._main_slices[var] = carried
                if var in next_carried:
                    next_vars[var] = self.slice_of(var, axis_map.axis, next_carried[var])
        return next_vars

    def _write_op(self, index: int, split: Split) -> None:
        """Add the copy of one op that computes its range of a split, behind the slices that it reads.

        The copy has other attributes and constant inputs where the operator needs that (`ChunkEdit`).
        """
        op, op_range = self._graph.ops[index], self._chunk.computed[index]
        edit = chunk_edit(self._graph.node_with_shapes(index), split, op_range)
        inputs = self._add_input_slices(op, split, op_range, edit.constants)
        outputs = [
            self._add_output(var, axis_map, op_range)
            for var, axis_map in zip(op.outputs, split.outputs, strict=True)
        ]
        copy = op._replace(
            name=self._writer.op_name(f"{op.label}{self._name_suffix}"),
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            attributes={**op.attributes, **edit.attributes},
        )
        first_output_map = split.outputs[0]
        if first_output_map is not None and any(edit.surplus):
            # The copy also makes elements before and after its own slice of the first output.
            axis = first_output_map.axis
            self._append_without_surplus(copy, op.outputs[0], axis, edit.surplus)
        else:
            self._writer.ops.append(copy)

    def _append_without_surplus(
        self, copy: Op, original: VarId, axis: int, surplus: tuple[int, int]
    ) -> None:
        """Append the op ``copy``, whose first output has a surplus along ``axis``, and a Slice that drops it.

        ``surplus`` is the number of elements before and after the chunk's own slice of the tensor ``original``.
        The op makes a new, wider var; the Slice makes the var of the own slice, so far an output of ``copy``.
        """
        before, after = surplus
        start, stop = self._main_slices[original].range
        dims = list(self._graph.dims(original))
        dims[axis] = before + (stop - start) + after
        wide = self._writer.new_var(original, f"{self._name_suffix}_wide", tuple(dims))
        self._writer.ops.append(copy._replace(outputs=(wide, *copy.outputs[1:])))
        self._writer.slice(
            var=wide,
            output=copy.outputs[0],
            axis=axis,
            bounds=(before, before + stop - start),
            original=original,
        )

    def _add_input_slices(
        self, op: Op, split: Split, op_range: Range, constants: Mapping[int, Dims]
    ) -> list[VarId]:
        """Add the slices that an op's copy reads, and return the inputs of the copy.

        The copy computes ``op_range`` of the split. ``constants`` take the place of inputs, by position. An
        input of a Concat is left out if the chunk has no elements of it.
        """
        inputs = []
        for position, (var, axis_map) in enumerate(zip(op.inputs, split.inputs, strict=True)):
            if position in constants:
                inputs.append(self._writer.constant(constants[position]))
            elif axis_map is None or not var:
                inputs.append(var)
            else:
                bounds = axis_map.range(op_range, self._graph.dims(var)[axis_map.axis])
                is_empty = bounds[0] >= bounds[1]
                if not (is_empty and op.type == "Concat"):
                    inputs.append(self.slice_of(var, axis_map.axis, bounds))
        return inputs

    def _add_output(self, var: VarId, axis_map: AxisMap | None, op_range: Range) -> VarId:
        """Add a var for this chunk's slice of an output, and return its name; empty if the output is omitted.

        ``op_range`` is what the chunk computes of the op's split. ``axis_map`` maps it to the range of the slice.
        """
        if axis_map is None or not var:
            # An output without an axis map is unused, else its op would not be in a region.
            return VarId("")
        dims = list(self._graph.dims(var))
        start, stop = axis_map.range(op_range, dims[axis_map.axis])
        dims[axis_map.axis] = stop - start
        name = self._writer.new_var(var, self._name_suffix, tuple(dims))
        self._main_slices[var] = _SlicedVar(name, (start, stop))
        return name

    def _join_carried(self, var: VarId, axis: int, carried: _SlicedVar) -> None:
        """Add a Concat of the rows that were carried over and the rows of this chunk."""
        computed = self._main_slices[var]
        bounds = carried.range[0], computed.range[1]
        dims = list(self._graph.dims(var))
        dims[axis] = bounds[1] - bounds[0]
        name = self._writer.new_var(var, f"{self._name_suffix}_joined", tuple(dims))
        self._writer.concat(
            f"{name}/join", (carried.var, computed.var), output=name, axis=axis, original=var
        )
        self._joined_slices[var] = _SlicedVar(name, bounds)

    def slice_of(self, var: VarId, axis: int, bounds: Range) -> VarId:
        """Return a var that holds a range of a tensor along an axis; add a Slice if there is none.

        ``bounds`` is the range, counted from the start of the whole tensor ``var``. The chunk has all of this range.
        """
        dims = list(self._graph.dims(var))
        # A tensor from outside the region is there whole. One of the region is there as the slice of this chunk.
        whole = _SlicedVar(var, (0, dims[axis]))
        source = self._main_slices.get(var, whole)
        if bounds != source.range:
            # The joined slice, if there is one, begins with rows of the previous chunk and ends with the main slice.
            source = self._joined_slices.get(var, source)
        if bounds == source.range:
            return source.var
        key = var, axis, bounds
        if key not in self._added_slices:
            start, _ = source.range
            dims[axis] = bounds[1] - bounds[0]
            name = self._writer.new_var(var, f"{self._name_suffix}_slice", tuple(dims))
            self._writer.slice(
                var=source.var,
                output=name,
                axis=axis,
                bounds=(bounds[0] - start, bounds[1] - start),
                original=var,
            )
            self._added_slices[key] = name
        return self._added_slices[key]
