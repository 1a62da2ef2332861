"""Exact search for the lowest placement of one piece, with proof where the work suffices.

At one capacity the search is restarted with other orders of options and growing limits of work,
because the time to a solution varies by orders of magnitude with the order (Gomes, Selman and
Kautz, AAAI 1998). Restarts share the failed states, and the failures of each section: every other
restart branches first where the former ones failed. The lower bound is tried first, because a
tight capacity leaves the fewest options. If it is not reached, capacities are bisected.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from random import Random
from typing import TYPE_CHECKING

import numpy as np

from memplan_cli.packing.compiled import HAS_NUMBA, is_cached
from memplan_cli.packing.pieces import height_of
from memplan_cli.packing.search.depth_first import search
from memplan_cli.packing.search.state import (
    FAILED,
    OVERFLOWED,
    SOLVED,
    WORK,
    PieceArrays,
    SearchState,
    new_state,
    piece_arrays,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from memplan_cli.core.work_budget import WorkBudget
    from memplan_cli.packing.pieces import BestPlacement, Piece, Placement
    from memplan_cli.packing.search.state import Ints, Words

SLICE_WORK = 20_000_000 if HAS_NUMBA else 20_000
"""Units of work between two checks of the deadline, about a twentieth of a second."""

LEAST_RESTART_WORK = 1_000_000
"""Units of work that a restart gets at least."""


class Answer(Enum):
    """Whether a placement within some capacity exists."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class OptionOrder:
    """In which order the buffers are tried that can be placed at a section.

    Attributes:
        key: ``key(sections, size)``: buffers with smaller keys are tried first.
        level_bonus: Added to the preference for each wall that a buffer is level with.
    """

    key: Callable[[int, int], float]
    level_bonus: int


_LEVEL_FIRST = 1 << 30
"""A bonus larger than any rank: buffers that are level with a wall are tried first."""

_OPTION_ORDERS = (
    OptionOrder(lambda _sections, size: -size, 0),
    OptionOrder(lambda _sections, size: size, 0),
    OptionOrder(lambda sections, _size: -sections, _LEVEL_FIRST),
    OptionOrder(lambda sections, size: -sections * size, _LEVEL_FIRST),
    OptionOrder(lambda _sections, size: -size, _LEVEL_FIRST),
    OptionOrder(lambda sections, _size: -sections, 0),
    OptionOrder(lambda sections, size: -sections * size, 0),
)
"""The orders of the first restarts; later ones repeat them with random changes."""

_NOISE = 0.17
"""Share of all places by which a buffer's place is changed at most, before all are sorted again."""

_WEIGHED_EVERY = 2
"""Of the restarts with random changes, one in so many weighs sections by their failures."""


