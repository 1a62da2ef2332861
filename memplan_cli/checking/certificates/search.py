"""Proofs by exhausted search: all states below a bound, and none in which everything has run.

A state is the set of groups that have not run yet. The proof lists all states that can be reached
without a step of ``bound`` bytes, each with the moves that lead on. A move runs some groups, and
every move that is not listed must need ``bound`` bytes at once. As no state has run everything, no
order stays below the bound. Two rules make the list shorter:

*Free* groups leave no more live than before and run below the bound. What a group adds can only
shrink as more groups run before it, so an order that runs it later can as well run it now. So a
state needs no other move than one of a single group that, with its free groups, leaves no more live
than before, if each free group waits for an earlier group of the move.

*Late* groups free nothing. They run only together with a group that waits for them.

A group is known by the number of one of its nodes: ``nodes`` of a `Move` are numbers of groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.checking.certificates.planned_graph import ProofError, require

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from memplan_cli.checking.certificates.groups import GroupGraph
    from memplan_cli.core.results.certificate import Move


@dataclass(frozen=True, slots=True)
class _State:
    """The groups that have not run yet, as a bit set, and the bytes live."""

    remaining: int
    live: int


class _PossibleMove(NamedTuple):
    """A move that a proof must list, unless it needs ``bound`` bytes.

    Attributes:
        late_groups: bit set of the late groups that run first.
        last_group: number of the group that waits for them.
        step_bytes: bytes of the highest step.
    """

    late_groups: int
    last_group: int
    step_bytes: int


def check_search(graph: GroupGraph, states: Sequence[Sequence[Move]], bound: int) -> None:
    """Check that the listed states are all that can be reached below a bound.

    ``states`` has the moves of each state, which lead to states with a higher index. State 0 has
    one move, from the start: it runs free groups only.

    Raises:
        ProofError: with the reason.
    """
    simulator = _OrderSimulator(graph, bound)
    require(states, "the search has no states")
    require(
        len(states[0]) == 1 and not states[0][0].nodes,
        "the search does not begin with one move without nodes",
    )
    require(graph.pinned_bytes < bound, "what is always live reaches the bound")
    reached: list[_State | None] = [None] * len(states)
    reached[0] = simulator.start
    for index, moves in enumerate(states):
        state, reached[index] = reached[index], None  # no later move leads here: free it
        title = f"state {index}"
        if state is None:
            raise ProofError(f"no move leads to {title}")
        require(
            not simulator.has_run_all(state), f"{title} has run everything below the bound"
        )
        results = [simulator.run_move(state, move, title) for move in moves]
        if index:
            require(all(move.nodes for move in moves), f"a move of {title} has no nodes")
            simulator.check_complete(state, moves, results, title)
        for move, result in zip(moves, results, strict=True):
            require(
                index < move.to < len(states),
                f"a move of {title} leads to an earlier state or to none",
            )
            target = reached[move.to]
            if target is None:
                reached[move.to] = result
            else:
                require(
                    target.remaining == result.remaining,
                    f"a move of {title} leads to another state",
                )


class _OrderSimulator:
    """Runs groups one after the other and computes the bytes of each step.

    Sets of groups are ints with one bit for each group, and one for the end of the block. Groups
    are passed by number, the key in ``graph.groups``.

    Attributes:
        start: the state in which no group has run.
        _bits: the bit of each group.
        _predecessors: the set of groups that must run before each group.
        _users: the set of groups, or the end of the block, that produce or read each tensor.
        _produced: the bytes that each group leaves for others.
        _late: groups that free nothing and need no more at their step than they leave live.
    """

    def __init__(self, graph: GroupGraph, bound: int) -> None:
        self._graph, self._bound = graph, bound
        self._bits = {number: 1 << index for index, number in enumerate(graph.groups)}
        self._end_bit = 1 << len(graph.groups)
        self._predecessors = {
            number: self._bit_set(group.predecessors) for number, group in graph.groups.items()
        }
        self._users = {tensor: self._bit_set(users) for tensor, users in graph.users.items()}
        self._produced = {number: graph.produced_bytes(number) for number in graph.groups}
        self._late = {
            number
            for number, group in graph.groups.items()
            if group.successors
            and graph.frees_nothing(number)
            and group.need <= self._produced[number]
        }
        self.start = _State((self._end_bit << 1) - 1, graph.pinned_bytes)

    def has_run_all(self, state: _State) -> bool:
        """Return whether no group remains. The end of the block never runs."""
        return state.remaining == self._end_bit

    def _bit_set(self, groups: Iterable[int]) -> int:
        """Return the bit set of some groups. A number of no group is the end of the block."""
        return sum(self._bits.get(group, self._end_bit) for group in groups)

    def _run_group(self, number: int, state: _State) -> tuple[int, _State]:
        """Return the bytes at the step of a group, and the state after it."""
        group, bit = self._graph.groups[number], self._bits[number]

        def ends(tensor: str) -> bool:
            return self._users[tensor] & state.remaining == bit

        need = group.need - (group.saved_bytes if any(map(ends, group.replaceable)) else 0)
        freed = sum(self._graph.sizes[tensor] for tensor in group.used if ends(tensor))
        live = state.live + self._produced[number] - freed
        return state.live + need, _State(state.remaining ^ bit, live)

    def run_move(self, state: _State, move: Move, title: str) -> _State:
        """Return the state after the groups of a move and its free groups, run from a state.

        After a free group no more bytes may be live than before it. ``title`` names the state in
        errors.

        Raises:
            ProofError: a group runs too early, reaches the bound, or is not free.
        """
        for index, number in enumerate((*move.nodes, *move.free)):
            require(
                self._is_ready(number, state.remaining),
                f"a move of {title} runs {number} too early",
            )
            step, after = self._run_group(number, state)
            require(step < self._bound, f"a move of {title} takes {step} bytes at {number}")
            require(
                index < len(move.nodes) or after.live <= state.live,
                f"a move of {title} has {number} as a free group, which leaves more live",
            )
            state = after
        return state

    def _is_ready(self, number: int, remaining: int) -> bool:
        """Return whether a group remains and all its predecessors have run."""
        is_remaining = bool(self._bits.get(number, 0) & remaining)
        return is_remaining and not self._predecessors[number] & remaining

    def check_complete(
        self, state: _State, moves: Sequence[Move], results: Sequence[_State], title: str
    ) -> None:
        """Check that a state has every move below the bound, or one that makes others needless.

        ``results`` are the states after the moves; ``title`` names the state in errors.

        Raises:
            ProofError: naming the missing move.
        """
        if len(moves) == 1 and self._needs_no_other(state, moves[0], results[0]):
            return
        # The late groups of each move, and the group that waits for them.
        listed = {(self._bit_set(move.nodes[:-1]), move.nodes[-1]) for move in moves}
        for move in self._possible_moves(state):
            require(
                move.step_bytes >= self._bound
                or (move.late_groups, move.last_group) in listed,
                f"{title} has no move for {move.last_group}, which takes {move.step_bytes} bytes",
            )

    def _needs_no_other(self, state: _State, move: Move, result: _State) -> bool:
        """Return whether any order below the bound, from this state on, can begin with a move.

        The move runs one group, leaves no more live, and each of its free groups waits for an
        earlier group of the move.
        """
        if len(move.nodes) != 1 or result.live > state.live:
            return False
        run = self._bits[move.nodes[0]]
        for number in move.free:
            if not self._predecessors[number] & run:
                return False
            run |= self._bits[number]
        return True

    def _possible_moves(self, state: _State) -> Iterator[_PossibleMove]:
        """Yield each group that is ready and not late, and each that waits for late groups only."""
        ready = [number for number in self._bits if self._is_ready(number, state.remaining)]
        late = [number for number in ready if number in self._late]
        for number in ready:
            if number not in self._late:
                step, _ = self._run_group(number, state)
                yield _PossibleMove(0, number, step)
        late_set = self._bit_set(late)
        waiting = {
            successor for number in late for successor in self._graph.groups[number].successors
        }
        for number in sorted(waiting):
            missing = self._predecessors[number] & state.remaining
            if missing & ~late_set:
                continue  # it also waits for groups that must run by moves of their own
            produced = sum(self._produced[n] for n in late if self._bits[n] & missing)
            # A late group needs no more than it leaves live: their highest step is `after_late.live`.
            after_late = _State(state.remaining & ~missing, state.live + produced)
            step, _ = self._run_group(number, after_late)
            yield _PossibleMove(missing, number, max(step, after_late.live))
