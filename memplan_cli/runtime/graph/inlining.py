"""The node of the file, or of a function's body, that each node of a dump came from.

ONNX Runtime inlines in rounds: all calls of the file's nodes, in the order of their index,
each adding its body's nodes at the end, then all calls among those, and so on (as in
core/framework/graph_partitioner.cc; seen in the profile's ``node_index``). The
dump says none of that. So each call is laid beside the dump, backwards: the body's node
that writes the call's output is the dump's node that writes that very name, what the one
reads are the names that the other reads, and where that node is a call too, its body is laid
there in turn.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memplan_cli.onnx_io.functions import Definitions, definitions_of, kind_of
from memplan_cli.onnx_io.graph_editor import producers
from memplan_cli.onnx_io.traversal import subgraphs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from onnx import GraphProto, ModelProto, NodeProto

    from memplan_cli.onnx_io.functions import Kind

Rank = tuple[int, ...]
"""The round, the places of the calls from the file's inwards, the place in the last body."""


@dataclass(slots=True, eq=False)
class Dumped:
    """A graph of the dump.

    Attributes:
        nodes: as they stand there.
        ranks: for each node what its index is ordered by; None where nobody knows.
        bodies: by place of the control-flow node, in its order of them.
        strange: places of nodes that write what a call of an unknown body writes, with the
            path to that call.
        maker: the place of the node that writes a name.
    """

    nodes: Sequence[NodeProto]
    ranks: list[Rank | None] = field(init=False)
    bodies: dict[int, tuple[Dumped, ...]] = field(default_factory=dict)
    strange: dict[int, Rank] = field(default_factory=dict)
    maker: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.ranks = [None] * len(self.nodes)
        self.maker = producers(self.nodes)

    def unknown(self) -> dict[Kind, list[int]]:
        """Return the places of the nodes without a rank, by kind."""
        found: dict[Kind, list[int]] = defaultdict(list)
        for place, rank in enumerate(self.ranks):
            if rank is None:
                found[kind_of(self.nodes[place])].append(place)
        return found


@dataclass(slots=True, eq=False)
class _Scope:
    """Nodes of a graph of the file, or of a function's body or a graph in it.

    Attributes:
        nodes: what was written there.
        dump: where they ended up.
        in_file: whether names are the same in the dump, where nothing else is ``bound``.
        path: of a function's body, the places of the calls that led to it.
        outer: the scope of the call, or of the control-flow node of the graph.
        inputs: of a function's body, what its inputs are called in ``outer``.
        dtypes: of its values, as far as known.
        bound: what its values are called in the dump.
        maker: the place of the node that writes a name.
        calls: bodies that were laid beside the dump, by place of the call, with what they
            call the values that the call writes.
        done: places of the nodes that were found there.
    """

    nodes: Sequence[NodeProto]
    dump: Dumped
    in_file: bool
    path: Rank = ()
    outer: _Scope | None = None
    inputs: Mapping[str, str] = field(default_factory=dict)
    dtypes: Mapping[str, str] = field(default_factory=dict)
    bound: dict[str, str] = field(default_factory=dict)
    maker: dict[str, int] = field(init=False)
    calls: dict[int, tuple[_Scope, Mapping[str, str]]] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.maker = producers(self.nodes)

    def further(self, name: str) -> tuple[_Scope, str] | None:
        """Return where a name comes from that nothing writes here, and its name there."""
        if self.outer is None or name in self.maker:
            return None
        if not self.path:
            return self.outer, name
        return (self.outer, self.inputs[name]) if self.inputs.get(name) else None

    def known(self, name: str) -> str | None:
        """Return what a value is called in the dump, if that is known."""
        found = self.bound.get(name)
        if found is not None or self.in_file:
            return found or name
        call = self.calls.get(self.maker.get(name, -1))
        if call is not None:
            inner, formal = call[0], call[1].get(name)
            return inner.known(formal) if formal else None
        outer = self.further(name)
        return outer[0].known(outer[1]) if outer else None

    def dtype(self, name: str) -> str:
        found = self.dtypes.get(name)
        outer = None if found else self.further(name)
        return outer[0].dtype(outer[1]) if outer else found or ""


_Written = tuple[_Scope, int, str, str]
"""The node of a scope that writes a name, and what the dump calls that name."""


