"""Regions: ops that are computed chunk by chunk together, grown from one large tensor.

Each op of a region has one of its splits, and the splits fit together: a tensor between two
ops is sliced along the same axis by both. A region grows up and down from a seed tensor, each
time by the op with which the boundary, the tensors that stay whole, has the fewest bytes.

    q, k, v -> [ MatMul -> Mul -> Softmax -> MatMul ] -> y
                       scores, 100 times as large

The boundary is q, k, v and y; the scores are never whole.

An op of a region is duplicated if ops outside the region need its whole result before the
region runs: it runs whole as well, beside its chunks. The *whole run* of a duplicated op is
outside the region, only its chunks are inside. *Whole bytes* are those of all tensors that are
whole while the region runs: its boundary, and tensors that only pass by.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import chain
from sys import maxsize
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.features.chunking.axes.split import Role

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from memplan_cli.core.program import VarId
    from memplan_cli.features.chunking.axes.split import AxisMap, Split
    from memplan_cli.features.chunking.graph import Graph

_MAX_USELESS_VISITS = 24_000
"""Ops that may be visited to grow a region without fewer whole bytes: about 150 ops join in vain."""


@dataclass(frozen=True, slots=True)
class Region:
    """Ops of the top block that are computed chunk by chunk; their number of chunks is not in here.

    Attributes:
        splits: how each op is sliced in a chunk, by op index.
        inputs: whole tensors that the region reads from other ops, without weights.
        outputs: tensors that it makes for other ops or as graph outputs; chunks are joined.
        seed: the tensor that the region was grown from.
        axis: the axis along which the seed is sliced.
        duplicated: ops of the region that also run whole, because ops outside read them too.
    """

    splits: Mapping[int, Split]
    inputs: tuple[VarId, ...]
    outputs: tuple[VarId, ...]
    seed: VarId
    axis: int
    duplicated: frozenset[int] = frozenset()

    @property
    def key(self) -> tuple[object, ...]:
        """The ops, their splits and the duplicated ops: equal for regions with equal chunks."""
        return *sorted(self.splits.items()), *sorted(self.duplicated)


class GrowthStage(NamedTuple):
    """A region while it grows, and its whole bytes (`whole_bytes`)."""

    region: Region
    whole_bytes: int


def regions_from(
    graph: Graph, seed: VarId, axis: int, may_grow: Callable[[int], bool] = lambda _: True
) -> Iterator[Region]:
    """Yield regions around a tensor, sliced along one axis.

    For each split of the tensor's producer a region grows op by op (`growth_series`). The region is yielded
    whenever fewer bytes are live in whole tensors while it runs (`whole_bytes`) than before in this growth,
    without the ops at its end that save nothing.
    """
    for stages in growth_series(graph, seed, axis, may_grow):
        fewest_bytes = maxsize
        for grown, whole_bytes in stages:
            if whole_bytes < fewest_bytes:
                fewest_bytes = whole_bytes
                region = _without_growing_ends(graph, grown)
                if region.outputs:  # else nothing reads the results of its ops
                    yield region


def growth_series(
    graph: Graph, seed: VarId, axis: int, may_grow: Callable[[int], bool] = lambda _: True
) -> Iterator[list[GrowthStage]]:
    """Yield the growth of a region from the producer of ``seed``, for each split that slices ``seed`` along ``axis``.

    A growth is a list of stages, of which each has one op more; the first has the producer alone. ``may_grow``
    gets the number of ops that were visited to find the next op; False ends the growth.
    """
    producer = graph.dataflow.producer.get(seed)
    if producer is None:
        return
    for split in graph.splits(producer):
        seed_map = graph.output_map(producer, split, seed)
        if seed_map is not None and seed_map.axis == axis:
            splits = {producer: split}
            # Outputs that this split does not slice are left out of chunks, so they have to be unused.
            if _outputs_fit(graph, splits, producer, split):
                first = Region(splits, *boundary(graph, splits), seed, axis)
                yield list(_grow(graph, first, may_grow))


def _grow(
    graph: Graph, region: Region, may_grow: Callable[[int], bool]
) -> Iterator[GrowthStage]:
    """Yield a region, then with one op more each time.

    Each step adds the op that leaves the fewest bytes in the boundary, the region's inputs and outputs.
    Growth ends when no op fits, when ``may_grow`` returns False for the visits of a step, or after
    `_MAX_USELESS_VISITS` visits that did not lower the bytes of all whole tensors (`whole_bytes`).
    """
    fewest_bytes, useless_visits = maxsize, 0
    while useless_visits <= _MAX_USELESS_VISITS:
        stage = GrowthStage(region, whole_bytes(graph, region))
        yield stage
        best_extension = min(_extensions(graph, region), default=None)
        # `_extensions` has visited each op of the region twice: for the boundary, and for the readers outside.
        visits = 2 * len(region.splits)
        if not may_grow(visits) or best_extension is None:
            return
        useless_visits = 0 if stage.whole_bytes < fewest_bytes else useless_visits + visits
        fewest_bytes = min(fewest_bytes, stage.whole_bytes)
        region = _extended(graph, region, best_extension)


def _extended(graph: Graph, region: Region, extension: _Extension) -> Region:
    """Return a region with one op more; the duplicated ones also run whole, for readers outside."""
    joining = extension.op_index
    splits = {**region.splits, joining: graph.splits(joining)[extension.split_index]}
    duplicated = region.duplicated | ({joining} if extension.is_duplicate else set())
    # An op whose last reader outside has joined now need not run whole any more.
    duplicated = _still_read_outside(graph, splits, duplicated)
    inputs, outputs = boundary(graph, splits, duplicated)
    return Region(splits, inputs, outputs, region.seed, region.axis, duplicated)


def _still_read_outside(
    graph: Graph, splits: Mapping[int, Split], duplicated: frozenset[int]
) -> frozenset[int]:
    """Return the ops of ``duplicated`` that still have to run whole, besides their chunks in the region.

    Such an op makes a graph output, or is read by an op outside the region or by another op that has to run
    whole. ``splits`` has the ops of the region.
    """
    run_whole: set[int] = set()
    # The last op first: whether an op has to run whole depends on whether its consumers have to.
    for op_index in sorted(duplicated, reverse=True):
        outputs = graph.ops[op_index].outputs
        if any(_has_outside_reader(graph, var, splits, run_whole) for var in outputs):
            run_whole.add(op_index)
    return frozenset(run_whole)


def _has_outside_reader(
    graph: Graph, var: VarId, ops: Collection[int], run_whole: Collection[int]
) -> bool:
    """Whether a var is a graph output, or read by an op that is not in ``ops`` or also runs whole."""
    return var in graph.outputs or any(
        reader not in ops or reader in run_whole for reader in graph.consumers(var)
    )


def _without_growing_ends(graph: Graph, region: Region) -> Region:
    """Return a region without the ops at its end that save no memory there.

    An op is at the end if no op of the region reads its results. It is removed if the boundary, the
    inputs and outputs of the region, has fewer bytes without it. A duplicated op is always removed from
    the end: ops outside read the result of its whole run, so its chunks are unused.
    """
    splits, duplicated = dict(region.splits), region.duplicated
    fewest_bytes = boundary_bytes(graph, splits, duplicated)
    for op_index in sorted(region.splits, reverse=True):  # consumers before what they read
        if any(reader in splits for reader in graph.readers(op_index)):
            continue
        shorter = {index: split for index, split in splits.items() if index != op_index}
        shorter_duplicated = duplicated - {op_index}
        # A region of duplicates alone would have no outputs.
        if not shorter.keys() - shorter_duplicated:
            continue
        shorter_bytes = boundary_bytes(graph, shorter, shorter_duplicated)
        if op_index in duplicated or shorter_bytes < fewest_bytes:
            splits, duplicated, fewest_bytes = shorter, shorter_duplicated, shorter_bytes
    inputs, outputs = boundary(graph, splits, duplicated)
    return Region(splits, inputs, outputs, region.seed, region.axis, duplicated)


def boundary(
    graph: Graph, ops: Collection[int], duplicated: Collection[int] = ()
) -> tuple[tuple[VarId, ...], tuple[VarId, ...]]:
    """Return the inputs and the outputs of a region of ops. These tensors are not in chunks.

    Inputs are made by ops outside the region; graph inputs and weights are left out. Outputs are graph outputs,
    or are read by ops outside. Results of ``duplicated`` ops are no outputs: these ops also run before the region,
    which makes the results for readers outside.
    """
    producer, order = graph.dataflow.producer, sorted(ops)
    read = dict.fromkeys(var for index in order for var in graph.dataflow.reads[index])
    read_from_outside = (var for var in read if producer.get(var) not in ops)
    made = (var for index in order for var in graph.ops[index].outputs if var)
    is_in_boundary = partial(_is_in_boundary, graph, ops=ops, duplicated=duplicated)
    inputs, outputs = filter(is_in_boundary, read_from_outside), filter(is_in_boundary, made)
    return tuple(inputs), tuple(outputs)


def _is_in_boundary(
    graph: Graph, var: VarId, ops: Collection[int], duplicated: Collection[int]
) -> bool:
    """Whether a tensor that an op of a region reads or makes is an input or output of the region.

    An input is made outside the region, an output is read outside. ``duplicated`` ops also run whole, before it.
    """
    producer = graph.dataflow.producer.get(var)
    if producer is None or var in graph.weights:
        return False  # graph inputs and weights, also those of Constant ops, are not planned
    if producer not in ops:
        return True  # an input
    if producer in duplicated:
        return False  # no output: readers outside read the tensor of the whole run
    return _has_outside_reader(graph, var, ops, duplicated)


def boundary_bytes(
    graph: Graph, ops: Collection[int], duplicated: Collection[int] = ()
) -> int:
    """Return the bytes of the inputs and outputs of a region, which are whole tensors."""
    return sum(map(graph.bytes, chain(*boundary(graph, ops, duplicated))))


def whole_bytes(graph: Graph, region: Region) -> int:
    """Return the bytes of all whole tensors that are live while a region runs in chunks.

    These are its inputs and outputs, and tensors made before the region and read after it.
    """
    inputs_and_outputs = frozenset((*region.inputs, *region.outputs))
    # A duplicated op runs in the chunks, and also whole for other readers. Its index is the place of the whole
    # run, which is before the region. The op that makes the seed tensor is never duplicated.
    only_in_chunks = region.splits.keys() - region.duplicated
    first, last = min(only_in_chunks), max(only_in_chunks)
    passing_bytes = graph.bytes_live_across(first, last, excluded=inputs_and_outputs)
    return sum(map(graph.bytes, inputs_and_outputs)) + passing_bytes


class _Extension(NamedTuple):
    """An op that can join a region.

    Extensions are compared as tuples, and the smallest one is the best: fewest bytes in the
    boundary, then the largest shared tensor, then an op that is not duplicated.

    Attributes:
        boundary_bytes: bytes of the boundary with this op.
        negative_shared_bytes: minus the bytes of the largest tensor that it shares with the region.
        is_duplicate: whether the op also has to run whole.
        op_index: the op.
        split_index: which of the op's splits.
    """

    boundary_bytes: int
    negative_shared_bytes: int
    is_duplicate: bool
    op_index: int
    split_index: int


def _extensions(graph: Graph, region: Region) -> Iterator[_Extension]:
    """Yield the ops that can join a region, with each split that fits.

    An op that joins may close a path that leaves the region and comes back (`_is_convex`). Such a path
    could never run: its ops wait for the last chunk, and the first chunk waits for them. So this op
    can only join as a duplicate, which runs in chunks, and once whole for the ops on the path.
    """
    neighbors, producers = _neighbors(graph, region)
    present_bytes = sum(map(graph.bytes, (*region.inputs, *region.outputs)))
    outside_readers = _outside_readers(graph, region)
    for op_index, shared_bytes in sorted(neighbors.items()):
        fitting_splits = [
            (split_index, split)
            for split_index, split in enumerate(graph.splits(op_index))
            if _fits(graph, region.splits, op_index, split)
        ]
        if not fitting_splits:
            continue
        is_duplicate = not _is_convex(graph, region, op_index, outside_readers)
        duplicated = region.duplicated | ({op_index} if is_duplicate else set())
        added_bytes = _added_boundary_bytes(graph, region, op_index, duplicated)
        for split_index, split in fitting_splits:
            # A duplicate is computed twice, so it must be light and make an input of the region.
            can_duplicate = op_index in producers and _is_light(graph, op_index, split)
            if is_duplicate and not can_duplicate:
                continue
            yield _Extension(
                boundary_bytes=present_bytes + added_bytes,
                negative_shared_bytes=-shared_bytes,
                is_duplicate=is_duplicate,
                op_index=op_index,
                split_index=split_index,
            )


def _added_boundary_bytes(
    graph: Graph, region: Region, joining: int, duplicated: Collection[int]
) -> int:
    """Return by how many bytes the boundary grows if an op joins; negative if it shrinks.

    Only tensors that the op reads or makes can enter or leave the boundary. ``duplicated`` are the
    duplicated ops of the region, with the op if it joins as one.
    """
    ops = {*region.splits, joining}
    boundary_vars = {*region.inputs, *region.outputs}
    added_bytes = 0
    for var in {*graph.dataflow.reads[joining], *filter(None, graph.ops[joining].outputs)}:
        was_in_boundary = var in boundary_vars
        will_be_in_boundary = _is_in_boundary(graph, var, ops, duplicated)
        added_bytes += graph.bytes(var) * (will_be_in_boundary - was_in_boundary)
    return added_bytes


def _neighbors(graph: Graph, region: Region) -> tuple[Mapping[int, int], frozenset[int]]:
    """Return the ops next to a region, and which of them make its inputs.

    Returns:
        Producers of inputs and consumers of outputs, each with the bytes of the largest tensor
        between it and the region; and the set of producers.
    """
    shared_bytes: dict[int, int] = {}
    for var in region.inputs:
        producer = graph.dataflow.producer.get(var)
        if producer is not None:
            shared_bytes[producer] = max(shared_bytes.get(producer, 0), graph.bytes(var))
    producers = frozenset(shared_bytes)
    for var in region.outputs:
        for reader in graph.consumers(var):
            if reader not in region.splits:  # which has the ops of the region as keys
                shared_bytes[reader] = max(shared_bytes.get(reader, 0), graph.bytes(var))
    return shared_bytes, producers


def _outside_readers(graph: Graph, region: Region) -> frozenset[int]:
    """Return the ops outside a region that read its results, and its duplicated ops that do."""
    only_in_chunks = region.splits.keys() - region.duplicated
    return frozenset(chain.from_iterable(map(graph.readers, only_in_chunks))) - only_in_chunks


def _is_light(graph: Graph, op_index: int, split: Split) -> bool:
    """Whether an op may run whole as well as in chunks, without much work or memory.

    It is split along elements or samples (`Role.FREE`) and has one input besides weights.
    """
    inputs = [var for var in graph.dataflow.reads[op_index] if var not in graph.weights]
    return split.role is Role.FREE and len(inputs) == 1


def _fits(graph: Graph, splits: Mapping[int, Split], op_index: int, split: Split) -> bool:
    """Whether an op with this split can join a region.

    Each tensor between the op and an op of the region must be sliced along the same axis by
    both.
    """
    op = graph.ops[op_index]
    for var, axis_map in zip(op.inputs, split.inputs, strict=True):
        producer = graph.dataflow.producer.get(var)
        if producer is None or producer not in splits:
            continue
        if not _is_same_axis(axis_map, graph.output_map(producer, splits[producer], var)):
            return False
    return _outputs_fit(graph, splits, op_index, split)


def _outputs_fit(
    graph: Graph, splits: Mapping[int, Split], op_index: int, split: Split
) -> bool:
    """Whether all consumers in a region read an op's outputs as this split makes them."""
    return all(
        _consumers_fit(graph, splits, var, axis_map)
        for var, axis_map in zip(graph.ops[op_index].outputs, split.outputs, strict=True)
        if var
    )


