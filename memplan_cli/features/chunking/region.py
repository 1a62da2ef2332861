"""Regions: ops that are computed chunk by chunk together, grown from one large tensor.

Each op of a region has one of its splits, and the splits fit together: a tensor between two
ops is sliced along the same axis by both. A region grows up and down from a seed tensor, each
time by the op with which the boundary, the tensors that stay whole, has the fewest bytes.

    q, k, v -> [ MatMul -> Mul -> Softmax -> MatMul ] -> y
                       scores, 100 times as large

The boundary is q, k, v and y; the scores are never whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, pairwise
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.features.chunking.axes.split import Role

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from memplan_cli.core.program import VarId
    from memplan_cli.features.chunking.axes.split import AxisMap, Split
    from memplan_cli.features.chunking.graph import Graph

_MAX_OPS = 400
"""Ops of a region; bounds the time of growing one."""

_MERGED_SHARE = 0.9
"""A light op that lowers the whole bytes to this share always belongs to the region."""


@dataclass(frozen=True, slots=True)
class Region:
    """Ops of the top block that are computed chunk by chunk.

    Attributes:
        splits: the split of each op, by op index.
        inputs: tensors that the region reads from other ops or graph inputs, without weights.
        outputs: tensors that it makes for other ops or as graph outputs; joined at the end.
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
        """Ops, splits and duplicated ops: equal for regions that are written alike."""
        return *sorted(self.splits.items()), *sorted(self.duplicated)


def regions_from(graph: Graph, seed: VarId, axis: int) -> Iterator[Region]:
    """Yield regions around a tensor, sliced along one axis, each with fewer whole bytes.

    A region is left out if a smaller one leaves no more bytes whole, and if one light op more
    lowers the whole bytes by a tenth.
    """
    fewest_bytes = 0
    for stage, following in pairwise(chain(growth_stages(graph, seed, axis), [None])):
        if stage is None:
            continue
        region, whole_bytes = stage
        if len(region.splits) > 1 and whole_bytes >= fewest_bytes:
            continue
        fewest_bytes = whole_bytes
        max_bytes = fewest_bytes * _MERGED_SHARE
        if following is None or not _adds_light_ops(region, following, max_bytes):
            yield _trimmed(graph, region)


def growth_stages(graph: Graph, seed: VarId, axis: int) -> Iterator[tuple[Region, int]]:
    """Yield each region that grows from a tensor, with the bytes that stay whole beside it."""
    producer = graph.dataflow.producer.get(seed)
    if producer is None:
        return
    for split in graph.splits(producer):
        seed_map = graph.output_map(producer, split, seed)
        if seed_map is not None and seed_map.axis == axis:
            yield from _grow(graph, producer, split, seed, axis)


def _grow(
    graph: Graph, start: int, split: Split, seed: VarId, axis: int
) -> Iterator[tuple[Region, int]]:
    """Yield the region of one op, then with one op more each time, until no op fits."""
    splits, duplicated = {start: split}, frozenset[int]()
    if not _fits(graph, {}, start, split):
        return
    while len(splits) < _MAX_OPS:
        region = _region(graph, splits, duplicated, seed, axis)
        yield region, whole_bytes(graph, splits, duplicated)
        extension = min(_extensions(graph, splits, duplicated), default=None)
        if extension is None:
            return
        op_index = extension.op_index
        splits[op_index] = graph.splits(op_index)[extension.split_index]
        if extension.is_duplicate:
            duplicated |= {op_index}
        # Once all consumers of a duplicated op have joined, it need not run whole.
        duplicated = frozenset(
            index for index in duplicated if not _is_read_inside(graph, splits, index)
        )


def _region(
    graph: Graph,
    splits: Mapping[int, Split],
    duplicated: frozenset[int],
    seed: VarId,
    axis: int,
) -> Region:
    inputs, outputs = boundary(graph, splits, duplicated)
    return Region(dict(splits), tuple(inputs), tuple(outputs), seed, axis, duplicated)


