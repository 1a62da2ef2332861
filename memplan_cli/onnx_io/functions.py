"""Functions: what a call of one stands for, and whether all of them can be written out.

Functions are the model's own, and those by which ONNX defines an operator that a runtime
may have no kernel for. How many nodes a model's functions total is found before they are
inlined: in onnx 1.19 a circle of calls ends the process, and thirty functions that each call
the one before twice total a thousand million nodes.
"""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

from memplan_cli.core.operators import canonical_domain
from memplan_cli.onnx_io.protobuf import messages
from memplan_cli.onnx_io.types import element_type, type_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from onnx import AttributeProto, FunctionProto, ModelProto, NodeProto, TypeProto
    from onnx.defs import OpSchema

Kind = tuple[str, str, str]
"""Domain, operator, overload."""


_MOST_NODES = 5_000_000
"""Real models have some hundred thousand."""


def kind_of(node: NodeProto) -> Kind:
    """Return what a node is; the standard domain has two names, and is ``""`` here."""
    return (canonical_domain(node.domain), node.op_type, node.overload)


def _kind_of_function(function: FunctionProto) -> Kind:
    return (canonical_domain(function.domain), function.name, function.overload)


@dataclass(frozen=True, slots=True)
class Definition:
    """What one call becomes.

    Attributes:
        inputs, outputs: the body's names for what the call reads and writes.
        nodes: without the Constant nodes, which become weights; attributes filled in.
        dtypes: numpy names of the body's values, as far as somebody will ask for them.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[NodeProto, ...]
    dtypes: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Definitions:
    """The functions that a model can call: ``own`` by kind, ONNX's by ``opsets``."""

    own: Mapping[Kind, FunctionProto] = field(default_factory=dict)
    opsets: Mapping[str, int] = field(default_factory=dict)

    def of_call(self, call: NodeProto, dtypes: Sequence[str]) -> Definition | None:
        """Return what a call stands for, None where it is no function.

        Args:
            call: a node whose attributes are values.
            dtypes: numpy names of what it reads; some of ONNX's bodies depend on them.
        """
        function = self._function(call, dtypes)
        if function is None:
            return None
        given = {a.name: a for a in (*function.attribute_proto, *call.attribute)}
        nodes = [filled(node, given) for node in function.node]
        found = dict(zip(function.input, dtypes, strict=False))
        return Definition(
            tuple(function.input),
            tuple(function.output),
            tuple(node for node in nodes if kind_of(node) != ("", "Constant", "")),
            self._inferred(nodes, found) if any(map(self._goes_by_types, nodes)) else found,
        )

    def _function(self, call: NodeProto, dtypes: Sequence[str]) -> FunctionProto | None:
        own = self.own.get(kind_of(call))
        if own is not None:
            return own
        schema = self._schema(call)
        if schema is None:
            return None
        version = self.opsets[canonical_domain(call.domain)]
        try:
            return schema_function(schema, call, map(_type, dtypes), range(version + 1))
        except Exception:  # noqa: BLE001 - of a node without what its body is written by
            return None

    def _schema(self, node: NodeProto) -> OpSchema | None:
        """Return what ONNX says of a node's operator; None if it is not ONNX's."""
        from onnx import defs

        domain = canonical_domain(node.domain)
        try:
            return defs.get_schema(node.op_type, self.opsets.get(domain, 0), domain)
        except defs.SchemaError:
            return None

    def _goes_by_types(self, node: NodeProto) -> bool:
        """Whether a node's body can only be written for the types of what it reads."""
        if kind_of(node) in self.own:
            return True
        schema = self._schema(node)
        return schema is not None and schema.has_context_dependent_function

    def _inferred(
        self, nodes: Iterable[NodeProto], given: Mapping[str, str]
    ) -> dict[str, str]:
        """Return the dtypes of a body's values, in the order of its nodes."""
        types = {name: _type(dtype) for name, dtype in given.items()}
        for node in nodes:
            types.update(self._results(node, types))
        return {name: type_name(kind) for name, kind in types.items()}

    def _results(
        self, node: NodeProto, types: Mapping[str, TypeProto]
    ) -> Mapping[str, TypeProto]:
        from onnx import shape_inference

        known = {name: types.get(name, _type("float32")) for name in node.input if name}
        own, schema = self.own.get(kind_of(node)), self._schema(node)
        try:
            if own is not None:
                inputs = [known[name] for name in node.input if name]
                found = shape_inference.infer_function_output_types(
                    own, inputs, node.attribute
                )
                return dict(zip(node.output, found, strict=False))
            return (
                {}
                if schema is None
                else shape_inference.infer_node_outputs(schema, node, known)
            )
        except Exception:  # noqa: BLE001 - inference raises many types, none of which matters
            return {}


