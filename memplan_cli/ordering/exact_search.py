"""Search over the sets of executed ops: best-first, and exhaustively for a witness.

A state is a set of ops that have run; a move runs more of them. What is live after a set of ops
does not depend on their order, so two ways to one set differ in their peaks alone. Best-first
search over these sets follows the dynamic programs of Serenity (Ahn et al., MLSys 2020) and
HMCOS (Wang et al., DAC 2022).

Two rules leave out moves without losing an optimum. They rest on the live bytes being a
submodular function of the set: the more has run, the less an op adds to what is live.

*Free*: an op that does not raise the live bytes, and whose step fits under the peak so far, runs
at once. (Take an order that runs it later and move it to the front: no step between gets larger.)

*Commit*: if an op, together with the free ops that depend on it, does not raise the live bytes
and all their steps fit, no other move is tried.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.core.results.certificate import Move

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memplan_cli.core.work_budget import WorkBudget
    from memplan_cli.ordering.task_graph import Order, TaskGraph

MOST_STATES = 50_000
"""The largest number of states of a search that is written down as a witness."""

MOST_ENTRIES = 2_000_000
"""The largest number of ops in all moves of a witness, some ten megabytes."""


@dataclass(frozen=True, slots=True)
class State:
    """A set of executed ops, and the way to it.

    Attributes:
        peak: most bytes live at one step on this way.
        remaining: bit mask of the ops that have not run, with the bit after the last op set.
        live: bytes live now.
        ready: the ops whose predecessors have all run.
        ran: the ops that ran since ``parent``, in order.
        parent: the state before.
    """

    peak: int
    remaining: int
    live: int
    ready: tuple[int, ...]
    ran: tuple[int, ...]
    parent: State | None

    def order(self) -> list[int]:
        """Return the executed ops in the order in which they ran."""
        parts = []
        state: State | None = self
        while state is not None:
            parts.append(state.ran)
            state = state.parent
        return [op for part in reversed(parts) for op in part]


class Transition(NamedTuple):
    """A move from one state to another.

    Attributes:
        op: the op that was chosen to run.
        after: the state after it and after the free ops that follow; its ``ran`` has all of them.
    """

    op: int
    after: State

    @property
    def free_ops(self) -> tuple[int, ...]:
        """The free ops that ran after the chosen one, in order."""
        return self.after.ran[1:]


class _FreeRun(NamedTuple):
    """What free ops leave behind.

    Attributes:
        remaining: bit mask of the ops that have not run.
        live: bytes live.
        ready: ops whose predecessors have run.
        ran: the free ops, in order.
    """

    remaining: int
    live: int
    ready: list[int]
    ran: list[int]


class StateSpace:
    """The states of one graph and the moves between them.

    Sets of ops are integers used as bit masks. The *users* of a tensor are the mask of all ops that
    access it (`_user_masks`). The tables have an entry for each op.

    Attributes:
        work: number of steps examined so far.
        _work_per_move: one step, and another for every 256 bits of the masks that a move copies.
        _bit: the mask of the op alone.
        _preds: the ops that it waits for.
        _all: all ops and the reader of the results (`_user_masks`).
        _accesses: the users and the bytes of each tensor that it accesses.
        _in_place_users: the users of each tensor that it may write over.
        _sharing_ops: the other ops that access one of its tensors.
        _descendants: the op and the ops that depend on it.
    """

    def __init__(self, graph: TaskGraph) -> None:
        """Make the tables of a graph whose ops are numbered topologically; one bit of a mask stands for an op."""
        size = graph.size
        self.work = 0
        self._work_per_move = 1 + size // 256  # a move copies masks of ``size`` bits
        self._succs = graph.succs
        self._step_bytes = graph.step_bytes
        self._in_place_bytes = graph.in_place_bytes
        self._defined_bytes = graph.defined_bytes
        self._initial_bytes = graph.initial_bytes
        self._bit = [1 << op for op in range(size)]
        self._preds = [sum(1 << pred for pred in preds) for preds in graph.preds]
        self._all = (1 << (size + 1)) - 1
        users = _user_masks(graph)  # with a bit for a reader of all results
        self._accesses = [
            tuple((users[tensor], graph.tensor_bytes[tensor]) for tensor in accessed)
            for accessed in graph.accesses
        ]
        self._in_place_users = [
            tuple(users[tensor] for tensor in row) for row in graph.in_place_inputs
        ]
        self._sharing_ops = _ops_with_common_tensors(graph)
        self._descendants = list(self._bit)
        for op in reversed(range(size)):  # the masks of successors are complete then
            for succ in self._succs[op]:
                self._descendants[op] |= self._descendants[succ]

    def initial_state(self, lowest_peak: int) -> State:
        """Return the state in which only free ops have run.

        Free ops do not raise the live bytes, so they run at once. The peak of the state is at
        least ``lowest_peak``: the search does not tell lower peaks apart.
        """
        peak = max(lowest_peak, self._initial_bytes)
        sources = tuple(op for op, preds in enumerate(self._preds) if not preds)
        free = self._run_free(
            remaining=self._all,
            live=self._initial_bytes,
            ready=list(sources),
            limit=peak,
            candidates=sources,
        )
        return State(
            peak=peak,
            remaining=free.remaining,
            live=free.live,
            ready=tuple(free.ready),
            ran=tuple(free.ran),
            parent=None,
        )

    def _step_and_change(self, op: int, remaining: int) -> tuple[int, int]:
        """Return what an op's step adds to the live bytes, and what remains added after it."""
        bit = self._bit[op]
        step, change = self._step_bytes[op], self._defined_bytes[op]
        # The last user of a tensor frees it, or writes over it.
        for users, size in self._accesses[op]:
            if users & remaining == bit:
                change -= size
        for users in self._in_place_users[op]:
            if users & remaining == bit:
                step -= self._in_place_bytes[op]
                break
        return step, change

    def _run_free(
        self,
        remaining: int,
        live: int,
        ready: list[int],
        limit: int,
        candidates: Iterable[int],
    ) -> _FreeRun:
        """Run ops that do not raise the live bytes, while their steps need at most ``limit``.

        Args:
            remaining: Bit mask of the ops that have not run.
            live: Bytes live now.
            ready: Ops whose predecessors have run; the list is changed.
            limit: The most bytes live at a step.
            candidates: The ops to try first; others are tried once ops have run.
        """
        ran: list[int] = []
        queue = list(candidates)
        while queue:
            op = queue.pop()
            if not remaining & self._bit[op] or self._preds[op] & remaining:
                continue
            self.work += 1
            step, change = self._step_and_change(op, remaining)
            if change > 0 or live + step > limit:
                continue
            remaining ^= self._bit[op]
            live += change
            ran.append(op)
            unblocked = [s for s in self._succs[op] if not self._preds[s] & remaining]
            ready += unblocked
            # With fewer live bytes, any ready op may fit now.
            queue = list(ready) if change else queue + unblocked + self._sharing_ops[op]
        if ran:
            ready = [op for op in ready if remaining & self._bit[op]]
        return _FreeRun(remaining, live, ready, ran)

    def transitions(self, state: State, limit: int) -> list[Transition]:
        """Return the moves to try, except those to a peak of ``limit`` or more.

        If an op with the free ops that depend on it raises neither peak nor live bytes, its move is
        the only one (the commit rule).
        """
        transitions = []
        for op in state.ready:
            child = self._after(state, op, limit)
            if child is None:
                continue
            if child.peak == state.peak and child.live <= state.live:
                ran = state.remaining ^ child.remaining
                others = ran & ~self._descendants[op]
                # The commit rule holds if all that ran depends on the op (or is the op itself). Any
                # other op could run before it in some order, and what it frees would be missing then.
                if not others:
                    return [Transition(op, child)]
            transitions.append(Transition(op, child))
        return transitions

    def _after(self, state: State, op: int, limit: int) -> State | None:
        """Return the state after an op and the free ops that follow.

        An op is free if it raises neither the live bytes nor the peak (`_run_free`). The result is None if
        the step of ``op`` needs ``limit`` bytes or more.
        """
        ready = [other for other in state.ready if other != op]
        self.work += 1 + self._work_per_move + len(ready) // 8  # to copy the list
        step, change = self._step_and_change(op, state.remaining)
        peak = max(state.peak, state.live + step)
        if peak >= limit:
            return None
        remaining = state.remaining ^ self._bit[op]
        live = state.live + change
        unblocked = [s for s in self._succs[op] if not self._preds[s] & remaining]
        ready += unblocked
        # Ops that may have become free: those that wait no longer, and those that access a tensor of ``op``,
        # because they may now be the first to need it or the last to read it. `_run_free` skips those
        # that are not ready or have run.
        candidates = [*unblocked, *self._sharing_ops[op]]
        if peak > state.peak or live < state.live:
            candidates = [*ready]  # any ready op may fit below the peak now
        free = self._run_free(remaining, live, ready, peak, candidates)
        return State(
            peak=peak,
            remaining=free.remaining,
            live=free.live,
            ready=tuple(free.ready),
            ran=(op, *free.ran),
            parent=state,
        )


