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
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from memplan_cli.transforms.ordering.graph import TaskGraph


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
