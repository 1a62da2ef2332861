"""An exhausted search: states that are sets of groups that ran, and all ways on from each.

A certificate lists the states that can be reached without a step of ``bound`` bytes. From each
the moves that lead on are given; every other one must break the bound at once. None of the
states has run everything, so no order stays below the bound. Two things spare moves:

*Free*: a group that leaves no more live than there was, on a step within the bound, may be run
at once. What a group changes can only become less the more has run before it, so any order
that runs it later can run it now. A move with the free groups behind it that leaves no more
live than there was before the move is the only one that is needed, if each of them waits for
one before it in the move.

*Late*: a group that frees nothing is run only together with a group that waits for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan_cli.checking.certificates.fusions import is_late
from memplan_cli.checking.certificates.refused import refuse_unless

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from memplan_cli.checking.certificates.tasks import Tasks
    from memplan_cli.core.results.certificate import Move


@dataclass(slots=True)
class _State:
    """What has not run yet, as a set of bits, and the bytes live."""

    left: int
    live: int


def check_states(tasks: Tasks, states: Sequence[Sequence[Move]], bound: int) -> None:
    """Refuse states that are not all that can be reached below a bound.

    Raises:
        RefusedError: with the reason.
    """
    walk = _Walk(tasks, bound)
    refuse_unless(states, "the search has no states")
    refuse_unless(
        len(states[0]) == 1 and not states[0][0].nodes, "the search has no beginning"
    )
    known: list[_State | None] = [None] * len(states)
    known[0] = walk.start
    refuse_unless(tasks.always < bound, "what is always live reaches the bound")
    for at, moves in enumerate(states):
        state, known[at] = known[at], None
        refuse_unless(state is not None, f"no move leads to state {at}")
        assert state is not None  # noqa: S101 - for the type checker
        refuse_unless(
            not walk.has_run_all(state), f"state {at} has run everything below the bound"
        )
        ends = [walk.run(state, move, f"state {at}") for move in moves]
        if at:
            refuse_unless(all(m.nodes for m in moves), f"a move of state {at} has no nodes")
            walk.check_all_there(state, moves, ends, f"state {at}")
        for move, end in zip(moves, ends, strict=True):
            refuse_unless(
                at < move.to < len(states), f"a move of state {at} leads back, or nowhere"
            )
            target = known[move.to]
            if target is None:
                known[move.to] = end
            else:
                refuse_unless(
                    target.left == end.left, f"a move of state {at} leads to another state"
                )


class _Walk:
    """Runs groups, each on its step, and says what that takes."""

    def __init__(self, tasks: Tasks, bound: int) -> None:
        self._tasks, self._bound = tasks, bound
        self._bit = {group: 1 << at for at, group in enumerate(tasks.groups)}
        self._bit_of_end = 1 << len(tasks.groups)
        self._preds = {g: self._set(t.preds) for g, t in tasks.groups.items()}
        self._users = {t: self._set(users) for t, users in tasks.users.items()}
        self._taken = {group: tasks.taken(group) for group in tasks.groups}
        self._late = {
            group
            for group, task in tasks.groups.items()
            if task.succs and is_late(tasks, group) and task.need <= self._taken[group]
        }
        self._ready_from: list[int] = list(tasks.groups)
        self.start = _State((self._bit_of_end << 1) - 1, tasks.always)

    def has_run_all(self, state: _State) -> bool:
        """Whether no group is left; the end, which keeps what the block gives, never runs."""
        return state.left == self._bit_of_end

    def _set(self, groups: Iterable[int]) -> int:
        return sum(self._bit.get(group, self._bit_of_end) for group in groups)

    def _step(self, group: int, state: _State) -> tuple[int, int]:
        """Return what is live at a group's step, and what it changes."""
        task, bit = self._tasks.groups[group], self._bit[group]
        need, change = task.need, self._taken[group]
        for tensor in task.touches:
            if self._users[tensor] & state.left == bit:
                change -= self._tasks.weight[tensor]
        if any(self._users[tensor] & state.left == bit for tensor in task.replaces):
            need -= task.saved
        return state.live + need, change

    def run(self, state: _State, move: Move, where: str) -> _State:
        """Return the state after a move.

        Raises:
            RefusedError: it cannot be made, or takes more than is said.
        """
        now = _State(state.left, state.live)
        for at, group in enumerate((*move.nodes, *move.free)):
            refuse_unless(
                self._is_ready(group, now.left), f"a move of {where} runs {group} too early"
            )
            step, change = self._step(group, now)
            refuse_unless(
                step < self._bound, f"a move of {where} takes {step} bytes at {group}"
            )
            refuse_unless(
                at < len(move.nodes) or change <= 0,
                f"a move of {where} has {group} for free, which leaves more live",
            )
            now.left ^= self._bit[group]
            now.live += change
        return now

    def _is_ready(self, group: int, left: int) -> bool:
        return bool(self._bit.get(group, 0) & left) and not self._preds[group] & left

    def check_all_there(
        self, state: _State, moves: Sequence[Move], ends: Sequence[_State], where: str
    ) -> None:
        """Refuse a state from which another move would stay below the bound.

        Raises:
            RefusedError: naming the move.
        """
        if len(moves) == 1 and self._is_enough(state, moves[0], ends[0]):
            return
        given = {(self._set(move.nodes[:-1]), move.nodes[-1]) for move in moves}
        for late, group, step in self._ways(state):
            refuse_unless(
                step >= self._bound or (late, group) in given,
                f"{where} has no move for {group}, which takes {step} bytes",
            )

    def _is_enough(self, state: _State, move: Move, end: _State) -> bool:
        """Whether any order that goes on can begin with this move."""
        if len(move.nodes) != 1 or end.live > state.live:
            return False
        ran = 0
        for group in (*move.nodes, *move.free):
            if ran and not self._preds[group] & ran:
                return False
            ran |= self._bit[group]
        return True

    def _ways(self, state: _State) -> Iterator[tuple[int, int, int]]:
        """Yield the moves that there are: the late groups before it, a group, and its step."""
        ready = [group for group in self._bit if self._is_ready(group, state.left)]
        late = [group for group in ready if group in self._late]
        for group in ready:
            if group not in self._late:
                yield 0, group, self._step(group, state)[0]
        lates = self._set(late)
        waiting = {succ for group in late for succ in self._tasks.groups[group].succs}
        for group in sorted(waiting):
            missing = self._preds[group] & state.left
            if missing & ~lates:
                continue
            before = [each for each in late if self._bit[each] & missing]
            live = state.live + sum(self._taken[each] for each in before)
            now = _State(state.left & ~missing, live)
            yield missing, group, max(self._step(group, now)[0], live)
