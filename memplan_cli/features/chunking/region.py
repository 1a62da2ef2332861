"""Regions: ops that are computed chunk by chunk together, grown from one large tensor.

Each op of a region has one of its splits, and the splits fit together: a tensor between two
ops is sliced along the same axis by both. A region grows up and down from a seed tensor, each
time by the op with which the boundary, the tensors that stay whole, has the fewest bytes.

    q, k, v -> [ MatMul -> Mul -> Softmax -> MatMul ] -> y
                       scores, 100 times as large

The boundary is q, k, v and y; the scores are never whole.

While a region grows, it is a dict ``splits`` of its ops' splits by op index.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from memplan_cli.core.program import VarId
    from memplan_cli.features.chunking.axes.split import AxisMap, Split
    from memplan_cli.features.chunking.graph import Graph

_MAX_OPS = 400
"""Ops of a region; bounds the time of growing one."""


@dataclass(frozen=True, slots=True)
class Region:
    """Ops of the top block that are computed chunk by chunk.

    Attributes:
        splits: the split of each op, by op index.
        inputs: whole tensors that the region reads from other ops or graph inputs, without
        weights.
        outputs: tensors that it makes for other ops or as graph outputs; chunks are joined.
        seed: the tensor that the region was grown from.
        axis: the axis along which the seed is sliced.
    """

    splits: Mapping[int, Split]
    inputs: tuple[VarId, ...]
    outputs: tuple[VarId, ...]
    seed: VarId
    axis: int

    @property
    def key(self) -> tuple[object, ...]:
        """The ops and their splits: equal for regions with equal chunks."""
        return tuple(sorted(self.splits.items()))


def regions_from(graph: Graph, seed: VarId, axis: int) -> Iterator[Region]:
    """Yield regions that grow from a tensor, sliced along one axis.

    There is a series of larger and larger regions for each split of the tensor's producer that
    slices the tensor along the axis.
    """
    producer = graph.dataflow.producer.get(seed)
    if producer is None:
        return
    for split in graph.splits(producer):
        seed_map = graph.output_map(producer, split, seed)
        is_along_axis = seed_map is not None and seed_map.axis == axis
        if is_along_axis and _fits(graph, {}, producer, split):
            for splits in _growth_stages(graph, producer, split):
                inputs, outputs = boundary(graph, splits)
                yield Region(splits, tuple(inputs), tuple(outputs), seed, axis)


def _growth_stages(graph: Graph, start: int, split: Split) -> Iterator[dict[int, Split]]:
    """Yield the splits of a region that grows from the op ``start``.

    Each time the op joins that leaves the fewest bytes in the boundary, until no op fits. Only
    regions whose boundary has fewer bytes than that of all before are yielded, without their
    growing ends (`_without_growing_ends`).
    """
    splits = {start: split}
    fewest_bytes: int | None = None
    while len(splits) < _MAX_OPS:
        stage_bytes = boundary_bytes(graph, splits)
        if fewest_bytes is None or stage_bytes < fewest_bytes:
            fewest_bytes = stage_bytes
            yield _without_growing_ends(graph, splits)
        extension = min(_extensions(graph, splits), default=None)
        if extension is None:
            return
        splits[extension.op_index] = graph.splits(extension.op_index)[extension.split_index]


def _without_growing_ends(graph: Graph, splits: Mapping[int, Split]) -> dict[int, Split]:
    """Return the splits without ops at the end whose removal leaves fewer bytes in the boundary.

    An op at the end has no consumer in the region. Such an op makes more bytes than it reads.
    """
    remaining = dict(splits)
    for op_index in sorted(splits, reverse=True):
        outputs = graph.ops[op_index].outputs
        is_at_end = not any(
            reader in remaining for var in outputs for reader in graph.consumers(var)
        )
        shorter = {index: split for index, split in remaining.items() if index != op_index}
        if (
            is_at_end
            and shorter
            and boundary_bytes(graph, shorter) < boundary_bytes(graph, remaining)
        ):
            remaining = shorter
    return remaining


def boundary(graph: Graph, ops: Collection[int]) -> tuple[list[VarId], list[VarId]]:
    """Return the inputs and the outputs of a region of ops.

    Inputs are tensors that other ops make, or graph inputs; weights are left out, as they are
    not planned. Outputs are tensors that other ops read, or graph outputs.
    """
    order = sorted(ops)
    internal = {var for index in ops for var in graph.ops[index].outputs if var}
    read = dict.fromkeys(var for index in order for var in graph.dataflow.reads[index])
    inputs = [var for var in read if var not in internal and var not in graph.weights]
    outputs = [
        var
        for index in order
        for var in graph.ops[index].outputs
        if var
        and (var in graph.outputs or any(reader not in ops for reader in graph.consumers(var)))
    ]
    return inputs, outputs


def boundary_bytes(graph: Graph, ops: Collection[int]) -> int:
    """Return the bytes of the inputs and outputs of a region, which are whole tensors."""
    inputs, outputs = boundary(graph, ops)
    return sum(graph.bytes(var) for var in (*inputs, *outputs))


class _Extension(NamedTuple):
    """An op that can join a region.

    Extensions are compared as tuples, and the smallest one is the best: fewest bytes in the
    boundary, then the largest shared tensor.

    Attributes:
        boundary_bytes: bytes of the boundary with this op.
        negative_shared_bytes: minus the bytes of the largest tensor that it shares with the
        region.
        split_index: which of the op's splits.
    """

    boundary_bytes: int
    negative_shared_bytes: int
    op_index: int
    split_index: int


def _extensions(graph: Graph, splits: Mapping[int, Split]) -> Iterator[_Extension]:
    """Yield the ops that can join a region, with each split that fits."""
    for op_index, shared_bytes in sorted(_neighbours(graph, splits).items()):
        fitting = [
            split_index
            for split_index, split in enumerate(graph.splits(op_index))
            if _fits(graph, splits, op_index, split)
        ]
        if fitting and _is_convex(graph, splits, op_index):
            joined_bytes = boundary_bytes(graph, {*splits, op_index})
            for split_index in fitting:
                yield _Extension(joined_bytes, -shared_bytes, op_index, split_index)


def _neighbours(graph: Graph, splits: Mapping[int, Split]) -> Mapping[int, int]:
    """Return the producers of a region's inputs and the consumers of its outputs.

    Each has the bytes of the largest tensor between it and the region.
    """
    inputs, outputs = boundary(graph, splits)
    neighbours = [
        *(
            (graph.dataflow.producer[var], var)
            for var in inputs
            if var in graph.dataflow.producer
        ),
        *((reader, var) for var in outputs for reader in graph.consumers(var)),
    ]
    shared_bytes: dict[int, int] = {}
    for op_index, var in neighbours:
        if op_index not in splits:
            shared_bytes[op_index] = max(shared_bytes.get(op_index, 0), graph.bytes(var))
    return shared_bytes


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
    return all(
        _consumers_fit(graph, splits, var, axis_map)
        for var, axis_map in zip(op.outputs, split.outputs, strict=True)
        if var
    )


def _consumers_fit(
    graph: Graph, splits: Mapping[int, Split], var: VarId, axis_map: AxisMap | None
) -> bool:
    """Whether all consumers in a region slice an output along the same axis as its producer.

    ``axis_map`` says how the producer slices it; None: every chunk makes it whole. Such an
    output must have no consumer at all, as chunks would make it several times.
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
    """Whether both slice a tensor, and along the same axis."""
    return first is not None and second is not None and first.axis == second.axis


def _is_convex(graph: Graph, splits: Mapping[int, Split], joining: int) -> bool:
    """Whether a region with the op ``joining`` has no path that leaves it and comes back.

    An op on such a path would have to run between two ops of the region.
    """
    members = {*splits, joining}
    last = max(members)
    stack, visited = list(members), set[int]()
    while stack:
        index = stack.pop()
        for var in graph.ops[index].outputs:
            for reader in graph.consumers(var):
                if reader in members:
                    if index not in members:
                        return False
                # Ops stand in topological order: no path comes back from behind the last member.
                elif reader < last and reader not in visited:
                    visited.add(reader)
                    stack.append(reader)
    return True
