"""Shape rules of operators that multiply, cut or join dims, with symbolic dims.

ONNX's inference calculates with numbers only: it drops a dim's name even if the dim is
multiplied by 1. A rule returns the shape of the first output. None stands for an unknown dim, or
in place of the shape for an unknown shape; what a rule leaves open stays as ONNX infers it.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from memplan_cli.core.operators import Family, names_of
from memplan_cli.core.symbolic.dims import as_dim
from memplan_cli.core.symbolic.polynomials import (
    add_polynomials,
    constant_polynomial,
    floor_divide,
    multiply_polynomials,
)
from memplan_cli.onnx_io.shapes.symbolic.elements import (
    EXACT,
    add,
    is_nonnegative,
    larger,
    polynomial_of,
    smaller,
    subtract,
)
from memplan_cli.onnx_io.shapes.symbolic.values import int_attribute, ints_attribute, product

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from onnx import NodeProto

    from memplan_cli.core.program import Dim, Shape
    from memplan_cli.onnx_io.shapes.symbolic.values import Rule, Values

_TO_THE_END = 2**31 - 1
"""A Slice end from here on means "to the end", as exporters write it."""


def resize_shape(values: Values, node: NodeProto) -> Shape | None:
    """Resize, Upsample: the given sizes, or ``floor(dim * scale)``, on each resized axis.

    Axes that the node does not resize keep their dim. Unknown if an aspect ratio is kept or a
    region is cropped. (The operator's definition, opsets 7 to 19.)
    """
    input_shape = values.shape(node.input[0])
    if input_shape is None:
        return None
    attributes = {a.name: a for a in node.attribute}
    # Models that ONNX Runtime writes have every attribute, also those with their default.
    policy = attributes.get("keep_aspect_ratio_policy")
    if policy is not None and policy.s != b"stretch":
        return None
    mode = attributes.get("coordinate_transformation_mode")
    if mode is not None and mode.s == b"tf_crop_and_resize":
        return None
    axes = list(range(len(input_shape)))
    if "axes" in attributes:
        axes = [axis % len(input_shape) for axis in attributes["axes"].ints]
    resized_dims = _resized_dims(values, node, [input_shape[axis] for axis in axes])
    if resized_dims is None or len(resized_dims) != len(axes):
        return None
    output_shape = list(input_shape)
    for axis, dim in zip(axes, resized_dims, strict=True):
        output_shape[axis] = dim
    return tuple(output_shape)


def _resized_dims(values: Values, node: NodeProto, dims: list[Dim]) -> list[Dim] | None:
    """Return the dims of the resized axes after a Resize; None if sizes and scales are unknown.

    The inputs are (x) in Upsample-7, where scales are an attribute, (x, scales) in Upsample-9 and Resize-10, and
    (x, region, scales, sizes) from Resize-11 on.
    """
    sizes = values.input_dims(node, 3)
    if sizes:
        return list(sizes)
    inputs_up_to_scales = node.input[1:3]
    scales: Sequence[float] = ()
    if not inputs_up_to_scales:
        scales = next((a.floats for a in node.attribute if a.name == "scales"), ())
    else:
        value = values.value_of(inputs_up_to_scales[-1])
        if value is not None and value.is_known:
            scales = [float(scale) for scale in value.array.reshape(-1)]
    if len(scales) != len(dims):
        return None
    return [_scaled(dim, scale) for dim, scale in zip(dims, scales, strict=True)]


def _scaled(dim: Dim, scale: float) -> Dim:
    """Return ``floor(dim * scale)``; None if the float product of the runtime may be rounded.

    It is exact for scales that are fractions of small numbers, if dims are not very large (see `EXACT`).
    """
    if dim is None or not 0 < scale < float("inf"):
        return None
    ratio = Fraction(scale)
    if max(ratio.numerator, ratio.denominator) >= EXACT:
        return None
    multiple = multiply_polynomials([polynomial_of(dim)], factor=ratio.numerator)
    return as_dim(floor_divide(multiple, ratio.denominator))


def tile_shape(values: Values, node: NodeProto) -> Shape | None:
    """Tile (opset 6 on): (d1 .. dr), repeats (r1 .. rr) -> (d1 r1 .. dr rr)."""
    input_shape, repeats = values.shape(node.input[0]), values.input_dims(node, 1)
    if input_shape is None or repeats is None or len(repeats) != len(input_shape):
        return None
    return tuple(product(pair) for pair in zip(input_shape, repeats, strict=True))


def pad_shape(values: Values, node: NodeProto) -> Shape | None:
    """Pad (opset 11 on): ``before + dim + after`` on each padded axis."""
    input_shape, pads = values.shape(node.input[0]), values.input_dims(node, 1)
    if input_shape is None or pads is None:
        return None
    axes = values.input_ints(node, 3, range(len(input_shape)))
    if axes is None or len(pads) != 2 * len(axes):
        return None
    output_shape = list(input_shape)
    for index, axis in enumerate(axes):
        before, after = pads[index], pads[index + len(axes)]
        output_shape[axis] = sum_dims((input_shape[axis], before, after))
    return tuple(output_shape)


def concat_shape(values: Values, node: NodeProto) -> Shape | None:
    """Concat: the shape of the inputs, joined along ``axis``."""
    shapes = [values.shape(name) for name in node.input]
    return joined_shape(shapes, int_attribute(node, "axis", 1))


def joined_shape(shapes: Sequence[Shape | None], axis: int) -> Shape | None:
    """Return the shape of tensors joined along an axis: the sum of their dims there.

    On other axes, where all are equal, it is the best known dim: a number if any tensor has one, else a name.
    None if a shape is unknown, or ranks differ.
    """
    known_shapes = [shape for shape in shapes if shape is not None]
    ranks = {len(shape) for shape in known_shapes}
    if len(known_shapes) < len(shapes) or len(ranks) != 1:
        return None
    axis %= len(known_shapes[0])
    output_shape: list[Dim] = []
    for dims in zip(*known_shapes, strict=True):
        numbers: list[Dim] = [dim for dim in dims if isinstance(dim, int)]
        names = [dim for dim in dims if isinstance(dim, str)]
        output_shape.append(next(iter([*numbers, *names]), None))
    output_shape[axis] = sum_dims([shape[axis] for shape in known_shapes])
    return tuple(output_shape)


def sum_dims(dims: Sequence[Dim]) -> Dim:
    """Return the sum of dims; None if one is unknown."""
    return (
        None if None in dims else as_dim(add_polynomials([polynomial_of(dim) for dim in dims]))
    )


def larger_dim(a: Dim, b: Dim) -> Dim:
    """Return the larger dim; None if one is unknown."""
    result = larger(a, b)
    return result if isinstance(result, int | str) else None


def slice_shape(values: Values, node: NodeProto) -> Shape | None:
    """Slice: ``ceil(max(end - start, 0) / step)`` on each sliced axis, with start and end clamped to the dim.

    Negative starts and ends count from the end of the axis. A sliced dim with an unknown or
    negative step is unknown.
    """
    input_shape = values.shape(node.input[0])
    if input_shape is None:
        return None
    starts = _slice_bounds(values, node, 1, "starts")
    ends = _slice_bounds(values, node, 2, "ends")
    # Axes that are left out are the first ones, as many as there are bounds.
    count = len(starts or ends or ())
    axes = values.input_ints(node, 3, ints_attribute(node, "axes", range(count)))
    if not axes:  # unknown, or left out with unknown bounds: any axis may be sliced
        return tuple(None for _ in input_shape)
    steps = values.input_ints(node, 4, [1] * len(axes))
    unknown = [None] * len(axes)
    output_shape = list(input_shape)
    for axis, start, end, step in zip(
        axes, starts or unknown, ends or unknown, steps or unknown, strict=True
    ):
        output_shape[axis] = _sliced_dim(input_shape[axis], start, end, step)
    return tuple(output_shape)


def _slice_bounds(
    values: Values, node: NodeProto, index: int, attribute: str
) -> Sequence[Dim] | None:
    """Return the starts or ends of a Slice: input ``index``, or before opset 10 an attribute."""
    if index < len(node.input):
        return values.input_dims(node, index)
    return ints_attribute(node, attribute, ())


def _sliced_dim(dim: Dim, start: Dim, end: Dim, step: int | None) -> Dim:
    """Return the length of ``[start:end:step]`` of an axis; None if unknown or ``step < 1``.

    That is ``floor((span + step - 1) / step)`` for ``span = max(end - start, 0)``.
    """
    if dim is None or start is None or end is None or step is None or step < 1:
        return None
    span = larger(subtract(_clamped(end, dim), _clamped(start, dim)), 0)
    if not isinstance(span, int | str):  # None: a span of dims is never a float
        return None
    if step == 1:
        return span
    rounded_up = add_polynomials([polynomial_of(span), constant_polynomial(step - 1)])
    return as_dim(floor_divide(rounded_up, step))


def _clamped(bound: int | str, dim: int | str) -> int | str | None:
    """Return a Slice bound as an index in ``[0, dim]``; None if its sign is unknown.

    A negative bound counts from the end: it becomes ``max(dim + bound, 0)``, another
    ``min(bound, dim)``.
    """
    if isinstance(bound, int) and bound >= _TO_THE_END:
        return dim
    if isinstance(bound, int) and bound < 0:
        index = larger(add(dim, bound), 0)
    elif is_nonnegative(polynomial_of(bound)):
        index = smaller(bound, dim)
    else:
        return None
    return index if isinstance(index, int | str) else None


def space_to_depth_shape(values: Values, node: NodeProto) -> Shape | None:
    """SpaceToDepth: (n, c, h, w) -> (n, c b^2, floor(h / b), floor(w / b)) for blocksize b."""
    shape, block = values.shape(node.input[0]), int_attribute(node, "blocksize", 0)
    if shape is None or block < 1:
        return None
    batch, channels, *spatial = shape  # ValueError for a lower rank, which a `Rule` may raise
    blocks = [
        None if d is None else as_dim(floor_divide(polynomial_of(d), block)) for d in spatial
    ]
    return (batch, product((channels, block**2)), *blocks)


def depth_to_space_shape(values: Values, node: NodeProto) -> Shape | None:
    """DepthToSpace: (n, c, h, w) -> (n, floor(c / b^2), h b, w b) for blocksize b."""
    shape, block = values.shape(node.input[0]), int_attribute(node, "blocksize", 0)
    if shape is None or block < 1:
        return None
    batch, channels, *spatial = shape  # ValueError for a lower rank, which a `Rule` may raise
    depth = None
    if channels is not None:
        depth = as_dim(floor_divide(polynomial_of(channels), block**2))
    return (batch, depth, *(product((dim, block)) for dim in spatial))


def flatten_shape(values: Values, node: NodeProto) -> Shape | None:
    """Flatten: (d1 .. dr) -> (d1 .. d(axis), d(axis+1) .. dr), two products."""
    shape, axis = values.shape(node.input[0]), int_attribute(node, "axis", 1)
    if shape is None:
        return None
    split = axis + len(shape) if axis < 0 else axis
    return product(shape[:split]), product(shape[split:])


RULES: Mapping[str, Rule] = {
    "Concat": concat_shape,
    "DepthToSpace": depth_to_space_shape,
    "Flatten": flatten_shape,
    "Pad": pad_shape,
    "Slice": slice_shape,
    "SpaceToDepth": space_to_depth_shape,
    "Tile": tile_shape,
    **dict.fromkeys(names_of(lambda op: op.family is Family.RESIZING), resize_shape),
}
"""The shape rules of this file, by operator."""
