"""The sets of executed ops that a search walks through, and the moves between them.

Two moves need no choice, and leaving out the others loses no optimum. Both rest on the
bytes live after a set of ops being a submodular function of the set: what an op changes
can only become less, the more has run before it.

*Free*: an op that leaves no more live than there was, on a step that fits under the limit,
is run at once. (Take an order that runs it later and move it to the front: no step between
takes more.)

*Commit*: if an op, with the free moves that it alone enables, ends with no more live than
there was before it, and every step fits, then no other move need be tried.

*Late*: an op that frees nothing is run only just before an op that waits for it.

Best-first search over the sets of executed ops: the optimum, where it ends in time.

The exhausted search as data: every state that can be reached below a bound, and its moves.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from memplan_cli.core.results.certificate import Move

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from memplan_cli.ordering.task_graph import Order, TaskGraph


@dataclass(frozen=True, slots=True)
class State:
    """A set of executed ops, reached by the best way known.

    ``left`` is the set of the others; ``peak`` the most live on the way here; ``ran`` the
    ops executed since ``parent``.
    """

    peak: int
    left: int
    live: int
    ready: tuple[int, ...]
    ran: tuple[int, ...]
    parent: State | None

    def order(self) -> list[int]:
        """Return the ops executed, from the first."""
        parts = []
        state: State | None = self
        while state is not None:
            parts.append(state.ran)
            state = state.parent
        return [op for part in reversed(parts) for op in part]


class Space:
    """The states of one graph; sets of ops are integers, bit ``size`` never runs."""

    def __init__(self, graph: TaskGraph) -> None:
        size, weight = graph.size, graph.weight
        self._succs = graph.succs
        self._need = graph.need
        self._saved = graph.saved
        self._bit = [1 << op for op in range(size)]
        self._preds = [sum(1 << pred for pred in before) for before in graph.preds]
        users = [(1 << size) if outlives else 0 for outlives in graph.outlives]
        for op, touched in enumerate(graph.touches):
            for tensor in touched:
                users[tensor] |= 1 << op
        self._taken = graph.taken
        self._ends = [
            tuple((users[tensor], weight[tensor]) for tensor in touched)
            for touched in graph.touches
        ]
        self._swaps = [tuple(users[tensor] for tensor in r) for r in graph.replaces]
        self._near = _neighbours(graph)
        self._below = self._descendants()
        self._late = {
            op
            for op, touched in enumerate(graph.touches)
            if graph.succs[op]
            and not graph.replaces[op]
            and graph.need[op] <= self._taken[op]
            and all(t in graph.opens[op] or graph.outlives[t] for t in touched)
        }
        self._start = graph.start
        self.goal = 1 << size
        self._cost = 1 + size // 256
        self.work = 0
        """Steps looked at so far, the measure of effort."""

    def _descendants(self) -> list[int]:
        below = list(self._bit)
        for op in reversed(range(len(below))):
            for succ in self._succs[op]:
                below[op] |= below[succ]
        return below

    def first(self, floor: int) -> State:
        """Return the state in which nothing has run, its peak being at least ``floor``."""
        ready = tuple(op for op, preds in enumerate(self._preds) if not preds)
        left = 2 * self.goal - 1
        start = State(max(floor, self._start), left, self._start, ready, (), None)
        return self.closed(start)

    def closed(self, state: State) -> State:
        """Run what is free under the state's own peak."""
        left, live, ready, ran = self._close(
            state.left, state.live, list(state.ready), state.peak, state.ready
        )
        if not ran:
            return state
        return State(state.peak, left, live, tuple(ready), (*state.ran, *ran), state.parent)

    def _step(self, op: int, left: int) -> tuple[int, int]:
        """Return what an op takes while it runs, and what it changes."""
        bit = self._bit[op]
        need, change = self._need[op], self._taken[op]
        for users, weight in self._ends[op]:
            if users & left == bit:
                change -= weight
        for users in self._swaps[op]:
            if users & left == bit:
                need -= self._saved[op]
                break
        return need, change

    def _close(
        self, left: int, live: int, ready: list[int], limit: int, check: Iterable[int]
    ) -> tuple[int, int, list[int], list[int]]:
        ran: list[int] = []
        queue = list(check)
        while queue:
            op = queue.pop()
            if not left & self._bit[op] or self._preds[op] & left:
                continue
            self.work += 1
            need, change = self._step(op, left)
            if change > 0 or live + need > limit:
                continue
            left ^= self._bit[op]
            live += change
            ran.append(op)
            fresh = [s for s in self._succs[op] if not self._preds[s] & left]
            ready += fresh
            # With less live, what did not fit before may fit now.
            queue = list(ready) if change else queue + fresh + self._near[op]
        if ran:
            ready = [op for op in ready if left & self._bit[op]]
        return left, live, ready, ran

    def children(self, state: State, limit: int) -> list[State]:
        """Return the states to try next, their peaks below ``limit``."""
        return [child for _, child in self.ways(state, limit)]

    def ways(self, state: State, limit: int) -> list[tuple[tuple[int, ...], State]]:
        """Return the moves to try next, each with the state that it and free moves lead to."""
        found = []
        for move in self._moves(state):
            child = self._child(state, move, limit)
            if child is None:
                continue
            if len(move) == 1 and child.peak == state.peak and child.live <= state.live:
                gone = state.left ^ child.left
                if not gone & ~self._below[move[0]]:
                    return [(move, child)]
            found.append((move, child))
        return found

    def _moves(self, state: State) -> Iterator[tuple[int, ...]]:
        """Yield the ready ops, and for late ones the pairs that end with a reader."""
        late = [op for op in state.ready if op in self._late]
        if not late:
            yield from ((op,) for op in state.ready)
            return
        for op in state.ready:
            if op not in self._late:
                yield (op,)
        lates = sum(self._bit[op] for op in late)
        for reader in dict.fromkeys(s for op in late for s in self._succs[op]):
            missing = self._preds[reader] & state.left
            if not missing & ~lates:
                yield (*(op for op in late if missing & self._bit[op]), reader)

    def _child(self, state: State, move: tuple[int, ...], limit: int) -> State | None:
        left, live, peak = state.left, state.live, state.peak
        ready = [op for op in state.ready if op not in move]
        self.work += self._cost + len(ready) // 8
        check: list[int] = []
        for op in move:
            self.work += 1
            need, change = self._step(op, left)
            peak = max(peak, live + need)
            if peak >= limit:
                return None
            left ^= self._bit[op]
            live += change
            fresh = [s for s in self._succs[op] if not self._preds[s] & left and s not in move]
            ready += fresh
            check += fresh
            check += self._near[op]
        everything = peak > state.peak or live < state.live
        left, live, ready, ran = self._close(
            left, live, ready, peak, ready if everything else check
        )
        return State(peak, left, live, tuple(ready), (*move, *ran), state)


