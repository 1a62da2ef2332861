"""The rules of all domains, and what they say of a node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.operators import MICROSOFT, ML, NCHWC, ONNX, canonical_domain
from memplan_cli.onnx_io.protobuf import messages
from memplan_cli.onnx_io.shapes.domains import (
    attention,
    blocked,
    learning,
    microsoft,
    products,
)
from memplan_cli.onnx_io.shapes.domains.made import Made, Node, Rule, last_as
from memplan_cli.onnx_io.shapes.lattice import with_shape

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from onnx import NodeProto, TypeProto

    from memplan_cli.onnx_io.shapes.symbolic.values import Values


def _normalized(node: Node) -> Sequence[Made]:
    """SimplifiedLayerNormalization: the tensor in its scale's type, and a factor for each row."""
    return [Made(node.element(1), node.shape(0)), Made(1, last_as(node.shape(0), 1))]


DOMAINS: Mapping[str, Mapping[str, Rule]] = {
    # The first is read wrongly by ONNX's inference, states it follows with numbers only, and
    # the others are in no opset: ONNX Runtime's optimiser writes them.
    ONNX: {
        "Attention": attention.standard,
        "CausalConvWithState": microsoft.RULES["CausalConvWithState"],
        "FusedConv": products.RULES["FusedConv"],
        "LinearAttention": attention.RULES["LinearAttention"],
        "SimplifiedLayerNormalization": _normalized,
    },
    ML: learning.RULES,
    MICROSOFT: {**microsoft.RULES, **products.RULES, **attention.RULES},
    NCHWC: blocked.RULES,
}
"""The rules of each domain, by operator."""


def rule_of(node: NodeProto) -> Rule | None:
    """Return the rule of a node that ONNX's own inference knows nothing of."""
    return DOMAINS.get(canonical_domain(node.domain), {}).get(node.op_type)


def made_by(values: Values, node: NodeProto, rule: Rule) -> Mapping[str, TypeProto]:
    """Return the types of a node's results, as far as its rule says them."""
    try:
        made = rule(Node(values, node))
    except (ValueError, IndexError, ZeroDivisionError, OverflowError):
        return {}  # a node that is wrong, or an expression longer than anybody would write
    found: dict[str, TypeProto] = {}
    for name, (element, shape) in zip(node.output, made, strict=False):
        negative = any(isinstance(dim, int) and dim < 0 for dim in shape or ())
        if name and element and not negative:
            kind: TypeProto = messages().TypeProto()
            kind.tensor_type.elem_type = element
            found[name] = with_shape(kind, shape)
    return found
