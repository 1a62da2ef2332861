"""Abstract interpretation of a graph: node by node, shapes from the shapes and small values above.

It fills the holes that ONNX's inference of the whole graph leaves. The outputs of a node come from a
shape rule of memplan, from the value that the node computes, and from ONNX's inference of this
node alone, which gets the values of its inputs.
"""

from __future__ import annotations

from collections import ChainMap
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from memplan_cli.core.operators import (
    CONTROL_FLOW,
    ML,
    ONNX,
    SHAPE_QUERIES,
    STANDARD_DOMAINS,
    Family,
    canonical_domain,
    names_of,
)
from memplan_cli.onnx_io.interface import opset_versions
from memplan_cli.onnx_io.shapes.domains.table import output_types, rule_of
from memplan_cli.onnx_io.shapes.lattice import (
    is_complete,
    merged,
    shape_in,
    tensor_type,
    with_shape,
)
from memplan_cli.onnx_io.shapes.onnx_inference import WRONG_TYPES, infer_node
from memplan_cli.onnx_io.shapes.symbolic import dim_rules, target_rules, window_rules
from memplan_cli.onnx_io.shapes.symbolic.value_rules import SIZED_BY_DATA, add_output_values
from memplan_cli.onnx_io.shapes.symbolic.values import BOOL, INT32, INT64, MAX_ELEMENTS, Values
from memplan_cli.onnx_io.traversal import free_names, subgraphs

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, MutableMapping

    from onnx import GraphProto, ModelProto, NodeProto, TypeProto

    from memplan_cli.core.program import Shape
    from memplan_cli.onnx_io.shapes.symbolic.values import Rule, Value

RULES: Mapping[str, Rule] = {**target_rules.RULES, **dim_rules.RULES, **window_rules.RULES}
"""The shape rule of each standard operator for which ONNX's inference uses numbers only."""

_EQUAL_OUTPUTS = frozenset({"TopK"})
"""Operators of `RULES` all of whose outputs have the shape of the first."""

_INFERRED_FROM_ALL_VALUES = SIZED_BY_DATA.union(
    names_of(lambda op: op.family is Family.RESIZING)
)
"""Operators for which ONNX's inference uses the values of all inputs, of any type."""

_SHAPED_BY_ALL_VALUES = _INFERRED_FROM_ALL_VALUES | {"Range"}
"""Operators whose shapes depend on the values of any input, of any type.

A Range of floats is counted by a rule of memplan: ONNX's inference counts its steps in the floats' own
type, which the runtime does not.
"""

_DIM_TYPES = (INT32, INT64, BOOL)
"""Element types of values that shapes are computed from."""

_NOT_INFERRED_ALONE = frozenset(
    {*CONTROL_FLOW, *names_of(lambda op: op.is_random), *WRONG_TYPES}
)
"""Operators that are not inferred node by node by ONNX."""


@dataclass(frozen=True, slots=True)
class Interpretation:
    """What an interpretation adds to a graph.

    Attributes:
        types: types that are better known than in the graph, by name.
        values: small values, by name.
    """

    types: Mapping[str, TypeProto]
    values: Mapping[str, Value]


def interpret(
    model: ModelProto,
    wanted: Collection[str] = (),
    rules: Mapping[str, Rule] | None = None,
) -> Interpretation:
    """Return better types and known values of a model's main graph, found node by node in order.

    The model is not changed.

    Args:
        model: a model with the types that ONNX's inference found.
        wanted: names of values that are computed whether or not a shape depends on them.
        rules: shape rules by operator; `RULES` by default.
    """
    graph = model.graph
    types = {v.name: v.type for v in (*graph.output, *graph.value_info, *graph.input)}
    if not wanted and all(_has_complete_outputs(node, types) for node in graph.node):
        return Interpretation({}, {})  # no types to improve, no values asked for
    for tensor in graph.initializer:
        types.setdefault(tensor.name, tensor_type(tensor.data_type, tuple(tensor.dims)))
    # A model may import the opsets of other domains only.
    opsets = {ONNX: 1, **opset_versions(model)}
    values = Values.of_graph(graph, types, opsets)
    improved = _interpret_nodes(graph, values, wanted, RULES if rules is None else rules)
    for name in wanted:
        values.value_of(name)  # adds the values of initializers to ``values.known``
    return Interpretation(improved, values.known)


