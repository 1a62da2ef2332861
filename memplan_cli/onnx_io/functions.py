"""How many nodes do a model's functions come to, and do they end at all?

Asked before they are inlined: in onnx 1.19 a circle of calls ends the process, and thirty
functions that each call the one before twice come to a thousand million nodes.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from onnx import ModelProto, NodeProto

_MOST_NODES = 5_000_000
"""Real models have some hundred thousand."""

_Name = tuple[str, str, str]
"""Domain, name, overload."""


def why_endless(model: ModelProto) -> str:
    """Return why a model's functions cannot be written out, ``""`` where they can.

    One calls itself, if by others, or all come to more nodes than any model has.
    """
    bodies = {(f.domain, f.name, f.overload): f for f in model.functions}
    calls = {name: Counter(map(_called, _nodes(f.node))) for name, f in bodies.items()}
    waiting = {name: sum(c in bodies for c in found) for name, found in calls.items()}
    callers: dict[_Name, list[_Name]] = {name: [] for name in bodies}
    for name, found in calls.items():
        for callee in found:
            if callee in bodies:
                callers[callee].append(name)
    sizes: dict[_Name, int] = {}
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
        return f"they come to {total} nodes, and no model has that many"
    return ""


def _expanded(calls: Counter[_Name], sizes: dict[_Name, int]) -> int:
    return sum(count * sizes.get(name, 1) for name, count in calls.items())


def _called(node: NodeProto) -> _Name:
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
