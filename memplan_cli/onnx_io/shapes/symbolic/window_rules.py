"""Shape rules of convolutions and pools: the number of windows that fit into each dim."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from memplan_cli.core.operators import Family, names_of
from memplan_cli.core.symbolic.dims import as_dim
from memplan_cli.core.symbolic.polynomials import (
    add_polynomials,
    constant_polynomial,
    floor_divide,
    multiply_polynomials,
)
from memplan_cli.onnx_io.shapes.symbolic.elements import polynomial_of
from memplan_cli.onnx_io.shapes.symbolic.values import int_attribute, ints_attribute

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from onnx import NodeProto

    from memplan_cli.core.program import Dim, Shape
    from memplan_cli.onnx_io.shapes.symbolic.values import Rule, Values

_BATCH_AND_CHANNELS = 2
"""Leading dims that have no window."""


def conv_shape(values: Values, node: NodeProto, kernel_index: int = 1) -> Shape | None:
    """Conv: x (n, c, d..), kernel (m, c / group, k..) -> (n, m, windows..); None if ranks differ."""
    shape, kernel = values.shape(node.input[0]), values.shape(node.input[kernel_index])
    if shape is None or kernel is None or len(kernel) != len(shape):
        return None
    return conv_output_shape(node, shape, kernel)


def conv_output_shape(node: NodeProto, shape: Shape, kernel: Shape) -> Shape:
    """Return the shape after a convolution of x (n, c, d..) with a kernel (m, c / group, k..).

    The node gives strides, dilations and pads, and may give the window sizes k.
    """
    sizes = ints_attribute(node, "kernel_shape", ())
    window: Sequence[Dim] = sizes or kernel[_BATCH_AND_CHANNELS:]
    return (shape[0], kernel[0], *_window_counts(node, shape[_BATCH_AND_CHANNELS:], window))


def pool_shape(values: Values, node: NodeProto) -> Shape | None:
    """Pools: x (n, c, d..) -> (n, c, windows..)."""
    shape = values.shape(node.input[0])
    return None if shape is None else pool_output_shape(node, shape)


def pool_output_shape(node: NodeProto, shape: Shape) -> Shape | None:
    """Return the shape after a pool of x (n, c, d..); spatial dims are unknown with ``ceil_mode``.

    None if the node's window sizes do not fit the rank of x.
    """
    window = ints_attribute(node, "kernel_shape", ())
    if len(window) != len(shape) - _BATCH_AND_CHANNELS:
        return None
    dims = shape[_BATCH_AND_CHANNELS:]
    if int_attribute(node, "ceil_mode", 0):
        return (*shape[:_BATCH_AND_CHANNELS], *(None for _ in dims))
    return (*shape[:_BATCH_AND_CHANNELS], *_window_counts(node, dims, window))


def _window_counts(node: NodeProto, dims: Shape, window: Sequence[Dim]) -> list[Dim]:
    """Return the number of windows along each spatial dim, None where the dim or the window's size is unknown.

    ``floor((dim + padding - length) / stride) + 1`` windows fit, each of ``length = dilation (size - 1) + 1``
    elements; with ``auto_pad=SAME_*`` ``ceil(dim / stride)``. Not for pools with ``ceil_mode``: one more may fit.
    """
    ones = [1] * len(dims)
    strides, dilations = (ints_attribute(node, n, ones) for n in ("strides", "dilations"))
    pads = ints_attribute(node, "pads", [0] * (2 * len(dims)))
    auto_pad = _auto_pad(node)
    counts: list[Dim] = []
    for axis, (dim, size) in enumerate(zip(dims, window, strict=True)):
        if dim is None or not isinstance(size, int):
            counts.append(None)
            continue
        stride, length = strides[axis], dilations[axis] * (size - 1) + 1
        if auto_pad in (b"SAME_UPPER", b"SAME_LOWER"):
            padding = length - 1  # floor((dim - 1) / stride) + 1 is ceil(dim / stride)
        elif auto_pad == b"NOTSET":
            padding = pads[axis] + pads[axis + len(dims)]
        else:  # VALID
            padding = 0
        # floor(a / stride) + 1 is floor((a + stride) / stride).
        rest = constant_polynomial(padding - length + stride)
        dividend = add_polynomials([polynomial_of(dim), rest])
        counts.append(as_dim(floor_divide(dividend, stride)))
    return counts


def _auto_pad(node: NodeProto) -> bytes:
    return next((a.s for a in node.attribute if a.name == "auto_pad"), b"NOTSET")


def conv_transpose_shape(values: Values, node: NodeProto) -> Shape | None:
    """ConvTranspose: x (n, c, d..), kernel (c, m / group, k..) -> (n, m, d'..).

    ``d' = stride (d - 1) + output_padding + dilation (k - 1) + 1 - pads``. Unknown with ``auto_pad``
    or ``output_shape``.
    """
    shape, kernel = values.shape(node.input[0]), values.shape(node.input[1])
    if shape is None or kernel is None or len(kernel) != len(shape):
        return None
    if _auto_pad(node) != b"NOTSET" or any(a.name == "output_shape" for a in node.attribute):
        return None
    dims = shape[_BATCH_AND_CHANNELS:]
    ones, zeros = [1] * len(dims), [0] * len(dims)
    strides, dilations = (ints_attribute(node, n, ones) for n in ("strides", "dilations"))
    pads = ints_attribute(node, "pads", zeros * 2)
    output_padding = ints_attribute(node, "output_padding", zeros)
    channels = kernel[1]
    groups = int_attribute(node, "group", 1)
    output: list[Dim] = [shape[0], channels * groups if isinstance(channels, int) else None]
    for axis, (dim, size) in enumerate(zip(dims, kernel[_BATCH_AND_CHANNELS:], strict=True)):
        if dim is None or not isinstance(size, int):
            output.append(None)
            continue
        window = dilations[axis] * (size - 1) + 1
        padding = pads[axis] + pads[axis + len(dims)]
        # stride (d - 1) is taken apart: d is a polynomial of dim names, the rest is a number.
        scaled_dim = multiply_polynomials([polynomial_of(dim)], factor=strides[axis])
        rest = output_padding[axis] + window - padding - strides[axis]
        output.append(as_dim(add_polynomials([scaled_dim, constant_polynomial(rest)])))
    return tuple(output)


RULES: Mapping[str, Rule] = {
    "Conv": conv_shape,
    "ConvInteger": conv_shape,
    "ConvTranspose": conv_transpose_shape,
    "DeformConv": conv_shape,
    # The kernel follows the scale and zero point of x.
    "QLinearConv": partial(conv_shape, kernel_index=3),
    **dict.fromkeys(names_of(lambda op: op.family is Family.POOLING), pool_shape),
}
"""The shape rules of this file, by operator."""
