"""A model's nodes in the planned order, and the ticks from and to which each value is needed.

A node takes one tick. One with subgraphs takes a first tick, those of its subgraphs one after
the other, and a last tick. What a subgraph that repeats is given, gives and reads from outside
is needed for as long as its node runs.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memplan_cli.certification.operators import REPEATING, STANDARD
from memplan_cli.certification.refused import RefusedError, refuse_unless

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from onnx import GraphProto, NodeProto  # noqa: TID251 - types only; onnx_io makes them

    from memplan_cli.core.results.placements import BlockOrder

    Arrange = Callable[[Sequence[NodeProto], Sequence[str]], Sequence[NodeProto]]


@dataclass(slots=True, eq=False)
class Value:
    """One value; a weight has no ticks."""

    name: str
    block: Block
    is_weight: bool = False
    first: int = -1
    last: int = -1

    @property
    def id(self) -> str:
        """Return ``block/name``, or the name at the top."""
        return f"{self.block.path}/{self.name}" if self.block.path else self.name

    def use(self, tick: int) -> None:
        """Take note of a use."""
        self.first = tick if self.first < 0 else min(self.first, tick)
        self.last = max(self.last, tick)


@dataclass(slots=True, eq=False)
class Node:
    """One node; inputs and outputs left out are None, ``captured`` is what subgraphs read."""

    proto: NodeProto
    place: int
    start: int
    inputs: Sequence[Value | None] = ()
    outputs: Sequence[Value | None] = ()
    bodies: list[Block] = field(default_factory=list)
    captured: dict[int, Value] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """The operator, if it is one of ONNX's own; else nothing is known of it."""
        return self.proto.op_type if self.proto.domain in STANDARD else ""

    @property
    def repeats(self) -> bool:
        """Whether its subgraphs may run more than once."""
        return bool(self.bodies) and self.proto.op_type in REPEATING


def _made(name: str, node: Node, block: Block) -> Value:
    refuse_unless(name not in block.values, f"value {name[:120]!r} is made twice")
    value = block.values[name] = Value(name, block, node.kind == "Constant")
    return value


@dataclass(slots=True, eq=False)
class Block:
    """A graph, or one in a node, with its nodes in the planned order."""

    graph: GraphProto
    path: str
    outer: Block | None = None
    node: Node | None = None
    nodes: list[Node] = field(default_factory=list)
    values: dict[str, Value] = field(default_factory=dict)
    inputs: list[Value] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)

    def find(self, name: str) -> Value:
        """Return what a name stands for; the nodes that it is read through take note of it.

        Raises:
            RefusedError: nothing has made it yet.
        """
        block: Block | None = self
        through: list[Node] = []
        while block is not None:
            if name in block.values:
                value = block.values[name]
                for node in through:
                    node.captured[id(value)] = value
                return value
            through += [block.node] if block.node is not None else []
            block = block.outer
        raise RefusedError(f"in the planned order {name[:120]!r} is read before it is made")


def _check_path(body: Block, attribute: str) -> None:
    """Refuse a block that the plan's order calls otherwise than its node and attribute do.

    Raises:
        RefusedError: naming it.
    """
    node, outer = body.node, body.outer
    assert node is not None and outer is not None  # noqa: S101, PT018 - it is a subgraph
    start = f"{outer.path}/" if outer.path else ""
    label = re.escape(node.proto.name) or rf"{re.escape(node.proto.op_type)}#\d+"
    pattern = rf"{re.escape(start)}{label}\.{re.escape(attribute)}(\[\d+\])?'*"
    refuse_unless(
        re.fullmatch(pattern, body.path),
        f"the plan's order has a block {body.path[:120]!r} where the model has another one",
    )


@dataclass(slots=True)
class Graph:
    """All blocks, the outermost first, and the number of ticks."""

    blocks: list[Block]
    ticks: int = 0

    @property
    def top(self) -> Block:
        """The graph itself."""
        return self.blocks[0]

    def values(self) -> Iterator[Value]:
        """Yield every value of every block."""
        for block in self.blocks:
            yield from block.values.values()


