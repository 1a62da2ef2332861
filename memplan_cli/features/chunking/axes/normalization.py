"""Softmax, normalizations and reductions: every axis except those whose elements are mixed."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from memplan_cli.core.operators import MICROSOFT, NCHWC, Family, names_of
from memplan_cli.features.chunking.axes.split import (
    AxisMap,
    ChunkEdit,
    broadcast_axis,
    same_axis_splits,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from memplan_cli.features.chunking.axes.split import (
        Dims,
        EditRule,
        Node,
        Range,
        Split,
        SplitRule,
    )

_SINGLE_AXIS_OPSET = 13
"""The opset since which Softmax normalizes one axis; before, it is all axes from ``axis`` on."""


def _splits_along(node: Node, axes: Iterable[int]) -> tuple[Split, ...]:
    """Return the splits along axes of the first input.

    Further inputs are broadcast to the first one. Outputs that lack the axis (statistics) stay
    whole.
    """
    data = node.data_shape
    return tuple(
        node.split(
            data[axis],
            {
                position: broadcast_axis(shape, data, axis)
                for position, shape in enumerate(node.inputs)
            },
            {
                position: _same_axis(data, shape, axis)
                for position, shape in enumerate(node.outputs)
                if shape
            },
        )
        for axis in axes
    )


def _same_axis(data: Dims, output: Dims, axis: int) -> AxisMap | None:
    """Return the map of an output that has the axis too; None if its rank or length differs."""
    is_kept = len(output) == len(data) and output[axis] == data[axis]
    return AxisMap(axis) if is_kept else None


def _softmax_splits(node: Node) -> tuple[Split, ...]:
    """Return the splits along the axes that are not normalized."""
    if node.opset < _SINGLE_AXIS_OPSET:
        return _splits_before_axis(node, default=1)
    return _splits_except_axis(node)


def _splits_before_axis(node: Node, default: int = -1) -> tuple[Split, ...]:
    """Return the splits along the axes before ``axis``; all others are normalized together."""
    return _splits_along(
        node, range(node.int_attribute("axis", default) % len(node.data_shape))
    )


def _splits_before_last_axis(node: Node) -> tuple[Split, ...]:
    """Return the splits along all axes but the last, which is normalized."""
    return _splits_along(node, range(len(node.data_shape) - 1))


def _splits_except_axis(node: Node) -> tuple[Split, ...]:
    """Return the splits along all axes but ``axis``, which is normalized."""
    rank = len(node.data_shape)
    normalized = node.int_attribute("axis", -1) % rank
    return _splits_along(node, (axis for axis in range(rank) if axis != normalized))


def _instance_normalization_splits(node: Node) -> tuple[Split, ...]:
    """Return the splits along samples and channels, each channel with its own scale and shift."""
    channels = (node.input_shape(0) or (0, 0))[1]
    inputs = {0: AxisMap(1), 1: AxisMap(0), 2: AxisMap(0)}
    return *same_axis_splits(node, (0,)), node.split(channels, inputs, {0: AxisMap(1)})


def _group_normalization_splits(node: Node) -> tuple[Split, ...]:
    """Return the splits along samples and groups of channels.

    Scale and shift have one element per channel or, in older opsets, per group.
    """
    groups = node.int_attribute("num_groups", 0)
    channels = (node.input_shape(0) or (0, 0))[1]
    if groups < 1 or channels % groups:
        return same_axis_splits(node, (0,))
    parameters = {
        position: AxisMap(0, (node.input_shape(position) or (0,))[0] // groups)
        for position in (1, 2)
    }
    data = AxisMap(1, channels // groups)
    return (
        *same_axis_splits(node, (0,)),
        node.split(groups, {0: data, **parameters}, {0: data}),
    )


def _group_normalization_edit(_node: Node, split: Split, chunk: Range) -> ChunkEdit:
    """Replace the number of groups in a chunk of groups."""
    output = split.outputs[0]
    if output is None or output.axis != 1:
        return ChunkEdit()
    return ChunkEdit({"num_groups": chunk[1] - chunk[0]})


def _batch_normalization_splits(node: Node) -> tuple[Split, ...]:
    """Return the splits of an inference BatchNormalization along every axis but the channels."""
    if node.int_attribute("training_mode", 0) or len(node.outputs) > 1:
        return ()
    return same_axis_splits(node, (axis for axis in range(len(node.data_shape)) if axis != 1))


def _reduction_splits(node: Node) -> tuple[Split, ...]:
    """Return the splits along the axes that are not reduced."""
    reduced = reduced_axes(node)
    return () if reduced is None else _splits_along_remaining_axes(node, reduced)


def _arg_reduction_splits(node: Node) -> tuple[Split, ...]:
    """Return the splits of ArgMax or ArgMin along the axes that are not reduced."""
    return _splits_along_remaining_axes(
        node, {node.int_attribute("axis", 0) % len(node.data_shape)}
    )


def _splits_along_remaining_axes(node: Node, reduced: Collection[int]) -> tuple[Split, ...]:
    """Return the splits along the axes that are not in ``reduced``, which are counted from 0.

    Without ``keepdims`` they move to the left: axis 2 of ``[8, 16, 64]`` becomes axis 1 of the
    output if axis 1 is reduced.
    """
    data = node.data_shape
    remaining = [axis for axis in range(len(data)) if axis not in reduced]
    keeps_dims = len(node.output_shape) == len(data)
    return tuple(
        node.split(
            data[axis],
            inputs={0: AxisMap(axis)},
            outputs={0: AxisMap(axis if keeps_dims else index)},
        )
        for index, axis in enumerate(remaining)
    )


def reduced_axes(node: Node) -> frozenset[int] | None:
    """Return the axes that a reduction sums over; None if they are known only at run time."""
    rank = len(node.data_shape)
    axes = node.ints_attribute("axes")
    if axes is None and node.input_shape(1) is not None:
        if 1 not in node.constants:
            return None
        axes = tuple(int(axis) for axis in node.constants[1])
    if axes:
        return frozenset(axis % rank for axis in axes)
    is_identity = node.int_attribute("noop_with_empty_axes", 0)
    return frozenset() if is_identity else frozenset(range(rank))


def _family_names(family: Family) -> tuple[str, ...]:
    """Return the qualified names of the operators of a family."""
    return tuple(names_of(lambda row: row.family is family))


RULES: Mapping[str, SplitRule] = {
    **dict.fromkeys(_family_names(Family.SOFTMAX), _softmax_splits),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization"), _splits_before_axis),
    "SimplifiedLayerNormalization": _splits_before_axis,
    f"{MICROSOFT}.SkipLayerNormalization": _splits_before_last_axis,
    f"{MICROSOFT}.SkipSimplifiedLayerNormalization": _splits_before_last_axis,
    "BatchNormalization": _batch_normalization_splits,
    "InstanceNormalization": _instance_normalization_splits,
    "GroupNormalization": _group_normalization_splits,
    **dict.fromkeys(
        ("GlobalAveragePool", "GlobalMaxPool"), partial(same_axis_splits, axes=(0, 1))
    ),
    **dict.fromkeys(
        (f"{NCHWC}.GlobalAveragePool", f"{NCHWC}.GlobalMaxPool"),
        partial(same_axis_splits, axes=(0,)),
    ),
    **dict.fromkeys(_family_names(Family.REDUCTION), _reduction_splits),
    **dict.fromkeys(_family_names(Family.ARG_REDUCTION), _arg_reduction_splits),
}

EDITS: Mapping[str, EditRule] = {"GroupNormalization": _group_normalization_edit}
