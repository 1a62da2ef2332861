"""Elementwise operators, and operators that only move elements (reshape, slice, gather, ...).

They are split along every axis on which an element's place in the output depends on its place
in the input alone.
"""

from __future__ import annotations

from functools import partial
from itertools import accumulate
from math import gcd, prod
from operator import mul
from typing import TYPE_CHECKING

from memplan_cli.core.operators import OPERATORS
from memplan_cli.features.chunking.axes.split import (
    AxisMap,
    ChunkEdit,
    broadcast_axis,
    same_axis_splits,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from memplan_cli.features.chunking.axes.split import (
        Dims,
        EditRule,
        Node,
        Number,
        Range,
        Split,
        SplitRule,
    )

_DATA, _INDICES, _UPDATES = 0, 1, 2
"""Inputs of the operators that index."""

_STARTS, _STOPS, _AXES, _STEPS = 1, 2, 3, 4
"""Inputs of Slice."""

_PADS, _PADDED_AXES = 1, 3
"""Inputs of Pad."""


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


def _expand_splits(node: Node) -> tuple[Split, ...]:
    """Return the splits along every output axis; the data stays whole if it is repeated along it."""
    output = node.output_shape
    return tuple(
        node.split(
            dim, {_DATA: broadcast_axis(node.data_shape, output, axis)}, {0: AxisMap(axis)}
        )
        for axis, dim in enumerate(output)
    )


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
    """Return the axes that are not of length 1, by the product of the dims before each.

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


def _concat_splits(node: Node) -> tuple[Split, ...]:
    """Return the splits along every axis.

    Along the joined axis, elements ``a..b`` of the result are elements ``a - start..b - start`` of an
    input that begins at ``start`` in the result. An `AxisMap` gives ``a - halo_before..b + halo_after``,
    cropped to the input. A chunk omits the inputs of which it reads nothing.
    """
    positions = range(len(node.inputs))
    joined = node.int_attribute("axis", 1) % len(node.output_shape)
    by_other_axes = (
        node.split(dim, dict.fromkeys(positions, AxisMap(axis)), {0: AxisMap(axis)})
        for axis, dim in enumerate(node.output_shape)
        if axis != joined
    )
    lengths = [node.required_shape(position)[joined] for position in positions]
    starts = accumulate(lengths[:-1], initial=0)
    reads = {
        position: AxisMap(joined, halo_before=start, halo_after=-start)
        for position, start in enumerate(starts)
    }
    by_joined_axis = node.split(node.output_shape[joined], reads, {0: AxisMap(joined)})
    return (*by_other_axes, by_joined_axis)


def _splits_except(
    node: Node, mixed_axes: Callable[[Node], Iterable[Number] | None]
) -> tuple[Split, ...]:
    """Return the splits along the axes that an operator does not mix; none if these are not known.

    No input but the first is sliced.
    """
    axes = mixed_axes(node)
    if axes is None:
        return ()
    rank = len(node.data_shape)
    mixed = {int(axis) % rank for axis in axes}
    return same_axis_splits(node, [axis for axis in range(rank) if axis not in mixed])


def _repeated_axes(node: Node) -> Iterable[int] | None:
    """Return the axes along which Tile repeats its data; None if they are known only at run time."""
    if 1 not in node.constants:
        return None
    return [axis for axis, count in enumerate(node.constants[1]) if count != 1]


def _batch_normalized_axes(node: Node) -> Iterable[int] | None:
    """Return the axis of channels; None in training, where samples are mixed."""
    return None if node.int_attribute("training_mode", 0) or len(node.outputs) > 1 else (1,)


def _starts_and_steps(node: Node) -> Mapping[int, tuple[int, int]] | None:
    """Return the start and step of each axis that Slice lists.

    Starts are counted from the front, steps are positive. None if some are known only at run time, or
    if an axis is sliced backwards. Before opset 10 starts and axes are attributes. Without axes the
    first ones are sliced.
    """
    given_inputs = [at for at in (_STARTS, _AXES, _STEPS) if node.input_shape(at) is not None]
    if any(position not in node.constants for position in given_inputs):
        return None
    starts = node.ints_attribute("starts") or node.constants.get(_STARTS, ())
    axes = node.ints_attribute("axes") or node.constants.get(_AXES) or range(len(starts))
    steps = node.constants.get(_STEPS) or (1,) * len(starts)
    if not len(starts) == len(axes) == len(steps) or min(steps, default=1) < 0:
        return None
    data = node.data_shape
    starts_and_steps = {}
    for axis, start, step in zip(axes, starts, steps, strict=True):
        dim = data[int(axis)]
        from_front = int(start) + dim if start < 0 else int(start)
        starts_and_steps[int(axis) % len(data)] = min(max(from_front, 0), dim), int(step)
    return starts_and_steps


def _slice_splits(node: Node) -> tuple[Split, ...]:
    """Return the splits along every axis; none if `_starts_and_steps` does not give the sliced ones.

    Element ``i`` of the result is element ``start + i * step`` of the data. So elements ``a..b`` read
    ``start + a * step .. start + (b - 1) * step + 1``, half-open. An `AxisMap` with this step gives
    ``a * step - halo_before .. b * step + halo_after``.
    """
    starts_and_steps = _starts_and_steps(node)
    if starts_and_steps is None:
        return ()
    along_sliced = (
        node.split(
            node.output_shape[axis],
            {_DATA: AxisMap(axis, step, halo_before=-start, halo_after=start + 1 - step)},
            {0: AxisMap(axis)},
        )
        for axis, (start, step) in starts_and_steps.items()
    )
    whole_axes = [axis for axis in range(len(node.data_shape)) if axis not in starts_and_steps]
    return (*same_axis_splits(node, whole_axes), *along_sliced)


def _slice_edit(node: Node, split: Split, chunk: Range) -> ChunkEdit:
    """Return the bounds for a chunk of a Slice, if chunks are cut along an axis that it slices.

    Along this axis the chunk gets only the part of the data that it reads, so its Slice begins at 0. Of
    ``data[3:19:2]``, for example, the chunk with elements 2 and 3 gets ``data[7:10]`` and takes ``[0:3:2]`` of it.
    """
    data_map = split.inputs[_DATA]
    starts_and_steps = _starts_and_steps(node)
    if data_map is None or starts_and_steps is None or data_map.axis not in starts_and_steps:
        return ChunkEdit()  # chunks are cut along an axis that the Slice leaves whole
    # The bounds of the node, by axis; all steps are positive. They hold for the chunk too, except along its axis.
    bounds = {
        axis: (start, start + node.output_shape[axis] * step, step)
        for axis, (start, step) in starts_and_steps.items()
    }
    read_start, read_stop = data_map.range(chunk, node.data_shape[data_map.axis])
    _, step = starts_and_steps[data_map.axis]
    bounds[data_map.axis] = 0, read_stop - read_start, step
    starts, stops, steps = zip(*bounds.values(), strict=True)
    axes = tuple(bounds)
    if node.ints_attribute("starts"):  # before opset 10: attributes, and no steps
        return ChunkEdit({"starts": starts, "ends": stops, "axes": axes})
    inputs = {_STARTS: starts, _STOPS: stops, _AXES: axes, _STEPS: steps}
    # Axes or steps that the node omits stay omitted: an omitted input has no shape.
    return ChunkEdit(
        constants={
            position: values
            for position, values in inputs.items()
            if node.input_shape(position) is not None
        }
    )


def _pads(node: Node) -> tuple[int, ...] | None:
    """Return the padding of each axis, first all before and then all after.

    None if the padding is known only at run time, or if an input of the op lists the axes to pad.
    """
    pads = node.ints_attribute("pads") or node.constants.get(_PADS)
    if not pads or node.input_shape(_PADDED_AXES) is not None:
        return None
    if len(pads) != 2 * len(node.data_shape):
        return None  # the model is invalid
    return tuple(map(int, pads))


def _pad_splits(node: Node) -> tuple[Split, ...]:
    """Return the splits along every axis, except those that are cropped by a negative padding.

    With ``before`` elements of padding, element ``i`` of the result is element ``i - before`` of the
    data. Modes ``reflect`` and ``wrap``, whose padding is copied from other places, are not split.
    """
    pads, rank = _pads(node), len(node.output_shape)
    if pads is None or node.string_attribute("mode", "constant") not in {"constant", "edge"}:
        return ()
    return tuple(
        node.split(
            dim,
            {_DATA: AxisMap(axis, halo_before=before, halo_after=-before)},
            {0: AxisMap(axis)},
        )
        for axis, (dim, before, after) in enumerate(
            zip(node.output_shape, pads[:rank], pads[rank:], strict=True)
        )
        if min(before, after) >= 0
    )


def _pad_edit(node: Node, split: Split, chunk: Range) -> ChunkEdit:
    """Return the padding of a chunk: along the split axis only where it reaches beyond the data."""
    read, pads = split.inputs[0], list(_pads(node) or ())
    if read is None or not pads:
        return ChunkEdit()
    start, stop = read.uncropped_range(chunk)
    pads[read.axis] = max(-start, 0)
    pads[read.axis + len(pads) // 2] = max(stop - node.data_shape[read.axis], 0)
    if node.ints_attribute("pads"):
        return ChunkEdit({"pads": tuple(pads)})
    return ChunkEdit(constants={_PADS: tuple(pads)})


def _gather_splits(node: Node) -> tuple[Split, ...]:
    """Return the splits along axes of the indices, and along axes of the data but the gathered one.

    Along an axis of the indices, the data stays whole, and the reverse. In the output, the axes of the indices
    stand in place of the gathered axis of the data.
    """
    data, indices = node.data_shape, node.required_shape(_INDICES)
    gathered = node.int_attribute("axis", 0) % len(data)
    shift = len(indices) - 1  # of the data's axes behind the gathered one
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


def _gather_nd_splits(node: Node) -> tuple[Split, ...]:
    """Return the splits along the axes of the lists of indices; the data stays whole."""
    if node.int_attribute("batch_dims", 0):
        return ()
    return tuple(
        node.split(dim, {_INDICES: AxisMap(axis)}, {0: AxisMap(axis)})
        for axis, dim in enumerate(node.required_shape(_INDICES)[:-1])
    )


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
    """Return the splits along each axis that is not indexed and as long in the indices as in the data.

    Where the indices are shorter, a chunk of the last data elements would have no indices.
    """
    data, indices = node.data_shape, node.required_shape(_INDICES)
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


_MIXED_AXES: Mapping[str, Callable[[Node], Iterable[Number] | None]] = {
    **dict.fromkeys(("CastLike", "Dropout"), lambda _: ()),
    "Split": lambda node: (node.int_attribute("axis", 0),),
    "TopK": lambda node: (node.int_attribute("axis", -1),),
    "CumSum": lambda node: node.constants.get(1),
    "Tile": _repeated_axes,
    "Trilu": lambda _: (-2, -1),
    "ReverseSequence": lambda node: (
        node.int_attribute("batch_axis", 1),
        node.int_attribute("time_axis", 0),
    ),
    "LpNormalization": lambda node: (node.int_attribute("axis", -1),),
    "LRN": lambda _: (1,),
    "BatchNormalization": _batch_normalized_axes,
}
"""The axes that an operator mixes, by its name; None: they are known only at run time."""

RULES: Mapping[str, SplitRule] = {
    **{row.qualified_name: _elementwise_splits for row in OPERATORS if row.is_elementwise},
    "Expand": _expand_splits,
    **dict.fromkeys(("Reshape", "Flatten", "Unsqueeze"), _reshape_splits),
    "Squeeze": _squeeze_splits,
    "Transpose": _transpose_splits,
    "Concat": _concat_splits,
    "Slice": _slice_splits,
    "Pad": _pad_splits,
    **{
        name: partial(_splits_except, mixed_axes=mixed_axes)
        for name, mixed_axes in _MIXED_AXES.items()
    },
    "Gather": _gather_splits,
    "GatherND": _gather_nd_splits,
    "GatherElements": _gather_elements_splits,
    "ScatterElements": _scatter_elements_splits,
}

EDITS: Mapping[str, EditRule] = {
    **dict.fromkeys(("Expand", "Reshape"), _target_shape_edit),
    "Slice": _slice_edit,
    "Pad": _pad_edit,
}
