"""A lower bound of the live peak for all choices of regions.

Each op has ways to be computed: whole, or along one of its splits. A need is a set of tensors that
are whole and live at once. An op that is not in chunks needs all its inputs and outputs. An op in
chunks needs

- at its first chunk: inputs that every chunk reads whole, and inputs that their producer cannot
  make in slices along the axis of the split;
- at its last chunk: inputs that every chunk reads whole, and outputs that are graph outputs or
  that some consumer cannot read along the axis;
- at the Concat that joins the slices of such an output: the slices and the result.

Neighboring ops have to agree. If a tensor is made in slices along one axis, and read along another
or whole, its slices are joined:

    Conv -> InstanceNormalization -> Gelu -> Conv        only by channels | by channels or by time | by time

Wherever the axis changes from channels to time, a tensor and its slices are live at once. The bound
is the fewest bytes with which all ops have a way, and all neighbors agree; or the graph's outputs, if
these need more. Chunks that are cut again (`nested`) read whole the tensors that their region reads
whole.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.core.operators import operator
from memplan_cli.core.program import Origin, VarId

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from memplan_cli.analysis.aliasing import Aliasing
    from memplan_cli.core.program import Op
    from memplan_cli.features.chunking.axes.split import AxisMap, Split
    from memplan_cli.features.chunking.graph import Graph


class Need(NamedTuple):
    """Tensors that are whole and live at once, while an op runs or at the end.

    Attributes:
        bytes: their bytes, less those that an output shares with an input (a view, or in place).
        op: the label of the op that needs them; empty for the graph's outputs.
        tensors: the bytes of each tensor, largest first, without views of one another. ``slices of x`` are
        the slices of a tensor x, which live until they are joined.
    """

    bytes: int
    op: str
    tensors: Mapping[VarId, int]


class _Way(NamedTuple):
    """One way to compute an op: in chunks along a split, or whole if that is None; and what it needs."""

    need: Need
    split: Split | None


class _Read(NamedTuple):
    """A tensor between the op that makes it and one op that reads it, both by index."""

    producer: int
    var: VarId
    reader: int


def lower_bound(graph: Graph, planned: Collection[VarId], aliasing: Aliasing) -> Need:
    """Return the need whose bytes are a lower bound of the live peak, whatever regions are chosen.

    A need is a set of tensors that are whole and live at once; only ``planned`` vars count. Each way to compute
    an op, whole or in chunks along one of its splits, has a need, and so has each *join*, the Concat of a
    tensor's slices for an op that reads the tensor whole. The bound is the smallest limit in bytes that is enough
    for the graph's outputs, for one way of each op, and for the joins between these ways.
    """
    needs = _Needs(graph, planned, aliasing)
    ways = [needs.ways(index) for index in range(len(graph.ops))]
    joins = {
        var: needs.of_join((var,), graph.ops[producer].label)
        for var, producer in graph.dataflow.producer.items()
    }
    cheapest = [
        min((way.need for way in of_op), key=lambda need: (need.bytes, len(need.tensors)))
        for of_op in ways
    ]
    outputs = needs.of_tensors(graph.program.body.outputs, "")
    # The bound is at least this need; it is larger if the cheapest ways need large joins.
    without_joins = max((outputs, *cheapest), key=lambda need: need.bytes)
    all_needs = [*(way.need for of_op in ways for way in of_op), *joins.values()]
    larger = {need.bytes for need in all_needs if need.bytes > without_joins.bytes}
    limits = [without_joins.bytes, *sorted(larger)]

    def is_enough(limit: int) -> bool:
        return not _ops_without_way(graph, ways, joins, limit)

    # Binary search: limits above one that is enough are enough too. The last one is, as no need is above it.
    bound_index = bisect_left(limits, x=True, hi=len(limits) - 1, key=is_enough)
    if bound_index == 0:
        return without_joins
    # Several needs may have the bytes of the bound. One at an op that fails below the bound is preferred.
    failing_op = _ops_without_way(graph, ways, joins, limits[bound_index - 1])[0]
    candidates = (*_needs_at_op(graph, ways, joins, failing_op), *all_needs)
    return next(need for need in candidates if need.bytes == limits[bound_index])


def _needs_at_op(
    graph: Graph, ways: Sequence[Sequence[_Way]], joins: Mapping[VarId, Need], index: int
) -> Iterator[Need]:
    """Yield the needs of all ways to compute an op, and of the joins of its inputs and outputs."""
    yield from (way.need for way in ways[index])
    op = graph.ops[index]
    yield from (joins[var] for var in (*op.inputs, *op.outputs) if var in joins)


def _ops_without_way(
    graph: Graph,
    ways: Sequence[Sequence[_Way]],
    joins: Mapping[VarId, Need],
    limit: int,
) -> list[int]:
    """Return the ops that have no way left to be computed within ``limit`` bytes, by arc consistency.

    ``ways`` are the ways of each op, whole or in chunks along a split. ``joins`` are the needs of the Concats
    of each tensor's slices. A way is dropped if each way of some producer or reader would need a Concat above
    the limit; this is repeated until no way is dropped any more.
    """
    remaining = [[way for way in of_op if way.need.bytes <= limit] for of_op in ways]
    # Slices of these tensors cannot be joined, so the ways of producer and reader have to agree on the slices.
    reads = [
        _Read(graph.dataflow.producer[var], var, reader)
        for var, join in joins.items()
        if join.bytes > limit
        for reader in graph.consumers(var)
    ]
    is_changed = True
    while is_changed:
        is_changed = False
        # A dropped way of an op can drop ways of its readers, and of its producers: both directions.
        for read in (*reads, *reversed(reads)):
            producer_ways, reader_ways = remaining[read.producer], remaining[read.reader]
            remaining[read.producer] = [
                producer_way
                for producer_way in producer_ways
                if any(_agree(graph, read, producer_way, way) for way in reader_ways)
            ]
            remaining[read.reader] = [
                reader_way
                for reader_way in reader_ways
                if any(_agree(graph, read, way, reader_way) for way in producer_ways)
            ]
            is_changed |= len(remaining[read.producer]) < len(producer_ways)
            is_changed |= len(remaining[read.reader]) < len(reader_ways)
    return [index for index, of_op in enumerate(remaining) if not of_op]


def _agree(graph: Graph, read: _Read, made: _Way, taken: _Way) -> bool:
    """Whether an op can read a tensor without a join of the tensor's slices.

    False if the producer, computed in the way ``made``, makes slices along an axis, and the reader, computed in
    the way ``taken``, reads the whole tensor or slices along another axis.
    """
    if made.split is None:
        return True  # the producer runs whole
    made_map = graph.output_map(read.producer, made.split, read.var)
    if made_map is None:
        return True  # no region has this split: chunks leave the tensor out, and the reader needs it
    inputs = graph.ops[read.reader].inputs
    # Without a split, the reader reads all its inputs whole.
    read_maps = taken.split.inputs if taken.split else (None,) * len(inputs)
    return all(
        read_map is not None and read_map.axis == made_map.axis
        for name, read_map in zip(inputs, read_maps, strict=True)
        if name == read.var
    )


class _Needs:
    """Computes which whole tensors are live at once while an op runs.

    Attributes:
        _planned: the vars that count.
        _aliasing: which outputs may be written over an input.
    """

    def __init__(self, graph: Graph, planned: Collection[VarId], aliasing: Aliasing) -> None:
        self._graph, self._planned, self._aliasing = graph, planned, aliasing

    def ways(self, index: int) -> list[_Way]:
        """Return the ways to compute an op: whole, and in chunks along each of its splits.

        The need of a way is a lower bound of the bytes of whole tensors that are live while the op runs.
        """
        op = self._graph.ops[index]
        if op.bodies:
            # Nothing is known of the tensors that are live in a subgraph, so the lower bound is 0.
            return [_Way(Need(0, op.label, {}), None)]
        whole = self.of_tensors((*op.inputs, *op.outputs), op.label)
        whole = whole._replace(bytes=whole.bytes - self._shared_bytes(op))
        splits = self._graph.splits(index)
        return [
            _Way(whole, None),
            *(_Way(self._of_split(op, split), split) for split in splits),
        ]

    def _of_split(self, op: Op, split: Split) -> Need:
        """Return a lower bound of the bytes of whole tensors that are live while an op runs in chunks.

        It is the largest need of three moments: the first chunk, the last one, and the join of the outputs' slices.
        """
        pairs = zip(op.inputs, split.inputs, strict=True)
        reads = [(var, axis_map) for var, axis_map in pairs if var]  # without omitted inputs
        whole_inputs = [var for var, axis_map in reads if axis_map is None]
        # The op reads these in slices, but their producers cannot make such slices. So they are whole at the first
        # chunk. At the last chunk they may be gone: cut in slices, of which each is freed after its chunk.
        whole_at_first = [
            var
            for var, axis_map in reads
            if axis_map is not None and axis_map.axis not in self._graph.output_axes(var)
        ]
        first_need = self.of_tensors((*whole_inputs, *whole_at_first), op.label)
        joined_outputs = [
            var
            for var, axis_map in zip(op.outputs, split.outputs, strict=True)
            # An output without an axis map is unused, else the split would fit in no region.
            if var and axis_map is not None and not self._is_read_in_slices(var, axis_map)
        ]
        # At the last chunk, all slices of these outputs exist, to be joined for consumers that read them whole.
        last_need = self.of_tensors((*whole_inputs, *joined_outputs), op.label)
        if op.outputs[0] in joined_outputs:
            # The output may be written over an input, so their common bytes count once. If that input is not in the
            # need, too much is subtracted: the result is smaller, but still a lower bound.
            last_need = last_need._replace(bytes=last_need.bytes - self._shared_bytes(op))
        join_need = self.of_join(joined_outputs, op.label)
        return max(first_need, last_need, join_need, key=lambda need: need.bytes)

    def of_join(self, joined: Sequence[VarId], label: str) -> Need:
        """Return the need of the Concat that joins the slices of outputs, one output after the other.

        While the first output is joined, all others are there in slices, and the first one is there twice,
        as a Concat copies. Which output is the first is not known. So the smallest is counted twice, for a
        lower bound.
        """
        need = self.of_tensors(joined, label)
        if not need.tensors:
            return need
        smallest, copied_bytes = min(need.tensors.items(), key=lambda item: (item[1], item[0]))
        tensors = {**need.tensors, VarId(f"slices of {smallest}"): copied_bytes}
        return Need(need.bytes + copied_bytes, label, tensors)

    def _is_read_in_slices(self, var: VarId, axis_map: AxisMap) -> bool:
        """Whether every consumer of a var can read it in slices along an axis.

        A graph output is read whole by the caller.
        """
        return var not in self._graph.outputs and all(
            axis_map.axis in self._graph.input_axes(index, var)
            for index in self._graph.consumers(var)
        )

    def _shared_bytes(self, op: Op) -> int:
        """Return the most bytes that the first output may share with an input: as a view, or in place."""
        shares_nothing = not self._aliasing.views  # as by the rules `SHARE_NOTHING`
        if shares_nothing or not op.outputs:
            return 0
        bytes_of = self._graph.bytes
        is_view = operator(op).is_view
        # All inputs of a view are tried, not only the viewed one. The result is subtracted from a lower bound: too
        # large a result makes the bound smaller, but not wrong.
        positions = range(len(op.inputs)) if is_view else self._aliasing.in_place_inputs(op)
        inputs = {op.inputs[position] for position in positions if position < len(op.inputs)}
        output_bytes = bytes_of(op.outputs[0])
        return max((min(bytes_of(var), output_bytes) for var in inputs if var), default=0)

    def of_tensors(self, variables: Iterable[VarId], label: str) -> Need:
        """Return the need for some vars, without weights and unplanned vars.

        Of several views of the same bytes only the largest counts.
        """
        graph = self._graph
        largest_view: dict[VarId, VarId] = {}  # by the var whose bytes it shows
        for var in variables:
            if var in self._planned and graph.program.vars[var].origin is not Origin.WEIGHT:
                root = self._view_root(var)
                other = largest_view.get(root, var)
                largest_view[root] = max(
                    other, var, key=lambda name: (graph.bytes(name), name)
                )
        largest_first = sorted(largest_view.values(), key=lambda var: (-graph.bytes(var), var))
        tensors = {var: graph.bytes(var) for var in largest_first}
        return Need(sum(tensors.values()), label, tensors)

    def _view_root(self, var: VarId) -> VarId:
        """Return the var whose bytes a chain of views shows."""
        producer = self._graph.dataflow.producer
        while self._aliasing.views and var in producer:
            op = self._graph.ops[producer[var]]
            if not operator(op).is_view or var != op.outputs[0]:
                break
            var = op.inputs[0]
        return var