@dataclass(slots=True)
class Searcher:
    """The search for one piece; failed states and failures are kept from call to call.

    Attributes:
        piece: The piece.
        arrays: Its buffers, sorted.
        columns: For each entry of the arrays, the buffer's index in the columns of the piece.
        _failed: Hash table of the states without a solution (`SearchState.failed`).
        _failures: Failures of each section, plus one (`SearchState.failures`).
    """

    piece: Piece
    arrays: PieceArrays = field(init=False)
    columns: list[int] = field(init=False)
    _failed: Words = field(init=False)
    _failures: Ints = field(init=False)

    def __post_init__(self) -> None:
        self.arrays, self.columns = piece_arrays(self.piece)
        self._failed = np.zeros(1 << 19, np.uint64)
        self._failures = np.ones(len(self.arrays.load), np.int64)

    def fit(self, capacity: int, budget: WorkBudget) -> tuple[Answer, Placement]:
        """Return whether the piece fits into ``capacity`` units, and the placement if it does.

        The answer is UNKNOWN if the budget is over first; the work done is spent from it.
        """
        if capacity < self.piece.load:  # no layout is lower than the load
            return Answer.NO, ()
        # Each restart has the work to place all buffers, and more once all orders were tried. A step places
        # one buffer, and examines each buffer about twice and each section about six times.
        sections, buffers = len(self.arrays.load), len(self.arrays.size)
        step_work = 2 * buffers + 6 * sections
        placing_work = 2 * buffers * step_work  # twice, because some steps are taken back
        restart = 0
        while not budget.is_over():
            growth = 1 + restart // len(_OPTION_ORDERS)
            work = max(LEAST_RESTART_WORK, placing_work) * growth
            answer, placement = self._search_once(capacity, restart, budget.part(work))
            if answer is not Answer.UNKNOWN:
                return answer, placement
            restart += 1
        return Answer.UNKNOWN, ()

    def _search_once(
        self, capacity: int, restart: int, budget: WorkBudget
    ) -> tuple[Answer, Placement]:
        """Search for a placement within ``capacity`` units, in the way of one restart.

        Each step of the search chooses a section, and tries its options: the buffers that can be placed there.
        Restarts differ in the order of options. States without a solution, and the number of dead ends of
        each section, are kept for later restarts. The answer is UNKNOWN if the budget is over, or a stack is full.
        """
        state = new_state(self.arrays, self._failed, self._failures)
        option_order = _OPTION_ORDERS[restart % len(_OPTION_ORDERS)]
        rank = self._rank(option_order, restart)
        level_bonus = option_order.level_bonus
        # After one restart for each order, the orders are changed at random (`_rank`). Then every other restart
        # prefers sections with many dead ends.
        noisy_restart = restart - len(_OPTION_ORDERS)
        weigh_failures = int(noisy_restart >= 0 and noisy_restart % _WEIGHED_EVERY == 0)
        while not budget.is_over():
            # A slice of work at a time, so that the deadline is kept.
            allowed = min(SLICE_WORK, budget.remaining)
            state.registers[WORK] = allowed
            with np.errstate(over="ignore"):  # hashes wrap around; without numba, numpy warns
                result = search(
                    self.arrays, state, capacity, rank, level_bonus, weigh_failures
                )
            budget.spend(allowed - int(state.registers[WORK]))
            if result == SOLVED:
                return Answer.YES, self._placement(state)
            if result == FAILED:
                return Answer.NO, ()
            if result == OVERFLOWED:
                return Answer.UNKNOWN, ()
            # Else UNFINISHED: the slice is used up, and the next one continues the search.
        return Answer.UNKNOWN, ()

    def _rank(self, option_order: OptionOrder, restart: int) -> Ints:
        """Return for each buffer its place among all, the first to be tried being 0.

        The first restarts try each order once as it is. In later ones, the place of each buffer is changed
        at random, by at most the share `_NOISE` of all places, and then buffers are sorted by it.
        """
        arrays = self.arrays
        buffers = len(arrays.size)
        keys = [
            option_order.key(int(end - start), int(size))
            for start, end, size in zip(arrays.start, arrays.end, arrays.size, strict=True)
        ]
        order = sorted(range(buffers), key=lambda i: (keys[i], i))
        if restart >= len(_OPTION_ORDERS):
            generator = Random(restart)  # noqa: S311 - no secret: the same for every run
            reach = _NOISE * buffers
            noisy = [place + generator.uniform(-reach, reach) for place in range(buffers)]
            order = [order[place] for place in sorted(range(buffers), key=noisy.__getitem__)]
        rank = np.empty(buffers, np.int64)
        rank[order] = np.arange(buffers)
        return rank

    def _placement(self, state: SearchState) -> Placement:
        """Return the offsets of a solved state, in the order of the piece's columns."""
        offsets = [0] * len(self.columns)
        for row, column in enumerate(self.columns):
            offsets[column] = int(state.offset[row])
        return tuple(offsets)


def is_compiled() -> bool:
    """Return whether this machine has compiled the search, which takes some ten seconds, or never will."""
    return not HAS_NUMBA or is_cached(search)


def try_bound(searcher: Searcher, best: BestPlacement, budget: WorkBudget) -> BestPlacement:
    """Return the placement improved by a search at its bound, with a tenth of the work."""
    return _try_capacity(searcher, best.bound, best, budget, share=0.1)


def shrink(searcher: Searcher, best: BestPlacement, budget: WorkBudget) -> BestPlacement:
    """Return a placement lowered towards its bound or the target height, as the work allows.

    The target height and the bound are tried first. Then the capacities between the bound and the height
    are bisected. A try lowers the height, raises the bound, or ends without an answer when its share of
    the remaining work is spent; then only higher capacities are tried.
    """
    for capacity in (best.target_height, best.bound):
        if not best.may_stop(budget) and best.bound <= capacity < best.height:
            best = _try_capacity(searcher, capacity, best, budget, share=0.5)
    low = best.bound  # the lowest capacity that may be tried
    while not best.may_stop(budget) and low < best.height:
        capacity = (low + best.height) // 2
        best = _try_capacity(searcher, capacity, best, budget, share=0.3)
        if best.height > capacity:  # no placement was found
            low = capacity + 1
    return best


def _try_capacity(
    searcher: Searcher, capacity: int, best: BestPlacement, budget: WorkBudget, *, share: float
) -> BestPlacement:
    """Return ``best`` with a lower placement or a higher bound, if one capacity shows either.

    Spends at most ``share`` of the remaining budget.
    """
    answer, placement = searcher.fit(capacity, budget.share(share))
    if answer is Answer.YES:
        return replace(best, placement=placement, height=height_of(searcher.piece, placement))
    if answer is Answer.NO:
        return replace(best, bound=max(best.bound, capacity + 1))
    return best
