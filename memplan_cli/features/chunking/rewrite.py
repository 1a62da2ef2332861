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
from memplan_cli.core.program import VarId
from memplan_cli.features.chunking.axes.split import Role
from memplan_cli.features.chunking.axes.table import chunk_edit
from memplan_cli.features.chunking.ranges import chunk_ranges, output_axis_map
from memplan_cli.features.chunking.writer import ProgramWriter, inserted_op

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memplan_cli.core.program import Op, Program
    from memplan_cli.core.results.rewrites import NewWeight
    from memplan_cli.features.chunking.axes.split import (
        AxisMap,
        CausalMask,
        ChunkEdit,
        Range,
        Split,
    )
    from memplan_cli.features.chunking.graph import Graph
    from memplan_cli.features.chunking.ranges import ChunkRanges
    from memplan_cli.features.chunking.region import Region


@dataclass(frozen=True, slots=True)
class ChunkedProgram:
    """A program with regions in chunks.

    Attributes:
        program: the ops; those of regions once per chunk.
        constants: the values of new weights, or the slices of weights that they are.
        region_ranges: the range of ops that each region takes, in the order given.
    """

    program: Program
    constants: Mapping[VarId, NewWeight] = field(default_factory=dict)
    region_ranges: tuple[Range, ...] = ()


def rewrite_in_chunks(
    graph: Graph, chosen: Sequence[tuple[Region, int]]
) -> ChunkedProgram | None:
    """Return the program with each region in a number of chunks.

    None if a region cannot be cut into so many chunks without changing bits, or if two regions
    need outputs of each other.

    Args:
        graph: the program.
        chosen: regions that share no op, each with its number of chunks.
    """
    order = _order_regions(graph, [region for region, _ in chosen])
    if order is None:
        return None
    ranges = [chunk_ranges(graph, region, count) for region, count in chosen]
    if None in ranges:
        return None
    writer = ProgramWriter(graph)
    region_ranges = {}
    for step in order:
        if step < len(graph.ops):
            writer.ops.append(graph.ops[step])
            continue
        number, start = step - len(graph.ops), len(writer.ops)
        _write_region(writer, chosen[number][0], ranges[number] or ())
        region_ranges[number] = start, len(writer.ops)
    return _without_replaced(writer, [region_ranges[number] for number in range(len(chosen))])


def _order_regions(graph: Graph, regions: Sequence[Region]) -> list[int] | None:
    """Return a topological order of ops and regions; None if regions depend on each other.

    Region ``n`` is numbered ``len(graph.ops) + n``. It stands in place of its ops, except
    duplicated ones, which are in the order too. Everything stays as near as possible to its
    place in the program; a region's place is that of its first op.
    """
    op_indices = range(len(graph.ops))
    region_of = {
        index: number
        for number, region in enumerate(regions, start=len(op_indices))
        for index in region.splits
        if index not in region.duplicated
    }
    successors: list[set[int]] = [set() for _ in range(len(op_indices) + len(regions))]
    for index in op_indices:
        for producer in graph.producers(index):
            before, after = region_of.get(producer, producer), region_of.get(index, index)
            if before != after:
                successors[before].add(after)
    for number, region in enumerate(regions, start=len(op_indices)):
        for index in region.duplicated:
            for producer in graph.producers(index):
                before = region_of.get(producer, producer)
                if before != number:
                    successors[before].add(number)
    places = [*op_indices, *(min(set(r.splits) - r.duplicated) for r in regions)]
    order = nearest_order([sorted(after) for after in successors], places.__getitem__)
    if len(order) < len(successors):
        return None
    return [step for step in order if step not in region_of]


def _write_region(
    writer: ProgramWriter, region: Region, chunks: Sequence[ChunkRanges]
) -> None:
    """Add the ops of all chunks of a region, and join its outputs."""
    graph = writer.graph
    output_slices: dict[VarId, list[VarId]] = {var: [] for var in region.outputs}
    carried: Mapping[VarId, VarId] = {}
    for number, chunk in enumerate(chunks, start=1):
        next_carried = chunks[number].carried if number < len(chunks) else {}
        chunk_writer = _ChunkWriter(writer, region, chunk, f"__chunk{number}")
        carried = chunk_writer.write(carried, next_carried)
        for var, slices in output_slices.items():
            axis = output_axis_map(graph, region, var).axis
            slices.append(chunk_writer.slice_of(var, axis, chunk.outputs[var]))
    for var, slices in output_slices.items():
        axis = output_axis_map(graph, region, var).axis
        producer = graph.ops[graph.dataflow.producer[var]].label
        writer.concat(f"{producer}__chunks", tuple(slices), var, axis, var)
    for index in region.splits:
        op = graph.ops[index]
        writer.replaced.update(var for var in op.outputs if var and var not in output_slices)
        writer.replaced.update(var for var in op.inputs if var in graph.weights)


