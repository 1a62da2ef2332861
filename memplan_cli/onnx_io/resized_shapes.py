"""What shape does a Resize or Upsample give, where dims of its input are symbols?

ONNX inference multiplies numbers only, and gives up a dim's name even at a scale of one.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from memplan_cli.dims import as_dim
from memplan_cli.onnx_io.shape_values import terms_of
from memplan_cli.polynomials import floored, multiplied

if TYPE_CHECKING:
    from onnx import NodeProto

    from memplan_cli.ir import Dim, Shape
    from memplan_cli.onnx_io.shape_values import Walk

_EXACT = 1 << 10
"""Scales whose parts are below this are multiplied without rounding, for dims below 2^14:
the product of single-precision numbers is exact up to 2^24."""


def resized(walk: Walk, node: NodeProto) -> Shape | None:
    """Return a Resize's shape: sizes as they are, or ``floor(dim * scale)`` on each axis.

    The operator's definition (opsets 10 to 19); axes that are not named keep their dim, and
    what is not known here is left as ONNX inference has it.
    """
    before, after = walk.shape(node.input[0]), walk.shape(node.output[0])
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
    if after is None or len(after) != len(found):
        return tuple(found)
    return tuple(b if a is None else a for a, b in zip(after, found, strict=True))


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
