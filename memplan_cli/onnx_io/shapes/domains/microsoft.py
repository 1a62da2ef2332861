"""Shape rules of ``com.microsoft`` besides products and attention: elementwise, lookups, recurrences.

Rules of this domain are for operators that ONNX Runtime's optimizers and quantizers or common exporters
write. The types of others are found by a session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.operators import MICROSOFT, OPERATORS
from memplan_cli.onnx_io.shapes.domains.rule_node import (
    UINT8,
    OutputType,
    Rule,
    RuleNode,
    broadcasting,
    last_as,
    like,
    quotient,
)
from memplan_cli.onnx_io.shapes.symbolic.dim_rules import pad_shape
from memplan_cli.onnx_io.shapes.symbolic.values import BOOL, product

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def _quantize_linear(node: RuleNode) -> Sequence[OutputType]:
    """QuantizeLinear: shape of x, element type of the zero point (uint8 if it is left out)."""
    return [OutputType(node.elem_type(2) if node.has_input(2) else UINT8, node.input_shape(0))]


def _bias_dropout(node: RuleNode) -> Sequence[OutputType]:
    """BiasDropout: the output and its boolean mask, both with the shape of x."""
    return [
        OutputType(node.elem_type(0), node.input_shape(0)),
        OutputType(BOOL, node.input_shape(0)),
    ]


def _bias_split_gelu(node: RuleNode) -> Sequence[OutputType]:
    """BiasSplitGelu: (.., 2 n) -> (.., n)."""
    shape = node.input_shape(0)
    return [
        OutputType(
            node.elem_type(0), last_as(shape, quotient(shape[-1], 2)) if shape else None
        )
    ]


def _gather_block_quantized(node: RuleNode) -> Sequence[OutputType]:
    """GatherBlockQuantized: the gathered axis of a table is replaced by the indices' dims.

    In a uint8 table ``8 / bits`` elements of the last axis are packed into a byte. The shape is unknown
    if such a table is quantized along another axis.
    """
    data, indices = node.input_shape(0), node.input_shape(1)
    if data is None or indices is None or not data:
        return [OutputType(node.elem_type(2), None)]
    dims = list(data)
    if node.elem_type(0) == UINT8:
        quantized_axis = node.int_attribute("quantize_axis", 1) % len(dims)
        if quantized_axis != len(dims) - 1:
            return [OutputType(node.elem_type(2), None)]
        dims[-1] = product((dims[-1], 8 // node.int_attribute("bits", 4)))
    gathered_axis = node.int_attribute("gather_axis", 0) % len(dims)
    dims[gathered_axis : gathered_axis + 1] = indices
    return [OutputType(node.elem_type(2), tuple(dims))]


def _pad(node: RuleNode) -> Sequence[OutputType]:
    """Pad: as ONNX's."""
    return [OutputType(node.elem_type(0), pad_shape(node.values, node.proto))]


def _dynamic_quantize_lstm(node: RuleNode) -> Sequence[OutputType]:
    """DynamicQuantizeLSTM: as LSTM. x (s, n, i) -> y (s, d, n, h), final states (d, n, h) twice."""
    shape, hidden = node.shape_of_rank(0, 3), node.int_attribute("hidden_size")
    if shape is None or not hidden:
        return []
    direction = node.attribute("direction")
    directions = 2 if direction is not None and direction.s == b"bidirectional" else 1
    state = OutputType(node.elem_type(0), (directions, shape[1], hidden))
    return [
        OutputType(node.elem_type(0), (shape[0], directions, shape[1], hidden)),
        state,
        state,
    ]


RULES: Mapping[str, Rule] = {
    # Dims of the first input.
    **{op.name: like(0) for op in OPERATORS if op.domain == MICROSOFT and op.keeps_shape},
    **dict.fromkeys(
        (
            "BiasSoftmax", "GroupNorm", "MoE", "QLinearLeakyRelu", "QLinearSigmoid",
            "QLinearSoftmax", "QMoE", "Trilu",
        ),
        like(0),
    ),
    "BiasDropout": _bias_dropout,
    "DequantizeLinear": lambda node: [OutputType(node.elem_type(1), node.input_shape(0))],
    "QuantizeLinear": _quantize_linear,
    "SkipGroupNorm": like(0, 0),
    # Pairs of elements.
    "QLinearAdd": broadcasting(0, 3),
    "QLinearMul": broadcasting(0, 3),
    "QLinearWhere": lambda node: [
        OutputType(node.elem_type(1), broadcasting(0, 1, 4)(node)[0].shape)
    ],
    # Dims left out, added or cut.
    "BiasSplitGelu": _bias_split_gelu,
    "Pad": _pad,
    # Tables.
    "GatherBlockQuantized": _gather_block_quantized,
    # Sequences.
    "DynamicQuantizeLSTM": _dynamic_quantize_lstm,
}  # fmt: skip
"""The rules of the other operators of ``com.microsoft``, by operator."""
