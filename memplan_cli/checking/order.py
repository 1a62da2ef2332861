"""The order of a plan held against the nodes of the model, and against those it was made of."""

from __future__ import annotations

import re
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING

from memplan_cli.core.program import own_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from onnx import GraphProto, NodeProto  # noqa: TID251 - types only; onnx_io makes them

    from memplan_cli.checking.clock import Node, Region
    from memplan_cli.checking.subject import Subject

_COPY = re.compile(r"__recompute\d*$")


def check_order(subject: Subject) -> Iterator[str]:
    """Yield where the plan's blocks and nodes are not the model's; give the blocks their paths."""
    regions, orders = subject.clock.regions, subject.plan.order
    if len(regions) != len(orders):
        yield f"the order has {len(orders)} blocks, the model has {len(regions)}"
        return
    for region, order in zip(regions, orders, strict=True):
        region.path = order.block
    for region, order in zip(regions, orders, strict=True):
        yield from _path(region)
        yield from _nodes(region, order.nodes)
    if any(len(r.nodes) != len(o.nodes) for r, o in zip(regions, orders, strict=True)):
        return
    if subject.origin is not None and subject.origin.graph is not None:
        yield from _indices(subject, subject.origin.graph)


def label_of(node: Node, entry: str) -> str:
    """Return what reports call a node that has this entry in an order."""
    return own_name(node.proto.name) or f"{node.proto.op_type}{entry}"


def _path(region: Region) -> Iterator[str]:
    """Yield where the plan has another path for a block than its node and attribute make."""
    parent = region.parent
    wanted, pattern = "", ""
    if parent is not None:
        outer = f"{parent.region.path}/" if parent.region.path else ""
        name = own_name(parent.proto.name)
        label = re.escape(name) if name else rf"{re.escape(parent.proto.op_type)}#\d+"
        wanted = f"{outer}{name or parent.proto.op_type}.{region.attribute}"
        pattern = rf"{re.escape(outer)}{label}\.{re.escape(region.attribute)}'*"
    if not re.fullmatch(pattern, region.path):
        yield f"the order has a block {region.path[:120]!r}, the model has {wanted[:120]!r}"


def _nodes(region: Region, entries: Sequence[str]) -> Iterator[str]:
    where = f" of block {region.path[:120]!r}" if region.path else ""
    if len(entries) != len(region.nodes):
        yield f"the order{where} has {len(entries)} nodes, the model has {len(region.nodes)}"
        return
    names = Counter(node.proto.name for node in region.nodes)
    for node, entry in zip(region.nodes, entries, strict=True):
        name = own_name(node.proto.name)
        if name and names[name] == 1:
            if entry != name:
                yield (
                    f"the order{where} has {entry[:120]!r} at place {node.index}, the model "
                    f"has {name[:120]!r} there"
                )
        elif not re.fullmatch(r"#\d+", entry):
            what = f"{node.proto.op_type} that no name tells from others"
            yield (
                f"the order{where} has {entry[:120]!r} at place {node.index}, the model has a "
                f"{what} there"
            )


def _indices(subject: Subject, original: GraphProto) -> Iterator[str]:
    """Yield where ``#index`` is another node of the file that the plan was made of."""
    graphs: dict[int, GraphProto | None] = {id(subject.clock.top): original}
    for region, order in zip(subject.clock.regions, subject.plan.order, strict=True):
        graph = graphs.get(id(region))
        if graph is None:
            continue
        makers: dict[str, NodeProto] = {}
        if any(node.bodies for node in region.nodes):
            makers = {name: each for each in graph.node for name in each.output if name}
        sources = list(graph.node)
        for node, entry in zip(region.nodes, order.nodes, strict=True):
            if entry != own_name(node.proto.name) or not entry:
                yield from _same_node(node, entry, sources)
            if node.bodies:
                made = next((makers[n] for n in _made(node.proto) if n in makers), None)
                inner = [] if made is None else list(_graphs_in(made))
                if len(inner) == len(node.bodies):
                    graphs.update(zip(map(id, node.bodies), inner, strict=True))


def _same_node(node: Node, entry: str, sources: Sequence[NodeProto]) -> Iterator[str]:
    at = int(entry[1:]) if re.fullmatch(r"#\d{1,9}", entry) else -1
    if not 0 <= at < len(sources):
        yield f"the order has {entry[:120]!r}, the model's file has {len(sources)} nodes there"
        return
    source, proto = sources[at], node.proto
    same = source.op_type == proto.op_type and set(_made(proto)) <= set(_made(source))
    if not same:
        yield (
            f"the order has {entry} at place {node.index}, which makes "
            f"{_named(_made(source))}, and the model has there what makes "
            f"{_named(_made(proto))}"
        )


def _made(node: NodeProto) -> list[str]:
    """Return what a node makes, a copy's results by the names of what it copies."""
    found = []
    for name in node.output:
        if name:
            found.append(name)
            if _COPY.search(name):
                found[-1] = _COPY.sub("", name)
    return found


def _named(names: Sequence[str]) -> str:
    return ", ".join(repr(name[:120]) for name in islice(names, 3)) or "nothing"


def _graphs_in(node: NodeProto) -> Iterator[GraphProto]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs
