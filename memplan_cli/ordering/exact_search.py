"""Search over the sets of executed ops: best-first, and exhaustively for a witness.

A state is a set of ops that have run; a move runs more of them. What is live after a set of ops
does not depend on their order, so two ways to one set differ in their peaks alone. Best-first
search over these sets follows the dynamic programs of Serenity (Ahn et al., MLSys 2020) and
HMCOS (Wang et al., DAC 2022).

A move runs one op, and then all *free* ops: those that do not raise the live bytes, and whose step
fits under the peak so far. That loses no optimum: in an order that runs a free op later, moving it
to the front makes no step between larger. (The live bytes are a submodular function of the set: the
more has run, the less an op adds to what is live.)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from memplan_cli.core.results.certificate import Move

if TYPE_CHECKING:
    from memplan_cli.core.work_budget import WorkBudget
    from memplan_cli.ordering.task_graph import OpIndex, Order, TaskGraph

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
        ran: the ops that ran since ``parent``, in order: the one that the move chose, then the free
            ops, which are run at once because they raise neither the live bytes nor the peak.
        parent: the state before.
    """

    peak: int
    remaining: int
    live: int
    ready: tuple[OpIndex, ...]
    ran: tuple[OpIndex, ...]
    parent: State | None

    def order(self) -> Order:
        """Return the executed ops in the order in which they ran."""
        parts = []
        state: State | None = self
        while state is not None:
            parts.append(state.ran)
            state = state.parent
        return [op for part in reversed(parts) for op in part]


class StateSpace:
    """The states of one graph and the moves between them.

    Sets of ops are integers used as bit masks. The *users* of a tensor are the mask of all ops that
    access it (`_user_masks`). The tables have an entry for each op.

    Attributes:
        work: ops examined so far, and more for each move in a large graph.
    """

    def __init__(self, graph: TaskGraph) -> None:
        """Make the tables that a move of the search reads; the entry at index ``op`` is about that op.

        A set of ops is a mask: an int in which bit ``i`` stands for op ``i``.
        """
        size = graph.size
        self.work = 0  # grows with each op that is examined; the search has a limit on it
        self._work_per_move = 1 + size // 256  # a move also copies masks of ``size`` bits
        self._succs = graph.succs
        self._step_bytes = graph.step_bytes  # during the op's step, beyond those live before
        self._in_place_bytes = graph.in_place_bytes  # of these, saved by writing over an input
        self._defined_bytes = graph.defined_bytes  # of the tensors that the op defines
        self._initial_bytes = graph.initial_bytes  # one number: live before the first op
        self._bit = [1 << op for op in range(size)]
        # The mask of the ops that must run before.
        self._preds = [sum(1 << pred for pred in preds) for preds in graph.preds]
        # Bit ``size`` stands for the caller of the block, which uses the results and never runs.
        self._ops_and_caller = (1 << (size + 1)) - 1
        users = _user_masks(graph)  # of each tensor
        # The users and the bytes of each tensor that the op accesses: the last user frees the tensor.
        self._accesses = [
            tuple((users[tensor], graph.tensor_bytes[tensor]) for tensor in accessed)
            for accessed in graph.accesses
        ]
        # The users of each tensor that the op may write its output over, if it is the last user.
        self._in_place_users = [
            tuple(users[tensor] for tensor in row) for row in graph.in_place_inputs
        ]

    def initial_state(self, lowest_peak: int) -> State:
        """Return the state before the first move, in which only free ops have run.

        Free ops raise neither the live bytes nor the peak. A lower peak than ``lowest_peak`` is replaced by
        ``lowest_peak``, as the search does not tell them apart.
        """
        # The mask with the bit of each op, and of the caller of the block, which never runs.
        remaining = self._ops_and_caller
        live = self._initial_bytes
        peak = max(lowest_peak, live)
        ready = tuple(op for op, preds in enumerate(self._preds) if not preds)
        nothing_ran = State(peak, remaining, live, ready, ran=(), parent=None)
        return self._with_free_ops(nothing_ran)

    def _added_bytes(self, op: OpIndex, remaining: int) -> tuple[int, int]:
        """Return the bytes that an op adds to the live bytes during its step, and those it adds after the step.

        The second number is negative if the op frees more bytes than it defines. ``remaining`` is the mask of
        the ops that have not run, ``op`` among them.
        """
        bit = self._bit[op]
        added_during, added_after = self._step_bytes[op], self._defined_bytes[op]
        for users, size in self._accesses[op]:
            if users & remaining == bit:  # the last user of a tensor frees it
                added_after -= size
        # The first output takes the place of one of the tensors that end here.
        if any(users & remaining == bit for users in self._in_place_users[op]):
            added_during -= self._in_place_bytes[op]
        return added_during, added_after

    def _with_free_ops(self, state: State) -> State:
        """Return a state after all free ops have run too: those that raise neither its live bytes nor its peak."""
        remaining, live = state.remaining, state.live
        ready, ran = list(state.ready), list(state.ran)
        candidates = list(ready)
        while candidates:
            op = candidates.pop()
            self.work += 1
            added_during, added_after = self._added_bytes(op, remaining)
            if added_after > 0 or live + added_during > state.peak:
                continue
            remaining ^= self._bit[op]
            live += added_after
            ran.append(op)
            ready.remove(op)
            ready += self._unblocked(op, remaining)
            candidates = list(ready)  # any ready op may be free now
        return replace(
            state, remaining=remaining, live=live, ready=tuple(ready), ran=tuple(ran)
        )

    def _unblocked(self, op: OpIndex, remaining: int) -> list[OpIndex]:
        """Return the ops that wait for no other op once ``op`` has run; it is not in ``remaining``."""
        return [succ for succ in self._succs[op] if not self._preds[succ] & remaining]

    def transitions(self, state: State, limit: int) -> list[State]:
        """Return the state after the move of each ready op, except those with a peak of ``limit`` or more."""
        children = [self._after(state, op, limit) for op in state.ready]
        return [child for child in children if child is not None]

    def _after(self, state: State, op: OpIndex, limit: int) -> State | None:
        """Return the state after an op, and after the free ops that can run then; None if the peak is too high.

        That is a peak of ``limit`` or more. The free ops do not raise it.
        """
        self.work += 1 + self._work_per_move + len(state.ready) // 8  # to copy ``ready``
        added_during, added_after = self._added_bytes(op, state.remaining)
        peak = max(state.peak, state.live + added_during)
        if peak >= limit:
            return None
        remaining = state.remaining ^ self._bit[op]
        ready = [other for other in state.ready if other != op]
        ready += self._unblocked(op, remaining)
        live = state.live + added_after
        after = State(peak, remaining, live, tuple(ready), (op,), parent=state)
        return self._with_free_ops(after)