def _is_read_inside(graph: Graph, splits: Mapping[int, Split], op_index: int) -> bool:
    """Whether all consumers of an op are in the region."""
    return all(
        var not in graph.outputs and all(reader in splits for reader in graph.consumers(var))
        for var in graph.ops[op_index].outputs
    )


def _adds_light_ops(region: Region, following: tuple[Region, int], max_bytes: float) -> bool:
    """Whether the next growth stage only adds light ops and leaves at most ``max_bytes`` whole."""
    larger_region, larger_bytes = following
    added = [
        split for index, split in larger_region.splits.items() if index not in region.splits
    ]
    is_light = bool(added) and all(split.role is Role.FREE for split in added)
    same_duplicates = larger_region.duplicated == region.duplicated
    return is_light and same_duplicates and larger_bytes <= max_bytes


def _trimmed(graph: Graph, region: Region) -> Region:
    """Return the region without final ops that make more whole bytes than they read."""
    splits, duplicated = dict(region.splits), region.duplicated
    fewest_bytes = boundary_bytes(graph, splits, duplicated)
    for op_index in sorted(region.splits, reverse=True):
        outputs = graph.ops[op_index].outputs
        is_final = not any(
            reader in splits for var in outputs for reader in graph.consumers(var)
        )
        shorter = {index: split for index, split in splits.items() if index != op_index}
        if op_index in duplicated or not is_final or not shorter.keys() - duplicated:
            continue
        shorter_bytes = boundary_bytes(graph, shorter, duplicated)
        if shorter_bytes < fewest_bytes:
            splits, fewest_bytes = shorter, shorter_bytes
    if len(splits) == len(region.splits):
        return region
    return _region(graph, splits, duplicated, region.seed, region.axis)


def boundary(
    graph: Graph, ops: Collection[int], duplicated: Collection[int] = ()
) -> tuple[list[VarId], list[VarId]]:
    """Return the tensors that ops read from other ops, and those that they make for other ops.

    Weights are left out, as they are not planned. Duplicated ops make nothing for other ops,
    which read the result of the op that runs whole.
    """
    order = sorted(ops)
    internal = {var for index in ops for var in graph.ops[index].outputs if var}
    read = dict.fromkeys(var for index in order for var in graph.dataflow.reads[index])
    inputs = [var for var in read if var not in internal and var not in graph.weights]
    outputs = [
        var
        for index in order
        if index not in duplicated
        for var in graph.ops[index].outputs
        if var
        and (var in graph.outputs or any(reader not in ops for reader in graph.consumers(var)))
    ]
    return inputs, outputs


def boundary_bytes(
    graph: Graph, ops: Collection[int], duplicated: Collection[int] = ()
) -> int:
    """Return the bytes of the whole tensors that a region reads and makes."""
    inputs, outputs = boundary(graph, ops, duplicated)
    return sum(graph.bytes(var) for var in (*inputs, *outputs))


def whole_bytes(graph: Graph, ops: Collection[int], duplicated: Collection[int] = ()) -> int:
    """Return the bytes of all whole tensors while a region runs.

    These are its boundary, and tensors made before the region and read only after it.
    """
    inputs, outputs = boundary(graph, ops, duplicated)
    own_ops = [index for index in ops if index not in duplicated]
    own_bytes = sum(map(graph.bytes, (*inputs, *outputs)))
    return own_bytes + graph.bytes_live_across(min(own_ops), max(own_ops), {*inputs, *outputs})


class _Extension(NamedTuple):
    """An op that can join a region. The smallest extension is the best one.

    Attributes:
        boundary_bytes: bytes of the boundary with this op.
        negative_shared_bytes: minus the bytes of the largest tensor that it shares with the
        region.
        is_duplicate: whether the op also has to run whole.
        op_index: the op.
        split_index: which of the op's splits.
    """

    boundary_bytes: int
    negative_shared_bytes: int
    is_duplicate: bool
    op_index: int
    split_index: int