def _user_masks(graph: TaskGraph) -> list[int]:
    """Return for each tensor the mask of the ops that access it.

    The bit after the last op stands for a reader of all results of the block that never runs. As the last
    user of a result, it keeps other ops from freeing the result.
    """
    reader_of_results = 1 << graph.size
    users = [reader_of_results if is_result else 0 for is_result in graph.is_result]
    for op, accessed in enumerate(graph.accesses):
        for tensor in accessed:
            users[tensor] |= 1 << op
    return users


def _ops_with_common_tensors(graph: TaskGraph) -> list[list[int]]:
    """Return for each op the other ops that access one of its tensors."""
    users: list[list[int]] = [[] for _ in graph.tensor_bytes]
    for op, accessed in enumerate(graph.accesses):
        for tensor in accessed:
            users[tensor].append(op)
    return [
        list(dict.fromkeys(user for t in accessed for user in users[t] if user != op))
        for op, accessed in enumerate(graph.accesses)
    ]


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The result of a best-first search.

    Attributes:
        order: an optimal order; None if there is none below the limit, or the search was cut
            short.
        bound: a lower bound on the peak of all orders, at most the limit.
    """

    order: Order | None
    bound: int


def best_first(graph: TaskGraph, bound: int, limit: int, budget: WorkBudget) -> SearchResult:
    """Return the order with the least peak among those with a peak below ``limit``.

    States are expanded by their peak, then by the number of remaining ops. The first state in
    which all ops have run is therefore an optimum, and the peak of the next state to expand is a
    bound at any time. Time and memory are exponential in the worst case.

    Args:
        graph: The ops.
        bound: A known lower bound on the peak; lower peaks are not told apart.
        limit: Only orders with a smaller peak are searched.
        budget: Spends a unit for each examined step. The search ends when the budget is over.
    """
    space = StateSpace(graph)
    first = space.initial_state(bound)
    best_peak = {first.remaining: first.peak}  # by the mask of the remaining ops
    # A heap of (peak, number of remaining ops, live bytes, count, state). The count is different for
    # each state, so states are never compared.
    queue: list[tuple[int, int, int, int, State]] = [(first.peak, 0, 0, 0, first)]
    count = spent = 0
    while queue:
        peak, _, _, _, state = heappop(queue)
        if best_peak[state.remaining] < peak:
            continue  # the same set was reached with a lower peak since
        if not state.ready:  # all ops have run
            return SearchResult(state.order(), peak)
        budget.spend(space.work - spent)
        spent = space.work
        if budget.is_over():
            return SearchResult(None, peak)
        for _, child in space.transitions(state, limit):
            if best_peak.get(child.remaining, limit) > child.peak:
                best_peak[child.remaining] = child.peak
                count += 1
                entry = (child.peak, child.remaining.bit_count(), child.live, count, child)
                heappush(queue, entry)
    # All states below the limit were expanded: no order is below it.
    return SearchResult(None, limit)


def states_below(graph: TaskGraph, bound: int) -> tuple[tuple[Move, ...], ...] | None:
    """Return the moves of all states that can be reached with a peak below ``bound``.

    This is the witness that no order has a peak below ``bound``. The first entry is the move to
    the initial state. Each other entry holds the moves of one state; a move names a state by its
    index, always a later one.

    Returns None if an order has a peak below the bound, if the search exceeds `MOST_STATES` or
    `MOST_ENTRIES`, or if the bytes live before the first op already reach the bound. (Then there is
    no state to list, and cuts show the bound.)
    """
    space = StateSpace(graph)
    # Peaks below the bound need not be told apart: all states get the highest of them.
    first = space.initial_state(lowest_peak=bound - 1)
    if first.peak >= bound:
        return None
    # Until all states are known, moves name a state by the mask of its remaining ops.
    moves_of: dict[int, list[Move]] = {first.remaining: []}
    states = [first]
    entries = 0
    for state in states:  # which grows while it is read
        if not state.ready:  # all ops have run
            return None
        for transition in space.transitions(state, bound):
            child = transition.after
            if child.remaining not in moves_of:
                moves_of[child.remaining] = []
                states.append(child)
            move = Move((transition.op,), transition.free_ops, to=child.remaining)
            moves_of[state.remaining].append(move)
            entries += len(child.ran)
        if len(states) > MOST_STATES or entries > MOST_ENTRIES:
            return None
    # A move lowers the number of remaining ops: sorted by it, all moves lead to later states.
    states.sort(key=lambda state: -state.remaining.bit_count())
    number = {state.remaining: index for index, state in enumerate(states, 1)}
    rows = [
        tuple(move._replace(to=number[move.to]) for move in moves_of[state.remaining])
        for state in states
    ]
    return ((Move((), first.ran, 1),), *rows)
