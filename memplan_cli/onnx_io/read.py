"""ModelProto -> Program: nodes become ops, graphs in attributes become nested blocks."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from sys import intern
from typing import TYPE_CHECKING

from memplan_cli.analysis.precedence import nearest_order, successors
from memplan_cli.core.operators import STANDARD_DOMAINS, canonical_domain
from memplan_cli.core.program import Block, Op, Origin, Program, Var, VarId, label
from memplan_cli.errors import ModelError
from memplan_cli.onnx_io.traversal import graphs, reads, subgraphs
from memplan_cli.onnx_io.types import (
    UNKNOWN,
    declared_types,
    declares_enough,
    dtype_name,
    leaves_nothing_to_infer,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from onnx import GraphProto, ModelProto, NodeProto

    from memplan_cli.core.program import Attribute, Shape
    from memplan_cli.onnx_io.types import DeclaredType


def declared_program(model: ModelProto) -> Program | None:
    """Return the program of a model that declares all there is to infer, else None.

    Raises:
        ModelError: a value is read that nothing defines, defined twice, or needs itself.
    """
    types = declared_types(model.graph)
    if declares_enough(model.graph, types):
        program = program_of(model, model.graph, types)
        if leaves_nothing_to_infer(program):
            return program
    return None


def program_of(
    model: ModelProto, graph: GraphProto, types: Mapping[str, DeclaredType]
) -> Program:
    """Turn a model into a program.

    Args:
        model: Whose initializers count.
        graph: Its graph, or one with the same nodes and types for what their subgraphs define.
        types: The type of each value of the top block.

    Raises:
        ModelError: a value is read that nothing defines, defined twice, or needs itself.
    """
    reader = _Reader(_weights(model.graph), graph)
    scope: dict[str, VarId] = {}
    for name, (dtype, shape) in reader.weights.items():
        scope[name] = reader.add(name, "", Origin.WEIGHT, (dtype, shape))
    inputs = tuple(v.name for v in model.graph.input if v.name not in reader.weights)
    for name in inputs:
        if name in scope:
            raise ModelError(f"input {_short(name)!r} is defined twice")
        scope[name] = reader.add(name, "", Origin.INPUT, types.get(name, UNKNOWN))
    top = _Scope("", scope, set(scope), types)
    body = reader.block(graph, top, tuple(scope[name] for name in inputs))
    # Where an old file lists every weight as an input, nothing says which are constants.
    given = frozenset(v.name for v in model.graph.input).intersection(reader.weights)
    overridable = frozenset(VarId(name) for name in given)
    return Program(model.graph.name or "model", body, reader.vars, overridable)


def _weights(graph: GraphProto) -> dict[str, tuple[str, Shape]]:
    found = {t.name: (dtype_name(t.data_type), tuple(t.dims)) for t in graph.initializer}
    for sparse in graph.sparse_initializer:
        found[sparse.values.name] = (dtype_name(sparse.values.data_type), tuple(sparse.dims))
    return found


def _slashed(graph: GraphProto) -> Sequence[str]:
    """Return, sorted, the names that could be taken for ``block/name`` of a subgraph's value."""
    found: set[str] = set()
    for inner in graphs(graph):
        found.update(value.name for value in inner.input)
        found.update(tensor.name for tensor in inner.initializer)
        found.update(name for node in inner.node for name in node.output)
    return sorted(name for name in found if "/" in name)


@dataclass(slots=True)
class _Scope:
    """What the nodes of one block can name."""

    path: str
    names: dict[str, VarId]
    """The var of each name that stands for one here, those of outer blocks included."""
    taken: set[str]
    """The names that this block itself defines, and the empty one."""
    types: Mapping[str, DeclaredType]

    def result(self, name: str) -> VarId:
        """Return the var that the block gives under a name.

        Raises:
            ModelError: nothing in it, or around it, defines the name.
        """
        if not name or name not in self.names:
            what = f"block {_short(self.path)!r}" if self.path else "the graph"
            raise ModelError(f"{what} gives {_short(name)!r}, which nothing defines")
        return self.names[name]


