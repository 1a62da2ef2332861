"""Shape rules of matrix products, convolutions and pools of ``com.microsoft``."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from memplan_cli.onnx_io.shapes.domains.rule_node import (
    OutputType,
    Rule,
    RuleNode,
    last_as,
)
from memplan_cli.onnx_io.shapes.symbolic.dim_rules import joined_shape
from memplan_cli.onnx_io.shapes.symbolic.target_rules import broadcast_shapes
from memplan_cli.onnx_io.shapes.symbolic.values import FLOAT
from memplan_cli.onnx_io.shapes.symbolic.window_rules import (
    conv_output_shape,
    pool_output_shape,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from memplan_cli.core.program import Shape

_MATRIX = 2


def _matmul_shape(a: Shape | None, b: Shape | None) -> Shape | None:
    """A (.., m, k), b (.., k, n) -> (.., m, n), leading dims broadcast; None if a shape is unknown.

    A vector for ``a`` or ``b`` loses its m or n.
    """
    if not a or not b:
        return None
    rows = a[-2:-1]
    columns = b[-1:] if len(b) >= _MATRIX else ()
    return (*broadcast_shapes([a[:-2], b[:-2]]), *rows, *columns)


def _transposed_operand(shape: Shape | None, *, last: int, batch: int) -> Shape | None:
    """Return the shape of a FusedMatMul operand after its transposes.

    Args:
        shape: dims as stored.
        last: nonzero swaps the last two dims (``transA``, ``transB``).
        batch: nonzero moves the first dim before the last one (``transBatchA``, ``transBatchB``).
    """
    if shape is None or len(shape) < _MATRIX:
        return shape
    if batch:
        shape = (*shape[1:-1], shape[0], shape[-1])
    return (*shape[:-2], shape[-1], shape[-2]) if last else shape


def _fused_matmul(node: RuleNode) -> Sequence[OutputType]:
    """FusedMatMul: the product of the two operands after their transposes."""
    a, b = (
        _transposed_operand(
            node.input_shape(index),
            last=node.int_attribute(f"trans{side}"),
            batch=node.int_attribute(f"transBatch{side}"),
        )
        for index, side in enumerate("AB")
    )
    return [OutputType(node.elem_type(0), _matmul_shape(a, b))]


def _matmul(node: RuleNode, *, elem_type: int = 0, like: int = 0) -> Sequence[OutputType]:
    """A product: inputs 0 (.., m, k) and 1 (.., k, n) -> (.., m, n).

    Args:
        node: the node.
        elem_type: element type of the output; 0 means that of input ``like``.
        like: index of the input whose element type the output has.
    """
    shape = _matmul_shape(node.input_shape(0), node.input_shape(1))
    return [OutputType(elem_type or node.elem_type(like), shape)]


def _matmul_nbits(node: RuleNode) -> Sequence[OutputType]:
    """MatMulNBits, MatMulBnb4: a (.., k), packed b -> (.., N).

    Unknown with ``transB=0`` (the packed operand is not transposed).
    """
    columns = node.int_attribute("N")
    is_transposed = node.int_attribute("transB", 1) == 1
    return [
        OutputType(
            node.elem_type(0),
            last_as(node.input_shape(0), columns) if columns and is_transposed else None,
        )
    ]


def _fused_gemm(node: RuleNode) -> Sequence[OutputType]:
    """FusedGemm: (m, k), (k, n) after the optional transposes -> (m, n)."""
    return [OutputType(node.elem_type(0), _gemm_shape(node, 1))]


def _gemm_shape(node: RuleNode, second: int) -> Shape | None:
    """Return (m, n) of a Gemm whose second operand is input ``second``; None if a rank is not 2.

    ``transA`` and ``transB`` are 0 or 1: a is (k, m) and b (n, k) if they are 1.
    """
    a, b = node.shape_of_rank(0, _MATRIX), node.shape_of_rank(second, _MATRIX)
    if a is None or b is None:
        return None
    rows, columns = a[node.int_attribute("transA")], b[1 - node.int_attribute("transB")]
    return rows, columns


def _qgemm(node: RuleNode) -> Sequence[OutputType]:
    """QGemm: (m, k), (k, n) -> (m, n); quantized if the node has an output zero point, else float."""
    zero_point = 8  # an input index
    elem_type = node.elem_type(zero_point) if node.has_input(zero_point) else FLOAT
    return [OutputType(elem_type, _gemm_shape(node, 3))]


def conv(
    node: RuleNode, *, kernel: int, channels_last: bool, like: int = 0
) -> Sequence[OutputType]:
    """A convolution: x (n, c, ..), kernel (m, c / group, ..) -> (n, m, ..).

    Args:
        node: the node.
        kernel: index of the kernel input, which always has channels first.
        channels_last: x and the output are (n, .., c); the attribute of that name has the same effect.
        like: index of the input whose element type the output has.
    """

    def convolved(shape: Shape) -> Shape | None:
        kernel_shape = node.input_shape(kernel)
        if kernel_shape is None or len(kernel_shape) != len(shape):
            return None
        return conv_output_shape(node.proto, shape, kernel_shape)

    output_shape = _in_layout_of_input(node, convolved, channels_last=channels_last)
    return [OutputType(node.elem_type(like), output_shape)]


def _in_layout_of_input(
    node: RuleNode, rule: Callable[[Shape], Shape | None], *, channels_last: bool
) -> Shape | None:
    """Apply a rule for shapes (n, c, ..) to the first input; None if its shape is unknown.

    If channels are last, by parameter or by the attribute of that name, both shapes are (n, .., c).
    """
    shape = node.input_shape(0)
    if not channels_last and not node.int_attribute("channels_last"):
        return None if shape is None else rule(shape)
    shape = move_channels(shape, to_last=False)
    return None if shape is None else move_channels(rule(shape), to_last=True)


def move_channels(shape: Shape | None, *, to_last: bool) -> Shape | None:
    """Move the channel dim: (n, .., c) -> (n, c, ..), or back if ``to_last``; None if unknown."""
    if shape is None or len(shape) < _MATRIX:
        return None
    if to_last:
        return (shape[0], *shape[2:], shape[1])
    return (shape[0], shape[-1], *shape[1:-1])


def pool(node: RuleNode, *, channels_last: bool) -> Sequence[OutputType]:
    """A pool: (n, c, ..) -> (n, c, ..) with the windows that fit.

    With ``channels_last``, or the attribute of that name, shapes are (n, .., c).
    """
    pooled = partial(pool_output_shape, node.proto)
    output_shape = _in_layout_of_input(node, pooled, channels_last=channels_last)
    return [OutputType(node.elem_type(0), output_shape)]


def _global_pool(node: RuleNode) -> Sequence[OutputType]:
    """QLinearGlobalAveragePool: (n, c, ..) -> (n, c, 1, ..), or with ``channels_last`` (n, 1, .., c)."""
    shape = node.input_shape(0) or ()
    pooled = (1,) * len(shape[2:])
    if not pooled:
        return []  # the shape is unknown or invalid
    last = node.int_attribute("channels_last")
    output_shape = (shape[0], *pooled, shape[-1]) if last else (*shape[:2], *pooled)
    return [OutputType(node.elem_type(0), output_shape)]


def _qlinear_concat(node: RuleNode) -> Sequence[OutputType]:
    """QLinearConcat: inputs are the output's scale and zero point, then (tensor, scale, zero point) each.

    Output: the tensors joined along ``axis``, with the element type of the output's zero point.
    """
    shapes = [node.input_shape(index) for index in range(2, len(node.proto.input), 3)]
    shape = joined_shape(shapes, node.int_attribute("axis", 1))
    return [OutputType(node.elem_type(1), shape)]


RULES: Mapping[str, Rule] = {
    # Matrices.
    "DynamicQuantizeMatMul": partial(_matmul, elem_type=FLOAT),
    "FusedGemm": _fused_gemm,
    "FusedMatMul": _fused_matmul,
    "FusedMatMulActivation": _fused_matmul,
    "MatMulBnb4": _matmul_nbits,
    "MatMulIntegerToFloat": partial(_matmul, like=2),
    "MatMulNBits": _matmul_nbits,
    "QGemm": _qgemm,
    "TransposeMatMul": _fused_matmul,
    # Windows.
    "FusedConv": partial(conv, kernel=1, channels_last=False),
    "NhwcConv": partial(conv, kernel=1, channels_last=True),
    "NhwcFusedConv": partial(conv, kernel=1, channels_last=True),
    "NhwcMaxPool": partial(pool, channels_last=True),
    "QLinearAveragePool": partial(pool, channels_last=False),
    "QLinearConv": partial(conv, kernel=3, channels_last=False, like=7),
    "QLinearGlobalAveragePool": _global_pool,
    # Several in a row.
    "QLinearConcat": _qlinear_concat,
}
"""The rules of products, convolutions and pools of ``com.microsoft``, by operator."""
