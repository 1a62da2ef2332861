"""The index that ONNX Runtime gave to each node of a graph that it loaded and dumped.

Both execution orders go by that index, and a dump does not state it. It is reconstructed:

1. Nodes of the file have the indices of their places in the file.
2. Nodes of inlined functions follow. ONNX Runtime inlines in rounds: first all calls of the
   file's nodes in index order, each appending the nodes of its body, then all calls among
   the appended nodes, and so on (core/framework/graph_partitioner.cc; confirmed by
   ``node_index`` in profiles).
3. Nodes that the runtime inserts itself (Casts) come last.

To find the call that a node came from, each function body is matched with the dump, from its
outputs backwards: the node of the body that produces an output of the call corresponds to the
node of the dump that produces that very name, so their inputs correspond too, and so on. Where
the node of the body is a call itself, its body is matched in turn.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.core.program import Block
from memplan_cli.onnx_io.functions import Definitions, definitions_of, kind_of
from memplan_cli.onnx_io.graph_editor import producers
from memplan_cli.onnx_io.traversal import subgraphs
from memplan_cli.runtime.simulate.planner import default_order

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from onnx import GraphProto, ModelProto, NodeProto

    from memplan_cli.core.program import Op, Program, Var, VarId
    from memplan_cli.onnx_io.functions import Kind

Rank = tuple[int, ...]
"""What the index of a node is ordered by: the round in which its function was inlined (0 for
nodes of the file), the places of the calls from the outermost inwards, and the node's place in
the last body."""

_INSERTED_ROUND = 1 << 62
"""The first number in the rank of nodes that the runtime inserted: they come last."""


def in_index_order(program: Program, dump: GraphProto, source: ModelProto) -> Program:
    """Return a dumped program with the ops of every block in the order of their node indices.

    An op may then come before the ops that it reads from. Only the runtime's execution orders
    (`planner.ORDERS`) make a valid order of the result.

    Args:
        program: the dump as a program.
        dump: the graph that the runtime wrote, without optimisation.
        source: the model that the runtime had loaded; its functions are not inlined.
    """
    dtypes = {var.name: var.dtype for var in program.vars.values()}
    matcher = _Matcher(definitions_of(source))
    dump_graph = DumpGraph(dump.node)
    matcher.add_file_graph(source.graph, dump_graph, dtypes)
    matcher.match_pending()
    matcher.match_unread_nodes()
    _rank_unmatched(dump_graph)
    return replace(program, body=_sorted_block(program.body, dump_graph, program.vars))


@dataclass(slots=True, eq=False)
class DumpGraph:
    """A graph of the dump, and the ranks of its nodes as far as they are found.

    Attributes:
        nodes: its nodes.
        ranks: the rank of each node; None if it is not known.
        bodies: the subgraphs of each control-flow node, by its place.
        unknown_calls: for a node that produces an output of a call whose body is not known, the
            places of the calls that lead there, by the node's place.
        producer: the place of the node that produces each name.
    """

    nodes: Sequence[NodeProto]
    ranks: list[Rank | None] = field(init=False)
    bodies: dict[int, tuple[DumpGraph, ...]] = field(default_factory=dict)
    unknown_calls: dict[int, Rank] = field(default_factory=dict)
    producer: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.ranks = [None] * len(self.nodes)
        self.producer = producers(self.nodes)

    def unmatched_places(self) -> dict[Kind, list[int]]:
        """Return the places of the nodes without a rank, by domain and operator."""
        places: dict[Kind, list[int]] = defaultdict(list)
        for place, rank in enumerate(self.ranks):
            if rank is None:
                places[kind_of(self.nodes[place])].append(place)
        return places


@dataclass(slots=True, eq=False)
class _Scope:
    """A list of source nodes: a graph of the file, a function's body, or a subgraph in a body.

    Attributes:
        nodes: the source nodes.
        dump: the graph of the dump that has these nodes.
        in_file: whether this is a graph of the file, whose names are those of the dump too.
        path: for a function's body, the places of the calls that lead to it.
        outer: the scope of the call, or of the control-flow node of the subgraph.
        inputs: for a function's body, the argument in ``outer`` of each of its inputs.
        dtypes: numpy dtypes by name, as far as they are known.
        dump_names: the name in the dump of each value, as far as it is found.
        producer: the place of the node that produces each name.
        calls: the scope of each inlined call, and the name in it of each output of the call,
            by the place of the call.
        matched: places of the nodes that were found in the dump.
    """

    nodes: Sequence[NodeProto]
    dump: DumpGraph
    in_file: bool
    path: Rank = ()
    outer: _Scope | None = None
    inputs: Mapping[str, str] = field(default_factory=dict)
    dtypes: Mapping[str, str] = field(default_factory=dict)
    dump_names: dict[str, str] = field(default_factory=dict)
    producer: dict[str, int] = field(init=False)
    calls: dict[int, tuple[_Scope, Mapping[str, str]]] = field(default_factory=dict)
    matched: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.producer = producers(self.nodes)

    def outer_value(self, name: str) -> tuple[_Scope, str] | None:
        """Return the outer scope that a name comes from and its name there; None if it is local."""
        if self.outer is None or name in self.producer:
            return None
        is_subgraph = not self.path
        if is_subgraph:  # it sees all names around it, a function's body only its inputs
            return self.outer, name
        return (self.outer, self.inputs[name]) if self.inputs.get(name) else None

    def dump_name(self, name: str) -> str | None:
        """Return the name of a value in the dump, or None if it is not known."""
        dump_name = self.dump_names.get(name)
        if dump_name is not None or self.in_file:
            return dump_name or name
        call = self.calls.get(self.producer.get(name, -1))
        if call is not None:
            body, body_names = call
            inner_name = body_names.get(name)
            return body.dump_name(inner_name) if inner_name else None
        outer = self.outer_value(name)
        return outer[0].dump_name(outer[1]) if outer else None

    def dtype(self, name: str) -> str:
        """Return the numpy dtype of a value, empty if it is not known."""
        dtype = self.dtypes.get(name)
        outer = None if dtype else self.outer_value(name)
        return outer[0].dtype(outer[1]) if outer else dtype or ""


class _PendingMatch(NamedTuple):
    """A source node whose node in the dump is to be found.

    Attributes:
        scope: where the source node is.
        place: its place in ``scope.nodes``.
        name: one of its outputs.
        dump_name: the name of that output in the dump.
    """

    scope: _Scope
    place: int
    name: str
    dump_name: str


@dataclass(slots=True)
class _Matcher:
    """Matches source nodes with nodes of the dump, and fills in the ranks of `DumpGraph`.

    Attributes:
        definitions: bodies of functions.
        scopes: the function bodies and their subgraphs that were matched so far.
        pending: matches to be made.
    """

    definitions: Definitions
    scopes: list[_Scope] = field(default_factory=list)
    pending: list[_PendingMatch] = field(default_factory=list)

    def add_file_graph(
        self, graph: GraphProto, dump: DumpGraph, dtypes: Mapping[str, str]
    ) -> None:
        """Add a graph of the file: queue a match for the producer of each value that the dump also has."""
        scope = _Scope(graph.node, dump, in_file=True, dtypes=dtypes)
        for name in dump.producer:
            if name in scope.producer:
                self.pending.append(_PendingMatch(scope, scope.producer[name], name, name))

    def match_pending(self) -> None:
        """Make all pending matches, and those that follow from them."""
        while self.pending:
            self._match_producers(self.pending.pop())

    def _bind(self, scope: _Scope | None, name: str, dump_name: str) -> None:
        """Record the name of a value in the dump, outwards to the scope that produces it."""
        while scope is not None and name and dump_name:
            # A value of the file has another name only if the runtime put a Cast behind it.
            if name in scope.dump_names or (scope.in_file and name in scope.dump.producer):
                return
            scope.dump_names[name] = dump_name
            if name in scope.producer:
                place = scope.producer[name]
                self.pending.append(_PendingMatch(scope, place, name, dump_name))
            scope, name = scope.outer_value(name) or (None, "")

    def _match_producers(self, pending: _PendingMatch) -> None:
        """Match the source node of a pending match with the dump node that produces the same value.

        If the source node is a call of a function, its body is inlined, and the producer in the body
        becomes pending instead. Casts that ONNX Runtime inserted or removed are skipped.
        """
        scope, place, name, dump_name = pending
        dump_place = scope.dump.producer.get(dump_name)
        if dump_place is None or place in scope.matched:
            return
        node, dump_node = scope.nodes[place], scope.dump.nodes[dump_place]
        if kind_of(node) == kind_of(dump_node):
            self._match(scope, place, dump_place)
        elif place in scope.calls or self._inline(scope, place):
            body, body_names = scope.calls[place]
            self._bind(body, body_names[name], dump_name)
        elif dump_node.op_type == "Cast":  # inserted by the runtime
            source = dump_node.input[0]
            self.pending.append(pending._replace(dump_name=source))
        elif node.op_type == "Cast":  # removed by the runtime, together with an inserted one
            self._bind(scope, node.input[0], dump_name)
        else:  # a call whose body is not known
            scope.dump.unknown_calls[dump_place] = (*scope.path, place)

    def _match(self, scope: _Scope, place: int, dump_place: int) -> None:
        """Record that a source node became a dump node, with its inputs, outputs and subgraphs.

        Nothing is recorded if the dump node has a rank already: it was matched before.
        """
        node, dump_node = scope.nodes[place], scope.dump.nodes[dump_place]
        if scope.dump.ranks[dump_place] is not None:
            return
        scope.matched.add(place)
        scope.dump.ranks[dump_place] = (len(scope.path), *scope.path, place)
        self._match_subgraphs(scope, node, dump_place)
        for names, dump_names in (
            (node.output, dump_node.output),
            (node.input, dump_node.input),
        ):
            for name, dump_name in zip(names, dump_names, strict=False):
                self._bind(scope, name, dump_name)

    def _match_subgraphs(self, scope: _Scope, node: NodeProto, dump_place: int) -> None:
        """Match the subgraphs of a node, by their attributes, with those of its dump node.

        Values of a subgraph of the file have the same names in the dump. In a subgraph of a function's
        body, inputs and outputs correspond by position.
        """
        dump_subgraphs = dict(subgraphs(scope.dump.nodes[dump_place]))
        if not dump_subgraphs:
            return
        bodies = {name: DumpGraph(graph.node) for name, graph in dump_subgraphs.items()}
        scope.dump.bodies[dump_place] = tuple(bodies.values())
        for name, graph in subgraphs(node):
            if name not in bodies:
                continue
            if scope.in_file:
                self.add_file_graph(graph, bodies[name], scope.dtypes)
                continue
            dump_graph = dump_subgraphs[name]
            inputs = zip(graph.input, dump_graph.input, strict=False)
            dump_names = {value.name: dump_value.name for value, dump_value in inputs}
            inner = _Scope(
                graph.node, bodies[name], in_file=False, outer=scope, dump_names=dump_names
            )
            self.scopes.append(inner)
            for value, dump_value in zip(graph.output, dump_graph.output, strict=False):
                self._bind(inner, value.name, dump_value.name)

    def _inline(self, scope: _Scope, place: int) -> bool:
        """Add the scope of a call's body to ``scope.calls``. Return False if it is no call."""
        call = scope.nodes[place]
        body = self.definitions.of_call(call, [scope.dtype(name) for name in call.input])
        if body is None:
            return False
        inner = _Scope(
            body.nodes,
            scope.dump,
            in_file=False,
            path=(*scope.path, place),
            outer=scope,
            inputs=dict(zip(body.inputs, call.input, strict=False)),
            dtypes=body.dtypes,
        )
        scope.calls[place] = inner, dict(zip(call.output, body.outputs, strict=False))
        self.scopes.append(inner)
        return True

    def match_unread_nodes(self) -> None:
        """Match the remaining nodes of function bodies and subgraphs by their inputs.

        Matching backwards from outputs does not reach them: they have no consumers, or lost them
        when ONNX Runtime removed a pair of Casts.
        """
        unmatched: dict[DumpGraph, dict[Kind, list[int]]] = {}
        for scope in list(self.scopes):
            if scope.dump not in unmatched:
                unmatched[scope.dump] = scope.dump.unmatched_places()
            if unmatched[scope.dump]:
                self._match_unread_in(scope, unmatched[scope.dump])

    def _match_unread_in(self, scope: _Scope, unmatched: Mapping[Kind, Sequence[int]]) -> None:
        """Match the nodes of one scope in its order, so that results of calls are matched before readers.

        Args:
            scope: the scope, with the bodies of its calls.
            unmatched: places of nodes of the dump without a rank, by domain and operator.
        """
        for place, node in enumerate(scope.nodes):
            if place in scope.matched:
                continue
            candidates = unmatched.get(kind_of(node), ())
            is_inlined = place in scope.calls
            dump_place = None if is_inlined else _find_by_inputs(scope, node, candidates)
            if dump_place is not None:
                self._match(scope, place, dump_place)
                self.match_pending()
            elif is_inlined or (not candidates and self._inline(scope, place)):
                self._match_unread_in(scope.calls[place][0], unmatched)


