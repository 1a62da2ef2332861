"""Proofs by exhausted search: all states below a bound, and none in which every group has run.

A *state* is the set of groups that have not run yet, and the bytes live after the others. Groups are
named by number, as in `GroupGraph.groups`. Their steps, needs and savings are those of `groups`. A *move*
runs one group of a state and then free groups, and leads to another state.

*Free* groups run at the end of a move, below the bound, and leave no more live than before. What a
group adds to the live bytes, produced - freed, can only shrink if more groups run before it. So
any order can run a free group as early as that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan_cli.checking.certificates.planned_graph import ProofError, require

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from memplan_cli.checking.certificates.groups import GroupGraph
    from memplan_cli.core.results.certificate import Move


@dataclass(frozen=True, slots=True)
class _State:
    """The groups that have not run yet, as a bit set, and the bytes live."""

    remaining: int
    live: int


def check_search(graph: GroupGraph, states: Sequence[Sequence[Move]], bound: int) -> None:
    """Check by an exhausted search that every order of the groups has a step of ``bound`` bytes or more.

    A state is the set of groups that have not run yet; ``states`` has the moves of each state reached below the bound.
    A move runs one group (``move.nodes``), then *free* groups, and leads to a later state, ``states[move.to]``. A free
    group leaves no more bytes live than before it, so any order below the bound can run it at once.

    Raises:
        ProofError: the moves of a state are wrong or not complete, or all groups can run below the bound.
    """
    simulator = _OrderSimulator(graph, bound)
    require(states, "the search has no states")
    reached: list[_State | None] = [None] * len(states)
    reached[0] = simulator.start
    for index, moves in enumerate(states):
        state, reached[index] = reached[index], None  # no later move leads here: free it
        title = f"state {index}"
        if state is None:
            raise ProofError(f"no move leads to {title}")
        require(  # else an order ends below the bound
            not simulator.has_run_all(state), f"{title} has run everything below the bound"
        )
        results = [simulator.run_move(state, move, title) for move in moves]
        if index == 0:
            # Any order can begin with the groups that are free at the start. The move that runs these is enough.
            require(
                len(moves) == 1 and not moves[0].nodes,
                "the search does not begin with one move without nodes",
            )
        else:
            simulator.check_complete(state, moves, title)
        for move, result in zip(moves, results, strict=True):
            require(
                index < move.to < len(states),
                f"a move of {title} leads to an earlier state or to none",
            )
            target = reached[move.to]
            if target is None:
                reached[move.to] = result
            else:
                # An earlier move leads to this index too. Both must leave the same groups; the bytes live
                # are then equal, because they depend only on which groups have run.
                require(
                    target.remaining == result.remaining,
                    f"a move of {title} leads to another state",
                )


class _OrderSimulator:
    """Runs groups one after the other and computes the bytes of each step.

    Sets of groups are ints with one bit for each group, and one for the end of the block. Groups
    are passed by number, the key in ``graph.groups``.

    Attributes:
        start: the state in which no group has run. Only pinned tensors are live.
        _bits: the bit of each group, by number.
        _end_bit: the bit of the block's end, which is above those of all groups.
        _predecessors: the set of groups that must run before each group.
        _users: the set of groups, and of the end of the block, that produce or read each tensor.
        _produced: the bytes that each group produces for others.
    """

    def __init__(self, graph: GroupGraph, bound: int) -> None:
        """Prepare to run the groups of a graph in many orders, with less than ``bound`` bytes live at each step."""
        self._graph, self._bound = graph, bound
        self._bits = {number: 1 << index for index, number in enumerate(graph.groups)}
        # The bit of `BLOCK_END`, the last user of the block's outputs. It never runs, so they stay live.
        self._end_bit = 1 << len(graph.groups)
        self._predecessors = {
            number: self._bit_set(group.predecessors) for number, group in graph.groups.items()
        }
        self._users = {tensor: self._bit_set(users) for tensor, users in graph.users.items()}
        self._produced = {number: graph.produced_bytes(number) for number in graph.groups}
        self.start = _State(
            remaining=self._bit_set(graph.groups) | self._end_bit, live=graph.pinned_bytes
        )

    def has_run_all(self, state: _State) -> bool:
        """Return whether no group remains. The end of the block never runs."""
        return state.remaining == self._end_bit

    def _bit_set(self, groups: Iterable[int]) -> int:
        """Return the bit set of different groups. `BLOCK_END` is the bit of the block's end."""
        return sum(self._bits.get(group, self._end_bit) for group in groups)

    def _run_group(self, number: int, state: _State) -> tuple[int, _State]:
        """Return the bytes at the step of a group, and the state after it.

        The step needs the bytes live before it and ``group.need``: all bytes that the group allocates, its outputs
        included. Bytes are saved if the group can write its first output over one of the tensors that end here.
        """
        group, bit = self._graph.groups[number], self._bits[number]
        ending = {
            tensor
            for tensor in group.used
            if (self._users[tensor] & state.remaining) == bit  # the only user that remains
        }
        saving = group.saved_bytes if group.replaceable & ending else 0
        step_bytes = state.live + group.need - saving
        freed = sum(self._graph.sizes[tensor] for tensor in ending)
        live_after = state.live + self._produced[number] - freed
        return step_bytes, _State(state.remaining & ~bit, live_after)

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

    def check_complete(self, state: _State, moves: Sequence[Move], title: str) -> None:
        """Check that each move of a state runs one group, and each group that can run next below the bound has a move.

        ``move.nodes`` has the number of the group that a move runs. ``title`` names the state in errors.

        Raises:
            ProofError: a group has no move, or ``move.nodes`` has not one number.
        """
        require(
            all(len(move.nodes) == 1 for move in moves),
            f"a move of {title} has not one node",
        )
        groups_with_move = {number for move in moves for number in move.nodes}
        for number in self._graph.groups:
            if number not in groups_with_move and self._is_ready(number, state.remaining):
                step, _ = self._run_group(number, state)
                require(
                    step >= self._bound,
                    f"{title} has no move for {number}, which takes {step} bytes",
                )
