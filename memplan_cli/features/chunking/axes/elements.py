"""Elementwise operators, and operators that only move elements (reshape, slice, gather, ...).

They are split along every axis on which an element's place in the output depends on its place
in the input alone.
"""

from __future__ import annotations

from itertools import accumulate
from math import gcd, prod
from operator import mul
from typing import TYPE_CHECKING

from memplan_cli.core.operators import OPERATORS
from memplan_cli.features.chunking.axes.split import AxisMap, ChunkEdit, broadcast_axis

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from memplan_cli.features.chunking.axes.split import (
        Dims,
        EditRule,
        Node,
        Range,
        Split,
        SplitRule,
    )

_DATA, _INDICES, _UPDATES = 0, 1, 2
"""Inputs of the operators that index."""


def _elementwise_splits(node: Node) -> tuple[Split, ...]:
    """Return the splits along every output axis; inputs that are broadcast along it stay whole."""
    output = node.output_shape
    return tuple(
        node.split(
            dim,
            {
                position: broadcast_axis(shape, output, axis)
                for position, shape in enumerate(node.inputs)
            },
            {
                position: AxisMap(axis)
                for position, shape in enumerate(node.outputs)
                if shape == output
            },
        )
        for axis, dim in enumerate(output)
    )


def _elementwise_first_input_splits(node: Node) -> tuple[Split, ...]:
    """Return the splits of an elementwise operator whose further inputs are whole parameters."""
    return tuple(_with_first_input_only(split) for split in _elementwise_splits(node))


def _with_first_input_only(split: Split) -> Split:
    """Return the split with all inputs whole but the first."""
    return split._replace(inputs=(split.inputs[0], *(None for _ in split.inputs[1:])))