class Reader:
    """Puts a graph in the planned order on the clock.

    Args:
        orders: The plan's blocks.
        arrange: From a block's nodes and what the plan's order says to that order.
        placed: What the plan places: outputs among them were added to be looked at.
    """

    def __init__(
        self, orders: Sequence[BlockOrder], arrange: Arrange, placed: Collection[str]
    ) -> None:
        self._orders, self._arrange, self._placed = orders, arrange, placed
        self._blocks: list[Block] = []
        self._tick = 0

    def read(self, graph: GraphProto) -> Graph:
        """Return the graph.

        Raises:
            RefusedError: the plan's order is not one of the graph's nodes.
        """
        top = self._begin(graph, None, None)
        refuse_unless(not top.path, "the first block of the plan's order is not the outermost")
        self._run(top)
        refuse_unless(
            len(self._blocks) == len(self._orders), "the plan's order has too many blocks"
        )
        paths = {block.path for block in self._blocks}
        refuse_unless(len(paths) == len(self._blocks), "two blocks of the plan have one path")
        for value in top.outputs:
            if value.id not in self._placed:
                value.use(max(self._tick - 1, 0))
        return Graph(self._blocks, self._tick)

    def _begin(self, graph: GraphProto, outer: Block | None, node: Node | None) -> Block:
        number = len(self._blocks)
        refuse_unless(number < len(self._orders), "the plan's order has too few blocks")
        block = Block(graph, self._orders[number].block, outer, node)
        self._blocks.append(block)
        for tensor in graph.initializer:
            block.values[tensor.name] = Value(tensor.name, block, is_weight=True)
        for sparse in graph.sparse_initializer:
            name = sparse.values.name
            block.values[name] = Value(name, block, is_weight=True)
        for proto in graph.input:
            if proto.name in block.values:
                continue
            value = block.values[proto.name] = Value(proto.name, block)
            value.use(0 if node is None else node.start)
            block.inputs.append(value)
        return block

    def _run(self, block: Block) -> None:
        for place, proto in enumerate(self._ordered(block)):
            node = Node(proto, place, self._tick)
            block.nodes.append(node)
            node.inputs = [block.find(name) if name else None for name in proto.input]
            self._tick += 1
            self._run_bodies(block, node)
            node.outputs = [_made(name, node, block) if name else None for name in proto.output]
            self._use(node)
        block.outputs = [block.find(proto.name) for proto in block.graph.output]

    def _run_bodies(self, block: Block, node: Node) -> None:
        for attribute in node.proto.attribute:
            graphs = [attribute.g] if attribute.HasField("g") else []
            for graph in (*graphs, *attribute.graphs):
                body = self._begin(graph, block, node)
                _check_path(body, attribute.name)
                node.bodies.append(body)
                self._run(body)
        self._tick += bool(node.bodies)

    def _use(self, node: Node) -> None:
        end = self._tick - 1
        reads = [value for value in node.inputs if value is not None]
        makes = [value for value in node.outputs if value is not None]
        for value in reads:
            value.use(node.start)
        for value in makes:
            value.use(end)
        for body in node.bodies:
            for value in body.outputs:
                value.use(end)
        if node.repeats:
            given = [value for body in node.bodies for value in body.inputs]
            for value in (*reads, *makes, *given, *node.captured.values()):
                value.use(end)
            for value in makes:
                value.use(node.start)

    def _ordered(self, block: Block) -> Sequence[NodeProto]:
        """Return a block's nodes in the planned order.

        Raises:
            RefusedError: the plan's order is not one of them.
        """
        nodes = list(block.graph.node)
        entries = self._orders[len(self._blocks) - 1].nodes
        where = f" of block {block.path[:120]!r}" if block.path else ""
        refuse_unless(
            len(entries) == len(nodes),
            f"the plan's order{where} has {len(entries)} nodes, the model has {len(nodes)}",
        )
        return self._arrange(nodes, entries)


def as_written(nodes: Sequence[NodeProto], entries: Sequence[str]) -> Sequence[NodeProto]:
    """Return the nodes of a file that was written in the planned order, as they are.

    Raises:
        RefusedError: the plan's order is another one.
    """
    count = Counter(node.name for node in nodes)
    for at, (node, entry) in enumerate(zip(nodes, entries, strict=True)):
        is_named = node.name and count[node.name] == 1
        refuse_unless(
            entry == node.name if is_named else entry[:1] == "#",
            f"the plan's order has {entry[:120]!r} at place {at}, the model has another node",
        )
    return nodes


def rearranged(nodes: Sequence[NodeProto], entries: Sequence[str]) -> Sequence[NodeProto]:
    """Return the nodes of the model that the plan was made of, in the planned order.

    Raises:
        RefusedError: the plan's order does not have every node once.
    """
    count = Counter(node.name for node in nodes)
    names = {node.name: at for at, node in enumerate(nodes) if count[node.name] == 1}
    places = [_place(entry, names, len(nodes)) for entry in entries]
    refuse_unless(
        len(set(places)) == len(nodes), "the plan's order does not have every node once"
    )
    return [nodes[at] for at in places]


def _place(entry: str, names: Mapping[str, int], size: int) -> int:
    if entry in names:
        return names[entry]
    number = entry[1:]
    is_number = entry[:1] == "#" and number.isascii() and number.isdigit()
    refuse_unless(
        is_number and len(number) <= len(str(size)) and int(number) < size,
        f"the plan's order has {entry[:120]!r}, which is no node of the model",
    )
    return int(number)