def _find_by_inputs(scope: _Scope, node: NodeProto, places: Iterable[int]) -> int | None:
    """Return the place of an unmatched dump node with the inputs of a source node, or None.

    Inputs are compared as far as their names in the dump are known. Of several equal nodes the first
    is returned: they have no consumers, and outputs of equal size.

    Args:
        scope: the scope of the source node.
        node: the source node.
        places: of dump nodes with the same operator.
    """
    inputs = [scope.dump_name(name) if name else "" for name in node.input]
    if not any(inputs):  # without a known name, every node of the operator would be equal
        return None
    for place in places:
        pairs = zip(inputs, scope.dump.nodes[place].input, strict=False)
        is_equal = all(name is None or name == dump_name for name, dump_name in pairs)
        if scope.dump.ranks[place] is None and is_equal:
            return place
    return None


def _rank_unmatched(dump: DumpGraph) -> None:
    """Set the missing ranks of a dump: those of nodes that come from functions with unknown bodies.

    These are functions of ONNX Runtime itself, and functions whose body ONNX Runtime changes. A node
    without rank belongs to the call that reads its outputs, or produces them. All nodes of such a
    call are ranked by their place in the dump. Subgraphs are ranked in the same way.

    A call is given as the places of the calls that lead to it and its own; a `Rank` is the length of
    the call, the call, and the place of the node in the call's body.
    """
    call_of_name: dict[str, Rank] = {}  # the earliest call whose body reads a value
    unknown_calls = frozenset(dump.unknown_calls.values())
    calls_in_dump_order: set[Rank] = set()
    for place in range(len(dump.nodes) - 1, -1, -1):
        node, rank = dump.nodes[place], dump.ranks[place]
        if rank is None:
            calls = [call_of_name[name] for name in node.output if name in call_of_name]
            if place in dump.unknown_calls:
                calls.append(dump.unknown_calls[place])
            # A Cast outside unknown bodies was inserted by the runtime, and stays unranked.
            if calls and (node.op_type != "Cast" or min(calls) in unknown_calls):
                call = min(calls)
                calls_in_dump_order.add(call)
                rank = dump.ranks[place] = (len(call), *call, place)
        if rank and rank[0]:  # a node of a function, not of the file
            call = rank[1:-1]
            for name in node.input:
                call_of_name[name] = min(call, call_of_name.get(name, call))
        for body in dump.bodies.get(place, ()):
            _rank_unmatched(body)
    for place, rank in enumerate(dump.ranks):
        if rank and rank[1:-1] in calls_in_dump_order:
            dump.ranks[place] = (*rank[:-1], place)


