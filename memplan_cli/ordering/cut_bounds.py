"""Lower bounds at single ops: the least that is live while an op runs, in any order.

Whatever the order, the ops before a given one form a set with its ancestors, not its
descendants, and with each op that op's ancestors. The bytes live at the op's step are a
function of that set alone, and its least value over all such sets is a minimum cut: of a
network with an edge of each tensor's weight that is cut where the set begins the tensor
and does not end it. The flow found so far is a bound at any time, so work can be limited.

Lower bounds on the peak of all orders, by minimum cuts at the ops most likely to need much.

One cut bounds one op's step, whatever else runs when. Two ops of which neither needs the
other run one before the other: in either case both their steps have a bound, and the less
of the two cases bounds all orders. So an update that reads a gradient twice is seen to hold
more than either of its halves does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING

from memplan_cli.analysis.flow import INFINITE, SINK, SOURCE, Network
from memplan_cli.ordering.task_graph import trace

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from memplan_cli.ordering.effort import Effort
    from memplan_cli.ordering.task_graph import TaskGraph


_NONE = -1

"""Stands for no op."""


def local_bounds(graph: TaskGraph) -> list[int]:
    """Return for each op what it reads and makes itself: a bound on any order's peak."""
    weight, resident, taken = graph.weight, graph.resident(), graph.taken
    result = []
    for op, touched in enumerate(graph.touches):
        read = sum([weight[tensor] for tensor in touched]) - taken[op]
        result.append(resident + read + least_need(graph, op))
    return result


def least_need(graph: TaskGraph, op: int) -> int:
    """Return what an op's step takes if one of its inputs can be replaced."""
    return graph.need[op] - (graph.saved[op] if graph.replaces[op] else 0)


@dataclass(frozen=True, slots=True)
class Cut:
    """A division of the ops at one of them, with the least live at its step.

    If the work allowed was enough, ``bound`` is reached by both divisions that are given;
    else it is only a bound.
    """

    bound: int
    work: int
    _split: _Split

    def earliest(self) -> set[int]:
        """Return the smallest set of ops that can have run before the op, at the cut."""
        return self._split.source_side()

    def latest(self) -> set[int]:
        """Return the largest."""
        return self._split.not_sink_side()


class CutBounds:
    """Bounds on the peak of any order of a graph, one op at a time."""

    def __init__(self, graph: TaskGraph) -> None:
        self._graph = graph
        self._resident = graph.resident()
        self._readers: list[list[int]] = [[] for _ in graph.weight]
        openers = [_NONE] * len(graph.weight)
        for op, touched in enumerate(graph.touches):
            opened = graph.opens[op]
            for tensor in touched:
                if tensor in opened:
                    openers[tensor] = op
                else:
                    self._readers[tensor].append(op)
        facts = zip(openers, self._readers, graph.weight, graph.outlives, strict=True)
        self._tensors = [
            (opener, readers, weight, outlives)
            for opener, readers, weight, outlives in facts
            # What no op makes or reads is resident.
            if weight and (readers or opener != _NONE)
        ]

    def at(
        self, op: int, work: int, before: Sequence[int] = (), after: Sequence[int] = ()
    ) -> Cut:
        """Return the least that can be live at an op's step, looking at ``work`` edges.

        Args:
            op: The op, one that ``before`` does not need and that does not need ``after``.
            work: A limit to the effort.
            before: Ops taken to run before this one.
            after: Ops taken to run after it.
        """
        side = sides(self._graph, op, before, after)
        tensors = self._graph.replaces[op] or (-1,)
        cuts = [self._cut(op, side, tensor, work) for tensor in tensors]
        best = min(cuts, key=lambda cut: cut.bound)
        return replace(best, work=sum(cut.work for cut in cuts))

    def _cut(self, op: int, side: list[bool | None], replaced: int, work: int) -> Cut:
        """Return the cut if the op replaces the given tensor, where that can die."""
        graph = self._graph
        split = _Split(graph, side)
        least = self._resident + graph.need[op]
        for opener, readers, weight, outlives in self._tensors:
            if opener == _NONE or side[opener] is not False:
                least += split.tensor(opener, readers, weight, outlives)
        if replaced >= 0:
            saved = graph.saved[op]
            others = [reader for reader in self._readers[replaced] if reader != op]
            least += split.unless_before(others, saved) - saved
        value, done = split.network.flow(work)
        return Cut(least + value, done + graph.size + len(split.network.heads), split)


