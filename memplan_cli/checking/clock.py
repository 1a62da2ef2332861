"""A model's graph on one clock: its nodes, and the maker, the readers and the life of each value.

A node takes one tick. One with subgraphs takes a first tick, those of its subgraphs one after
the other, and a last tick at which its results are there. What a subgraph that repeats is
given, gives and captures is in use for as long as its node runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from memplan_cli.checking.operators import EITHER, REPEATING, STANDARD

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from onnx import GraphProto, NodeProto  # noqa: TID251 - types only; onnx_io makes them


class Kind(Enum):
    """Where a value comes from."""

    INPUT = "an input of the graph"
    WEIGHT = "a weight"
    MADE = "made by a node"
    GIVEN = "given to a subgraph"


@dataclass(slots=True, eq=False)
class Value:
    """One value of one block; ``first`` and ``last`` are the ticks of its first and last use."""

    name: str
    region: Region
    kind: Kind
    first: int = -1
    last: int = -1
    maker: Node | None = None
    release: Node | None = None
    """The node of its own block after which nothing needs it."""
    leaves: bool = False
    """Whether it crosses the edge of its block, or of the model: nobody releases it here."""
    by_flow: bool = False
    """Whether it is in a subgraph, or hangs on what one gives: a run chooses which."""
    identity: str = ""
    """``block/name``, by the plan's name for the block."""

    @property
    def is_intermediate(self) -> bool:
        """Whether a plan has to find memory for it, if it is no result of the model."""
        return self.kind in (Kind.MADE, Kind.GIVEN)

    def use(self, tick: int) -> None:
        """Take note of a use."""
        if self.first < 0:
            self.first = self.last = tick
        else:
            self.first, self.last = min(self.first, tick), max(self.last, tick)


@dataclass(slots=True, eq=False)
class Node:
    """One node with its ticks; an input or output left out is None."""

    proto: NodeProto
    region: Region
    index: int
    start: int
    end: int = -1
    inputs: Sequence[Value | None] = ()
    outputs: Sequence[Value | None] = ()
    bodies: list[Region] = field(default_factory=list)

    @property
    def repeats(self) -> bool:
        """Whether its subgraphs may run more than once."""
        return bool(self.bodies) and self.proto.op_type in REPEATING

    @property
    def runs_one(self) -> bool:
        """Whether one of its subgraphs runs, once."""
        standard = self.proto.domain in STANDARD
        return bool(self.bodies) and standard and self.proto.op_type in EITHER

    @property
    def kind(self) -> str:
        """The operator, if it is one of ONNX's own; else nothing is known of it."""
        return self.proto.op_type if self.proto.domain in STANDARD else ""


@dataclass(slots=True, eq=False)
class Region:
    """A graph, or one in a node: its nodes in the order of the file."""

    graph: GraphProto
    parent: Node | None = None
    attribute: str = ""
    nodes: list[Node] = field(default_factory=list)
    inputs: list[Value] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)
    values: dict[str, Value] = field(default_factory=dict)
    captured: dict[int, Value] = field(default_factory=dict)
    running: Node | None = None
    path: str = ""
    number: int = 0

    def find(self, name: str) -> Value | None:
        """Return the value that a name stands for here, and note it in all it comes through."""
        region: Region | None = self
        passed: list[Region] = []
        while region is not None:
            value = region.values.get(name)
            if value is not None:
                for each in passed:
                    each.captured[id(value)] = value
                return value
            passed.append(region)
            region = None if region.parent is None else region.parent.region
        return None


@dataclass(slots=True)
class Clock:
    """A whole model on the clock: its regions outermost first, in order of execution."""

    regions: list[Region] = field(default_factory=list)
    ticks: int = 0
    flaws: list[str] = field(default_factory=list)

    @property
    def top(self) -> Region:
        """The graph itself."""
        return self.regions[0]

    def values(self) -> Iterator[Value]:
        """Yield every value of every block."""
        for region in self.regions:
            yield from region.values.values()

    def nodes(self) -> Iterator[Node]:
        """Yield every node of every block."""
        for region in self.regions:
            yield from region.nodes