def _interpret_nodes(
    graph: GraphProto,
    values: Values,
    wanted: Collection[str],
    shape_rules: Mapping[str, Rule],
) -> dict[str, TypeProto]:
    """Interpret the nodes in order; add their types and values to ``values``. Return the improved types.

    Values are computed only of nodes on which a wanted value or an incomplete shape depends.

    Args:
        graph: The graph.
        values: Its values and their types, from which the rules of later nodes read.
        wanted: Names of values that are computed in any case.
        shape_rules: Shape rules of standard operators, by operator.
    """
    types = values.types
    needed = _needed_values(graph, types, wanted)
    improved: dict[str, TypeProto] = {}
    add_types = partial(_add_types, improved, types)
    for node in graph.node:
        domain = canonical_domain(node.domain)
        # First the rules for operators that ONNX does not know or misreads (`DOMAINS`). Such a rule gives the
        # types of all outputs.
        type_rule = rule_of(node)
        if type_rule is not None and not _has_complete_outputs(node, types):
            add_types(output_types(values, node, type_rule))
        # Then operators whose types are still incomplete and that ONNX knows. ONNX infers the types, and a
        # shape rule the dims that ONNX leaves open.
        if domain in (ONNX, ML) and not _has_complete_outputs(node, types):
            add_types(_inferred_types(values, node, shape_rules.get(node.op_type)))
        # Last the values of standard operators, from which the types of later nodes follow.
        if domain != ONNX or needed.isdisjoint(node.output):
            continue
        if node.op_type == "If":
            add_types(_interpret_taken_branch(values, node, shape_rules))
        else:
            add_output_values(values, node)
        outputs = {name: values.known[name] for name in node.output if name in values.known}
        add_types(
            {name: tensor_type(v.elem_type, v.array.shape) for name, v in outputs.items()}
        )
    return improved


def _interpret_taken_branch(
    values: Values, node: NodeProto, shape_rules: Mapping[str, Rule]
) -> Mapping[str, TypeProto]:
    """Add the values of an If's outputs to ``values``; return their types. Empty unless its condition is known.

    The types that the branch declares are not read: inference may have taken them from the other branch.
    """
    condition = values.input_value(node, 0)
    if condition is None or not condition.is_known or condition.array.size != 1:
        return {}
    taken = "then_branch" if condition.array.reshape(-1)[0] else "else_branch"
    branch = next(graph for name, graph in subgraphs(node) if name == taken)
    types: MutableMapping[str, TypeProto] = ChainMap({}, values.types)
    inner = values.of_subgraph(branch, types)
    for tensor in branch.initializer:
        types[tensor.name] = tensor_type(tensor.data_type, tuple(tensor.dims))
    results = [value.name for value in branch.output]
    _interpret_nodes(branch, inner, results, shape_rules)
    output_types: dict[str, TypeProto] = {}
    for name, result in zip(node.output, results, strict=False):
        value = inner.value_of(result)
        if name and value is not None and value.array.size <= MAX_ELEMENTS:
            values.known[name] = value
        if name and result in types:
            output_types[name] = types[result]
    return output_types


def _add_types(
    improved: dict[str, TypeProto],
    types: MutableMapping[str, TypeProto],
    new_types: Mapping[str, TypeProto],
) -> None:
    """Merge ``new_types`` into ``types``; store those that changed in ``improved`` as well."""
    for name, new_type in new_types.items():
        old_type = types.get(name)
        combined = new_type if old_type is None else merged(old_type, new_type)
        if combined != old_type:
            improved[name] = types[name] = combined


def _has_complete_outputs(node: NodeProto, types: Mapping[str, TypeProto]) -> bool:
    return all(name in types and is_complete(types[name]) for name in node.output if name)


