"""Symbolic shape rules of operators that multiply, cut or join dims.

ONNX inference calculates with numbers only, and gives up a dim's name even where it is
multiplied by one. What is not known here is left as inference has it.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from memplan_cli.core.symbolic.dims import as_dim
from memplan_cli.core.symbolic.polynomials import floored, multiplied, total
from memplan_cli.onnx_io.shapes.symbolic.elements import (
    EXACT,
    add,
    is_nonnegative,
    larger,
    smaller,
    subtract,
    terms_of,
)
from memplan_cli.onnx_io.shapes.symbolic.values import int_attribute, ints_attribute, product

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onnx import NodeProto

    from memplan_cli.core.program import Dim, Shape
    from memplan_cli.onnx_io.shapes.symbolic.values import Values

_FAR = 2**31 - 1
"""An end from here on means "to the end", as exporters write it."""


def resized(values: Values, node: NodeProto) -> Shape | None:
    """Return a Resize's shape: sizes as they are, or ``floor(dim * scale)`` on each axis.

    The operator's definition (opsets 10 to 19); axes that are not named keep their dim.
    """
    before = values.shape(node.input[0])
    attributes = {a.name: a for a in node.attribute}
    if before is None or "keep_aspect_ratio_policy" in attributes:
        return None
    mode = attributes.get("coordinate_transformation_mode")
    if mode is not None and mode.s == b"tf_crop_and_resize":
        return None
    axes = [a % len(before) for a in attributes["axes"].ints] if "axes" in attributes else None
    places = list(range(len(before))) if axes is None else axes
    dims = _asked(values, node, [before[place] for place in places])
    if dims is None or len(dims) != len(places):
        return None
    found = list(before)
    for place, dim in zip(places, dims, strict=True):
        found[place] = dim
    return tuple(found)


def _asked(values: Values, node: NodeProto, dims: list[Dim]) -> list[Dim] | None:
    """Return the dims that a node asks for on its axes; None where it does not say."""
    sizes = values.dims(node, 3)
    if sizes:
        return list(sizes)
    # The scales are the second input of Upsample-9 and of Resize-10, the third from then on;
    # between them stands the region of interest, which is no input before opset 11.
    given = node.input[1:3]
    scales = _factors(values, given[-1]) if given else _upsample_7(node)
    if len(scales) != len(dims):
        return None
    return [_scaled(dim, scale) for dim, scale in zip(dims, scales, strict=True)]


def _factors(values: Values, name: str) -> tuple[float, ...]:
    value = values.of(name)
    if value is None or not value.is_known:
        return ()
    return tuple(float(e) for e in value.array.reshape(-1))


def _upsample_7(node: NodeProto) -> tuple[float, ...]:
    return next((tuple(a.floats) for a in node.attribute if a.name == "scales"), ())


def _scaled(dim: Dim, scale: float) -> Dim:
    if dim is None or not 0 < scale < float("inf"):
        return None
    ratio = Fraction(scale)
    if max(ratio.numerator, ratio.denominator) >= EXACT:
        return None
    return as_dim(floored(multiplied([terms_of(dim)], ratio.numerator), ratio.denominator))


def tiled(values: Values, node: NodeProto) -> Shape | None:
    """Return a Tile's shape (opset 6 on): each dim times its repeats."""
    before, repeats = values.shape(node.input[0]), values.dims(node, 1)
    if before is None or repeats is None or len(repeats) != len(before):
        return None
    return tuple(product(pair) for pair in zip(before, repeats, strict=True))


def padded(values: Values, node: NodeProto) -> Shape | None:
    """Return a Pad's shape (opset 11 on): what is added before and after, on each axis."""
    before, pads = values.shape(node.input[0]), values.dims(node, 1)
    if before is None or pads is None:
        return None
    axes = values.numbers(node, 3, range(len(before)))
    if axes is None or len(pads) != 2 * len(axes):
        return None
    found = list(before)
    for at, axis in enumerate(axes):
        found[axis] = summed((before[axis], pads[at], pads[at + len(axes)]))
    return tuple(found)


