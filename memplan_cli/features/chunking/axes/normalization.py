"""Softmax, normalizations and reductions: every axis except those whose elements are mixed."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from memplan_cli.core.operators import MICROSOFT, NCHWC, Family, names_of, operator
from memplan_cli.features.chunking.axes.split import (
    AxisMap,
    ChunkEdit,
    broadcast_axis,
    same_axis_splits,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

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


def _splits_except(
    node: Node, mixed_axes: Callable[[Node], Iterable[int]]
) -> tuple[Split, ...]:
    """Return the splits along the axes of the first input, except those that ``mixed_axes`` returns.

    An operator mixes an axis if an element of its result depends on several elements of the axis.
    Further inputs are broadcast to the first one. The outputs, such as the result and the means of
    rows, have all axes that are not mixed. An output of another shape gets no `AxisMap`: then the op
    is only computed in chunks if nothing reads this output.
    """
    data = node.data_shape
    mixed = {axis % len(data) for axis in mixed_axes(node)}
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
                if shape  # neither omitted (None) nor a scalar, which has no axes
            },
        )
        for axis in range(len(data))
        if axis not in mixed
    )


def _same_axis(data: Dims, output: Dims, axis: int) -> AxisMap | None:
    """Return the map of an output that has the axis too; None if its rank or length differs."""
    is_kept = len(output) == len(data) and output[axis] == data[axis]
    return AxisMap(axis) if is_kept else None


def _axes_from(node: Node, default: int = -1) -> Iterable[int]:
    """Return ``axis`` and all axes behind it, which are normalized together."""
    rank = len(node.data_shape)
    return range(node.int_attribute("axis", default) % rank, rank)


def _softmax_axes(node: Node) -> Iterable[int]:
    if node.opset < _SINGLE_AXIS_OPSET:
        return _axes_from(node, default=1)
    return (node.int_attribute("axis", -1),)


def _group_normalization_splits(node: Node) -> tuple[Split, ...]:
    """Return the splits along samples and groups of channels; InstanceNormalization has one channel in each.

    Scale and shift have one element per channel or, in older opsets, per group.
    """
    channels = node.data_shape[1]
    groups = node.int_attribute("num_groups", channels)
    if groups < 1 or channels % groups:
        return same_axis_splits(node, (0,))
    parameters = {
        position: AxisMap(0, node.required_shape(position)[0] // groups) for position in (1, 2)
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


def _reduction_splits(node: Node) -> tuple[Split, ...]:
    """Return the splits along the axes that are not reduced; none if these are not known.

    Without ``keepdims`` they move to the left: axis 2 of ``[8, 16, 64]`` becomes axis 1 of the
    output if axis 1 is reduced.
    """
    data, reduced = node.data_shape, reduced_axes(node)
    if reduced is None:
        return ()
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
    if operator(node.op).family is Family.ARG_REDUCTION:
        return frozenset({node.int_attribute("axis", 0) % rank})
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


_MIXED_AXES: Mapping[str, Callable[[Node], Iterable[int]]] = {
    **dict.fromkeys(_family_names(Family.SOFTMAX), _softmax_axes),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization"), _axes_from),
    "SimplifiedLayerNormalization": _axes_from,
    f"{MICROSOFT}.SkipLayerNormalization": lambda _: (-1,),
    f"{MICROSOFT}.SkipSimplifiedLayerNormalization": lambda _: (-1,),
    **dict.fromkeys(
        ("GlobalAveragePool", "GlobalMaxPool"), lambda node: range(2, len(node.data_shape))
    ),
    # In blocks, channels are not one axis in memory.
    **dict.fromkeys(
        (f"{NCHWC}.GlobalAveragePool", f"{NCHWC}.GlobalMaxPool"),
        lambda node: range(1, len(node.data_shape)),
    ),
}
"""The axes that an operator normalizes or reduces, by its name."""

RULES: Mapping[str, SplitRule] = {
    **{
        name: partial(_splits_except, mixed_axes=mixed_axes)
        for name, mixed_axes in _MIXED_AXES.items()
    },
    **dict.fromkeys(
        ("InstanceNormalization", "GroupNormalization"), _group_normalization_splits
    ),
    **dict.fromkeys(
        (*_family_names(Family.REDUCTION), *_family_names(Family.ARG_REDUCTION)),
        _reduction_splits,
    ),
}

EDITS: Mapping[str, EditRule] = {"GroupNormalization": _group_normalization_edit}
