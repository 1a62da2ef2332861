"""Replacement of forward operators without a gradient rule by operators that have one.

RNN, GRU and LSTM of a fixed length are unrolled; Attention, and other operators for which ONNX defines a
function body, are decomposed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from onnx import AttributeProto, defs, helper

from memplan_cli.core.operators import STANDARD_DOMAINS
from memplan_cli.features.training.backward import dependents
from memplan_cli.features.training.expansion.attention import attention
from memplan_cli.features.training.expansion.recurrent import gru, lstm, rnn
from memplan_cli.features.training.prepare import OLDEST_OPSET
from memplan_cli.features.training.tape import Call, ConstantPool, Phase, Tape, set_phase
from memplan_cli.features.training.tensors import constant_values, fold_shapes
from memplan_cli.onnx_io.constants import named_constant
from memplan_cli.onnx_io.functions import schema_function, with_attribute_values
from memplan_cli.onnx_io.graph_editor import live_nodes, names_in, rename_values, replace_nodes
from memplan_cli.onnx_io.load import standard_opset
from memplan_cli.onnx_io.traversal import reads

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from onnx import FunctionProto, GraphProto, ModelProto, NodeProto

    from memplan_cli.features.training.tape import Rule
    from memplan_cli.features.training.tensors import Tensor

Expansion = Callable[[Call], None]
"""Writes nodes that compute the outputs of a call's node to the call's tape."""

EXPANSIONS: Mapping[str, Expansion] = {
    "Attention": attention,
    "GRU": gru,
    "LSTM": lstm,
    "RNN": rnn,
}

_MAX_ROUNDS = 8
"""Each round expands one level of nested function bodies."""


def expand(
    model: ModelProto, loss: str, parameters: Sequence[str], rules: Mapping[str, Rule]
) -> dict[str, Tensor]:
    """Replace the nodes between the parameters and the loss that have no gradient rule, in place.

    The nodes in place of such a node may have no rule either, so this is repeated up to `_MAX_ROUNDS`
    times. Operators for which no expansion is known stay. Returns the types of all tensors, by name.

    Raises:
        ModelError: a recurrence has no fixed length, or an operator has a form that is not supported.
    """
    tensors = fold_shapes(model)
    for _ in range(_MAX_ROUNDS):
        tape = Tape(
            tensors,
            constant_values(model.graph),
            ConstantPool(names_in(model.graph)),
            Phase.FORWARD,
            opset=standard_opset(model),
            rules=rules,
        )
        needs_gradient = dependents(model.graph.node, parameters, tape)
        # The results of nodes that depend on a parameter, and that the loss depends on.
        on_path = {
            name
            for node in live_nodes(model.graph.node, [loss])
            if not needs_gradient.isdisjoint(node.output)
            for name in filter(None, node.output)
        }
        changed = _expand_nodes(model.graph, tape, on_path)
        model.graph.initializer.extend(tape.pool.initializers)
        if not changed:
            break
        tensors = fold_shapes(model)
    return tensors


def _expand_nodes(graph: GraphProto, tape: Tape, on_path: set[str]) -> bool:
    """Expand nodes of a graph, in place; return whether any was expanded.

    ``on_path`` has the outputs of the nodes through which gradient flows.
    """
    nodes: list[NodeProto] = []
    changed = False
    for node in graph.node:
        expansion = None if on_path.isdisjoint(node.output) else _expansion(node, tape)
        changed |= expansion is not None
        nodes.extend([node] if expansion is None else expansion)
    if changed:
        replace_nodes(graph, nodes)
    return changed


def _expansion(node: NodeProto, tape: Tape) -> list[NodeProto] | None:
    """Return nodes in place of a node, None if it has a gradient rule or no expansion is known.

    An expansion writes them to the tape, which is empty before and after.
    """
    if node.domain not in STANDARD_DOMAINS or node.op_type in tape.rules:
        return None
    # An expansion computes no gradients.
    call = Call(node, reads(node), gradients=(), wanted=(), tape=tape)
    if node.op_type in EXPANSIONS:
        EXPANSIONS[node.op_type](call)
    elif not _inline_function(call):
        return None
    return tape.take_nodes()


def _inline_function(call: Call) -> bool:
    """Write the function body that ONNX defines for an operator to the tape.

    Returns False, and writes nothing, if ONNX defines no body that uses operators of `OLDEST_OPSET` or
    later. Older operators have no gradient rules.
    """
    function = _function_body(call)
    if function is None:
        return False
    tape, attributes = call.tape, {a.name: a for a in _attribute_defaults(call)}
    attributes |= {a.name: a for a in call.node.attribute}
    # The new names of the body's values; "" is an optional input that the node omits.
    names = dict.fromkeys(function.input, "")
    names |= dict(zip(function.input, call.node.input, strict=False))
    for node in function.node:
        copy = with_attribute_values(node, attributes)
        for name in filter(None, copy.output):
            names[name] = tape.pool.fresh(f"{call.label}/{name}")
        rename_values([copy], names)
        constant = named_constant(copy)
        if constant is not None:
            tape.pool.initializers.append(constant)
            continue
        copy.name = tape.pool.fresh(f"{call.label}/{node.name or node.op_type}")
        set_phase(copy, Phase.FORWARD)
        tape.nodes.append(copy)
    for formal, output in zip(function.output, call.node.output, strict=False):
        if output:
            tape.copy_to(output, names[formal])
    return True


def _function_body(call: Call) -> FunctionProto | None:
    """Return the body that ONNX defines for a node's operator; None if it has none.

    A body may depend on the attributes and input types of the node. Only bodies written for an opset from
    `OLDEST_OPSET` on count: the gradient rules know no older operators.
    """
    opset = call.tape.opset
    try:
        schema = defs.get_schema(call.node.op_type, opset, "")
    except defs.SchemaError:
        return None
    input_types = (
        helper.make_tensor_type_proto(tensor.dtype, tensor.shape)
        for tensor in map(call.tape.tensor, call.node.input)  # "", an omitted one: unknown
    )
    return schema_function(schema, call.node, input_types, range(OLDEST_OPSET, opset + 1))


def _attribute_defaults(call: Call) -> Iterable[AttributeProto]:
    """Return the defaults that ONNX defines for the attributes of a node's operator."""
    schema = defs.get_schema(call.node.op_type, call.tape.opset, "")
    defaults = (attribute.default_value for attribute in schema.attributes.values())
    return (value for value in defaults if value.type != AttributeProto.UNDEFINED)
