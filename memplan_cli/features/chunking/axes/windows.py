"""Convolutions, pooling and resizing: samples, and spatial tiles with the halo that they read."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.core.operators import MICROSOFT, NCHWC
from memplan_cli.features.chunking.axes.split import (
    AxisMap,
    ChunkEdit,
    Role,
    broadcast_axis,
    same_axis_splits,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.core.program import Attribute
    from memplan_cli.features.chunking.axes.split import (
        EditRule,
        Node,
        Number,
        Range,
        Split,
        SplitRule,
    )


SPATIAL_AXES = (2, 3)
"""The axes of rows and columns of an image ``[N, C, H, W]``."""

_SUMMAND = 3
"""The input of a fused convolution that is added to its result."""


def _first_spatial_axis(node: Node) -> int:
    """Return the first axis behind samples and channels; channels may also be the last axis."""
    return 1 if node.int_attribute("channels_last", 0) else 2


class _Window(NamedTuple):
    """The sliding window along one spatial axis.

    Attributes:
        stride: elements between two windows.
        reach: elements from the first to the last that one output element reads.
        pads: padding before and after the whole axis.
    """

    stride: int
    reach: int
    pads: tuple[int, int]

    def axis_map(self, axis: int) -> AxisMap:
        """Map a range of outputs to the inputs that they read.

        Outputs ``start..stop`` read ``start * stride - pad .. (stop - 1) * stride + reach -
        pad``. So the halo is ``pad`` before and ``reach - stride - pad`` after ``stop * stride``.
        """
        return AxisMap(
            axis, self.stride, self.pads[0], self.reach - self.stride - self.pads[0]
        )


def _windows(node: Node) -> list[_Window]:
    """Return the window of each spatial axis of a convolution or pooling."""
    ones = (1,) * (len(node.data_shape) - 2)
    # A convolution may leave the shape of its kernel to its weight.
    kernel = node.ints_attribute("kernel_shape") or node.required_shape(1)[2:]
    strides = node.ints_attribute("strides") or ones
    dilations = node.ints_attribute("dilations") or ones
    reaches = [
        (length - 1) * dilation + 1 for length, dilation in zip(kernel, dilations, strict=True)
    ]
    return [
        _Window(stride, reach, _pads(node, index, stride, reach))
        for index, (stride, reach) in enumerate(zip(strides, reaches, strict=True))
    ]


def _pads(node: Node, index: int, stride: int, reach: int) -> tuple[int, int]:
    """Return the padding before and after a spatial axis, with ``auto_pad`` resolved.

    ``index`` is the number of the axis among the spatial ones; ``stride`` and ``reach`` are those
    of its window (`_Window`).
    """
    count = len(node.data_shape) - 2
    auto_pad = node.string_attribute("auto_pad", "NOTSET")
    if auto_pad == "VALID":
        return 0, 0
    if not auto_pad.startswith("SAME"):
        pads = node.ints_attribute("pads") or (0,) * (2 * count)  # all before, then all after
        return pads[index], pads[index + count]
    axis = index + _first_spatial_axis(node)
    padded_length = (node.output_shape[axis] - 1) * stride + reach
    total = max(padded_length - node.data_shape[axis], 0)
    smaller, larger = total // 2, total - total // 2
    return (smaller, larger) if auto_pad == "SAME_UPPER" else (larger, smaller)


def _tile_splits(node: Node) -> tuple[Split, ...]:
    """Return the splits of a convolution or pooling along each spatial axis.

    The chunks, tiles of the image, read overlapping ranges of the first input. A fused convolution may
    have a summand, a tensor that is added to its output and sliced like it. Weights and bias are whole.
    """
    output, summand = node.output_shape, node.input_shape(_SUMMAND)
    return tuple(
        node.split(
            extent=output[axis],
            # Without a summand, or with one that is repeated along the axis, its map is None.
            inputs={0: window.axis_map(axis), _SUMMAND: broadcast_axis(summand, output, axis)},
            outputs={0: AxisMap(axis)},
            role=Role.TILES,
        )
        for axis, window in enumerate(_windows(node), start=_first_spatial_axis(node))
    )


def _convolution_splits(node: Node) -> tuple[Split, ...]:
    """Return the splits along samples and tiles.

    The summand of a fused convolution is sliced like the output; weights and bias stay whole.
    """
    # None if there is no summand, or one that is repeated for each sample.
    summand = broadcast_axis(node.input_shape(_SUMMAND), node.output_shape, axis=0)
    inputs = {0: AxisMap(0), _SUMMAND: summand}
    by_sample = node.split(extent=node.data_shape[0], inputs=inputs, outputs={0: AxisMap(0)})
    return (by_sample, *_tile_splits(node))


def _pooling_splits(node: Node) -> tuple[Split, ...]:
    """Return the splits along samples, channels and tiles; in the blocked layout not along channels.

    There are none for a MaxPool with a second output, whose indices count elements of the whole tensor.

    With ``ceil_mode``, the last window may reach beyond the padding. In a tile, the elements beyond it
    are padding too (`_tile_padding_edit`). An average that counts padding would also count these, so it
    has no tiles.
    """
    if len(node.outputs) > 1:
        return ()
    channels = len(node.data_shape) - 1 if node.int_attribute("channels_last", 0) else 1
    by_axis = same_axis_splits(node, (0,) if node.op.domain == NCHWC else (0, channels))
    if node.int_attribute("ceil_mode", 0) and node.int_attribute("count_include_pad", 0):
        return by_axis
    return (*by_axis, *_tile_splits(node))


def _transposed_convolution_splits(node: Node) -> tuple[Split, ...]:
    """Return the splits along samples, and along each spatial axis in ``stride`` outputs at a time.

    Input ``i`` adds to the ``reach`` outputs from ``i * stride - pad`` on. A chunk ``start..stop`` makes
    the outputs ``start * stride .. stop * stride``, and reads all inputs that add to them. With stride 2,
    reach 4 and pad 1, the chunk 2..4 makes outputs 4..8 and reads inputs 1..5. All ranges are half-open.
    """
    by_sample = same_axis_splits(node, (0,))
    auto_pad = node.string_attribute("auto_pad", "NOTSET")
    if node.ints_attribute("output_shape") or auto_pad not in {"NOTSET", "VALID"}:
        return by_sample  # the padding follows from the sizes of the output
    by_tile = []
    for axis, window in enumerate(_windows(node), start=_first_spatial_axis(node)):
        stride, reach, pad = window.stride, window.reach, window.pads[0]
        if reach < stride or reach <= pad:
            continue  # windows leave gaps, or the padding is as long as a window
        # The first input that adds to output ``start * stride``, and the last that adds to output
        # ``stop * stride - 1``, are ``start - halo_before`` and ``stop + halo_after - 1``.
        halo_before, halo_after = (reach - 1 - pad) // stride, (pad - 1) // stride + 1
        read = AxisMap(axis, halo_before=halo_before, halo_after=halo_after)
        written = AxisMap(axis, scale=stride)
        extent = -(-node.output_shape[axis] // stride)
        by_tile.append(node.split(extent, {0: read}, {0: written}, Role.TILES))
    return (*by_sample, *by_tile)


def _transposed_convolution_edit(node: Node, split: Split, chunk: Range) -> ChunkEdit:
    """Return the padding of a tile, which removes the outputs that are not its own.

    With stride 2, reach 4 and pad 1, the tile of outputs 4..8 (half-open) reads inputs 1..5. These add
    to outputs 1..11, so the tile has a padding of 3 before and 3 after. A tile at the end of the image
    may also have outputs that no input adds to: these are output padding. Axes that are not in tiles
    keep the padding of the node; so do chunks of samples.
    """
    read, written = split.inputs[0], split.outputs[0]
    if split.role is not Role.TILES or read is None or written is None:
        return ChunkEdit()
    windows = _windows(node)
    before = [window.pads[0] for window in windows]
    after = [window.pads[1] for window in windows]
    added = list(node.ints_attribute("output_padding") or (0,) * len(windows))
    index = read.axis - _first_spatial_axis(node)
    stride, reach, pads = windows[index]
    start, stop = read.range(chunk, node.data_shape[read.axis])
    kept_start, kept_stop = written.range(chunk, node.output_shape[read.axis])
    # The outputs that these inputs add to. ``made_start`` is at most ``kept_start``, as the tile reads
    # all inputs that add to its first output.
    made_start = start * stride - pads[0]
    made_stop = (stop - 1) * stride - pads[0] + reach
    before[index] = kept_start - made_start
    after[index] = max(made_stop - kept_stop, 0)
    added[index] = max(kept_stop - made_stop, 0)
    return ChunkEdit(
        {"pads": (*before, *after), "output_padding": tuple(added), "auto_pad": "NOTSET"}
    )


def _depth_to_space_splits(node: Node) -> tuple[Split, ...]:
    """Return the splits along samples, rows and columns of DepthToSpace or SpaceToDepth.

    A chunk is a range of rows or columns of the smaller image. Each row is ``blocksize`` rows of the larger
    image, and each column ``blocksize`` columns.
    """
    block = node.int_attribute("blocksize", 1)
    if node.op.type == "DepthToSpace":
        smaller_image, data_scale, output_scale = node.data_shape, 1, block
    else:
        smaller_image, data_scale, output_scale = node.output_shape, block, 1
    spatial = (
        node.split(
            extent=smaller_image[axis],
            inputs={0: AxisMap(axis, scale=data_scale)},
            outputs={0: AxisMap(axis, scale=output_scale)},
        )
        for axis in SPATIAL_AXES
    )
    return (*same_axis_splits(node, (0,)), *spatial)


def _layout_change_splits(node: Node) -> tuple[Split, ...]:
    """Return the splits of a ReorderInput or ReorderOutput.

    ReorderInput changes to the blocked channel layout, ReorderOutput back to the plain one: NCHW, or NHWC with
    ``channels_last``. The splits are along every axis but the channels.
    """
    output = node.output_shape
    is_channels_last = bool(node.int_attribute("channels_last", 0))
    to_blocked = node.op.type == "ReorderInput"
    splits = []
    for blocked_axis in (0, *range(2, len(output))):
        is_moved = is_channels_last and blocked_axis > 0  # a spatial axis, not the samples
        plain_axis = blocked_axis - 1 if is_moved else blocked_axis
        data_axis, output_axis = (
            (plain_axis, blocked_axis) if to_blocked else (blocked_axis, plain_axis)
        )
        split = node.split(
            output[output_axis], {0: AxisMap(data_axis)}, {0: AxisMap(output_axis)}
        )
        splits.append(split)
    return tuple(splits)


def _tile_padding_edit(node: Node, split: Split, chunk: Range) -> ChunkEdit:
    """Return the padding of a tile: only where its halo reaches beyond the input.

    The padding after an axis is as long as the last window needs. With ``ceil_mode``, that may be more
    than the padding of the node; a tile has this padding written out, and no ``ceil_mode``.
    """
    read = split.inputs[0]
    before, after = list[int](), list[int]()
    for axis, window in enumerate(_windows(node), start=_first_spatial_axis(node)):
        is_split = read is not None and read.axis == axis
        outputs = chunk if is_split else (0, node.output_shape[axis])
        start, stop = window.axis_map(axis).uncropped_range(outputs)
        before.append(max(-start, 0))
        after.append(max(stop - node.data_shape[axis], 0))
    attributes: dict[str, Attribute] = {"pads": (*before, *after), "auto_pad": "NOTSET"}
    if "ceil_mode" in node.op.attributes:
        attributes["ceil_mode"] = 0
    return ChunkEdit(attributes)


_REPEATING_NEAREST = {
    ("asymmetric", "floor"),
    ("half_pixel", "round_prefer_floor"),
    ("half_pixel", "round_prefer_ceil"),
}
"""Coordinate and rounding modes with which nearest repeats each element ``scale`` times."""

_INTERPOLATION_HALOS: Mapping[str, Mapping[str, tuple[int, int]]] = {
    "linear": {"half_pixel": (1, 1), "pytorch_half_pixel": (1, 1), "asymmetric": (0, 1)},
    "cubic": {"half_pixel": (2, 2), "pytorch_half_pixel": (2, 2), "asymmetric": (1, 2)},
}
"""Input elements before and after an element that its outputs are interpolated from."""


def _interpolation_halo(node: Node) -> tuple[int, int] | None:
    """Return the halo of an interpolating Resize; None if chunks would get other values.

    That is so for coordinates that depend on the length of the axis, such as ``align_corners``.
    """
    coordinates = node.string_attribute("coordinate_transformation_mode", "half_pixel")
    if node.int_attribute("antialias", 0) or node.int_attribute("exclude_outside", 0):
        return None
    mode = node.string_attribute("mode", "nearest")
    return _INTERPOLATION_HALOS.get(mode, {}).get(coordinates)


def _resize_scales(node: Node) -> tuple[Number, ...]:
    """Return the scale of each axis: an attribute, input 2 or by the sizes; empty if known only at run time."""
    scales: tuple[Number, ...] = node.ints_attribute("scales") or node.constants.get(2, ())
    if scales or node.input_shape(3) is None:
        return scales
    dims = zip(node.data_shape, node.output_shape, strict=True)
    return tuple(after / before for before, after in dims)


def _resize_splits(node: Node) -> tuple[Split, ...]:
    """Return the splits along axes that are unchanged, repeated or interpolated.

    An axis is split if its scale is a whole number, and one of these holds:

    - The scale is 1.
    - The mode is nearest, and repeats each element ``scale`` times (`_REPEATING_NEAREST`).
    - The mode interpolates between near elements (`_interpolation_halo`), and the scale is a power of
      two: then ``index / scale`` is exact in floats, so a chunk gets the same weights as the whole.

    A linear Resize by 2 reads a halo of 1 on both sides: a chunk of input rows 4..8 reads rows
    3..9, makes output rows 6..18, and keeps 8..16 of them (`ChunkEdit.surplus`).
    """
    coordinates = node.string_attribute("coordinate_transformation_mode", "half_pixel")
    resizes_listed_axes = node.ints_attribute("axes") is not None  # the scales are only theirs
    crops_input = coordinates == "tf_crop_and_resize"
    adjusts_sizes = node.string_attribute("keep_aspect_ratio_policy", "stretch") != "stretch"
    if resizes_listed_axes or crops_input or adjusts_sizes:
        return ()
    splits = []
    for axis, exact_scale in enumerate(_resize_scales(node)):
        dim, scale = node.data_shape[axis], int(exact_scale)
        if scale != exact_scale or scale * dim != node.output_shape[axis]:
            continue
        read = _resized_axis_map(node, axis, scale)
        if read is not None:
            splits.append(node.split(dim, {0: read}, {0: AxisMap(axis, scale)}))
    return tuple(splits)


def _resized_axis_map(node: Node, axis: int, scale: int) -> AxisMap | None:
    """Return which input elements a chunk of a Resize reads; None if chunks would get other outputs.

    A chunk is a range of input elements along the axis. Each element becomes ``scale`` outputs: copies, or
    values interpolated from the element and a halo around it.
    """
    elements_of_chunk = AxisMap(axis)  # no ``scale``: a chunk counts input elements
    if scale == 1:
        return elements_of_chunk
    if node.string_attribute("mode", "nearest") == "nearest":
        coordinates = node.string_attribute("coordinate_transformation_mode", "half_pixel")
        rounding = node.string_attribute("nearest_mode", "round_prefer_floor")
        # Upsample of the NCHWC domain has no ``nearest_mode``: with nearest, it always repeats.
        repeats = (coordinates, rounding) in _REPEATING_NEAREST or node.op.domain == NCHWC
        return elements_of_chunk if repeats else None
    # ``index / scale`` is exact in floats for powers of two. Else a chunk could get other weights.
    is_power_of_two = scale & (scale - 1) == 0
    halo = _interpolation_halo(node)
    if halo is None or not is_power_of_two:
        return None
    return AxisMap(axis, halo_before=halo[0], halo_after=halo[1])


def _resize_edit(node: Node, split: Split, chunk: Range) -> ChunkEdit:
    """Return the target sizes of a chunk (input 3) and the surplus that its halo adds.

    ``chunk`` is a half-open range of the input's elements along the axis; sizes and surplus count
    elements of the output.
    """
    read, written = split.inputs[0], split.outputs[0]
    if read is None or written is None:  # for the type checker: `_resize_splits` maps both
        return ChunkEdit()
    start, stop = read.range(chunk, node.data_shape[read.axis])
    before, after = (chunk[0] - start) * written.scale, (stop - chunk[1]) * written.scale
    if node.input_shape(3) is None:  # the node has scales, which hold for a chunk too
        return ChunkEdit(surplus=(before, after))
    sizes = list(node.output_shape)
    sizes[written.axis] = (stop - start) * written.scale
    return ChunkEdit(constants={3: tuple(sizes)}, surplus=(before, after))


_POOLS = ("MaxPool", "AveragePool", "LpPool", f"{NCHWC}.MaxPool", f"{NCHWC}.AveragePool")

_CONVOLUTIONS = ("Conv", f"{MICROSOFT}.FusedConv", f"{NCHWC}.Conv")

RULES: Mapping[str, SplitRule] = {
    **dict.fromkeys(_CONVOLUTIONS, _convolution_splits),
    "ConvTranspose": _transposed_convolution_splits,
    **dict.fromkeys(_POOLS, _pooling_splits),
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth"), _depth_to_space_splits),
    **dict.fromkeys(("Resize", f"{NCHWC}.Upsample"), _resize_splits),
    **dict.fromkeys(
        (f"{NCHWC}.ReorderInput", f"{NCHWC}.ReorderOutput"), _layout_change_splits
    ),
}

EDITS: Mapping[str, EditRule] = {
    **dict.fromkeys((*_CONVOLUTIONS, *_POOLS), _tile_padding_edit),
    "ConvTranspose": _transposed_convolution_edit,
    **dict.fromkeys(("Resize", f"{NCHWC}.Upsample"), _resize_edit),
}