class _Split:
    """The ops divided in those before a given op, on the source's side, and the others."""

    def __init__(self, graph: TaskGraph, side: list[bool | None]) -> None:
        self.network = Network()
        self._side = side
        undecided = [op for op, fixed in enumerate(side) if fixed is None]
        self._node = dict(zip(undecided, self.network.nodes(len(undecided)), strict=True))
        node, edge = self._node, self.network.edge
        for op, number in node.items():
            for pred in graph.preds[op]:
                if pred in node:
                    edge(number, node[pred], INFINITE)

    def tensor(self, opener: int, readers: list[int], weight: int, outlives: bool) -> int:  # noqa: FBT001 - a fact of the tensor, not a way to behave
        """Charge a tensor where its opener is before the op and some reader is not.

        The opener is not one that is surely behind the op: its tensor is not live there.
        What is sure is returned, the rest goes into the network.
        """
        if opener == _NONE or self._side[opener]:
            return weight if outlives else self.unless_before(readers, weight)
        if outlives or any(self._side[reader] is False for reader in readers):
            self.network.edge(self._node[opener], SINK, weight)
        else:
            self._charge(self._node[opener], readers, weight)
        return 0

    def unless_before(self, users: list[int], weight: int) -> int:
        """Charge ``weight`` unless all the users are before the op."""
        side = self._side
        undecided = []
        for user in users:
            if not side[user]:
                if side[user] is False:
                    return weight
                undecided.append(user)
        self._charge(SOURCE, undecided, weight)
        return 0

    def source_side(self) -> set[int]:
        """Return the ops that must be before the op: what the residual source reaches."""
        level, _ = self.network.levels()
        return self._before({at for at, steps in enumerate(level) if steps >= 0})

    def not_sink_side(self) -> set[int]:
        """Return the ops that need not be after the op: what cannot reach the sink."""
        ahead = self.network.reaching_sink()
        return self._before({at for at, reaches in enumerate(ahead) if not reaches})

    def _before(self, chosen: set[int]) -> set[int]:
        sure = {op for op, side in enumerate(self._side) if side}
        return sure | {op for op, node in self._node.items() if node in chosen}

    def _charge(self, tail: int, users: list[int], weight: int) -> None:
        """Cut an edge of ``weight`` if ``tail`` is before the op and some user is not."""
        if len(users) == 1:
            self.network.edge(tail, self._node[users[0]], weight)
        elif users:
            gate = self.network.node()
            self.network.edge(tail, gate, weight)
            for user in users:
                self.network.edge(gate, self._node[user], INFINITE)


def sides(
    graph: TaskGraph, op: int, before: Sequence[int], after: Sequence[int]
) -> list[bool | None]:
    """Return for each op whether it is surely before (True), or not (False), the given."""
    side: list[bool | None] = [None] * graph.size
    for neighbours, others, value in (
        (graph.preds, before, True),
        (graph.succs, after, False),
    ):
        stack = [*neighbours[op], *others]
        while stack:
            other = stack.pop()
            if side[other] is None:
                side[other] = value
                stack.extend(neighbours[other])
    side[op] = False
    return side


_OPS = 24

"""Ops of each kind (heavy in the order, heavy by themselves) that are tried for a bound."""

_APART = 100

"""Neighbours need much the same: of the steps of an order, at most so many are tried."""

_ALONE_WORK = 500_000

"""Edges that one cut may look at where no effort is given."""

_PAIRED = 12

"""So many of the heaviest ops are tried in pairs."""

_ONE_CUT = 4

"""One cut may take one part in so many of an effort."""


