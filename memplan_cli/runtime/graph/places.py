"""Kernels of a run told apart by their places, where nodes have no names that do.

Under the default order a block that optimisation changed is written as it runs; one that it
left alone is written as it was read, and runs in the order that follows from that. A
subgraph's kernels are done within the time of its control-flow node, all of them once each
time it runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memplan_cli.core.program import blocks, walk
from memplan_cli.runtime.simulate.observed import Event
from memplan_cli.runtime.simulate.planner import default_order

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memplan_cli.core.program import Block, Op
    from memplan_cli.runtime.simulate.predict import ExecutedGraph

    _Orders = Mapping[str, Sequence[Sequence[Op]]]
    """Orders in which each block may have run, by its path."""


@dataclass(frozen=True, slots=True)
class _Kernel:
    """A kernel that was done, and those that were done within it."""

    name: str
    seen: Sequence[Any]
    within: Sequence[_Kernel] = ()
    begin: int = 0


def events_by_place(executed: ExecutedGraph, nodes: Sequence[Any]) -> list[Event] | None:
    """Return the events of a run under the default order; None where several may be meant.

    Args:
        executed: the graph as the runtime wrote it.
        nodes: ``[name, read, written, begin]`` of each kernel, in the order in which they
            were done; one of a node without a name is called by its operator and a number.
    """
    top = executed.program.body
    orders = {block.path: [block.ops, default_order(block)] for block in blocks(top)}
    if executed.ordered:
        orders[top.path] = [top.ops]
    holders = {op.name or op.type for _, op in walk(top) if op.bodies}
    done: list[_Kernel] = []
    for name, *seen, begin in nodes:
        first = len(done)
        if name in holders or _operator(name) in holders:
            while first and done[first - 1].begin >= begin:
                first -= 1
        done[first:] = [_Kernel(name, seen, done[first:], begin)]
    return _once(top, done, orders)


def _once(block: Block, done: Sequence[_Kernel], orders: _Orders) -> list[Event] | None:
    """Return the events of a block that ran once; None if orders that fit say other things."""
    written, *other = orders[block.path]
    tried = [written, *(order for order in other if order != written)]
    found = [_fitted(order, done, orders) for order in tried]
    fits = [events for events in found if events is not None]
    said = [_by_op(events) for events in fits]
    return fits[0] if fits and all(each == said[0] for each in said) else None


def _by_op(events: Sequence[Event]) -> dict[tuple[str, ...], list[Event]]:
    found: dict[tuple[str, ...], list[Event]] = {}
    for event in events:
        found.setdefault(event.writes, []).append(event)
    return found


def _fitted(
    order: Sequence[Op], done: Sequence[_Kernel], orders: _Orders
) -> list[Event] | None:
    """Return the events of ops in the order in which they ran, if each kernel fits its op."""
    if len(done) != len(order):
        return None
    events: list[Event] = []
    for op, kernel in zip(order, done, strict=True):
        if kernel.name != op.name and (op.name or _operator(kernel.name) != op.type):
            return None
        if kernel.within:
            turns = [_turns(body, kernel.within, orders) for body in op.bodies]
            fits = [each for each in turns if each is not None]
            if len(fits) != 1:
                return None
            events += fits[0]
        events.append(Event(tuple(filter(None, op.outputs)), *kernel.seen))
    return events


def _turns(body: Block, done: Sequence[_Kernel], orders: _Orders) -> list[Event] | None:
    """Return the events of a subgraph that ran as often as there are kernels for it."""
    events: list[Event] = []
    step = max(len(body.ops), 1)
    for begin in range(0, len(done), step):
        found = _once(body, done[begin : begin + step], orders)
        if found is None:
            return None
        events += found
    return events


def _operator(name: str) -> str:
    """Return the operator of a kernel whose node has no name."""
    return name.rpartition("_")[0]