def _user_masks(graph: TaskGraph) -> list[int]:
    """Return for each tensor the mask of the ops that access it.

    A result of the block has one more user: the bit after the last op, which stands for the caller of the
    block and never runs. So no op is the last user of a result, and none frees it.
    """
    caller = 1 << graph.size
    users = [caller if is_result else 0 for is_result in graph.is_result]
    for op, accessed in enumerate(graph.accesses):
        for tensor in accessed:
            users[tensor] |= 1 << op
    return users


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
    # each state, so states are never compared. The first entry is alone: only its peak matters.
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
        for child in space.transitions(state, limit):
            if best_peak.get(child.remaining, limit) > child.peak:
                best_peak[child.remaining] = child.peak
                count += 1
                entry = (child.peak, child.remaining.bit_count(), child.live, count, child)
                heappush(queue, entry)
    # All states below the limit were expanded: no order is below it.
    return SearchResult(None, limit)


def states_below(graph: TaskGraph, bound: int) -> tuple[tuple[Move, ...], ...] | None:
    """Return the moves of all states that can be reached with a peak below ``bound``, if these prove the bound.

    A state is a set of ops that have run. If none of these states has run all ops, no order has a peak below
    ``bound``. The result is None if an order has, if the bytes that are live before the first op reach the bound,
    or if the search exceeds `MOST_STATES` or `MOST_ENTRIES`.

    Returns:
        A row for each state with its moves, after a first row with the move to the initial state. A move has
        the op that is chosen, the free ops that run at once after it (they raise neither the live bytes nor
        the peak), and the index of the row of the state that it leads to.
    """
    space = StateSpace(graph)
    # The lowest peaks need not be found: all states get the highest peak below the bound, so that a set of ops
    # is one state, however it is reached.
    first = space.initial_state(lowest_peak=bound - 1)
    if first.peak >= bound:  # by the bytes live before the first op: no state to list
        return None
    # Until all states are known, moves name a state by the mask of its remaining ops.
    moves_of: dict[int, list[Move]] = {first.remaining: []}
    states = [first]
    entries = 0
    for state in states:  # which grows while it is read
        if not state.ready:  # all ops have run
            return None
        for child in space.transitions(state, bound):
            if child.remaining not in moves_of:
                moves_of[child.remaining] = []
                states.append(child)
            chosen, *free = child.ran
            move = Move(nodes=(chosen,), free=tuple(free), to=child.remaining)
            moves_of[state.remaining].append(move)
            entries += len(child.ran)  # the ops that the move lists
        if len(states) > MOST_STATES or entries > MOST_ENTRIES:
            return None
    # A move lowers the number of remaining ops: sorted by it, all moves lead to later states.
    states.sort(key=lambda state: -state.remaining.bit_count())
    number = {state.remaining: index for index, state in enumerate(states, 1)}  # after row 0
    rows = [
        tuple(move._replace(to=number[move.to]) for move in moves_of[state.remaining])
        for state in states
    ]
    first_move = Move(nodes=(), free=first.ran, to=1)
    return ((first_move,), *rows)
