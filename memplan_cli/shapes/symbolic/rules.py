"""Symbolic shape rules of Resize, Tile, Pad and Concat.

ONNX inference calculates with numbers only, and gives up a dim's name even where it is
multiplied by one. What is not known here is left as inference has it.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from memplan_cli.core.symbolic.dims import as_dim
from memplan_cli.core.symbolic.polynomials import floored, multiplied, total
from memplan_cli.shapes.symbolic.values import int_attribute, product, terms_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onnx import NodeProto

    from memplan_cli.core.program import Dim, Shape
    from memplan_cli.shapes.symbolic.values import Walk

_EXACT = 1 << 10
"""Scales whose parts are below this are multiplied without rounding, for dims below 2^14:
the product of single-precision numbers is exact up to 2^24."""


def resized(walk: Walk, node: NodeProto) -> Shape | None:
    """Return a Resize's shape: sizes as they are, or ``floor(dim * scale)`` on each axis.

    The operator's definition (opsets 10 to 19); axes that are not named keep their dim.
    """
    before = walk.shape(node.input[0])
    attributes = {a.name: a for a in node.attribute}
    if before is None or "keep_aspect_ratio_policy" in attributes:
        return None
    mode = attributes.get("coordinate_transformation_mode")
    if mode is not None and mode.s == b"tf_crop_and_resize":
        return None
    axes = [a % len(before) for a in attributes["axes"].ints] if "axes" in attributes else None
    places = list(range(len(before))) if axes is None else axes
    dims = _asked(walk, node, [before[place] for place in places])
    if dims is None or len(dims) != len(places):
        return None
    found = list(before)
    for place, dim in zip(places, dims, strict=True):
        found[place] = dim
    return _added(walk, node, found)


def tiled(walk: Walk, node: NodeProto) -> Shape | None:
    """Return a Tile's shape (opset 6 on): each dim times its repeats."""
    before, repeats = walk.shape(node.input[0]), walk.value(node, 1)
    if before is None or repeats is None or len(repeats.elements) != len(before):
        return None
    pairs = zip(before, repeats.elements, strict=True)
    return _added(walk, node, [product(pair) for pair in pairs])


def padded(walk: Walk, node: NodeProto) -> Shape | None:
    """Return a Pad's shape (opset 11 on): what is added before and after, on each axis."""
    before, pads = walk.shape(node.input[0]), walk.value(node, 1)
    if before is None or pads is None:
        return None
    axes = walk.numbers(node, 3, range(len(before)))
    if axes is None or len(pads.elements) != 2 * len(axes):
        return None
    found = list(before)
    for at, axis in enumerate(axes):
        ends = (before[axis], pads.elements[at], pads.elements[at + len(axes)])
        found[axis] = _sum(ends)
    return _added(walk, node, found)


def joined(walk: Walk, node: NodeProto) -> Shape | None:
    """Return a Concat's shape: the sum of its axis, and what any input says of the others."""
    shapes = [walk.shape(name) for name in node.input]
    axis = int_attribute(node, "axis", 1)
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes) or len({len(shape) for shape in known}) != 1:
        return None
    axis %= len(known[0])
    found = [
        next((d for d in dims if d is not None), None) for dims in zip(*known, strict=True)
    ]
    found[axis] = _sum([shape[axis] for shape in known])
    return _added(walk, node, found)


def _added(walk: Walk, node: NodeProto, found: Sequence[Dim]) -> Shape:
    """Return what inference says of a node's result, and where it says nothing, what we say."""
    after = walk.shape(node.output[0])
    if after is None or len(after) != len(found):
        return tuple(found)
    return tuple(b if a is None else a for a, b in zip(after, found, strict=True))


def _sum(dims: Sequence[Dim]) -> Dim:
    return None if None in dims else as_dim(total([terms_of(dim) for dim in dims]))


def _asked(walk: Walk, node: NodeProto, dims: list[Dim]) -> list[Dim] | None:
    """Return the dims that a node asks for on its axes; None where it does not say."""
    sizes = walk.value(node, 3)
    if sizes is not None and sizes.elements:
        return list(sizes.elements)
    # The scales are the second input of Upsample-9 and of Resize-10, the third from then on;
    # between them stands the region of interest, which is no input before opset 11.
    given = [walk.factors.get(name, ()) for name in node.input[1:3]]
    scales = given[-1] if given else _upsample_7(node)
    if len(scales) != len(dims):
        return None
    return [_scaled(dim, scale) for dim, scale in zip(dims, scales, strict=True)]


def _upsample_7(node: NodeProto) -> tuple[float, ...]:
    return next((tuple(a.floats) for a in node.attribute if a.name == "scales"), ())


def _scaled(dim: Dim, scale: float) -> Dim:
    if dim is None or scale <= 0 or scale == float("inf"):
        return None
    ratio = Fraction(scale)
    if max(ratio.numerator, ratio.denominator) >= _EXACT:
        return None
    return as_dim(floored(multiplied([terms_of(dim)], ratio.numerator), ratio.denominator))
