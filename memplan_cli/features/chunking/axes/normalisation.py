"""Softmax, normalisations and reductions: every axis except those whose elements are mixed."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from memplan_cli.core.operators import MICROSOFT, Family, names_of
from memplan_cli.features.chunking.axes.split import AxisMap, ChunkEdit, broadcast_axis

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
"""The opset since which Softmax normalises one axis; before, it is all axes from ``axis`` on."""


def _same_shape_along(node: Node, axes: Iterable[int]) -> tuple[Split, ...]:
    """Split along axes of the first input.

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
    """Return the axis of an output if it has the rank and the length of the data there."""
    is_kept = len(output) == len(data) and output[axis] == data[axis]
    return AxisMap(axis) if is_kept else None


def _softmax(node: Node) -> tuple[Split, ...]:
    """Split along the axes that are not normalised."""
    rank = len(node.data_shape)
    is_single_axis = node.opset >= _SINGLE_AXIS_OPSET
    axis = node.int_attribute("axis", -1 if is_single_axis else 1)
    axis += rank if axis < 0 else 0
    after = range(axis + 1, rank) if is_single_axis else ()
    return _same_shape_along(node, (*range(axis), *after))


def _before_axis(node: Node) -> tuple[Split, ...]:
    """Split a normalisation of all axes from ``axis`` on."""
    rank = len(node.data_shape)
    axis = node.int_attribute("axis", -1)
    return _same_shape_along(node, range(axis + rank if axis < 0 else axis))


def _before_last_axis(node: Node) -> tuple[Split, ...]:
    return _same_shape_along(node, range(len(node.data_shape) - 1))


def _except_axis(node: Node) -> tuple[Split, ...]:
    rank = len(node.data_shape)
    normalised = node.int_attribute("axis", -1) % rank
    return _same_shape_along(node, (axis for axis in range(rank) if axis != normalised))


def _first_axes(node: Node, *, count: int) -> tuple[Split, ...]:
    """Split the first input and output along their first axes: samples, then channels."""
    data, output = node.data_shape, node.output_shape
    return tuple(
        node.split(data[axis], {0: AxisMap(axis)}, {0: AxisMap(axis)})
        for axis in range(min(count, len(data), len(output)))
    )


def _instance_normalisation(node: Node) -> tuple[Split, ...]:
    """Split along samples and channels, each channel with its own scale and shift."""
    channels = (node.input_shape(0) or (0, 0))[1]
    inputs = {0: AxisMap(1), 1: AxisMap(0), 2: AxisMap(0)}
    return *_first_axes(node, count=1), node.split(channels, inputs, {0: AxisMap(1)})


def _group_normalisation(node: Node) -> tuple[Split, ...]:
    """Split along samples and groups of channels.

    Scale and shift have one element per channel or, in older opsets, per group.
    """
    groups = node.int_attribute("num_groups", 0)
    channels = (node.input_shape(0) or (0, 0))[1]
    if groups < 1 or channels % groups:
        return _first_axes(node, count=1)
    parameters = {
        position: AxisMap(0, (node.input_shape(position) or (0,))[0] // groups)
        for position in (1, 2)
    }
    data = AxisMap(1, channels // groups)
    return *_first_axes(node, count=1), node.split(groups, {0: data, **parameters}, {0: data})


def _group_normalisation_edit(_node: Node, split: Split, chunk: Range) -> ChunkEdit:
    """Replace the number of groups in a chunk of groups."""
    output = split.outputs[0]
    if output is None or output.axis != 1:
        return ChunkEdit()
    return ChunkEdit({"num_groups": chunk[1] - chunk[0]})


def _batch_normalisation(node: Node) -> tuple[Split, ...]:
    """Split an inference BatchNormalization along every axis but the channels."""
    if node.int_attribute("training_mode", 0) or len(node.outputs) > 1:
        return ()
    return tuple(
        node.split(dim, {0: AxisMap(axis)}, {0: AxisMap(axis)})
        for axis, dim in enumerate(node.data_shape)
        if axis != 1
    )


def _reduction(node: Node) -> tuple[Split, ...]:
    """Split along the axes that are not reduced."""
    reduced = reduced_axes(node)
    return () if reduced is None else _along_remaining_axes(node, reduced)


def _arg_reduction(node: Node) -> tuple[Split, ...]:
    """Split ArgMax or ArgMin along the other axes."""
    return _along_remaining_axes(node, {node.int_attribute("axis", 0) % len(node.data_shape)})


def _along_remaining_axes(node: Node, reduced: Collection[int]) -> tuple[Split, ...]:
    """Split along the axes that remain, which move to the left unless ``keepdims`` is set."""
    data = node.data_shape
    remaining = [axis for axis in range(len(data)) if axis not in reduced]
    keeps_dims = len(node.output_shape) == len(data)
    return tuple(
        node.split(data[axis], {0: AxisMap(axis)}, {0: AxisMap(axis if keeps_dims else index)})
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
    **dict.fromkeys(_family_names(Family.SOFTMAX), _softmax),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization"), _before_axis),
    "SimplifiedLayerNormalization": _before_axis,
    f"{MICROSOFT}.SkipLayerNormalization": _before_last_axis,
    f"{MICROSOFT}.SkipSimplifiedLayerNormalization": _before_last_axis,
    "LpNormalization": _except_axis,
    "BatchNormalization": _batch_normalisation,
    "InstanceNormalization": _instance_normalisation,
    "GroupNormalization": _group_normalisation,
    **dict.fromkeys(_family_names(Family.GLOBAL_POOLING), partial(_first_axes, count=2)),
    **dict.fromkeys(_family_names(Family.REDUCTION), _reduction),
    **dict.fromkeys(_family_names(Family.ARG_REDUCTION), _arg_reduction),
}

EDITS: Mapping[str, EditRule] = {"GroupNormalization": _group_normalisation_edit}
