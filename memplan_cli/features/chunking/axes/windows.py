"""Sliding windows and resampling: samples, and spatial tiles with the halo that they read."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.core.operators import MICROSOFT, NCHWC
from memplan_cli.features.chunking.axes.terms import Edit, Part, Role, aligned

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.features.chunking.axes.terms import Editor, Node, Range, Rule, Split

_SPATIAL = 2
"""The axes of samples and channels come first."""

ROWS = 2
"""The axis of rows."""

_ADDED = 3
"""What a fused convolution adds to its result."""


class _Window(NamedTuple):
    """One spatial axis: what a result reads, and the padding of the whole axis."""

    stride: int
    reach: int
    """Elements from the first to the last that a result reads."""
    pads: tuple[int, int]

    def part(self, axis: int) -> Part:
        return Part(axis, self.stride, self.pads[0], self.reach - self.stride - self.pads[0])


def _windows(node: Node) -> list[_Window]:
    """Return the windows of the spatial axes."""
    read, made = node.shape(0) or (), node.made
    count = len(read) - _SPATIAL
    ones = (1,) * count
    kernel = node.integers("kernel_shape") or (node.shape(1) or ())[_SPATIAL:]
    strides, dilations = node.integers("strides") or ones, node.integers("dilations") or ones
    pads = node.integers("pads") or (0,) * (2 * count)
    automatic = node.text("auto_pad", "NOTSET")
    found = []
    for at in range(count):
        reach = (kernel[at] - 1) * dilations[at] + 1
        here = pads[at], pads[at + count]
        if automatic == "VALID":
            here = 0, 0
        elif automatic.startswith("SAME"):
            needed = (made[at + _SPATIAL] - 1) * strides[at] + reach - read[at + _SPATIAL]
            less, more = max(needed, 0) // 2, max(needed, 0) - max(needed, 0) // 2
            here = (less, more) if automatic == "SAME_UPPER" else (more, less)
        found.append(_Window(strides[at], reach, here))
    return found


def _tiles(node: Node) -> tuple[Split, ...]:
    made = node.made
    return tuple(
        node.split(
            made[axis],
            {0: window.part(axis), _ADDED: aligned(node.shape(_ADDED), made, axis)},
            {0: Part(axis)},
            Role.TILES,
        )
        for axis, window in enumerate(_windows(node), start=_SPATIAL)
    )


def _first(node: Node, count: int) -> tuple[Split, ...]:
    read = node.shape(0) or ()
    return tuple(
        node.split(read[axis], {0: Part(axis)}, {0: Part(axis)}) for axis in range(count)
    )


def _conv(node: Node) -> tuple[Split, ...]:
    """Split by samples and tiles; what a fused one adds lies as its result does."""
    read, made = node.shape(0) or (), node.made
    reads = {0: Part(0), _ADDED: aligned(node.shape(_ADDED), made, 0)}
    return (node.split(read[0], reads, {0: Part(0)}), *_tiles(node))


def _pool(node: Node) -> tuple[Split, ...]:
    """Split as a convolution, and by channels; places of maxima count over the whole."""
    if len(node.outputs) > 1:
        return ()
    # A last window that is rounded up may reach beyond the padding.
    tiles = () if node.integer("ceil_mode", 0) else _tiles(node)
    return (*_first(node, 2), *tiles)


def _samples(node: Node) -> tuple[Split, ...]:
    return _first(node, 1)


def _to_space(node: Node) -> tuple[Split, ...]:
    """Split by samples, and by rows and columns, each of which becomes a block of them."""
    read, block = node.shape(0) or (), node.integer("blocksize", 1)
    return (
        *_first(node, 1),
        *(node.split(read[at], {0: Part(at)}, {0: Part(at, block)}) for at in (2, 3)),
    )


def _to_depth(node: Node) -> tuple[Split, ...]:
    made, block = node.made, node.integer("blocksize", 1)
    return (
        *_first(node, 1),
        *(node.split(made[at], {0: Part(at, block)}, {0: Part(at)}) for at in (2, 3)),
    )


def _reordered(node: Node) -> tuple[Split, ...]:
    """Split a change between blocks of channels and another layout: all but the channels."""
    read, made = node.shape(0) or (), node.made
    last = len(made) - 1
    is_last = bool(node.integer("channels_last", 0))
    to_blocks = node.op.type == "ReorderInput"
    found = []
    for axis in (0, *range(_SPATIAL, len(made))):
        beside = axis - 1 if is_last and axis else axis
        ins, outs = (beside, axis) if to_blocks else (axis, beside)
        if outs <= last and read[ins] == made[outs]:
            found.append(node.split(made[outs], {0: Part(ins)}, {0: Part(outs)}))
    return tuple(found)


def _samples_and_tiles(node: Node) -> tuple[Split, ...]:
    """Split a pooling over blocks of channels, which stay together."""
    return (*_first(node, 1), *(() if node.integer("ceil_mode", 0) else _tiles(node)))


def _piece_pads(node: Node, split: Split, piece: Range) -> Edit:
    """Pad a tile where it touches an end of the axis, by what is cut off there."""
    windows = _windows(node)
    pads = [list(pair) for pair in zip(*(window.pads for window in windows), strict=True)]
    part = split.inputs[0]
    if split.role is Role.TILES and part is not None:
        start, stop = part.reach(piece)
        dim = (node.shape(0) or ())[part.axis]
        pads[0][part.axis - _SPATIAL] = max(-start, 0)
        pads[1][part.axis - _SPATIAL] = max(stop - dim, 0)
    return Edit({"pads": (*pads[0], *pads[1]), "auto_pad": "NOTSET"})


_NEAREST = {
    ("asymmetric", "floor"),
    ("half_pixel", "round_prefer_floor"),
    ("half_pixel", "round_prefer_ceil"),
}
"""Where every element becomes a whole run of as many as the scale says."""


_BESIDE: Mapping[str, Mapping[str, tuple[int, int]]] = {
    "linear": {"half_pixel": (1, 1), "pytorch_half_pixel": (1, 1), "asymmetric": (0, 1)},
    "cubic": {"half_pixel": (2, 2), "pytorch_half_pixel": (2, 2), "asymmetric": (1, 2)},
}
"""Elements before and after one that what becomes of it is interpolated from."""


def _beside(node: Node) -> tuple[int, int] | None:
    """Return the halo of an interpolation; None where pieces would be other ones."""
    coordinates = node.text("coordinate_transformation_mode", "half_pixel")
    if node.integer("antialias", 0) or node.integer("exclude_outside", 0):
        return None
    return _BESIDE.get(node.text("mode", "nearest"), {}).get(coordinates)


def _is_power_of_two(scale: float) -> bool:
    """Whether places are exact in floats, wherever a piece begins."""
    return scale == int(scale) and int(scale) & (int(scale) - 1) == 0


def _resize(node: Node) -> tuple[Split, ...]:
    """Split along axes that stay, where elements are repeated, and between interpolated ones."""
    read, made = node.shape(0) or (), node.made
    coordinates = node.text("coordinate_transformation_mode", "half_pixel")
    rounding = node.text("nearest_mode", "round_prefer_floor")
    if node.integers("axes") is not None or coordinates == "tf_crop_and_resize":
        return ()
    if node.text("keep_aspect_ratio_policy", "stretch") != "stretch":
        return ()
    scales = node.constants.get(2) or tuple(m / r for m, r in zip(made, read, strict=True))
    is_known = 2 in node.constants or node.shape(3) is not None
    repeats = node.text("mode", "nearest") == "nearest" and (coordinates, rounding) in _NEAREST
    halo = _beside(node)
    found = []
    for axis, scale in enumerate(scales):
        if not is_known or scale * read[axis] != made[axis]:
            continue
        if scale == 1 or (repeats and scale == int(scale)):
            found.append(node.split(read[axis], {0: Part(axis)}, {0: Part(axis, int(scale))}))
        elif halo is not None and _is_power_of_two(scale):
            reads, makes = {0: Part(axis, 1, *halo)}, {0: Part(axis, int(scale))}
            found.append(node.split(read[axis], reads, makes))
    return tuple(found)


def _piece_sizes(node: Node, split: Split, piece: Range) -> Edit:
    """Say what is made of a halo, and the sizes where the operator is told no scales."""
    read, made = split.inputs[0], split.outputs[0]
    if read is None or made is None:
        return Edit()
    dim = (node.shape(0) or ())[read.axis]
    start, stop = read.range(piece, dim)
    beyond = (piece[0] - start) * made.scale, (stop - piece[1]) * made.scale
    if node.shape(3) is None:
        return Edit(beyond=beyond)
    sizes = list(node.made)
    sizes[made.axis] = (stop - start) * made.scale
    return Edit(constants={3: tuple(sizes)}, beyond=beyond)


_POOLS = ("MaxPool", "AveragePool")
"""LpPool of ONNX Runtime gives other bits for a sample alone, and AveragePool over blocks
of channels for tiles."""

RULES: Mapping[str, Rule] = {
    "Conv": _conv,
    "ConvTranspose": _samples,
    "DepthToSpace": _to_space,
    "SpaceToDepth": _to_depth,
    **dict.fromkeys(_POOLS, _pool),
    "Resize": _resize,
    f"{MICROSOFT}.FusedConv": _conv,
    f"{NCHWC}.Conv": _conv,
    f"{NCHWC}.MaxPool": _samples_and_tiles,
    f"{NCHWC}.ReorderInput": _reordered,
    f"{NCHWC}.ReorderOutput": _reordered,
}

EDITS: Mapping[str, Editor] = {
    "Conv": _piece_pads,
    **dict.fromkeys(_POOLS, _piece_pads),
    f"{MICROSOFT}.FusedConv": _piece_pads,
    **{f"{NCHWC}.{kind}": _piece_pads for kind in ("Conv", "MaxPool")},
    "Resize": _piece_sizes,
}