def read_clock(graph: GraphProto, exposed: Collection[str] = ()) -> Clock:
    """Put a graph on the clock; what is not as it must be is among the flaws.

    Args:
        graph: the model's.
        exposed: outputs that were added to be looked at, and that a plan places.
    """
    clock = Clock()
    top = Region(graph)
    _declare(top, clock)
    _run(top, clock)
    end = max(clock.ticks - 1, 0)
    top.outputs = [value for value in top.outputs if value.name not in exposed]
    for value in top.outputs:
        value.use(end)
        value.leaves = True
    return clock


def _declare(region: Region, clock: Clock) -> None:
    """Add what a graph has before its first node runs."""
    region.number = len(clock.regions)
    clock.regions.append(region)
    graph, is_top = region.graph, region.parent is None
    weights = [tensor.name for tensor in graph.initializer]
    weights += [tensor.values.name for tensor in graph.sparse_initializer]
    for name in weights:
        _define(region, name, Kind.WEIGHT, clock)
    for proto in graph.input:
        if is_top and proto.name in region.values:
            continue
        kind = Kind.INPUT if is_top else Kind.GIVEN
        value = _define(region, proto.name, kind, clock)
        value.leaves = True
        value.use(0 if region.parent is None else region.parent.start)
        region.inputs.append(value)


def _define(region: Region, name: str, kind: Kind, clock: Clock) -> Value:
    if name in region.values:
        clock.flaws.append(f"value {name[:120]!r} is made twice")
    value = region.values[name] = Value(name, region, kind)
    value.by_flow = region.parent is not None
    return value


def _run(region: Region, clock: Clock) -> None:
    for index, proto in enumerate(region.graph.node):
        node = Node(proto, region, index, clock.ticks)
        region.nodes.append(node)
        region.running = node
        node.inputs = [_read(name, node, clock) for name in proto.input]
        clock.ticks += 1
        if proto.attribute:
            _run_bodies(node, clock)
        node.end = clock.ticks - 1
        is_weight = proto.op_type == "Constant" and proto.domain in STANDARD
        kind = Kind.WEIGHT if is_weight else Kind.MADE
        node.outputs = [_made(name, node, kind, clock) for name in proto.output]
        if node.repeats:
            _stretch(node)
    region.running = None
    for result in region.graph.output:
        value = region.find(result.name)
        if value is None:
            clock.flaws.append(f"the result {result.name[:120]!r} is made by no node")
        else:
            region.outputs.append(value)


def _read(name: str, node: Node, clock: Clock) -> Value | None:
    if not name:
        return None
    value = node.region.find(name)
    if value is None:
        who = node.proto.name or node.proto.op_type
        clock.flaws.append(
            f"node {who[:120]!r} reads {name[:120]!r} before any node has made it"
        )
        return None
    value.use(node.start)
    value.release = value.region.running
    return value


def _made(name: str, node: Node, kind: Kind, clock: Clock) -> Value | None:
    if not name:
        return None
    value = _define(node.region, name, kind, clock)
    value.maker = value.release = node
    read = any(each.by_flow for each in node.inputs if each is not None)
    value.by_flow = value.by_flow or bool(node.bodies) or read
    value.use(node.end)
    return value


def _run_bodies(node: Node, clock: Clock) -> None:
    for attribute in node.proto.attribute:
        graphs = [(attribute.name, attribute.g)] if attribute.HasField("g") else []
        graphs += [
            (f"{attribute.name}[{at}]", graph) for at, graph in enumerate(attribute.graphs)
        ]
        for name, graph in graphs:
            body = Region(graph, node, name)
            node.bodies.append(body)
            _declare(body, clock)
            _run(body, clock)
    if not node.bodies:
        return
    clock.ticks += 1
    for body in node.bodies:
        for value in body.outputs:
            value.use(clock.ticks - 1)
            if value.region is body:
                value.leaves = True
            else:
                value.release = value.region.running


def _stretch(node: Node) -> None:
    """Let all that a repeating node touches last for as long as it runs."""
    for value in (*node.inputs, *node.outputs):
        if value is not None:
            value.use(node.start)
            value.use(node.end)
    for body in node.bodies:
        for value in (*body.inputs, *body.captured.values()):
            value.use(node.end)
