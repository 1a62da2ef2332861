"""ModelProto -> Program: nodes become ops, graphs in attributes become nested blocks."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from memplan_cli.errors import ModelError
from memplan_cli.ir import Block, Op, Origin, Program, Var, VarId
from memplan_cli.onnx_io.load import graphs, subgraphs
from memplan_cli.onnx_io.shapes import Bindings, infer, read_shape
from memplan_cli.onnx_io.types import dtype_name, type_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto

    from memplan_cli.ir import Attribute, Shape


@dataclass(frozen=True, slots=True)
class Loaded:
    """A program, and what was noticed while reading it."""

    program: Program
    warnings: tuple[str, ...] = ()


def read_program(model: ModelProto, bindings: Bindings | None = None) -> Loaded:
    """Turn a model into a program.

    Raises:
        ModelError: a value is read that nothing defines, defined twice, or needs itself.
    """
    inferred, warnings = infer(model, bindings or Bindings())
    reader = _Reader(_weights(model.graph), _slashed(inferred.graph))
    scope: dict[str, VarId] = {}
    for name, (dtype, shape) in reader.weights.items():
        scope[name] = reader.add(name, "", Origin.WEIGHT, (dtype, shape))
    values = _values(inferred.graph)
    inputs = tuple(v.name for v in model.graph.input if v.name not in reader.weights)
    for name in inputs:
        if name in scope:
            raise ModelError(f"input {_short(name)!r} is defined twice")
        scope[name] = reader.add(name, "", Origin.INPUT, _type_of(name, values))
    body = reader.block(inferred.graph, "", scope, tuple(scope[name] for name in inputs))
    name = model.graph.name or "model"
    return Loaded(Program(name, body, reader.vars), warnings)


def _weights(graph: GraphProto) -> dict[str, tuple[str, Shape]]:
    found = {t.name: (dtype_name(t.data_type), tuple(t.dims)) for t in graph.initializer}
    for sparse in graph.sparse_initializer:
        found[sparse.values.name] = (dtype_name(sparse.values.data_type), tuple(sparse.dims))
    return found


def _slashed(graph: GraphProto) -> Sequence[str]:
    """Return, sorted, the names that could be taken for ``block/name`` of a body's value."""
    found: set[str] = set()
    for inner in graphs(graph):
        found.update(value.name for value in inner.input)
        found.update(tensor.name for tensor in inner.initializer)
        found.update(name for node in inner.node for name in node.output)
    return sorted(name for name in found if "/" in name)


@dataclass(slots=True)
class _Reader:
    weights: Mapping[str, tuple[str, Shape]]
    slashed: Sequence[str]
    vars: dict[VarId, Var] = field(default_factory=dict)
    paths: dict[str, str] = field(default_factory=dict)
    """Each block's path, and that of the block its owner is in."""

    def add(
        self, name: str, block: str, origin: Origin, facts: tuple[str, Shape | None]
    ) -> VarId:
        identity = f"{block}/{name}" if block else name
        while identity in self.vars:
            identity += "'"
        var = VarId(identity)
        self.vars[var] = Var(var, facts[0], facts[1], origin, name, block)
        return var

    def block(
        self,
        graph: GraphProto,
        path: str,
        outer: Mapping[str, VarId],
        inputs: tuple[VarId, ...],
    ) -> Block:
        scope = dict(outer) if path else outer
        assert isinstance(scope, dict)  # noqa: S101 - the top scope is made above
        here = set(_weights(graph)) if path else set(self.weights)
        here.update(self.vars[var].name for var in inputs)
        values = _values(graph)
        ops = []
        for index, node in sorted_nodes(graph, scope):
            bodies = tuple(self._bodies(node, index, path, scope)) if node.attribute else ()
            reads = tuple([self._resolve(name, scope, node) for name in node.input])
            for name in node.output:
                if name in here:
                    raise ModelError(f"value {_short(name)!r} is defined twice")
                if name:
                    here.add(name)
                    scope[name] = self._result(name, path, node, values)
            writes = tuple([scope[name] if name else VarId("") for name in node.output])
            domain = "" if node.domain == "ai.onnx" else node.domain
            ops.append(
                Op(
                    node.name,
                    node.op_type,
                    reads,
                    writes,
                    bodies,
                    domain,
                    index,
                    _attributes(node),
                )
            )
        outputs = tuple(self._resolve_output(v.name, scope, path) for v in graph.output)
        return Block(inputs, outputs, tuple(ops), path)

    def _result(
        self, name: str, path: str, node: NodeProto, values: Mapping[str, ValueInfoProto]
    ) -> VarId:
        facts = _type_of(name, values)
        if node.op_type != "Constant" or node.domain not in ("", "ai.onnx"):
            return self.add(name, path, Origin.OP, facts)
        if facts[1] is None:
            facts = _constant_type(node)
        return self.add(name, path, Origin.WEIGHT, facts)

    def _bodies(
        self, node: NodeProto, index: int, path: str, scope: Mapping[str, VarId]
    ) -> Iterator[Block]:
        for attribute, graph in subgraphs(node):
            label = node.name or f"{node.op_type}#{index}"
            inner = self._path(f"{label}.{attribute}", path)
            values, names = _values(graph), dict(scope)
            for name, weight in _weights(graph).items():
                names[name] = self.add(name, inner, Origin.WEIGHT, weight)
            given = []
            for value in graph.input:
                facts = _type_of(value.name, values)
                names[value.name] = self.add(value.name, inner, Origin.BODY_INPUT, facts)
                given.append(names[value.name])
            yield self.block(graph, inner, names, tuple(given))

    def _path(self, name: str, outer: str) -> str:
        """Return a path for a body under which no id is another value's id already."""
        inner = f"{outer}/{name}" if outer else name
        while inner in self.paths or self._is_taken(inner, outer):
            inner += "'"
        self.paths[inner] = outer
        return inner

    def _is_taken(self, inner: str, outer: str) -> bool:
        while True:
            start = f"{inner[len(outer) + 1 :] if outer else inner}/"
            at = bisect_left(self.slashed, start)
            if at < len(self.slashed) and self.slashed[at].startswith(start):
                return True
            if not outer:
                return False
            outer = self.paths[outer]

    def _resolve(self, name: str, scope: Mapping[str, VarId], node: NodeProto) -> VarId:
        if not name:
            return VarId("")
        if name not in scope:
            where = node.name or node.op_type
            raise ModelError(
                f"node {_short(where)!r} reads {_short(name)!r}, which nothing defines"
            )
        return scope[name]

    def _resolve_output(self, name: str, scope: Mapping[str, VarId], path: str) -> VarId:
        if name not in scope:
            what = f"block {_short(path)!r}" if path else "the graph"
            raise ModelError(f"{what} gives {_short(name)!r}, which nothing defines")
        return scope[name]