def joined(values: Values, node: NodeProto) -> Shape | None:
    """Return a Concat's shape: the sum of its axis, and what any input says of the others."""
    shapes = [values.shape(name) for name in node.input]
    axis = int_attribute(node, "axis", 1)
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes) or len({len(shape) for shape in known}) != 1:
        return None
    axis %= len(known[0])
    found = [
        next(
            (d for d in sorted(dims, key=lambda d: not isinstance(d, int)) if d is not None),
            None,
        )
        for dims in zip(*known, strict=True)
    ]
    found[axis] = summed([shape[axis] for shape in known])
    return tuple(found)


def summed(dims: Sequence[Dim]) -> Dim:
    """Add dims; None where one is not known."""
    return None if None in dims else as_dim(total([terms_of(dim) for dim in dims]))


def sliced(values: Values, node: NodeProto) -> Shape | None:
    """Return a Slice's shape: on each axis what lies between a start and an end, cut to the dim."""
    before = values.shape(node.input[0])
    if before is None:
        return None
    given = [_ends(values, node, at, name) for at, name in ((1, "starts"), (2, "ends"))]
    most = max(len(side) if side is not None else 0 for side in given)
    axes = values.numbers(node, 3, ints_attribute(node, "axes", range(most)))
    steps = values.numbers(node, 4, [1] * most)
    found = list(before)
    if not axes:  # any axis may be cut
        return tuple(None for _ in before)
    for at, axis in enumerate(axes):
        start, end = (
            side[at] if side is not None and at < len(side) else None for side in given
        )
        step = steps[at] if steps is not None and at < len(steps) else 0
        found[axis] = _between(before[axis], start, end, step)
    return tuple(found)


def _ends(values: Values, node: NodeProto, at: int, name: str) -> Sequence[Dim] | None:
    return values.dims(node, at) if at < len(node.input) else ints_attribute(node, name, ())


def _between(dim: Dim, start: Dim, end: Dim, step: int) -> Dim:
    if dim is None or start is None or end is None or step < 1:
        return None
    low, high = _place(start, dim), _place(end, dim)
    length = subtract(high, low)
    if length is None:
        return None
    found = larger(length, 0)
    if not isinstance(found, int | str) or step == 1:
        return found if isinstance(found, int | str) else None
    return as_dim(floored(total([terms_of(found), {(): step - 1}]), step))


def _place(place: int | str, dim: int | str) -> int | str | None:
    """Return where a place stands in a dim: from the end if it is negative, cut to it."""
    if isinstance(place, int) and place >= _FAR:
        return dim
    if isinstance(place, int) and place < 0:
        place, counted = add(dim, place), True  # type: ignore[assignment]
    else:
        counted = False
    if not counted and not is_nonnegative(terms_of(place)):
        return None
    found = larger(place, 0) if counted else smaller(place, dim)
    return found if isinstance(found, int | str) else None


def packed_into_channels(values: Values, node: NodeProto) -> Shape | None:
    """Return a SpaceToDepth's shape: blocks of rows and columns become channels."""
    shape, block = values.shape(node.input[0]), int_attribute(node, "blocksize", 0)
    if shape is None or block < 1:
        return None
    batch, channels, *rest = shape
    few = [None if d is None else as_dim(floored(terms_of(d), block)) for d in rest]
    return (batch, product((channels, block**2)), *few)


def unpacked_from_channels(values: Values, node: NodeProto) -> Shape | None:
    """Return a DepthToSpace's shape: channels become blocks of rows and columns."""
    shape, block = values.shape(node.input[0]), int_attribute(node, "blocksize", 0)
    if shape is None or block < 1:
        return None
    batch, channels, *rest = shape
    few = None if channels is None else as_dim(floored(terms_of(channels), block**2))
    return (batch, few, *(product((dim, block)) for dim in rest))


def flattened(values: Values, node: NodeProto) -> Shape | None:
    """Return a Flatten's shape: two products."""
    before, axis = values.shape(node.input[0]), int_attribute(node, "axis", 1)
    if before is None:
        return None
    at = axis + len(before) if axis < 0 else axis
    return product(before[:at]), product(before[at:])
