"""ONNX functions: bodies by which ONNX defines operators, and the inlining of a model's own functions.

The nodes of an inlined model are counted before inlining: in onnx 1.19 recursive functions end the
process, and thirty functions that each call the previous one twice make 2^30 nodes.
"""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from itertools import chain
from typing import TYPE_CHECKING

from memplan_cli.core.operators import canonical_domain
from memplan_cli.onnx_io.protobuf import messages
from memplan_cli.onnx_io.traversal import graphs, subgraphs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from onnx import AttributeProto, FunctionProto, ModelProto, NodeProto, TypeProto
    from onnx.defs import OpSchema

Kind = tuple[str, str, str]
"""Domain (``""``: the standard one), operator, overload."""

_MAX_INLINED_NODES = 5_000_000
"""Real models have some hundred thousand."""


def kind_of(node: NodeProto) -> Kind:
    """Return domain, operator and overload of a node."""
    return (canonical_domain(node.domain), node.op_type, node.overload)


def _kind_of_function(function: FunctionProto) -> Kind:
    return (canonical_domain(function.domain), function.name, function.overload)


def schema_function(
    schema: OpSchema, call: NodeProto, types: Iterable[TypeProto], versions: range
) -> FunctionProto | None:
    """Return the newest function body that ONNX defines for an operator, or None.

    Args:
        schema: The operator's schema.
        call: The node, on which the body may depend. Such a body is used only if there is no fixed one.
        types: The types of its inputs; read only if the body depends on the call.
        versions: The opsets that the body may be written in.
    """
    bodies: tuple[tuple[Sequence[int], Callable[[int], bytes]], ...] = (
        (schema.function_opset_versions, schema.get_function_with_opset_version),
        (
            schema.context_dependent_function_opset_versions,
            lambda version: schema.get_context_dependent_function_with_opset_version(
                version, call.SerializeToString(), [t.SerializeToString() for t in types]
            ),
        ),
    )
    for offered, serialized_body in bodies:
        usable = [version for version in offered if version in versions]
        if usable:
            function: FunctionProto = messages().FunctionProto()
            function.ParseFromString(serialized_body(max(usable)))
            return function
    return None


def with_attribute_values(
    node: NodeProto, attributes: Mapping[str, AttributeProto]
) -> NodeProto:
    """Return a copy of a function's node with values in place of attribute references.

    A reference to an attribute that is neither given nor has a default is dropped. Nodes of subgraphs
    refer to attributes of the same function.
    """
    copy = deepcopy(node)
    del copy.attribute[:]
    for attribute in node.attribute:
        name = attribute.ref_attr_name
        if name and name not in attributes:
            continue
        value = copy.attribute.add()
        value.CopyFrom(attributes[name] if name else attribute)
        value.name = attribute.name
    for _, graph in subgraphs(copy):
        inner = [with_attribute_values(each, attributes) for each in graph.node]
        del graph.node[:]
        graph.node.extend(inner)
    return copy


def inlined(model: ModelProto) -> ModelProto:
    """Return a model with all calls of its own functions inlined.

    onnx 1.23 ignores the defaults of attributes that a call omits, so they are added to the calls first.

    Raises:
        Exception: any error of onnx's inliner.
    """
    from onnx import inliner

    defaults = {_kind_of_function(f): f.attribute_proto for f in model.functions}
    if any(defaults.values()):
        copy = type(model)()
        copy.CopyFrom(model)
        model = copy
        bodies = (function.node for function in model.functions)
        for node in _nested_nodes(chain(model.graph.node, *bodies)):
            present = {attribute.name for attribute in node.attribute}
            omitted = (a for a in defaults.get(kind_of(node), ()) if a.name not in present)
            node.attribute.extend(omitted)
    return inliner.inline_local_functions(model)


def why_endless(model: ModelProto) -> str:
    """Return why a model's functions cannot be inlined, or ``""`` if they can.

    Either a function calls itself, directly or through others, or the inlined model would have more than
    five million nodes.
    """
    sizes = _inlined_sizes(model.functions)
    for function in model.functions:
        if (function.domain, function.name, function.overload) not in sizes:
            return f"{function.name[:80]!r} calls itself, or one that does"
    total = _inlined_size(Counter(map(_callee, _nested_nodes(model.graph.node))), sizes)
    if total > _MAX_INLINED_NODES:
        return f"they total {total} nodes, and no model has that many"
    return ""


def _inlined_sizes(functions: Iterable[FunctionProto]) -> dict[Kind, int]:
    """Return the number of nodes of each function after inlining.

    A function on a cycle of calls, or with a call of such a one, has no entry.
    """
    calls = {
        (f.domain, f.name, f.overload): Counter(map(_callee, _nested_nodes(f.node)))
        for f in functions
    }
    callers: dict[Kind, list[Kind]] = {name: [] for name in calls}
    for name, callees in calls.items():
        for callee in callees:
            if callee in calls:
                callers[callee].append(name)
    # A function gets its size after all functions that it calls, as in a topological sort (Kahn).
    unsized_callees = {
        name: sum(callee in calls for callee in callees) for name, callees in calls.items()
    }
    sizes: dict[Kind, int] = {}
    ready = [name for name, count in unsized_callees.items() if not count]
    while ready:
        name = ready.pop()
        sizes[name] = _inlined_size(calls[name], sizes)
        for caller in callers[name]:
            unsized_callees[caller] -= 1
            if not unsized_callees[caller]:
                ready.append(caller)
    return sizes


def _inlined_size(calls: Counter[Kind], sizes: dict[Kind, int]) -> int:
    """Return the number of nodes of a body after inlining.

    ``calls`` counts what the body calls, ``sizes`` are those of functions; an operator is one node.
    """
    return sum(count * sizes.get(name, 1) for name, count in calls.items())


def _callee(node: NodeProto) -> Kind:
    """Return domain, name and overload of the function that a node calls, with the domain as written.

    `why_endless` compares them with the names of functions, whose domains are as written too.
    """
    return (node.domain, node.op_type, node.overload)


def _nested_nodes(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Yield nodes and all nodes of their subgraphs."""
    for node in nodes:
        yield node
        for _, subgraph in subgraphs(node):
            for graph in graphs(subgraph):
                yield from graph.node