def definitions_of(model: ModelProto) -> Definitions:
    """Return the functions that a model, as it is written, can call."""
    opsets = {
        canonical_domain(o.domain): o.version
        for imports in (*(f.opset_import for f in model.functions), model.opset_import)
        for o in imports
    }
    own = {_kind_of_function(f): f for f in model.functions}
    return Definitions(own, opsets)


def schema_function(
    schema: OpSchema, call: NodeProto, types: Iterable[TypeProto], versions: range
) -> FunctionProto | None:
    """Return the newest body by which ONNX defines an operator; None if there is none.

    Args:
        schema: what ONNX says of the operator.
        call: the node, by whose attributes and inputs some bodies are written.
        types: of its inputs; only asked for where the body depends on them.
        versions: opsets in whose operators the body may be written.
    """
    tables: tuple[tuple[Sequence[int], Callable[[int], bytes]], ...] = (
        (schema.function_opset_versions, schema.get_function_with_opset_version),
        (
            schema.context_dependent_function_opset_versions,
            lambda version: schema.get_context_dependent_function_with_opset_version(
                version, call.SerializeToString(), [t.SerializeToString() for t in types]
            ),
        ),
    )
    for offered, fetch in tables:
        usable = [version for version in offered if version in versions]
        if usable:
            function: FunctionProto = messages().FunctionProto()
            function.ParseFromString(fetch(max(usable)))
            return function
    return None


def filled(node: NodeProto, attributes: Mapping[str, AttributeProto]) -> NodeProto:
    """Return a function's node with its references to attributes replaced by values.

    Those of the bodies that it owns are references to the same function's attributes.
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
        for graph in (value.g, *value.graphs) if value.HasField("g") else value.graphs:
            inner = [filled(each, attributes) for each in graph.node]
            del graph.node[:]
            graph.node.extend(inner)
    return copy


def _type(dtype: str) -> TypeProto:
    """Return the type of a tensor of no known shape; what is none is taken for floats."""
    kind: TypeProto = messages().TypeProto()
    kind.tensor_type.elem_type = element_type(dtype) or element_type("float32")
    return kind


def inlined(model: ModelProto) -> ModelProto:
    """Return a model with its calls of functions written out.

    onnx leaves attributes out that a call does not give, whatever their defaults (1.23): here
    each call gives them before.

    Raises:
        Exception: what onnx raises where it cannot.
    """
    from onnx import inliner

    defaults = {_kind_of_function(f): f.attribute_proto for f in model.functions}
    if any(defaults.values()):
        copy = type(model)()
        copy.CopyFrom(model)
        model = copy
        bodies = (function.node for function in model.functions)
        for node in _nodes(chain(model.graph.node, *bodies)):
            given = {attribute.name for attribute in node.attribute}
            left_out = (a for a in defaults.get(kind_of(node), ()) if a.name not in given)
            node.attribute.extend(left_out)
    return inliner.inline_local_functions(model)


def why_endless(model: ModelProto) -> str:
    """Return why a model's functions cannot be written out, ``""`` where they can.

    One calls itself, if by others, or all total more nodes than any model has.
    """
    bodies = {(f.domain, f.name, f.overload): f for f in model.functions}
    calls = {name: Counter(map(_called, _nodes(f.node))) for name, f in bodies.items()}
    waiting = {name: sum(c in bodies for c in found) for name, found in calls.items()}
    callers: dict[Kind, list[Kind]] = {name: [] for name in bodies}
    for name, found in calls.items():
        for callee in found:
            if callee in bodies:
                callers[callee].append(name)
    sizes: dict[Kind, int] = {}
    ready = [name for name, count in waiting.items() if not count]
    while ready:
        name = ready.pop()
        sizes[name] = _expanded(calls[name], sizes)
        for caller in callers[name]:
            waiting[caller] -= 1
            if not waiting[caller]:
                ready.append(caller)
    endless = next((name for name in bodies if name not in sizes), None)
    if endless is not None:
        return f"{endless[1][:80]!r} calls itself, or one that does"
    total = _expanded(Counter(map(_called, _nodes(model.graph.node))), sizes)
    if total > _MOST_NODES:
        return f"they total {total} nodes, and no model has that many"
    return ""


def _expanded(calls: Counter[Kind], sizes: dict[Kind, int]) -> int:
    return sum(count * sizes.get(name, 1) for name, count in calls.items())


def _called(node: NodeProto) -> Kind:
    return (node.domain, node.op_type, node.overload)


def _nodes(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Yield nodes and those of their bodies, however deep."""
    stack = list(nodes)
    while stack:
        node = stack.pop()
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                stack.extend(attribute.g.node)
            for graph in attribute.graphs:
                stack.extend(graph.node)
