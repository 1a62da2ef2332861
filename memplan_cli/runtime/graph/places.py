"""Kernels of a run told apart by their places, where nodes have no names that do.

The runtime writes a graph in the order in which it runs it by default. A subgraph's kernels
are done within the time of its control-flow node, all of them once each time it runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memplan_cli.onnx_io.load import subgraphs
from memplan_cli.runtime.measuring.observed import Event
from memplan_cli.shapes.given import block_paths

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onnx import GraphProto, NodeProto


@dataclass(frozen=True, slots=True)
class _Kernel:
    """A kernel that was done, and those that were done within it."""

    name: str
    seen: Sequence[Any]
    begin: int
    within: Sequence[_Kernel] = ()


def events_by_place(graph: GraphProto, nodes: Sequence[Any]) -> list[Event] | None:
    """Return the events of a run at a graph's nodes; None where some fit no node, or two.

    Args:
        graph: in the order in which it was run.
        nodes: ``[name, read, written, begin]`` of each kernel, in the order in which they
            were done; one of a node without a name is called by its operator and a number.
    """
    every = (node for _, block in block_paths(graph, "") for node in block.node)
    holders = {node.name or node.op_type for node in every if _bodies(node)}
    done: list[_Kernel] = []
    for name, *seen, begin in nodes:
        first = len(done)
        if name in holders or _operator(name) in holders:
            while first and done[first - 1].begin >= begin:
                first -= 1
        done[first:] = [_Kernel(name, seen, begin, done[first:])]
    return _once(graph, "", done)


def _once(block: GraphProto, path: str, done: Sequence[_Kernel]) -> list[Event] | None:
    """Return the events of a block that ran once, where each fits the node at its place."""
    if len(done) != len(block.node):
        return None
    here, events = f"{path}/" if path else "", list[Event]()
    for index, (node, kernel) in enumerate(zip(block.node, done, strict=True)):
        if kernel.name != node.name and (node.name or _operator(kernel.name) != node.op_type):
            return None
        if kernel.within:
            step = f"{here}{node.name or f'{node.op_type}#{index}'}"
            turns = [
                found
                for attribute, body in _bodies(node)
                if (found := _turns(body, f"{step}.{attribute}", kernel.within)) is not None
            ]
            if len(turns) != 1:
                return None
            events += turns[0]
        writes = tuple(here + name for name in node.output if name)
        events.append(Event(writes, *kernel.seen))
    return events


def _turns(body: GraphProto, path: str, done: Sequence[_Kernel]) -> list[Event] | None:
    """Return the events of a subgraph that ran as often as there are kernels for it."""
    events: list[Event] = []
    for begin in range(0, len(done), max(len(body.node), 1)):
        found = _once(body, path, done[begin : begin + len(body.node)])
        if found is None:
            return None
        events += found
    return events


def _bodies(node: NodeProto) -> list[tuple[str, GraphProto]]:
    return list(subgraphs(node))


def _operator(name: str) -> str:
    """Return the operator of a kernel whose node has no name."""
    return name.rpartition("_")[0]