def _neighbours(graph: TaskGraph) -> list[list[int]]:
    """Return for each op those that read a tensor which it reads too."""
    users: list[list[int]] = [[] for _ in graph.weight]
    for op, touched in enumerate(graph.touches):
        for tensor in touched:
            users[tensor].append(op)
    return [
        list(dict.fromkeys(user for tensor in touched for user in users[tensor] if user != op))
        for op, touched in enumerate(graph.touches)
    ]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a search found.

    ``order`` is None where there is none below the limit, or the search was cut short;
    ``bound`` holds for all orders, as far as the limit: the search has seen every set of
    ops that can be reached with less.
    """

    order: Order | None
    bound: int


def best_first(
    graph: TaskGraph, bound: int, limit: int, keep_going: Callable[[int], bool]
) -> Outcome:
    """Search for the order with the least peak among those with a peak below ``limit``.

    States are expanded by their peak, then by the number of ops left, so that the first
    one that has run everything is an optimum, and what is at the head of the queue is a
    bound at any time. After Kahn et al.'s DP over downsets (Serenity, MLSys 2020) and
    HMCOS (DAC 2022), with the moves of `Space` that need no choice.

    Args:
        graph: The ops to order.
        bound: A proven bound on the peak.
        limit: Only orders with a smaller peak are of interest.
        keep_going: Asked with the work done so far, in steps looked at.
    """
    space = Space(graph)
    first = space.first(bound)
    known = {first.left: first.peak}
    queue: list[tuple[int, int, int, int, State]] = []
    heappush(queue, (first.peak, 0, 0, 0, first))
    count = 0
    while queue:
        peak, _, _, _, state = heappop(queue)
        if known[state.left] < peak:
            continue
        if not state.ready:
            return Outcome(state.order(), peak)
        if not keep_going(space.work):
            return Outcome(None, peak)
        for child in space.children(state, limit):
            if known.get(child.left, limit) > child.peak:
                known[child.left] = child.peak
                count += 1
                entry = (child.peak, child.left.bit_count(), child.live, count, child)
                heappush(queue, entry)
    return Outcome(None, limit)


def beam(
    graph: TaskGraph, bound: int, limit: int, width: int, keep_going: Callable[[int], bool]
) -> Order | None:
    """Return an order with a peak below ``limit``, or None if the beam loses its way.

    Of the states that have run equally many ops, the ``width`` with the least peak go on
    (peaks below ``bound`` count as equal: nothing is gained by them), of equals those
    with the least live.
    """
    space = Space(graph)
    first = space.first(bound)
    layers: dict[int, dict[int, State]] = {first.left.bit_count(): {first.left: first}}
    sizes = [-first.left.bit_count()]
    while sizes:
        layer = layers.pop(-heappop(sizes))
        best = sorted(layer.values(), key=lambda state: (state.peak, state.live, state.left))
        if not best[0].ready:
            return best[0].order()
        if not keep_going(space.work):
            return None
        for state in best[:width]:
            for child in space.children(state, limit):
                size = child.left.bit_count()
                if size not in layers:
                    layers[size] = {}
                    heappush(sizes, -size)
                known = layers[size].get(child.left)
                if known is None or child.peak < known.peak:
                    layers[size][child.left] = child
    return None


MOST_STATES = 50_000

"""A search that takes more is not written down."""

MOST_ENTRIES = 2_000_000

"""Nor is one whose moves name more ops, some ten megabytes."""


def exhausted(graph: TaskGraph, bound: int) -> tuple[tuple[Move, ...], ...] | None:
    """Return all states that a search below ``bound`` goes through, the first one first.

    None: there is an order below the bound, or the search takes too much.
    """
    space = Space(graph)
    # No step may take more than the bound allows; below that, no peak is worse than another.
    first = space.first(bound - 1)
    if first.peak >= bound:
        return None
    number = {first.left: 1}
    states: list[tuple[Move, ...]] = [(Move((), first.ran, 1),)]
    queue = [first]
    entries = 0
    for state in queue:
        if not state.ready:
            return None
        moves = []
        for way, child in space.ways(state, bound):
            if child.left not in number:
                number[child.left] = len(number) + 1
                queue.append(child)
            moves.append(Move(way, child.ran[len(way) :], number[child.left]))
            entries += len(child.ran)
        states.append(tuple(moves))
        if len(queue) > MOST_STATES or entries > MOST_ENTRIES:
            return None
    return _sorted(states, [0, *map(_left, queue)])


def _left(state: State) -> int:
    return state.left.bit_count()


def _sorted(states: list[tuple[Move, ...]], left: list[int]) -> tuple[tuple[Move, ...], ...]:
    """Return the states so that every move leads to a later one: by the ops that are left."""
    order = sorted(range(1, len(states)), key=lambda at: -left[at])
    number = {at: place for place, at in enumerate(order, 1)}
    return tuple(
        tuple(move._replace(to=number[move.to]) for move in states[at]) for at in (0, *order)
    )
