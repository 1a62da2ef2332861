"""Symbolic shape rules of convolutions and pools: how often a window fits into a dim."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.symbolic.dims import as_dim
from memplan_cli.core.symbolic.polynomials import floored, multiplied, total
from memplan_cli.onnx_io.shapes.symbolic.elements import terms_of
from memplan_cli.onnx_io.shapes.symbolic.values import int_attribute, ints_attribute

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onnx import NodeProto

    from memplan_cli.core.program import Dim, Shape
    from memplan_cli.onnx_io.shapes.symbolic.values import Values

_BATCH_AND_CHANNELS = 2


def convolved(values: Values, node: NodeProto) -> Shape | None:
    """Return a Conv's shape: channels of the kernel, and how often it fits."""
    shape, kernel = values.shape(node.input[0]), values.shape(node.input[1])
    if shape is None or kernel is None or len(kernel) != len(shape):
        return None
    return convolution(node, shape, kernel)


def convolved_quantized(values: Values, node: NodeProto) -> Shape | None:
    """Return a QLinearConv's shape: scales and zero points stand between input and kernel."""
    shape, kernel = values.shape(node.input[0]), values.shape(node.input[3])
    if shape is None or kernel is None or len(kernel) != len(shape):
        return None
    return convolution(node, shape, kernel)


def convolution(node: NodeProto, shape: Shape, kernel: Shape) -> Shape:
    """Return a convolution's shape from those of its input and its kernel, channels first."""
    sizes = ints_attribute(node, "kernel_shape", ())
    window: Sequence[Dim] = sizes or kernel[_BATCH_AND_CHANNELS:]
    return (shape[0], kernel[0], *_fits(node, shape[_BATCH_AND_CHANNELS:], window))


def pooled(values: Values, node: NodeProto) -> Shape | None:
    """Return a pool's shape: batch and channels as they are, and how often its window fits."""
    shape = values.shape(node.input[0])
    return None if shape is None else pool(node, shape)


def pool(node: NodeProto, shape: Shape) -> Shape | None:
    """Return a pool's shape from that of its input, channels first."""
    window = ints_attribute(node, "kernel_shape", ())
    if len(window) != len(shape) - _BATCH_AND_CHANNELS:
        return None
    dims = shape[_BATCH_AND_CHANNELS:]
    if int_attribute(node, "ceil_mode", 0):
        return (*shape[:_BATCH_AND_CHANNELS], *(None for _ in dims))
    return (*shape[:_BATCH_AND_CHANNELS], *_fits(node, dims, window))


def _fits(node: NodeProto, dims: Shape, window: Sequence[Dim]) -> list[Dim]:
    ones = [1] * len(dims)
    strides, dilations = (ints_attribute(node, n, ones) for n in ("strides", "dilations"))
    pads = ints_attribute(node, "pads", [0] * (2 * len(dims)))
    mode = next((a.s for a in node.attribute if a.name == "auto_pad"), b"NOTSET")
    found: list[Dim] = []
    for at, (dim, size) in enumerate(zip(dims, window, strict=True)):
        if dim is None or not isinstance(size, int):
            found.append(None)
            continue
        terms, stride = terms_of(dim), strides[at]
        if mode in (b"SAME_UPPER", b"SAME_LOWER"):
            found.append(as_dim(floored(total([terms, {(): stride - 1}]), stride)))
            continue
        more = pads[at] + pads[at + len(dims)] if mode == b"NOTSET" else 0
        left = more - dilations[at] * (size - 1) - 1
        found.append(as_dim(floored(total([terms, {(): left + stride}]), stride)))
    return found


def transposed(values: Values, node: NodeProto) -> Shape | None:
    """Return a ConvTranspose's shape, where pads and not the result's size are given."""
    shape, kernel = values.shape(node.input[0]), values.shape(node.input[1])
    mode = next((a.s for a in node.attribute if a.name == "auto_pad"), b"NOTSET")
    if shape is None or kernel is None or len(kernel) != len(shape) or mode != b"NOTSET":
        return None
    if any(a.name == "output_shape" for a in node.attribute):
        return None
    dims = shape[_BATCH_AND_CHANNELS:]
    ones, none = [1] * len(dims), [0] * len(dims)
    strides, dilations = (ints_attribute(node, n, ones) for n in ("strides", "dilations"))
    pads, more = (
        ints_attribute(node, "pads", none * 2),
        ints_attribute(node, "output_padding", none),
    )
    channels = kernel[1]
    groups = int_attribute(node, "group", 1)
    found: list[Dim] = [shape[0], channels * groups if isinstance(channels, int) else None]
    for at, (dim, size) in enumerate(zip(dims, kernel[_BATCH_AND_CHANNELS:], strict=True)):
        if dim is None or not isinstance(size, int):
            found.append(None)
            continue
        rest = more[at] + dilations[at] * (size - 1) + 1 - pads[at] - pads[at + len(dims)]
        steps = multiplied([terms_of(dim)], strides[at])
        found.append(as_dim(total([steps, {(): rest - strides[at]}])))
    return tuple(found)
