"""Products, convolutions and pools of ONNX Runtime's domain: fused, quantised, channels last."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.onnx_io.shapes.domains.made import UINT8, Made, Node, Rule, last_as
from memplan_cli.onnx_io.shapes.symbolic.rules import summed
from memplan_cli.onnx_io.shapes.symbolic.targets import broadcast
from memplan_cli.onnx_io.shapes.symbolic.values import FLOAT, INT32
from memplan_cli.onnx_io.shapes.symbolic.windows import convolution, pool

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memplan_cli.core.program import Shape

_MATRIX = 2


def _product(a: Shape | None, b: Shape | None) -> Shape | None:
    """Return the shape of a matrix product, whose leading dims are broadcast."""
    if not a or not b:
        return None
    rows = a[-2:-1]
    columns = b[-1:] if len(b) >= _MATRIX else ()
    return (*broadcast([a[:-2], b[:-2]]), *rows, *columns)


def _flipped(shape: Shape | None, *, last: int, batch: int) -> Shape | None:
    """Return an operand's shape as it is multiplied: batch dims behind, two dims swapped."""
    if shape is None or len(shape) < _MATRIX:
        return shape
    if batch:  # the first dim goes before the last
        shape = (*shape[1:-1], shape[0], shape[-1])
    return (*shape[:-2], shape[-1], shape[-2]) if last else shape


def _fused(node: Node) -> Sequence[Made]:
    """FusedMatMul: either operand may be transposed."""
    a, b = (
        _flipped(
            node.shape(at),
            last=node.number(f"trans{side}"),
            batch=node.number(f"transBatch{side}"),
        )
        for at, side in enumerate("AB")
    )
    return [Made(node.element(0), _product(a, b))]


def _multiplied(element: int = 0, like: int = 0) -> Rule:
    """Return the rule of a product of the first two inputs, of a type or that of an input."""
    return lambda node: [
        Made(element or node.element(like), _product(node.shape(0), node.shape(1)))
    ]


def _by_columns(node: Node) -> Sequence[Made]:
    """MatMulNBits: the second operand is packed; an attribute says its columns."""
    columns = node.number("N")
    is_whole = node.number("transB", 1) == 1
    return [
        Made(
            node.element(0), last_as(node.shape(0), columns) if columns and is_whole else None
        )
    ]


def _by_shape(node: Node) -> Sequence[Made]:
    """MatMulFpQ4: the second operand is packed; an input says its shape."""
    shape = node.dims(2)
    return [
        Made(node.element(0), None if shape is None else _product(node.shape(0), tuple(shape)))
    ]


def _general(node: Node) -> Sequence[Made]:
    """FusedGemm: as Gemm."""
    return [Made(node.element(0), _gemm(node, 1))]


def _gemm(node: Node, second: int) -> Shape | None:
    a, b = node.ranked(0, _MATRIX), node.ranked(second, _MATRIX)
    if a is None or b is None:
        return None
    rows, columns = a[node.number("transA")], b[1 - node.number("transB")]
    return rows, columns


def _quantized_general(node: Node) -> Sequence[Made]:
    """QGemm: quantised where a zero point says so."""
    zero = 8
    return [Made(node.element(zero) if node.has(zero) else FLOAT, _gemm(node, 3))]


def _conv(kernel: int, *, channels_last: bool, element: int | None = None) -> Rule:
    """Return the rule of a convolution; its kernel always has channels first."""

    def rule(node: Node) -> Sequence[Made]:
        last = channels_last or bool(node.number("channels_last"))
        shape = _channels(node.shape(0), to_last=False) if last else node.shape(0)
        weights = node.shape(kernel)
        found = None
        if shape is not None and weights is not None and len(shape) == len(weights):
            found = convolution(node.proto, shape, weights)
        kind = node.element(0 if element is None else element)
        return [Made(kind, _channels(found, to_last=True) if last else found)]

    return rule


def _channels(shape: Shape | None, *, to_last: bool) -> Shape | None:
    """Move the channels to the other end."""
    if shape is None or len(shape) < _MATRIX:
        return None
    if to_last:
        return (shape[0], *shape[2:], shape[1])
    return (shape[0], shape[-1], *shape[1:-1])


def _pool(*, channels_last: bool) -> Rule:
    """Return the rule of a pool."""

    def rule(node: Node) -> Sequence[Made]:
        last = channels_last or bool(node.number("channels_last"))
        shape = _channels(node.shape(0), to_last=False) if last else node.shape(0)
        found = None if shape is None else pool(node.proto, shape)
        return [Made(node.element(0), _channels(found, to_last=True) if last else found)]

    return rule


def _global(node: Node) -> Sequence[Made]:
    """QLinearGlobalAveragePool: all of each channel."""
    shape = node.shape(0)
    if shape is None or len(shape) <= _MATRIX:
        return []
    ones = (1,) * (len(shape) - _MATRIX)
    last = node.number("channels_last")
    found = (shape[0], *ones, shape[-1]) if last else (*shape[:2], *ones)
    return [Made(node.element(0), found)]


def _joined(node: Node) -> Sequence[Made]:
    """QLinearConcat: tensors, each with its scale and zero point, behind those of the result."""
    shapes = [node.shape(at) for at in range(2, len(node.proto.input), 3)]
    known = [shape for shape in shapes if shape]
    element = node.element(1) or UINT8
    if not known or len(known) < len(shapes) or len({len(shape) for shape in known}) > 1:
        return [Made(element, None)]
    axis = node.number("axis", 1) % len(known[0])
    found = list(known[0])
    found[axis] = summed([shape[axis] for shape in known])
    return [Made(element, tuple(found))]


RULES: Mapping[str, Rule] = {
    # Matrices.
    "DynamicQuantizeMatMul": _multiplied(FLOAT),
    "FusedGemm": _general,
    "FusedMatMul": _fused,
    "FusedMatMulActivation": _fused,
    "GemmFastGelu": _multiplied(),
    "MatMulBnb4": _by_columns,
    "MatMulFpQ4": _by_shape,
    "MatMulInteger16": _multiplied(INT32),
    "MatMulIntegerToFloat": _multiplied(like=2),
    "MatMulNBits": _by_columns,
    "QGemm": _quantized_general,
    "TransposeMatMul": _fused,
    # Windows.
    "FusedConv": _conv(1, channels_last=False),
    "MaxpoolWithMask": _pool(channels_last=False),
    "NhwcConv": _conv(1, channels_last=True),
    "NhwcFusedConv": _conv(1, channels_last=True),
    "NhwcMaxPool": _pool(channels_last=True),
    "QLinearAveragePool": _pool(channels_last=False),
    "QLinearConv": _conv(3, channels_last=False, element=7),
    "QLinearGlobalAveragePool": _global,
    # Several in a row.
    "QLinearConcat": _joined,
}
"""Of com.microsoft."""