def _sorted_block(block: Block, dump: DumpGraph, variables: Mapping[VarId, Var]) -> Block:
    """Return a block with its ops, and those of its bodies, sorted by their ranks.

    Ops without rank, which the runtime inserted, come last, in the order of `_inserted`.
    """
    ops = []
    for op in block.ops:
        body_graphs = dump.bodies.get(op.source, ())
        if body_graphs:
            pairs = zip(op.bodies, body_graphs, strict=True)
            bodies = tuple(_sorted_block(body, graph, variables) for body, graph in pairs)
            op = op._replace(bodies=bodies)  # noqa: PLW2901
        ops.append(op)
    ranks = [rank or (_INSERTED_ROUND, place) for place, rank in enumerate(dump.ranks)]
    ops.sort(key=lambda op: ranks[op.source])
    count = sum(1 for op in ops if ranks[op.source][0] != _INSERTED_ROUND)
    return replace(block, ops=(*ops[:count], *_inserted(ops[:count], ops[count:], variables)))


def _inserted(
    ops: Sequence[Op], inserted: Sequence[Op], variables: Mapping[VarId, Var]
) -> list[Op]:
    """Return the inserted ops in the order in which the runtime made them.

    The runtime goes through the other ops once, in the order of ``ExecutionOrder.DEFAULT``. It
    puts Casts before each op that has no kernel for float16, then behind it
    (core/optimizer/insert_cast_transformer.cc).
    """
    casts = {op.outputs[0]: op for op in inserted if op.type == "Cast"}
    if not casts:
        return list(inserted)
    casts_to_float16: dict[VarId, list[Op]] = defaultdict(list)
    for var, cast in casts.items():
        if variables[var].dtype == "float16":
            casts_to_float16[cast.inputs[0]].append(cast)

    def before_casts(var: VarId) -> VarId:
        """Return the value that inserted Casts made a variable from."""
        while var in casts:
            var = casts[var].inputs[0]
        return var

    without_casts = (
        op._replace(inputs=tuple(before_casts(var) for var in op.inputs)) for op in ops
    )
    op_by_source = {op.source: op for op in ops}
    ordered: dict[int, Op] = {}  # Casts by their place in the dump
    for moved in default_order(Block((), (), tuple(without_casts))):
        op = op_by_source[moved.source]
        before = [casts[var] for var in op.inputs if var in casts]
        before = [cast for cast in before if variables[cast.outputs[0]].dtype != "float16"]
        behind = [cast for var in op.outputs for cast in casts_to_float16.get(var, ())]
        for cast in (*before, *behind):
            ordered.setdefault(cast.source, cast)
    return [*ordered.values(), *(op for op in inserted if op.source not in ordered)]
