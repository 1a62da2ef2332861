"""A model's nodes put in the planned order, and that order on the clock."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from memplan_cli.checking.certificates.refused import RefusedError, refuse_unless
from memplan_cli.checking.clock import read_clock

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from onnx import GraphProto, NodeProto  # noqa: TID251 - types only; onnx_io makes them

    from memplan_cli.checking.clock import Clock, Node, Region, Value
    from memplan_cli.core.results.placements import BlockOrder

    Arrange = Callable[[Sequence[NodeProto], Sequence[str]], Sequence[NodeProto]]


def planned_clock(
    graph: GraphProto, orders: Sequence[BlockOrder], arrange: Arrange, exposed: Collection[str]
) -> Clock:
    """Put a graph, whose nodes are moved for it, into the planned order and on the clock.

    Args:
        graph: The model's.
        orders: The plan's blocks.
        arrange: From a block's nodes and what the plan's order says to that order.
        exposed: Outputs that were added to be looked at, and that the plan places.

    Raises:
        RefusedError: the plan's order is not one of the graph's nodes.
    """
    refuse_unless(
        len({order.block for order in orders}) == len(orders), "two blocks have one path"
    )
    left = iter(orders)
    _arrange(graph, left, arrange)
    refuse_unless(next(left, None) is None, "the plan's order has too many blocks")
    clock = read_clock(graph, exposed)
    for flaw in clock.flaws:
        raise RefusedError(f"in the planned order {flaw}")
    for region, order in zip(clock.regions, orders, strict=True):
        region.path = order.block
        _check_path(region)
    for value in clock.values():
        path = value.region.path
        value.identity = f"{path}/{value.name}" if path else value.name
    return clock


def _arrange(graph: GraphProto, orders: Iterator[BlockOrder], arrange: Arrange) -> None:
    order = next(orders, None)
    refuse_unless(order is not None, "the plan's order has too few blocks")
    entries = () if order is None else order.nodes
    nodes = list(graph.node)
    refuse_unless(
        len(entries) == len(nodes),
        f"the plan's order has {len(entries)} nodes, the model has {len(nodes)}",
    )
    arranged = arrange(nodes, entries)
    if arranged is not nodes:
        copies = [type(node).FromString(node.SerializeToString()) for node in arranged]
        del graph.node[:]
        graph.node.extend(copies)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _arrange(attribute.g, orders, arrange)
            for inner in attribute.graphs:
                _arrange(inner, orders, arrange)


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


def _check_path(region: Region) -> None:
    """Refuse a block that the plan's order calls otherwise than its node and attribute do.

    Raises:
        RefusedError: naming it.
    """
    node = region.parent
    pattern = ""
    if node is not None:
        outer = node.region.path
        label = re.escape(node.proto.name) or rf"{re.escape(node.proto.op_type)}#\d+"
        start = re.escape(f"{outer}/" if outer else "")
        pattern = rf"{start}{label}\.{re.escape(region.attribute)}'*"
    refuse_unless(
        re.fullmatch(pattern, region.path),
        f"the plan's order has a block {region.path[:120]!r} where the model has another one",
    )


def captured(node: Node) -> Iterator[Value]:
    """Yield what the subgraphs of a node read from outside of them."""
    for body in node.bodies:
        yield from body.captured.values()


def reads(node: Node) -> Iterator[Value]:
    """Yield what a node reads, its subgraphs too."""
    yield from (value for value in node.inputs if value is not None)
    yield from captured(node)