@dataclass(slots=True)
class _Reader:
    weights: Mapping[str, tuple[str, Shape]]
    top: GraphProto
    vars: dict[VarId, Var] = field(default_factory=dict)
    paths: dict[str, str] = field(default_factory=dict)
    """Each block's path, and that of the block its control-flow node is in."""
    slashed: Sequence[str] | None = None
    """See `_slashed`; looked for when the first subgraph is met."""

    def add(self, name: str, block: str, origin: Origin, facts: DeclaredType) -> VarId:
        identity = f"{block}/{name}" if block else name
        while identity in self.vars:
            identity += "'"
        var = VarId(identity)
        self.vars[var] = Var(var, facts[0], facts[1], origin, name, block)
        return var

    def block(self, graph: GraphProto, scope: _Scope, inputs: tuple[VarId, ...]) -> Block:
        scope.names[""] = VarId("")  # what is left out
        scope.taken.add("")
        ops = tuple([self._op(row, scope) for row in _rows(graph, scope)])
        outputs = tuple(scope.result(value.name) for value in graph.output)
        return Block(inputs, outputs, ops, scope.path)

    def _op(self, row: Row, scope: _Scope) -> Op:
        index, node, reads, writes, _ = row
        # There are few types: one text for all of them is smaller, and found faster in tables.
        kind, attributes = intern(node.op_type), _NO_ATTRIBUTES
        bodies: tuple[Block, ...] = ()
        if node.attribute:
            bodies, attributes = tuple(self._bodies(row, scope)), plain_attributes(node)
        names, taken = scope.names, scope.taken
        try:
            inputs = tuple([names[name] for name in reads])
        except KeyError as error:
            raise _undefined(node, error.args[0]) from None
        outputs = []
        for name in writes:
            if name:
                if name in taken:
                    raise ModelError(f"value {_short(name)!r} is defined twice")
                taken.add(name)
                names[name] = self._result(name, kind, node, scope)
            outputs.append(names[name])
        domain = canonical_domain(node.domain)
        return Op(node.name, kind, inputs, tuple(outputs), bodies, domain, index, attributes)

    def _result(self, name: str, kind: str, node: NodeProto, scope: _Scope) -> VarId:
        facts = scope.types.get(name, UNKNOWN)
        if kind != "Constant" or node.domain not in STANDARD_DOMAINS:
            return self.add(name, scope.path, Origin.OP, facts)
        # The tensor itself says what it is, whatever the file declares.
        constant = _constant_type(node)
        return self.add(
            name, scope.path, Origin.WEIGHT, facts if constant == UNKNOWN else constant
        )

    def _bodies(self, row: Row, outer: _Scope) -> Iterator[Block]:
        index, node, _, _, owned = row
        for attribute, graph in owned:
            called = label(node.name, node.op_type, index)
            path = self._path(f"{called}.{attribute}", outer.path)
            types, names, weights = declared_types(graph), dict(outer.names), _weights(graph)
            for name, weight in weights.items():
                names[name] = self.add(name, path, Origin.WEIGHT, weight)
            given = []
            for value in graph.input:
                facts = types.get(value.name, UNKNOWN)
                names[value.name] = self.add(value.name, path, Origin.BODY_INPUT, facts)
                given.append(names[value.name])
            taken = {*weights, *(value.name for value in graph.input)}
            yield self.block(graph, _Scope(path, names, taken, types), tuple(given))

    def _path(self, name: str, outer: str) -> str:
        """Return a path for a subgraph under which no id is another value's id already."""
        inner = f"{outer}/{name}" if outer else name
        while inner in self.paths or self._is_taken(inner, outer):
            inner += "'"
        self.paths[inner] = outer
        return inner

    def _is_taken(self, inner: str, outer: str) -> bool:
        if self.slashed is None:
            self.slashed = _slashed(self.top)
        while True:
            start = f"{inner[len(outer) + 1 :] if outer else inner}/"
            at = bisect_left(self.slashed, start)
            if at < len(self.slashed) and self.slashed[at].startswith(start):
                return True
            if not outer:
                return False
            outer = self.paths[outer]


def _undefined(node: NodeProto, name: str) -> ModelError:
    where = node.name or node.op_type
    return ModelError(f"node {_short(where)!r} reads {_short(name)!r}, which nothing defines")


Row = tuple[int, "NodeProto", Sequence[str], Sequence[str], Sequence[tuple[str, "GraphProto"]]]
"""A node with its index, inputs, outputs and subgraphs: each field is read once."""


def _rows(graph: GraphProto, scope: _Scope) -> Iterator[Row]:
    """Yield the nodes in an order in which every value is made before it is read.

    The file's order where that is one, as the format demands; else the nearest to it. Rows
    are made one by one, and the scope must know what a row defines before the next is asked
    for: those of a large graph take as much memory as the program that is made of them.

    Raises:
        ModelError: the nodes need each other in a circle.
    """
    for index, node in enumerate(graph.node):
        row = _row(index, node)
        _, _, inputs, _, bodies = row
        needs = reads(node) if bodies else inputs
        if not scope.taken.issuperset(needs) and not scope.names.keys() >= set(needs):
            # Sorting keeps all before this node in its place.
            yield from _sorted_rows(graph, scope.names)[index:]
            return
        yield row


def _row(index: int, node: NodeProto) -> Row:
    bodies = tuple(subgraphs(node)) if node.attribute else ()
    # A slice of a repeated field is a list made in one step.
    return index, node, node.input[:], node.output[:], bodies


def _sorted_rows(graph: GraphProto, outer: Mapping[str, object]) -> Sequence[Row]:
    rows = [_row(index, node) for index, node in enumerate(graph.node)]
    maker = {name: index for index, _, _, writes, _ in rows for name in writes if name}
    waits: list[set[int]] = []
    in_order = True
    for index, node, inputs, _, bodies in rows:
        read = reads(node) if bodies else inputs
        needs = {maker[name] for name in read if name in maker and name not in outer}
        in_order = in_order and all(need < index for need in needs)
        waits.append(needs)
    return rows if in_order else [rows[index] for index in _makers_first(waits, graph)]


def _makers_first(needs: Sequence[Iterable[int]], graph: GraphProto) -> list[int]:
    order = nearest_order(successors(needs))
    if len(order) < len(needs):
        stuck = min(set(range(len(needs))).difference(order))
        node = graph.node[stuck]
        raise ModelError(
            f"the graph has a cycle through node {_short(node.name or node.op_type)!r}"
        )
    return order


def _constant_type(node: NodeProto) -> DeclaredType:
    for attribute in node.attribute:
        if attribute.HasField("t"):
            return dtype_name(attribute.t.data_type), tuple(attribute.t.dims)
    return UNKNOWN


_NO_ATTRIBUTES: Mapping[str, Attribute] = {}


def plain_attributes(node: NodeProto) -> Mapping[str, Attribute]:
    """Return the plain attributes; tensors, graphs and types stay in the file."""
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