def cut_bound(graph: TaskGraph, order: Sequence[int]) -> int:
    """Return a bound on any order's peak, looked for where this order is heavy."""
    cuts = CutBounds(graph)
    bounds = [cuts.at(op, _ALONE_WORK).bound for op in _worst(graph, order)]
    return max([*bounds, *local_bounds(graph)], default=graph.start)


class Certificate:
    """The best bound known on the peak of any order of one graph.

    Each cut is made once. A cut cut short by the effort is a bound all the same.
    """

    def __init__(self, graph: TaskGraph, bound: int) -> None:
        self._graph = graph
        self._cuts = CutBounds(graph)
        self._local = local_bounds(graph)
        self._least: dict[int, int] = {}
        self.bound = max([bound, *self._local])

    def look(self, order: Sequence[int], reached: int, effort: Effort) -> None:
        """Raise the bound where an order is heavy, and where ops are heavy by themselves."""
        heavy = sorted(range(len(self._local)), key=lambda op: -self._local[op])[:_OPS]
        worst = _worst(self._graph, order)
        turns = zip_longest(worst, heavy)
        self._try([op for turn in turns for op in turn if op is not None], reached, effort)

    def look_along(self, path: Sequence[int], reached: int, effort: Effort) -> None:
        """Raise the bound at ops spread over a path, then around the highest of them.

        Along a path the cuts are nested. Where a graph has one waist, as a training step
        has between forward and backward, they rise up to it and fall behind it.
        """
        apart, best = len(path) // 4, len(path) // 2
        while apart and effort.left > 0 and self.bound < reached:
            places = [at for at in (best, best - apart, best + apart) if 0 <= at < len(path)]
            self._try([path[at] for at in places], reached, effort)
            best = max(places, key=lambda at: self._least.get(path[at], -1))
            apart //= 2

    def _try(self, ops: Iterable[int], reached: int, effort: Effort) -> None:
        for op in ops:
            if self.bound >= reached or effort.left <= 0 or not effort.in_time:
                return
            if op not in self._least:
                self._least[op] = self._at(op, effort)
                self.bound = max(self.bound, self._least[op])

    def _at(
        self, op: int, effort: Effort, before: Sequence[int] = (), after: Sequence[int] = ()
    ) -> int:
        cut = self._cuts.at(op, max(4 * effort.left // _ONE_CUT, 1), before, after)
        effort.spend(cut.work // 4)
        return cut.bound

    def look_at_pairs(self, order: Sequence[int], reached: int, effort: Effort) -> None:
        """Raise the bound by the heaviest ops of an order, two at a time.

        A pair is worth trying only if neither op needs the other.
        """
        steps = trace(self._graph, order)[0]
        places = sorted(range(len(order)), key=lambda at: -steps[at])[:_PAIRED]
        ops = [order[at] for at in places]
        below = {op: self._graph.descendants(op) for op in ops}
        for second, other in enumerate(ops):
            for op in ops[:second]:
                if self.bound >= reached or effort.left <= 0 or not effort.in_time:
                    return
                if op not in below[other] and other not in below[op]:
                    self.bound = max(self.bound, self._pair(op, other, effort))

    def _pair(self, op: int, other: int, effort: Effort) -> int:
        """Return the least that the worse of two steps takes, whichever comes first."""
        cases = []
        for first, second in ((op, other), (other, op)):
            earlier = self._at(first, effort, after=(second,))
            later = self._at(second, effort, before=(first,))
            cases.append(max(earlier, later))
            if cases[-1] <= self.bound:
                break
        return min(cases)


def _worst(graph: TaskGraph, order: Sequence[int]) -> list[int]:
    """Return the ops at whose steps an order needs most, far from one another."""
    steps, _, _ = trace(graph, order)
    apart = len(order) // _APART
    chosen: list[int] = []
    for at in sorted(range(len(steps)), key=lambda at: -steps[at])[: _APART * _OPS]:
        if all(abs(at - other) > apart for other in chosen):
            chosen.append(at)
    return [order[at] for at in chosen[:_OPS]]