def sorted_nodes(
    graph: GraphProto, outer: Mapping[str, object]
) -> Sequence[tuple[int, NodeProto]]:
    """Return (index, node) in an order in which every value is made before it is read.

    The file's order where that is one, as the format demands; else the nearest to it.

    Raises:
        ModelError: the nodes need each other in a circle.
    """
    nodes = list(enumerate(graph.node))
    if _is_in_order(nodes, outer):
        return nodes
    maker = {name: index for index, node in nodes for name in node.output if name}
    waits: list[set[int]] = []
    in_order = True
    for index, node in nodes:
        needs = {maker[n] for n in _reads(node) if n in maker and n not in outer}
        in_order = in_order and all(need < index for need in needs)
        waits.append(needs)
    return nodes if in_order else [nodes[index] for index in _kahn(waits, graph)]


def _is_in_order(nodes: Sequence[tuple[int, NodeProto]], outer: Mapping[str, object]) -> bool:
    """Whether all that nodes read was made before; no need to know who makes what then."""
    made = {""}
    for _, node in nodes:
        for name in _reads(node) if node.attribute else node.input:
            if name not in made and name not in outer:
                return False
        made.update(node.output)
    return True


def _kahn(waits: list[set[int]], graph: GraphProto) -> list[int]:
    readers: list[list[int]] = [[] for _ in waits]
    for index, needs in enumerate(waits):
        for need in needs:
            readers[need].append(index)
    left = [len(needs) for needs in waits]
    ready = [index for index, count in enumerate(left) if not count]
    heapify(ready)
    order: list[int] = []
    while ready:
        index = heappop(ready)
        order.append(index)
        for reader in readers[index]:
            left[reader] -= 1
            if not left[reader]:
                heappush(ready, reader)
    if len(order) < len(waits):
        stuck = next(index for index, count in enumerate(left) if count)
        node = graph.node[stuck]
        raise ModelError(
            f"the graph has a cycle through node {_short(node.name or node.op_type)!r}"
        )
    return order


def _reads(node: NodeProto) -> Iterator[str]:
    """Yield what a node reads, what its bodies read from outside included."""
    yield from node.input
    for _, graph in subgraphs(node):
        own = {value.name for value in graph.input} | set(_weights(graph))
        own.update(name for inner in graph.node for name in inner.output)
        reads = [name for inner in graph.node for name in _reads(inner)]
        reads.extend(value.name for value in graph.output)
        yield from (name for name in reads if name not in own)


def _values(graph: GraphProto) -> dict[str, ValueInfoProto]:
    """Return the declared and inferred types of a graph's values by name."""
    found = {value.name: value for value in graph.output}
    found.update((value.name, value) for value in graph.value_info)
    found.update((value.name, value) for value in graph.input)
    return found


def _type_of(name: str, values: Mapping[str, ValueInfoProto]) -> tuple[str, Shape | None]:
    value = values.get(name)
    if value is None:
        return "unknown", None
    return type_name(value.type), read_shape(value)


def _constant_type(node: NodeProto) -> tuple[str, Shape | None]:
    for attribute in node.attribute:
        if attribute.HasField("t"):
            return dtype_name(attribute.t.data_type), tuple(attribute.t.dims)
    return "unknown", None


_NO_ATTRIBUTES: Mapping[str, Attribute] = {}


def _attributes(node: NodeProto) -> Mapping[str, Attribute]:
    """Return the plain attributes; tensors, graphs and types stay in the file."""
    if not node.attribute:
        return _NO_ATTRIBUTES
    found: dict[str, Attribute] = {}
    for attribute in node.attribute:
        kind = attribute.type
        if kind == attribute.INT:
            found[attribute.name] = attribute.i
        elif kind == attribute.FLOAT:
            found[attribute.name] = attribute.f
        elif kind == attribute.STRING:
            found[attribute.name] = attribute.s.decode("utf-8", "replace")
        elif kind == attribute.INTS:
            found[attribute.name] = tuple(attribute.ints)
        elif kind == attribute.FLOATS:
            found[attribute.name] = tuple(attribute.floats)
        elif kind == attribute.STRINGS:
            found[attribute.name] = tuple(
                s.decode("utf-8", "replace") for s in attribute.strings
            )
    return found


def _short(name: str) -> str:
    return name if len(name) <= 120 else f"{name[:117]}..."