def _consumers_fit(
    graph: Graph, splits: Mapping[int, Split], var: VarId, axis_map: AxisMap | None
) -> bool:
    """Whether all consumers in a region slice an output along the same axis as its producer.

    ``splits`` are those of the region's ops. ``axis_map`` is the producer's map of the output; None if its split
    does not slice the output, which has to be unused then.
    """
    consumers = graph.consumers(var)
    if axis_map is None:
        # Each chunk would make the same whole output, so chunks leave it out (`rewrite`): no op can read it.
        return not consumers and var not in graph.outputs
    return all(
        _is_same_axis(read_map, axis_map)
        for reader in consumers
        if reader in splits  # consumers outside the region read the joined slices
        for name, read_map in zip(graph.ops[reader].inputs, splits[reader].inputs, strict=True)
        if name == var
    )


def _is_same_axis(first: AxisMap | None, second: AxisMap | None) -> bool:
    """Whether both slice a tensor, and along the same axis."""
    return first is not None and second is not None and first.axis == second.axis


def _is_convex(
    graph: Graph, region: Region, joining: int, outside_readers: Iterable[int]
) -> bool:
    """Whether no path of ops leaves a region and comes back, once the op ``joining`` is in the region.

    Of ``a -> b -> c``, the ops a and c alone are no region: b reads the results of all chunks, but the first
    chunk already needs the result of b for c. ``outside_readers`` are the ops outside that read results of the
    region as it is, without ``joining`` (`_outside_readers`).

    An op in ``region.duplicated`` runs twice: in chunks in the region, and whole outside. On a path, it stands for the
    run outside. Only ops outside read the result of that run.
    """
    in_chunks = {*region.splits, joining}
    only_in_chunks = in_chunks - region.duplicated
    first, last = min(in_chunks), max(in_chunks)
    # Runs outside the region, at which paths begin.
    stack = [*({*outside_readers, *graph.readers(joining)} - only_in_chunks)]
    visited: set[int] = set()
    while stack:
        index = stack.pop()
        # Ops stand in topological order, so a path that comes back has only ops between these two.
        if not first < index < last or index in visited:
            continue
        visited.add(index)
        readers = set(graph.readers(index))
        is_run_outside = index in region.duplicated
        if not is_run_outside and not readers.isdisjoint(in_chunks):
            return False
        stack += readers - only_in_chunks
    return True
