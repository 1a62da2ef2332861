"""ONNX functions: the body that a call stands for, and whether all calls can be inlined.

Functions are the model's own, and those by which ONNX defines operators that a runtime may have no kernel
for. The nodes of an inlined model are counted before inlining: in onnx 1.19 recursive functions end the
process, and thirty functions that each call the previous one twice make 2^30 nodes.
"""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

from memplan_cli.core.operators import canonical_domain
from memplan_cli.onnx_io.protobuf import messages
from memplan_cli.onnx_io.traversal import graphs, subgraphs
from memplan_cli.onnx_io.types import element_type, type_name

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


@dataclass(frozen=True, slots=True)
class Definition:
    """The body of a function for one call.

    Attributes:
        inputs: names in the body of the call's inputs.
        outputs: names in the body of the call's outputs.
        nodes: the body's nodes with attribute values. Constant nodes are left out: what they define is a
            weight, as an initializer is, and no node makes it.
        dtypes: dtypes of values of the body: of all, if a call in the body depends on dtypes; else of
            its inputs.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[NodeProto, ...]
    dtypes: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Definitions:
    """The functions that nodes of a model can call: its own, and those that ONNX defines in its opsets."""

    own: Mapping[Kind, FunctionProto] = field(default_factory=dict)
    opsets: Mapping[str, int] = field(default_factory=dict)

    def of_call(self, call: NodeProto, dtypes: Sequence[str]) -> Definition | None:
        """Return the body that a node stands for, or None if its operator is no function.

        Args:
            call: The node; its attributes are values, not references.
            dtypes: The dtypes of its inputs, on which some of ONNX's bodies depend.
        """
        function = self._function(call, dtypes)
        if function is None:
            return None
        # Defaults of the function first: attributes of the call replace them.
        attributes = {a.name: a for a in (*function.attribute_proto, *call.attribute)}
        nodes = [with_attribute_values(node, attributes) for node in function.node]
        body_dtypes = dict(zip(function.input, dtypes, strict=False))
        # For calls in the body whose own bodies depend on the dtypes of their inputs.
        if any(map(self._needs_dtypes, nodes)):
            body_dtypes = self._inferred_dtypes(nodes, body_dtypes)
        # The result of a Constant node counts as a weight: no node of the definition makes it.
        computing_nodes = [node for node in nodes if kind_of(node) != ("", "Constant", "")]
        return Definition(
            tuple(function.input),
            tuple(function.output),
            tuple(computing_nodes),
            body_dtypes,
        )

    def _function(self, call: NodeProto, dtypes: Sequence[str]) -> FunctionProto | None:
        """Return the function that a node calls: the model's own, or one of ONNX's."""
        own = self.own.get(kind_of(call))
        if own is not None:
            return own
        schema = self._schema(call)
        if schema is None:
            return None
        # The domain is imported: `_schema` finds no operator of another one.
        version = self.opsets[canonical_domain(call.domain)]
        input_types = [_tensor_type(dtype) for dtype in dtypes]
        versions = range(version + 1)  # up to the model's own
        try:
            return schema_function(schema, call, input_types, versions)
        except Exception:  # noqa: BLE001 - onnx raises many types for an invalid call
            return None

    def _schema(self, node: NodeProto) -> OpSchema | None:
        """Return the schema of a node's operator; None if ONNX does not define it."""
        from onnx import defs

        domain = canonical_domain(node.domain)
        try:
            # Opset 0, which has no operators, for a domain that is not imported.
            return defs.get_schema(node.op_type, self.opsets.get(domain, 0), domain)
        except defs.SchemaError:
            return None

    def _needs_dtypes(self, node: NodeProto) -> bool:
        """Whether the body of a node's operator can depend on the dtypes of its inputs."""
        if kind_of(node) in self.own:
            return True  # its body may contain such an operator
        schema = self._schema(node)
        return schema is not None and schema.has_context_dependent_function

    def _inferred_dtypes(
        self, nodes: Iterable[NodeProto], input_dtypes: Mapping[str, str]
    ) -> dict[str, str]:
        """Return the dtypes of all values of a body whose nodes are in order."""
        types = {name: _tensor_type(dtype) for name, dtype in input_dtypes.items()}
        for node in nodes:
            types.update(self._output_types(node, types))
        return {name: type_name(value_type) for name, value_type in types.items()}

    def _output_types(
        self, node: NodeProto, types: Mapping[str, TypeProto]
    ) -> Mapping[str, TypeProto]:
        """Infer the types of a node's outputs, empty if that fails; unknown inputs are assumed to be float32."""
        from onnx import shape_inference

        inputs = {n: types.get(n, _tensor_type("float32")) for n in node.input if n}
        function, schema = self.own.get(kind_of(node)), self._schema(node)
        try:
            if function is not None:
                # An omitted input has the empty type: the later ones keep their positions.
                no_type = messages().TypeProto()
                input_types = [inputs.get(name, no_type) for name in node.input]
                output_types = shape_inference.infer_function_output_types(
                    function, input_types, node.attribute
                )
                return dict(zip(node.output, output_types, strict=False))
            if schema is not None:
                outputs: dict[str, TypeProto]
                outputs = shape_inference.infer_node_outputs(schema, node, inputs)
                return outputs
        except Exception:  # noqa: BLE001 - inference raises many types
            return {}
        return {}


def definitions_of(model: ModelProto) -> Definitions:
    """Return the functions that a model can call."""
    # The model's own imports are last: they replace those of its functions.
    opsets = {
        canonical_domain(opset.domain): opset.version
        for imports in (*(f.opset_import for f in model.functions), model.opset_import)
        for opset in imports
    }
    own = {_kind_of_function(f): f for f in model.functions}
    return Definitions(own, opsets)


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


def _tensor_type(dtype: str) -> TypeProto:
    """Return the type of a tensor of unknown shape; an unknown dtype becomes float32."""
    value_type: TypeProto = messages().TypeProto()
    value_type.tensor_type.elem_type = element_type(dtype) or element_type("float32")
    return value_type


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