def _without_replaced(writer: ProgramWriter, region_ranges: Sequence[Range]) -> ChunkedProgram:
    """Return the written program without replaced vars and ops that are unused now."""
    program = writer.graph.program
    read = {var for op in writer.ops for var in op.reads}
    unused = {
        var
        for var in writer.replaced
        if var not in read
        and var not in program.overridable
        and var not in program.body.outputs
    }
    is_kept = [not op.outputs or not unused.issuperset(op.outputs) for op in writer.ops]
    # An op that stays for another output keeps its unused output too.
    unused -= {var for op in compress(writer.ops, is_kept) for var in op.outputs}
    kept_before = [0, *accumulate(map(int, is_kept))]
    constants: dict[VarId, NewWeight] = {
        var: values for values, var in writer.constants.items()
    }
    return ChunkedProgram(
        program.with_ops(
            compress(writer.ops, is_kept),
            {var: record for var, record in writer.vars.items() if var not in unused},
        ),
        {**constants, **writer.weight_slices},
        tuple((kept_before[start], kept_before[stop]) for start, stop in region_ranges),
    )


@dataclass(frozen=True, slots=True)
class _SlicedVar:
    """A var that holds a range of an axis of an original tensor."""

    var: VarId
    range: Range


class _ChunkWriter:
    """Adds the ops of one chunk of a region to a program, each behind the slices that it reads.

    The copy of an op has the ``source`` of the original, as recomputed ops do.
    """

    def __init__(
        self, writer: ProgramWriter, region: Region, chunk: ChunkRanges, suffix: str
    ) -> None:
        self._writer, self._graph = writer, writer.graph
        self._region, self._chunk, self._suffix = region, chunk, suffix
        self._made: dict[VarId, _SlicedVar] = {}
        """What this chunk makes of each tensor."""
        self._joined: dict[VarId, _SlicedVar] = {}
        """The same, preceded by the rows that the previous chunk carried over."""
        self._slices: dict[tuple[VarId, int, Range], VarId] = {}
        """Slices that were added already, by tensor, axis and range."""

    def write(
        self, carried: Mapping[VarId, VarId], next_carried: Mapping[VarId, Range]
    ) -> Mapping[VarId, VarId]:
        """Add the ops of the chunk, in order.

        Args:
            carried: the vars that hold what the previous chunk carried over, by tensor.
            next_carried: the ranges that the next chunk needs of this one.

        Returns:
            The vars that hold ``next_carried``.
        """
        carried_over = {}
        for index in sorted(self._region.splits):
            op, split = self._graph.ops[index], self._region.splits[index]
            self._write_op(index, split)
            for var, axis_map in zip(op.outputs, split.outputs, strict=True):
                if axis_map is None:
                    continue
                if var in carried:
                    self._join_carried(var, axis_map.axis, carried[var])
                if var in next_carried:
                    carried_over[var] = self.slice_of(var, axis_map.axis, next_carried[var])
        return carried_over

    def _write_op(self, index: int, split: Split) -> None:
        """Add the copy of one op, with its input slices, its masks and its surplus sliced off."""
        op, node, chunk = self._graph.ops[index], self._graph.node(index), self._chunk
        if node is None:
            raise ValueError(f"{op.label} has no shapes")
        op_range = chunk.computed[index]
        edit = chunk_edit(node, split, op_range)
        inputs = self._input_slices(op, split, op_range, edit)
        outputs = [
            self._new_output(var, axis_map, op_range)
            for var, axis_map in zip(op.outputs, split.outputs, strict=True)
        ]
        output, axis_map = outputs[0], split.outputs[0]
        has_surplus = axis_map is not None and any(edit.surplus)
        if axis_map is not None and has_surplus:
            outputs[0] = self._new_output_with_surplus(
                op.outputs[0], axis_map.axis, edit.surplus
            )
        attributes = {**op.attributes, **edit.attributes} if edit.attributes else op.attributes
        self._writer.ops.append(
            op._replace(
                name=f"{op.label}{self._suffix}",
                inputs=tuple(inputs),
                outputs=tuple(outputs),
                attributes=attributes,
            )
        )
        if axis_map is not None and has_surplus:
            start, stop = self._made[op.outputs[0]].range
            bounds = edit.surplus[0], edit.surplus[0] + stop - start
            self._writer.slice(outputs[0], output, axis_map.axis, bounds, op.outputs[0])

    def _input_slices(
        self, op: Op, split: Split, op_range: Range, edit: ChunkEdit
    ) -> list[VarId]:
        """Return the inputs of an op's copy, after adding the slices and masks that it reads."""
        inputs = []
        for var, axis_map in zip(op.inputs, split.inputs, strict=True):
            if axis_map is None or not var:
                inputs.append(var)
                continue
            bounds = axis_map.range(op_range, self._graph.dims(var)[axis_map.axis])
            if split.role is Role.COLUMNS and var in self._graph.weights:
                weight = self._writer.weight_slice(var, self._suffix, axis_map.axis, bounds)
                inputs.append(weight)
            else:
                inputs.append(self.slice_of(var, axis_map.axis, bounds))
        for position, values in edit.constants.items():
            inputs[position] = self._writer.constant(values)
        for position, mask in edit.masks.items():
            inputs += [VarId("")] * (position + 1 - len(inputs))
            inputs[position] = self._causal_mask(op.outputs[0], mask)
        return inputs

    def _causal_mask(self, named_after: VarId, mask: CausalMask) -> VarId:
        """Add the ops that compute ``row >= key`` as a bool tensor, and return it."""
        writer, rows = self._writer, tuple(range(*mask.rows))
        row_indices = writer.new_var(
            named_after, f"{self._suffix}_rows", (len(rows), 1), "int64"
        )
        writer.reshape(writer.constant(rows), row_indices)
        dims = len(rows), mask.keys
        output = writer.new_var(named_after, f"{self._suffix}_mask", dims, "bool")
        inputs = row_indices, writer.constant(tuple(range(mask.keys)))
        writer.ops.append(inserted_op(f"{output}/mask", "GreaterOrEqual", inputs, output))
        return output

    def _new_output(self, var: VarId, axis_map: AxisMap | None, op_range: Range) -> VarId:
        """Add the var for what this chunk makes of an output; omitted if it stays unread."""
        if axis_map is None or not var:
            return VarId("")
        dims = list(self._graph.dims(var))
        start, stop = axis_map.range(op_range, dims[axis_map.axis])
        dims[axis_map.axis] = stop - start
        name = self._writer.new_var(var, self._suffix, tuple(dims))
        self._made[var] = _SlicedVar(name, (start, stop))
        return name

    def _new_output_with_surplus(self, var: VarId, axis: int, surplus: Range) -> VarId:
        """Add the var for an output that the chunk makes together with elements of its halo."""
        dims = list(self._graph.dims(var))
        start, stop = self._made[var].range
        dims[axis] = stop - start + sum(surplus)
        return self._writer.new_var(var, f"{self._suffix}_wide", tuple(dims))

    def _join_carried(self, var: VarId, axis: int, carried: VarId) -> None:
        """Add a Concat of the carried rows and this chunk's own."""
        made = self._made[var]
        bounds = self._chunk.carried[var][0], made.range[1]
        dims = list(self._graph.dims(var))
        dims[axis] = bounds[1] - bounds[0]
        name = self._writer.new_var(var, f"{self._suffix}_joined", tuple(dims))
        self._writer.concat(f"{name}/join", (carried, made.var), name, axis, var)
        self._joined[var] = _SlicedVar(name, bounds)

    def slice_of(self, var: VarId, axis: int, bounds: Range) -> VarId:
        """Return a var that holds a range of a tensor, after adding a Slice if there is none.

        Args:
            var: a tensor of the original program: one that the region makes, or reads whole.
            axis: the axis.
            bounds: the range, in elements of the original tensor.
        """
        dims = list(self._graph.dims(var))
        available = self._made.get(var, _SlicedVar(var, (0, dims[axis])))
        if bounds != available.range and var in self._joined:
            available = self._joined[var]
        if bounds == available.range:
            return available.var
        key = var, axis, bounds
        if key not in self._slices:
            start = available.range[0]
            dims[axis] = bounds[1] - bounds[0]
            name = self._writer.new_var(var, f"{self._suffix}_slice", tuple(dims))
            relative = bounds[0] - start, bounds[1] - start
            self._writer.slice(available.var, name, axis, relative, var)
            self._slices[key] = name
        return self._slices[key]
