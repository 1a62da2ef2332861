"""The rules of all domains, and what they say of a node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.onnx_io.protobuf import messages
from memplan_cli.shapes.domains.attention import ATTENTION, standard
from memplan_cli.shapes.domains.blocked import BLOCKED
from memplan_cli.shapes.domains.learning import LEARNING
from memplan_cli.shapes.domains.made import Made, Node, Rule, last_as
from memplan_cli.shapes.domains.microsoft import MICROSOFT
from memplan_cli.shapes.domains.products import PRODUCTS
from memplan_cli.shapes.lattice import with_shape

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from onnx import NodeProto, TypeProto

    from memplan_cli.shapes.symbolic.values import Values


def _normalized(node: Node) -> Sequence[Made]:
    """SimplifiedLayerNormalization: the tensor in its scale's type, and a factor for each row."""
    return [Made(node.element(1), node.shape(0)), Made(1, last_as(node.shape(0), 1))]


DOMAINS: Mapping[str, Mapping[str, Rule]] = {
    # The first is read wrongly by ONNX's inference, states it follows with numbers only, and
    # the others are in no opset: ONNX Runtime's optimiser writes them.
    "": {
        "Attention": standard,
        "CausalConvWithState": MICROSOFT["CausalConvWithState"],
        "FusedConv": PRODUCTS["FusedConv"],
        "LinearAttention": ATTENTION["LinearAttention"],
        "SimplifiedLayerNormalization": _normalized,
    },
    "ai.onnx.ml": LEARNING,
    "com.microsoft": {**MICROSOFT, **PRODUCTS, **ATTENTION},
    "com.microsoft.nchwc": BLOCKED,
}
"""The rules of each domain, by operator."""


def rule_of(node: NodeProto) -> Rule | None:
    """Return the rule of a node that ONNX's own inference knows nothing of."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    return DOMAINS.get(domain, {}).get(node.op_type)


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