@dataclass(slots=True)
class _Laying:
    """Bodies being laid beside a dump; ``waiting`` are values whose makers are to be met."""

    definitions: Definitions
    scopes: list[_Scope] = field(default_factory=list)
    waiting: list[_Written] = field(default_factory=list)

    def lay_file(self, graph: GraphProto, dump: Dumped, dtypes: Mapping[str, str]) -> None:
        """Meet each node that writes a name of the file."""
        scope = _Scope(graph.node, dump, in_file=True, dtypes=dtypes)
        for name in dump.maker:
            if name in scope.maker:
                self.waiting.append((scope, scope.maker[name], name, name))

    def settle(self) -> None:
        """Meet until nothing waits."""
        while self.waiting:
            self._meet(*self.waiting.pop())

    def bind(self, scope: _Scope | None, name: str, actual: str) -> None:
        """Note what the dump calls a value, in the scope that writes it."""
        while scope is not None and name and actual:
            # A file's value has another name only where the runtime put a Cast behind it.
            if name in scope.bound or (scope.in_file and name in scope.dump.maker):
                return
            scope.bound[name] = actual
            if name in scope.maker:
                self.waiting.append((scope, scope.maker[name], name, actual))
            scope, name = scope.further(name) or (None, "")

    def _meet(self, scope: _Scope, place: int, name: str, actual: str) -> None:
        """Hold a node that writes a value against the dump's node that does."""
        found = scope.dump.maker.get(actual)
        if found is None or place in scope.done:
            return
        node, wrote = scope.nodes[place], scope.dump.nodes[found]
        if kind_of(node) == kind_of(wrote):
            self.same(scope, place, found)
        elif place in scope.calls or self.expand(scope, place):
            inner, results = scope.calls[place]
            self.bind(inner, results[name], actual)
        elif wrote.op_type == "Cast":  # inserted by the runtime
            self.waiting.append((scope, place, name, wrote.input[0]))
        elif node.op_type == "Cast":  # taken away, with one that was inserted
            self.bind(scope, node.input[0], actual)
        else:
            scope.dump.strange[found] = (*scope.path, place)

    def same(self, scope: _Scope, place: int, found: int) -> None:
        """Take a node and a dump's node for one; so are what they read, write and own."""
        node, wrote = scope.nodes[place], scope.dump.nodes[found]
        if scope.dump.ranks[found] is not None:
            return
        scope.done.add(place)
        scope.dump.ranks[found] = (len(scope.path), *scope.path, place)
        self._lay_owned(scope, node, found)
        for ours, theirs in zip(node.output, wrote.output, strict=False):
            self.bind(scope, ours, theirs)
        for ours, theirs in zip(node.input, wrote.input, strict=False):
            self.bind(scope, ours, theirs)

    def _lay_owned(self, scope: _Scope, node: NodeProto, found: int) -> None:
        """Lay the subgraphs of a node beside those of the dump's node."""
        theirs = dict(subgraphs(scope.dump.nodes[found]))
        if not theirs:
            return
        owned = {name: Dumped(graph.node) for name, graph in theirs.items()}
        scope.dump.bodies[found] = tuple(owned.values())
        for name, graph in subgraphs(node):
            if name not in owned:
                continue
            if scope.in_file:
                self.lay_file(graph, owned[name], scope.dtypes)
                continue
            bound = {
                ours.name: actual.name
                for ours, actual in zip(graph.input, theirs[name].input, strict=False)
            }
            inner = _Scope(graph.node, owned[name], in_file=False, outer=scope, bound=bound)
            self.scopes.append(inner)
            for ours, actual in zip(graph.output, theirs[name].output, strict=False):
                self.bind(inner, ours.name, actual.name)

    def expand(self, scope: _Scope, place: int) -> bool:
        """Lay a call's body beside the dump; False where the node is no call."""
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

    def lay_unread(self) -> None:
        """Find nodes of bodies by what they read.

        Nobody reads their results, or did before the runtime took a pair of Casts away.
        """
        left: dict[Dumped, dict[Kind, list[int]]] = {}
        for scope in list(self.scopes):
            if scope.dump not in left:
                left[scope.dump] = scope.dump.unknown()
            if left[scope.dump]:
                self._lay_unread(scope, left[scope.dump])

    def _lay_unread(self, scope: _Scope, left: Mapping[Kind, Sequence[int]]) -> None:
        """Go through a body in its order: a call's results are known when it was gone into."""
        for place, node in enumerate(scope.nodes):
            if place in scope.done:
                continue
            alike = left.get(kind_of(node), ())
            found = None if place in scope.calls else _reader(scope, node, alike)
            if found is not None:
                self.same(scope, place, found)
                self.settle()
            elif place in scope.calls or (not alike and self.expand(scope, place)):
                self._lay_unread(scope.calls[place][0], left)


def _reader(scope: _Scope, node: NodeProto, places: Iterable[int]) -> int | None:
    """Return the dump's node that reads what a node reads, as far as that is known.

    Of several it is any: unread twins, of the same size.
    """
    known = [scope.known(name) if name else "" for name in node.input]
    for found in places if any(known) else ():
        pairs = zip(known, scope.dump.nodes[found].input, strict=False)
        if scope.dump.ranks[found] is None and all(a is None or a == b for a, b in pairs):
            return found
    return None


def laid_out(dump: GraphProto, source: ModelProto, dtypes: Mapping[str, str]) -> Dumped:
    """Return a dump's nodes with what their indices are ordered by.

    Args:
        dump: the graph that the runtime wrote with optimisation off.
        source: the model that it had loaded, as it is written.
        dtypes: numpy names of the types of the file's values, by name.
    """
    laying = _Laying(definitions_of(source))
    whole = Dumped(dump.node)
    laying.lay_file(source.graph, whole, dtypes)
    laying.settle()
    laying.lay_unread()
    return whole
