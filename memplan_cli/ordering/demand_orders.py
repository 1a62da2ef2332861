"""Demand-driven scheduling: run what the longest chain waits for, and what pays for itself.

Greedy scheduling looks one op ahead. So it runs early what is only needed late (a loss, its
probabilities), and late what needs a few steps until it pays (a gradient that is added to
others, an optimiser's update). Here the ops of a longest path are asked for one after the
other, and an op runs only if one of these needs it, or if it and a few ops behind it leave no
more live than there was: the valleys of Liu (1987), looked for greedily. The same sweep from
the end of the order to its beginning finds what should wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from memplan_cli.ordering.task_graph import Order, TaskGraph

NO_LIMIT = 1 << 62
"""More than all memory there is."""

_REACH = 16
"""How many ops may run together because all of them pay for the first."""

_LOOKS = 64
"""How many changes are computed, at most, to find out whether an op pays."""


class Way(IntEnum):
    """In which direction an order is made; the value is what a run does to a count."""

    FORWARD = -1
    BACKWARD = 1


@dataclass(frozen=True, slots=True)
class Sweep:
    """How to make an order.

    Attributes:
        way: From the first op on, or from the last one back.
        chain: The ops to ask for, in the order in which they run.
        slack: What ops that pay for themselves may leave live beyond what there was. A few
            bytes too many (a loss of four bytes) would else keep the rest from running.
        limit: Ops that are not asked for run only on steps that take no more.
    """

    way: Way
    chain: Sequence[int] = ()
    slack: int = 0
    limit: int = NO_LIMIT


def longest_path(graph: TaskGraph) -> list[int]:
    """Return the ops of a path with the most ops; of equals the one first in the file."""
    below = [0] * graph.size
    for op in reversed(range(graph.size)):
        if graph.succs[op]:
            below[op] = 1 + max([below[succ] for succ in graph.succs[op]])
    heads = [op for op in range(graph.size) if not graph.preds[op]]
    path = []
    while heads:
        path.append(max(heads, key=lambda op: (below[op], -op)))
        heads = list(graph.succs[path[-1]])
    return path


def sweep(graph: TaskGraph, how: Sweep) -> Order:
    """Make an order, near linear in the number of edges.

    The ops must be numbered in an order that respects the edges.
    """
    run = _Run(graph, how)
    forward = how.way is Way.FORWARD
    run.settle(op for op in run.asked(range(graph.size)) if not run.waiting[op])
    for op in run.asked(how.chain):
        run.demand(op)
    for op in run.asked(range(graph.size)):
        run.demand(op)
    return run.order if forward else run.order[::-1]


class _Run:
    """What has run so far; backward, what is taken to run after all that has not been asked.

    Going forward, ``count`` says how many ops have yet to touch a tensor, or keep it to the
    end: the op that finds a 1 ends it. Going backward it is one more than the number of
    ops behind that keep it: the op that finds a 1 is the last reader and makes it live.
    """

    def __init__(self, graph: TaskGraph, how: Sweep) -> None:
        self._graph, self._how, self._step = graph, how, int(how.way)
        weight, forward = graph.weight, how.way is Way.FORWARD
        self._ahead = graph.succs if forward else graph.preds
        self._behind = graph.preds if forward else graph.succs
        self.waiting = [len(others) for others in self._behind]
        self.done = [False] * graph.size
        self.order: Order = []
        if forward:
            self._live = graph.start
            self._count = list(graph.uses)
            self._reads = graph.touches
            self._base: Sequence[int] = graph.taken
        else:
            self._live = graph.kept()
            self._count = [1 + out for out in graph.outlives]
            self._reads = tuple(
                tuple(t for t in touched if t not in opened) if opened else touched
                for touched, opened in zip(graph.touches, graph.opens, strict=True)
            )
            # At that time all readers are behind; what nobody reads was never live there.
            self._base = [
                -sum(weight[t] for t in opened if graph.uses[t] > 1) if opened else 0
                for opened in graph.opens
            ]
        self._users: list[list[int]] = [[] for _ in weight]
        for op, read in enumerate(self._reads):
            for tensor in read:
                self._users[tensor].append(op)

    def asked(self, ops: Sequence[int]) -> Sequence[int]:
        """Return ops in the order in which this run comes across them."""
        return ops if self._how.way is Way.FORWARD else ops[::-1]

    def demand(self, wanted: int) -> None:
        """Run an op, and before it what it waits for, in the order of the file."""
        if self.done[wanted]:
            return
        missing, stack = {wanted}, [wanted]
        while stack:
            for other in self._behind[stack.pop()]:
                if not self.done[other] and other not in missing:
                    missing.add(other)
                    stack.append(other)
        for op in self.asked(sorted(missing)):
            if not self.done[op]:
                self._run(op, self._change(op))
                self.order.append(op)
                self.settle(self._near((op,)))

    def settle(self, ops: Iterable[int]) -> None:
        """Run the ops that pay for themselves, and those that they make pay."""
        queue = list(ops)
        while queue:
            op = queue.pop()
            if not self.done[op] and not self.waiting[op]:
                ran = self._paying(op)
                if ran:
                    self.order += ran
                    queue += self._near(ran)

    def _paying(self, first: int) -> list[int]:
        """Run an op and some behind it if they leave no more live than there was."""
        allowed = self._live + self._how.slack
        alone = self._change(first)
        if self._live + alone > allowed and not self._enables(first):
            return []
        ran: list[int] = []
        ready = [first]
        looks = 0
        before = self._live
        while ready and len(ran) < _REACH and looks < _LOOKS:
            looks += len(ready)
            changes = [self._change(op) for op in ready] if ran else [alone]
            change = min(changes)
            op = ready.pop(changes.index(change))
            if not self._fits(op, change):
                break
            ran.append(op)
            ready += self._run(op, change)
            if self._live <= allowed:
                return ran
        for op in ran:
            self._take_back(op)
        self._live = before
        return []

    def _enables(self, op: int) -> bool:
        """Whether others wait for an op alone."""
        waiting = self.waiting
        return any(waiting[other] == 1 for other in self._ahead[op])

    def _fits(self, op: int, change: int) -> bool:
        """Whether an op's step stays within the limit."""
        live = self._live if self._how.way is Way.FORWARD else self._live + change
        return live + self._need(op) <= self._how.limit

    def _change(self, op: int) -> int:
        count, weight = self._count, self._graph.weight
        turned = 0
        for tensor in self._reads[op]:
            if count[tensor] == 1:
                turned += weight[tensor]
        return self._base[op] + self._step * turned

    def _need(self, op: int) -> int:
        graph = self._graph
        for tensor in graph.replaces[op]:
            if self._count[tensor] == 1:
                return graph.need[op] - graph.saved[op]
        return graph.need[op]

    def _run(self, op: int, change: int) -> list[int]:
        """Mark an op as run and return what has become ready."""
        self._live += change
        self.done[op] = True
        step, count, waiting = self._step, self._count, self.waiting
        for tensor in self._reads[op]:
            count[tensor] += step
        ready = []
        for other in self._ahead[op]:
            waiting[other] -= 1
            if not waiting[other]:
                ready.append(other)
        return ready

    def _take_back(self, op: int) -> None:
        self.done[op] = False
        for tensor in self._reads[op]:
            self._count[tensor] -= self._step
        for other in self._ahead[op]:
            self.waiting[other] += 1

    def _near(self, ran: Iterable[int]) -> list[int]:
        """Return the ready ops that may pay now that these have run."""
        near: dict[int, None] = {}
        done, waiting, count = self.done, self.waiting, self._count
        for op in ran:
            for other in self._ahead[op]:
                if not waiting[other] and not done[other]:
                    near[other] = None
            for tensor in self._reads[op]:
                # The last reader's change is another now, and the last but one's hope.
                if 0 < count[tensor] <= 2:
                    for other in self._users[tensor]:
                        if not waiting[other] and not done[other]:
                            near[other] = None
        return list(near)