def _reshape_splits(node: Node) -> tuple[Split, ...]:
    """Return the splits along the first axis of each group that a reshape merges or divides.

    ``[2, 8, 64] -> [16, 64]`` has the groups ``[2, 8] -> [16]`` and ``[64] -> [64]``. The
    first can be cut into 2 chunks, each of one element of the input axis and 8 of the output
    axis; the second into 64.
    """
    data, output = node.data_shape, node.output_shape
    if 0 in data or 0 in output or prod(data) != prod(output):
        return ()
    splits = []
    for data_axis, output_axis in _outermost_axes(data, output):
        extent = gcd(data[data_axis], output[output_axis])
        read = AxisMap(data_axis, data[data_axis] // extent)
        written = AxisMap(output_axis, output[output_axis] // extent)
        splits.append(node.split(extent, {0: read}, {0: written}))
    return tuple(splits)


def _outermost_axes(data: Dims, output: Dims) -> Iterator[tuple[int, int]]:
    """Yield the first input and output axis of each group of axes with the same elements.

    A group begins at the axes before which the dims have the same product in both shapes. Axes
    of length 1 belong to no group. ``[2, 8, 1, 64] -> [16, 64]`` yields ``(0, 0)`` and ``(3, 1)``.
    """
    output_axes = _axes_by_outer_product(output)
    for outer_product, data_axis in _axes_by_outer_product(data).items():
        if outer_product in output_axes:
            yield data_axis, output_axes[outer_product]


def _axes_by_outer_product(dims: Dims) -> dict[int, int]:
    """Return the axes longer than 1, by the product of the dims before each.

    ``[2, 8, 1, 64]`` gives ``{1: 0, 2: 1, 16: 3}``.
    """
    outer_products = accumulate(dims, mul, initial=1)  # one more than dims
    return {
        product: axis
        for axis, (dim, product) in enumerate(zip(dims, outer_products, strict=False))
        if dim != 1
    }


def _squeeze_splits(node: Node) -> tuple[Split, ...]:
    """Return the splits of a reshape if the op has axes.

    Without axes Squeeze drops all axes of length 1: in a chunk of length 1 also the sliced one.
    """
    has_axes = node.ints_attribute("axes") is not None or node.input_shape(1) is not None
    return _reshape_splits(node) if has_axes else ()


def _target_shape_edit(node: Node, split: Split, chunk: Range) -> ChunkEdit:
    """Replace the target shape (input 1) by the shape of the chunk."""
    written = split.outputs[0]
    shape = list(node.output_shape)
    if written is not None:
        start, stop = written.range(chunk, shape[written.axis])
        shape[written.axis] = stop - start
    return ChunkEdit(constants={1: tuple(shape)})


def _transpose_splits(node: Node) -> tuple[Split, ...]:
    """Return the splits along every axis."""
    rank = len(node.output_shape)
    permutation = node.ints_attribute("perm") or tuple(reversed(range(rank)))
    return tuple(
        node.split(dim, {0: AxisMap(permutation[axis])}, {0: AxisMap(axis)})
        for axis, dim in enumerate(node.output_shape)
    )


def _splits_of_all_inputs_except(node: Node, axes: Iterable[int]) -> tuple[Split, ...]:
    """Return the splits along every axis except ``axes``, which slice all inputs and outputs."""
    data = node.data_shape
    excluded = {axis % len(data) for axis in axes}
    return tuple(
        node.split(
            dim,
            {position: AxisMap(axis) for position in range(len(node.inputs))},
            {position: AxisMap(axis) for position, shape in enumerate(node.outputs) if shape},
        )
        for axis, dim in enumerate(data)
        if axis not in excluded
    )


def _splits_of_first_input_except(node: Node, axes: Iterable[int]) -> tuple[Split, ...]:
    """Return the splits along every axis except ``axes``, which slice no input but the first."""
    return tuple(
        _with_first_input_only(split) for split in _splits_of_all_inputs_except(node, axes)
    )


def _concat_splits(node: Node) -> tuple[Split, ...]:
    """Return the splits along the axes that are not concatenated."""
    return _splits_of_all_inputs_except(node, (node.int_attribute("axis", 1),))


def _split_operator_splits(node: Node) -> tuple[Split, ...]:
    """Return the splits of the operator Split along the axes that it does not divide."""
    return _splits_of_first_input_except(node, (node.int_attribute("axis", 0),))


def _top_k_splits(node: Node) -> tuple[Split, ...]:
    """Return the splits along the axes that are not sorted."""
    return _splits_of_first_input_except(node, (node.int_attribute("axis", -1),))


def _slice_splits(node: Node) -> tuple[Split, ...]:
    """Return the splits along the axes that are not sliced.

    None are returned if the sliced axes are known only at run time. Without axes Slice slices
    the first ones, as many as it has starts.
    """
    axes = node.ints_attribute("axes")
    starts = node.ints_attribute("starts")
    count = len(starts) if starts is not None else (node.input_shape(1) or (0,))[0]
    if axes is None and node.input_shape(3) is not None:
        if 3 not in node.constants:
            return ()
        axes = tuple(int(axis) for axis in node.constants[3])
    return _splits_of_first_input_except(node, range(count) if axes is None else axes)


def _pad_splits(node: Node) -> tuple[Split, ...]:
    """Return the splits along the axes that are not padded.

    None are returned if the padding is known only at run time, or if its axes are an input.
    """
    rank = len(node.output_shape)
    pads = node.ints_attribute("pads") or node.constants.get(1)
    if not pads or node.input_shape(3) is not None or len(pads) != 2 * rank:
        return ()
    padded = (axis for axis in range(rank) if pads[axis] or pads[axis + rank])
    return _splits_of_first_input_except(node, padded)


def _gather_splits(node: Node) -> tuple[Split, ...]:
    """Return the splits along the axes of the indices, and along data axes that are not gathered.

    In the first the data stays whole. Axis ``gathered`` of the data is replaced in the output by
    all axes of the indices.
    """
    data, indices = node.data_shape, node.input_shape(_INDICES) or ()
    gathered = node.int_attribute("axis", 0) % len(data)
    shift = len(indices) - 1
    by_index = (
        node.split(dim, {_INDICES: AxisMap(axis)}, {0: AxisMap(gathered + axis)})
        for axis, dim in enumerate(indices)
    )
    by_data = (
        node.split(
            dim,
            {_DATA: AxisMap(axis)},
            {0: AxisMap(axis if axis < gathered else axis + shift)},
        )
        for axis, dim in enumerate(data)
        if axis != gathered
    )
    return *by_index, *by_data


def _gather_elements_splits(node: Node) -> tuple[Split, ...]:
    """Return the splits along every axis; along the indexed one the data stays whole."""
    indexed = node.int_attribute("axis", 0) % len(node.output_shape)
    return tuple(
        node.split(
            dim,
            {_DATA: None if axis == indexed else AxisMap(axis), _INDICES: AxisMap(axis)},
            {0: AxisMap(axis)},
        )
        for axis, dim in enumerate(node.output_shape)
    )


def _scatter_elements_splits(node: Node) -> tuple[Split, ...]:
    """Return the splits along the axes that are not indexed, if the indices cover all of them."""
    data, indices = node.data_shape, node.input_shape(_INDICES) or ()
    indexed = node.int_attribute("axis", 0) % len(data)
    return tuple(
        node.split(
            dim,
            {position: AxisMap(axis) for position in (_DATA, _INDICES, _UPDATES)},
            {0: AxisMap(axis)},
        )
        for axis, dim in enumerate(data)
        if axis != indexed and indices[axis] == dim
    )


RULES: Mapping[str, SplitRule] = {
    **{row.qualified_name: _elementwise_splits for row in OPERATORS if row.is_elementwise},
    "CastLike": _elementwise_first_input_splits,
    "Dropout": _elementwise_first_input_splits,
    "Expand": _elementwise_splits,
    **dict.fromkeys(("Reshape", "Flatten", "Unsqueeze"), _reshape_splits),
    "Squeeze": _squeeze_splits,
    "Transpose": _transpose_splits,
    "Concat": _concat_splits,
    "Split": _split_operator_splits,
    "Slice": _slice_splits,
    "Pad": _pad_splits,
    "TopK": _top_k_splits,
    "Gather": _gather_splits,
    "GatherElements": _gather_elements_splits,
    "ScatterElements": _scatter_elements_splits,
}

EDITS: Mapping[str, EditRule] = {"Expand": _target_shape_edit, "Reshape": _target_shape_edit}