def _extensions(
    graph: Graph, splits: Mapping[int, Split], duplicated: frozenset[int]
) -> Iterator[_Extension]:
    """Yield the ops that can join a region, with each split that fits.

    A light producer that ops between it and the region read too can join as a duplicate.
    """
    neighbours, producers = _neighbours(graph, splits, duplicated)
    for op_index, shared_bytes in sorted(neighbours.items()):
        for split_index, split in enumerate(graph.splits(op_index)):
            if not _fits(graph, splits, op_index, split):
                continue
            joined_duplicates = duplicated
            if not _is_convex(graph, splits, op_index, duplicated):
                if op_index not in producers or not _is_light(graph, op_index, split):
                    continue
                joined_duplicates = duplicated | {op_index}
            yield _Extension(
                boundary_bytes(graph, {*splits, op_index}, joined_duplicates),
                -shared_bytes,
                op_index in joined_duplicates,
                op_index,
                split_index,
            )


def _neighbours(
    graph: Graph, splits: Mapping[int, Split], duplicated: frozenset[int]
) -> tuple[Mapping[int, int], frozenset[int]]:
    """Return the ops next to a region, and which of them make its inputs.

    Each neighbour is mapped to the bytes of the largest tensor between it and the region.
    """
    inputs, outputs = boundary(graph, splits, duplicated)
    shared_bytes: dict[int, int] = {}
    for var in inputs:
        producer = graph.dataflow.producer.get(var)
        if producer is not None:
            shared_bytes[producer] = max(shared_bytes.get(producer, 0), graph.bytes(var))
    producers = frozenset(shared_bytes)
    for var in outputs:
        for reader in graph.consumers(var):
            if reader not in splits:
                shared_bytes[reader] = max(shared_bytes.get(reader, 0), graph.bytes(var))
    return shared_bytes, producers


def _is_light(graph: Graph, op_index: int, split: Split) -> bool:
    """Whether an op may run twice: no matrix product, and a single input besides weights."""
    inputs = [var for var in graph.dataflow.reads[op_index] if var not in graph.weights]
    return split.role is Role.FREE and len(inputs) == 1


def _fits(graph: Graph, splits: Mapping[int, Split], op_index: int, split: Split) -> bool:
    """Whether an op slices every tensor that it shares with a region along the region's axis."""
    op = graph.ops[op_index]
    for var, axis_map in zip(op.inputs, split.inputs, strict=True):
        producer = graph.dataflow.producer.get(var)
        if producer is None or producer not in splits:
            continue
        if not _is_same_axis(axis_map, graph.output_map(producer, splits[producer], var)):
            return False
    return all(
        _consumers_fit(graph, splits, var, axis_map)
        for var, axis_map in zip(op.outputs, split.outputs, strict=True)
        if var
    )


def _consumers_fit(
    graph: Graph, splits: Mapping[int, Split], var: VarId, axis_map: AxisMap | None
) -> bool:
    """Whether all consumers in a region slice an output along the same axis as its producer.

    An output that every chunk makes whole must not be read at all.
    """
    consumers = graph.consumers(var)
    if axis_map is None:
        return not consumers and var not in graph.outputs
    return all(
        _is_same_axis(read_map, axis_map)
        for reader in consumers
        if reader in splits
        for name, read_map in zip(graph.ops[reader].inputs, splits[reader].inputs, strict=True)
        if name == var
    )


def _is_same_axis(first: AxisMap | None, second: AxisMap | None) -> bool:
    return first is not None and second is not None and first.axis == second.axis


def _is_convex(
    graph: Graph, splits: Mapping[int, Split], joining: int, duplicated: frozenset[int]
) -> bool:
    """Whether a region with one op more has no path that leaves it and comes back.

    An op on such a path would have to run between two ops of the region. Paths that start or
    end
    at a duplicated op do not count: ops outside read its whole result.
    """
    members = {*splits, joining}
    first, last = min(members), max(members)
    stack = [
        reader
        for index in members
        if index not in duplicated
        for var in graph.ops[index].outputs
        for reader in graph.consumers(var)
    ]
    visited: set[int] = set()
    while stack:
        index = stack.pop()
        if index in visited or index in members or not first < index < last:
            continue
        visited.add(index)
        for var in graph.ops[index].outputs:
            for reader in graph.consumers(var):
                if reader == joining or (reader in splits and reader not in duplicated):
                    return False
                stack.append(reader)
    return True
