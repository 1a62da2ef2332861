"""The shape rules of all operators that ONNX's own inference does not know or reads wrongly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.operators import MICROSOFT, ML, NCHWC, ONNX, canonical_domain
from memplan_cli.onnx_io.shapes.domains import (
    attention,
    microsoft,
    ml,
    nchwc,
    products,
)
from memplan_cli.onnx_io.shapes.domains.rule_node import (
    OutputType,
    Rule,
    RuleNode,
    last_as,
    like,
)
from memplan_cli.onnx_io.shapes.lattice import tensor_type
from memplan_cli.onnx_io.shapes.symbolic.values import BOOL, FLOAT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from onnx import NodeProto, TypeProto

    from memplan_cli.onnx_io.shapes.symbolic.values import Values


def _normalized(node: RuleNode) -> Sequence[OutputType]:
    """SimplifiedLayerNormalization: x (.., n) -> y (.., n) in the scale's type, float factors (.., 1)."""
    return [
        OutputType(node.elem_type(1), node.input_shape(0)),
        OutputType(FLOAT, last_as(node.input_shape(0), 1)),
    ]


def _dropout(node: RuleNode) -> Sequence[OutputType]:
    """Dropout: x -> y and a mask, both with the shape of x; the mask is bool from opset 10 on."""
    elem_type, shape = node.elem_type(0), node.input_shape(0)
    mask_type = BOOL if node.values.opsets[ONNX] >= 10 else elem_type
    return [OutputType(elem_type, shape), OutputType(mask_type, shape)]


DOMAINS: Mapping[str, Mapping[str, Rule]] = {
    # ONNX's inference misreads Attention, leaves out the masks of Dropout before opset 12, and does not infer
    # two normalizations and some operators of ai.onnx.ml. The others are in no opset of ONNX.
    ONNX: {
        "Attention": attention.onnx_attention,
        "Dropout": _dropout,
        "GroupNormalization": like(0),
        "MeanVarianceNormalization": like(0),
        "FusedConv": products.RULES["FusedConv"],
        "SimplifiedLayerNormalization": _normalized,
    },
    ML: ml.RULES,
    MICROSOFT: {**microsoft.RULES, **products.RULES, **attention.RULES},
    NCHWC: nchwc.RULES,
}
"""By domain, the rule of each operator."""


def rule_of(node: NodeProto) -> Rule | None:
    """Return the rule for a node, None if `DOMAINS` has none for its operator."""
    return DOMAINS.get(canonical_domain(node.domain), {}).get(node.op_type)


def output_types(values: Values, node: NodeProto, rule: Rule) -> Mapping[str, TypeProto]:
    """Return the types of a node's named outputs as its rule gives them, by name.

    Outputs without a known element type or with a negative dim are left out, as are all outputs if the node
    is invalid.
    """
    try:
        outputs = rule(RuleNode(values, node))
    except (ValueError, IndexError, ZeroDivisionError, OverflowError):
        return {}  # an invalid node, or an expression that is too long
    types: dict[str, TypeProto] = {}
    for name, (elem_type, shape) in zip(node.output, outputs, strict=False):
        negative = any(isinstance(dim, int) and dim < 0 for dim in shape or ())
        if name and elem_type and not negative:
            types[name] = tensor_type(elem_type, shape)
    return types
