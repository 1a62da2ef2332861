"""Sliding windows and resampling: samples, and spatial tiles with the halo that they read."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.transforms.chunking.axes.terms import Edit, Part, Role

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.transforms.chunking.axes.terms import Editor, Node, Range, Rule, Split

_SPATIAL = 2
"""The axes of samples and channels come first."""


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
        node.split(made[axis], {0: window.part(axis)}, {0: Part(axis)}, Role.TILES)
        for axis, window in enumerate(_windows(node), start=_SPATIAL)
        if made[axis] > 1
    )


def _first(node: Node, count: int) -> tuple[Split, ...]:
    read = node.shape(0) or ()
    return tuple(
        node.split(read[axis], {0: Part(axis)}, {0: Part(axis)})
        for axis in range(count)
        if read[axis] > 1
    )


def _conv(node: Node) -> tuple[Split, ...]:
    return (*_first(node, 1), *_tiles(node))


def _pool(node: Node) -> tuple[Split, ...]:
    """Split as a convolution, and by channels; places of maxima count over the whole."""
    if len(node.outputs) > 1:
        return ()
    # A last window that is rounded up may reach beyond the padding.
    tiles = () if node.integer("ceil_mode", 0) else _tiles(node)
    return (*_first(node, 2), *tiles)


def _samples(node: Node) -> tuple[Split, ...]:
    return _first(node, 1)


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


def _resize(node: Node) -> tuple[Split, ...]:
    """Split along axes that stay, and along those where each element is repeated."""
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
    return tuple(
        node.split(read[axis], {0: Part(axis)}, {0: Part(axis, int(scale))}, Role.FREE)
        for axis, scale in enumerate(scales)
        if is_known and read[axis] > 1 and scale * read[axis] == made[axis]
        if scale == 1 or (repeats and scale == int(scale))
    )


def _piece_sizes(node: Node, split: Split, piece: Range) -> Edit:
    """Say the sizes of the piece, where the operator is told sizes and no scales."""
    part = split.outputs[0]
    if node.shape(3) is None or part is None:
        return Edit()
    sizes = list(node.made)
    start, stop = part.range(piece, sizes[part.axis])
    sizes[part.axis] = stop - start
    return Edit(constants={3: tuple(sizes)})


_POOLS = ("MaxPool", "AveragePool")
"""LpPool of ONNX Runtime 1.31.1 gives other bits for a sample alone."""

RULES: Mapping[str, Rule] = {
    "Conv": _conv,
    "ConvTranspose": _samples,
    "DepthToSpace": _samples,
    "SpaceToDepth": _samples,
    **dict.fromkeys(_POOLS, _pool),
    "Resize": _resize,
}

EDITS: Mapping[str, Editor] = {
    "Conv": _piece_pads,
    **dict.fromkeys(_POOLS, _piece_pads),
    "Resize": _piece_sizes,
}