def _needed_values(
    graph: GraphProto, types: Mapping[str, TypeProto], wanted: Collection[str]
) -> set[str]:
    """Return the names of the values on which wanted values and incomplete shapes depend.

    The nodes are walked backwards, so that the readers of a value come before its producer.
    """
    needed = set(wanted)
    for node in reversed(graph.node):
        if node.domain not in STANDARD_DOMAINS and rule_of(node) is None:
            continue  # neither its values nor its shapes can be computed
        is_incomplete = not _has_complete_outputs(node, types)
        if is_incomplete and node.op_type in SIZED_BY_DATA:
            needed.update(node.output)  # the size of a NonZero is known once its value is
        # A needed value depends on all inputs; that of a Shape only on the type of its input.
        if not needed.isdisjoint(node.output) and node.op_type not in SHAPE_QUERIES:
            needed.update(node.input)
            for _, body in subgraphs(node):
                needed.update(free_names(body))
        # An incomplete shape depends on inputs that hold dims, as that of a Reshape.
        if is_incomplete:
            takes_all = node.op_type in _SHAPED_BY_ALL_VALUES
            needed.update(
                name for name in node.input if takes_all or _may_be_dims(types.get(name))
            )
        needed.discard("")  # an omitted input or output
    return needed


def _may_be_dims(type_proto: TypeProto | None) -> bool:
    """Whether a value may hold dims: integers or bools of rank 0 or 1, or of unknown type."""
    if type_proto is None:
        return True
    shape = shape_in(type_proto)
    has_dim_type = type_proto.tensor_type.elem_type in (0, *_DIM_TYPES)
    return has_dim_type and (shape is None or len(shape) <= 1)


def _inferred_types(
    values: Values, node: NodeProto, rule: Rule | None
) -> Mapping[str, TypeProto]:
    """Return the types of a node's outputs from ONNX's inference and, where it leaves dims open, from a rule.

    The rule gives the shape of the first output, and for `_EQUAL_OUTPUTS` of all outputs. It is used for
    outputs that are known to be tensors.
    """
    types = dict(_types_from_onnx(values, node))
    shape = _shape_from_rule(values, node, rule)
    if shape is None:
        return types
    outputs = node.output if node.op_type in _EQUAL_OUTPUTS else node.output[:1]
    for name in filter(None, outputs):
        type_proto = types.get(name) or values.types.get(name)
        if type_proto is not None and type_proto.WhichOneof("value") == "tensor_type":
            types[name] = merged(type_proto, with_shape(type_proto, shape))
    return types


def _shape_from_rule(values: Values, node: NodeProto, rule: Rule | None) -> Shape | None:
    """Return the shape that a rule gives.

    None if there is no rule, the node is invalid, or a dim would be negative.
    """
    try:
        shape = rule(values, node) if rule is not None else None
    except (ValueError, IndexError, ZeroDivisionError, OverflowError):
        return None  # an invalid node, or an expression that is too long
    is_negative = any(isinstance(dim, int) and dim < 0 for dim in shape or ())
    return None if is_negative else shape


def _types_from_onnx(values: Values, node: NodeProto) -> Mapping[str, TypeProto]:
    """Return what ONNX infers for one node, given the types and known numbers of its inputs.

    Empty if the type of an input is unknown, or for an operator that cannot be inferred alone.
    """
    inputs = {name for name in node.input if name}
    types = {name: values.types[name] for name in inputs if name in values.types}
    if node.op_type in _NOT_INFERRED_ALONE or len(types) < len(inputs):
        return {}
    takes_all = node.op_type in _INFERRED_FROM_ALL_VALUES
    tensors = {}
    for name, type_proto in types.items():
        value = values.value_of(name) if takes_all or _may_be_dims(type_proto) else None
        if value is not None and value.is_known:
            from onnx import numpy_helper  # imports the whole package

            tensors[name] = numpy_helper.from_array(value.array, name)
    return infer_node(node, types, tensors, values.opsets)
