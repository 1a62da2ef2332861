"""Builds a Program from a ModelProto: nodes become ops, subgraphs become nested blocks."""

from __future__ import annotations

from collections import ChainMap
from dataclasses import dataclass, field
from sys import intern
from typing import TYPE_CHECKING

from memplan_cli.analysis.precedence import nearest_order, successors
from memplan_cli.core.operators import STANDARD_DOMAINS, canonical_domain
from memplan_cli.core.program import Block, Op, Origin, Program, Var, VarId, var_id
from memplan_cli.errors import ModelError
from memplan_cli.onnx_io.graph_editor import producers
from memplan_cli.onnx_io.traversal import BlockPaths, reads, subgraphs
from memplan_cli.onnx_io.types import (
    UNKNOWN,
    declared_types,
    declares_enough,
    dtype_name,
    leaves_nothing_to_infer,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, MutableMapping, Sequence

    from onnx import GraphProto, ModelProto, NodeProto

    from memplan_cli.core.program import Attribute, Shape
    from memplan_cli.onnx_io.types import DeclaredType


def declared_program(model: ModelProto) -> Program | None:
    """Return the program of a model that declares all types, or None if types must be inferred.

    Raises:
        ModelError: a value is read but not defined, defined twice, or depends on itself.
    """
    types = declared_types(model.graph)
    if declares_enough(model.graph, types):
        program = program_of(model, model.graph, types)
        if leaves_nothing_to_infer(program):
            return program
    return None


def program_of(
    model: ModelProto, typed_graph: GraphProto, types: Mapping[str, DeclaredType]
) -> Program:
    """Return the program of a model.

    Args:
        model: The model. Of its graph, only the name, the inputs and the initializers are read.
        typed_graph: That graph, or a copy whose subgraphs have inferred types: its nodes are read.
        types: The type of each value of the main graph.

    Raises:
        ModelError: a value is read but not defined, defined twice, or depends on itself.
    """
    reader = _Reader(BlockPaths(typed_graph))
    weights = _weight_types(model.graph)
    var_of = {
        name: reader.add_var(name, block="", origin=Origin.WEIGHT, declared=weight_type)
        for name, weight_type in weights.items()
    }
    # Weights that are inputs too can be overridden by a caller, so they are not constant.
    overridable = frozenset(var_of[v.name] for v in model.graph.input if v.name in weights)
    inputs: list[VarId] = []
    for name in [v.name for v in model.graph.input if v.name not in weights]:
        if name in var_of:
            raise ModelError(f"input {_short(name)!r} is defined twice")
        declared = types.get(name, UNKNOWN)
        var_of[name] = reader.add_var(name, block="", origin=Origin.INPUT, declared=declared)
        inputs.append(var_of[name])
    # All of these names belong to the main block itself: its nodes must not define them again.
    main_scope = _Scope("", types, names=var_of, own=set(var_of))
    body = reader.block(typed_graph, main_scope, tuple(inputs))
    return Program(model.graph.name or "model", body, reader.vars, overridable)


def _weight_types(graph: GraphProto) -> dict[str, tuple[str, Shape]]:
    """Return dtype and shape of the initializers of a graph, sparse ones included, by name."""
    types = {t.name: (dtype_name(t.data_type), tuple(t.dims)) for t in graph.initializer}
    for sparse in graph.sparse_initializer:
        types[sparse.values.name] = (dtype_name(sparse.values.data_type), tuple(sparse.dims))
    return types


@dataclass(slots=True)
class _Scope:
    """The names that the nodes of one block can read.

    Attributes:
        path: the path of the block.
        types: the declared types of its values.
        names: the var of each readable name, those of outer blocks included, and of ``""``.
        own: the names that the block itself defines so far, and ``""``.
    """

    path: str
    types: Mapping[str, DeclaredType]
    names: MutableMapping[str, VarId]
    own: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Add the name ``""``, with the var ``""``: it stands for an omitted input or output of a node."""
        self.define("", VarId(""))

    def define(self, name: str, var: VarId) -> None:
        """Add a name that the block itself defines; it hides the same name of an outer block."""
        self.names[name] = var
        self.own.add(name)

    def output(self, name: str) -> VarId:
        """Return the var of an output of the block.

        Raises:
            ModelError: nothing defines the name.
        """
        if not name or name not in self.names:
            what = f"block {_short(self.path)!r}" if self.path else "the graph"
            raise ModelError(f"{what} gives {_short(name)!r}, which nothing defines")
        return self.names[name]


@dataclass(slots=True)
class _Reader:
    """Builds the blocks of a program and collects its vars.

    Attributes:
        paths: makes the paths of nested blocks.
        vars: those read so far.
    """

    paths: BlockPaths
    vars: dict[VarId, Var] = field(default_factory=dict)

    def add_var(self, name: str, block: str, origin: Origin, declared: DeclaredType) -> VarId:
        """Add a var; its id is ``block/name``, with ``'`` appended until it is unique."""
        var = var_id(block, name)
        while var in self.vars:
            var = VarId(f"{var}'")
        dtype, shape = declared
        self.vars[var] = Var(var, dtype, shape, origin, name, block)
        return var

    def block(self, graph: GraphProto, scope: _Scope, inputs: tuple[VarId, ...]) -> Block:
        """Return the block of a graph, and add its results to the scope."""
        ops = tuple([self._op(index, node, scope) for index, node in _ordered(graph, scope)])
        outputs = tuple(scope.output(value.name) for value in graph.output)
        return Block(inputs, outputs, ops, scope.path)

    def _op(self, index: int, node: NodeProto, scope: _Scope) -> Op:
        """Return the op of a node, whose index in its graph is given, and add its results to the scope."""
        attributes = _NO_ATTRIBUTES
        bodies: tuple[Block, ...] = ()
        if node.attribute:
            bodies = tuple(self._bodies(index, node, scope))
            attributes = plain_attributes(node)
        names = scope.names  # ``""``, an omitted input or output, is one of them
        try:
            inputs = tuple([names[name] for name in node.input[:]])
        except KeyError as error:
            where, name = _short(node.name or node.op_type), _short(error.args[0])
            raise ModelError(f"node {where!r} reads {name!r}, which nothing defines") from None
        outputs = []
        for name in node.output[:]:  # a slice is twice as fast as iteration
            if name:
                if name in scope.own:
                    raise ModelError(f"value {_short(name)!r} is defined twice")
                scope.define(name, self._result(name, node, scope))
            outputs.append(names[name])
        domain = canonical_domain(node.domain)
        # Interned: there are few operators, and equal strings are compared often.
        op_type = intern(node.op_type)
        return Op(
            node.name, op_type, inputs, tuple(outputs), bodies, domain, index, attributes
        )

    def _result(self, name: str, node: NodeProto, scope: _Scope) -> VarId:
        """Add and return the var of a node's result; that of a Constant is a weight.

        The dtype and shape of a Constant are those of its tensor, whatever the graph declares.
        """
        declared = scope.types.get(name, UNKNOWN)
        if node.op_type != "Constant" or node.domain not in STANDARD_DOMAINS:
            return self.add_var(name, scope.path, Origin.OP, declared)
        constant = _constant_type(node)
        return self.add_var(
            name, scope.path, Origin.WEIGHT, declared if constant == UNKNOWN else constant
        )

    def _bodies(self, index: int, node: NodeProto, outer: _Scope) -> Iterator[Block]:
        """Yield the blocks of a node's subgraphs, which can read all names of the ``outer`` scope.

        These names are not copied: a large graph with many subgraphs has too many.
        """
        for attribute, graph in subgraphs(node):
            path = self.paths.new(outer.path, index, node, attribute)
            scope = _Scope(path, declared_types(graph), names=ChainMap({}, outer.names))
            for name, weight_type in _weight_types(graph).items():
                scope.define(name, self.add_var(name, path, Origin.WEIGHT, weight_type))
            inputs = []
            for name in [value.name for value in graph.input]:
                declared = scope.types.get(name, UNKNOWN)
                inputs.append(self.add_var(name, path, Origin.BODY_INPUT, declared))
                scope.define(name, inputs[-1])
            yield self.block(graph, scope, tuple(inputs))


def _ordered(graph: GraphProto, scope: _Scope) -> Iterator[tuple[int, NodeProto]]:
    """Yield the nodes of a graph with their indices, each value's producer before its consumers.

    This is the file's order, unless the file violates ONNX's rule; then it is the nearest order. The caller
    must add the results of a node to the scope before it takes the next one.

    Raises:
        ModelError: the nodes form a cycle.
    """
    for index, node in enumerate(graph.node):
        read = reads(node) if node.attribute else node.input[:]
        # Most nodes read results of their own graph only, for which the first test is enough and cheaper.
        # ``own`` and ``names`` contain ``""``, an omitted input.
        is_readable = scope.own.issuperset(read) or all(name in scope.names for name in read)
        if not is_readable:
            # All nodes are sorted. The first ``index`` of them stay in place, since they are in order.
            for position in _sorted_nodes(graph, scope.names)[index:]:
                yield position, graph.node[position]
            return
        yield index, node


def _sorted_nodes(graph: GraphProto, readable: Mapping[str, object]) -> Sequence[int]:
    """Return the indices of nodes in the nearest order in which producers precede consumers.

    ``readable`` are names that need no producer any more: those of outer graphs, inputs, weights, and
    results of the nodes that were read already.

    Raises:
        ModelError: the nodes form a cycle.
    """
    producer = producers(graph.node)
    needs = [
        {producer[name] for name in reads(node) if name in producer and name not in readable}
        for node in graph.node
    ]
    order = nearest_order(successors(needs))
    if len(order) < len(needs):
        node = graph.node[_index_on_cycle(needs, order)]
        raise ModelError(
            f"the graph has a cycle through node {_short(node.name or node.op_type)!r}"
        )
    return order


def _index_on_cycle(needs: Sequence[set[int]], order: Sequence[int]) -> int:
    """Return the index of a node on a cycle.

    ``needs`` are the producers that each node reads. Nodes that are not in ``order`` are on a cycle or
    depend on one, so each of them has a producer that is not in ``order`` either.
    """
    unordered = set(range(len(needs))).difference(order)
    index, visited = min(unordered), set[int]()
    while index not in visited:
        visited.add(index)
        index = min(needs[index] & unordered)
    return index


def _constant_type(node: NodeProto) -> DeclaredType:
    """Return dtype and shape of a Constant node's tensor, or `UNKNOWN` if it has another attribute."""
    for attribute in node.attribute:
        if attribute.HasField("t"):
            return dtype_name(attribute.t.data_type), tuple(attribute.t.dims)
    return UNKNOWN


_NO_ATTRIBUTES: Mapping[str, Attribute] = {}


def plain_attributes(node: NodeProto) -> Mapping[str, Attribute]:
    """Return the attributes of a node that are numbers, strings, or tuples of them, by name."""
    attributes: dict[str, Attribute] = {}
    for attribute in node.attribute:
        match attribute.type:
            case attribute.INT:
                attributes[attribute.name] = attribute.i
            case attribute.FLOAT:
                attributes[attribute.name] = attribute.f
            case attribute.STRING:
                attributes[attribute.name] = attribute.s.decode("utf-8", "replace")
            case attribute.INTS:
                attributes[attribute.name] = tuple(attribute.ints)
            case attribute.FLOATS:
                attributes[attribute.name] = tuple(attribute.floats)
            case attribute.STRINGS:
                texts = (text.decode("utf-8", "replace") for text in attribute.strings)
                attributes[attribute.name] = tuple(texts)
    return attributes


def _short(name: str) -> str:
    return name if len(name) <= 120 else f"{name[:117]}..."
