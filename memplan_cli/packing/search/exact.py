"""Exact search for the shortest arena of one piece, with proof where the work allows.

At one capacity the search is restarted with other orders of trying and growing limits,
because the time to a solution varies by orders of magnitude with luck (Gomes et al. 1998);
failed states are remembered across restarts, and so is where tries have ended, for every
other restart to begin with. The lower bound is tried first: a tight capacity leaves the fewest
options. If it cannot be reached, capacities are bisected.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from itertools import count
from random import Random
from typing import TYPE_CHECKING

import numpy as np

from memplan_cli.core.problem import BufferId
from memplan_cli.packing.budget import BestPlacement, Budget
from memplan_cli.packing.compiled import is_kept
from memplan_cli.packing.pieces import Piece, height_of
from memplan_cli.packing.search.board import (
    FAILED,
    OVERFLOWED,
    SOLVED,
    WORK,
    Board,
    State,
    board_of,
    lift,
    new_state,
    put,
    undo,
)
from memplan_cli.packing.search.depth_first import search
from memplan_cli.packing.search.valleys import (
    basin_overflows,
    could_drop,
    count_inside,
    find_valleys,
    split,
    tightest_section,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from memplan_cli.packing.pieces import Placement
    from memplan_cli.packing.search.board import Ints

SLICE = 20_000_000
"""Work between two looks at the clock, about a twentieth of a second."""

FEWEST = 1_000_000
"""The least work worth a restart."""


class Answer(Enum):
    """Whether a layout of some height exists."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Taste:
    """Which buffers are tried first: by a key, smoothing or not, with how much chance."""

    key: Callable[[int, int], float]
    touch: int
    noise: float = 0.0


_SMOOTH = 1 << 30
_TASTES = (
    Taste(lambda _length, size: -size, 0),
    Taste(lambda _length, size: size, 0),
    Taste(lambda length, _size: -length, _SMOOTH),
    Taste(lambda length, size: -length * size, _SMOOTH),
    Taste(lambda _length, size: -size, _SMOOTH),
    Taste(lambda length, _size: -length, 0),
    Taste(lambda length, size: -length * size, 0),
)
_NOISE = 0.17
_BLAMING = 2
"""One in so many restarts, once all tastes were tried, asks first where tries have ended."""


@dataclass(slots=True)
class Searcher:
    """The search for one piece; it remembers failed states from call to call."""

    piece: Piece
    board: Board = field(init=False)
    columns: list[int] = field(init=False)
    _room: int = field(init=False)
    _failed: np.ndarray[tuple[int], np.dtype[np.uint64]] = field(init=False)
    _blame: Ints = field(init=False)

    def __post_init__(self) -> None:
        self.board, self.columns = board_of(self.piece)
        self._room = 256 * (len(self.board.size) + len(self.board.load)) + 1000
        self._failed = np.zeros(1 << 19, np.uint64)
        self._blame = np.ones(len(self.board.load), np.int64)

    def fit(self, capacity: int, budget: Budget) -> tuple[Answer, Placement]:
        """Say whether the piece fits into ``capacity`` units; if so, how."""
        if capacity < self.piece.load:
            return Answer.NO, ()
        sections, buffers = len(self.board.load), len(self.board.size)
        dive = 2 * buffers * (2 * buffers + 6 * sections)
        for turn in count():
            if budget.is_over():
                return Answer.UNKNOWN, ()
            limit = max(FEWEST, dive) * (1 + turn // len(_TASTES))
            answer, placement = self._try(capacity, turn, Budget(limit), budget)
            if answer is not Answer.UNKNOWN:
                return answer, placement
        raise AssertionError  # pragma: no cover - count() does not end

    def _try(
        self, capacity: int, turn: int, limit: Budget, budget: Budget
    ) -> tuple[Answer, Placement]:
        state = new_state(self.board, self._failed, self._blame, self._room)
        rank, touch = self._rank(turn)
        later = turn - len(_TASTES)
        blaming = int(later >= 0 and later % _BLAMING == 0)
        while not (limit.is_over() or budget.is_over()):
            allowed = min(SLICE, limit.work - limit.spent, budget.work - budget.spent)
            state.registers[WORK] = allowed
            mode = search(self.board, state, capacity, rank, touch, blaming)
            used = allowed - int(state.registers[WORK])
            limit.charge(used)
            budget.charge(used)
            if mode == SOLVED:
                return Answer.YES, self._placement(state)
            if mode == FAILED:
                return Answer.NO, ()
            if mode == OVERFLOWED:
                self._room *= 4  # for the next restart; holes may be lifted many times
                break
        return Answer.UNKNOWN, ()

    def _rank(self, turn: int) -> tuple[Ints, int]:
        taste = _TASTES[turn % len(_TASTES)]
        board = self.board
        buffers = len(board.size)
        keys = [
            taste.key(int(e - s), int(z))
            for s, e, z in zip(board.start, board.end, board.size, strict=True)
        ]
        order = sorted(range(buffers), key=lambda i: (keys[i], i))
        if turn >= len(_TASTES):
            chance = Random(turn)  # noqa: S311 - no secret: chance that can be repeated
            reach = _NOISE * buffers
            moved = [place + chance.uniform(-reach, reach) for place in range(buffers)]
            order = [order[place] for place in sorted(range(buffers), key=moved.__getitem__)]
        rank = np.empty(buffers, np.int64)
        rank[order] = np.arange(buffers)
        return rank, taste.touch

    def _placement(self, state: State) -> Placement:
        offsets = [0] * len(self.columns)
        for row, column in enumerate(self.columns):
            offsets[column] = int(state.offset[row])
        return tuple(offsets)


@cache
def prepare(progress: Callable[[str], None]) -> None:
    """Load the compiled loops; on a new machine they are compiled, which takes seconds.

    Then they are called one by one on a board of one buffer, so that progress can be shown.
    """
    if is_kept(search):
        return
    board, _ = board_of(Piece((BufferId("x"),), (0,), (1,), (1,), (1,)))
    state = new_state(board, np.zeros(2, np.uint64), np.ones(1, np.int64), 100)
    rank = np.zeros(1, np.int64)
    steps: tuple[Callable[[], object], ...] = (
        lambda: lift(state, 0, 0),
        lambda: put(board, state, 0),
        lambda: undo(board, state, 0),
        lambda: split(board, state, 0, 1),
        lambda: find_valleys(state, 0, 1),
        lambda: count_inside(board, state, 0, 1),
        lambda: tightest_section(state, 0, 1, 1, 0),
        lambda: basin_overflows(board, state, 0, 1, 1),
        lambda: could_drop(board, state, 0, 0),
        lambda: search(board, state, 1, rank, 0, 0),
    )
    for number, step in enumerate(steps, start=1):
        progress(f"loading the search, part {number} of {len(steps)}")
        step()


def reach(searcher: Searcher, best: BestPlacement, budget: Budget) -> BestPlacement:
    """Try the bound of a placement with a tenth of the work."""
    return _probe(searcher, best.bound, best, budget.share(0.1), budget)


def shrink(searcher: Searcher, best: BestPlacement, budget: Budget) -> BestPlacement:
    """Lower a placement towards its bound, or until it is low enough, as far as work allows."""

    def is_done(found: BestPlacement) -> bool:
        return found.height <= max(found.bound, budget.enough) or budget.is_over()

    for first in (budget.enough, best.bound):
        if not is_done(best) and best.bound <= first < best.height:
            best = _probe(searcher, first, best, budget.share(0.5), budget)
    undecided = best.bound  # up to here nothing was found, though it may exist
    while not is_done(best):
        gap = best.height - undecided
        if gap <= max(1, best.height // 1000):
            break
        capacity = undecided + gap // 2
        best = _probe(searcher, capacity, best, budget.share(0.3), budget)
        undecided = max(best.bound, undecided if best.height <= capacity else capacity)
    while not is_done(best):
        height = best.height
        best = _probe(searcher, height - 1, best, budget.share(1.0), budget)
        if best.height == height:
            break
    return best


def _probe(
    searcher: Searcher, capacity: int, best: BestPlacement, part: Budget, whole: Budget
) -> BestPlacement:
    """Try one capacity; what is learned is a lower height or a higher bound."""
    answer, placement = searcher.fit(capacity, part)
    whole.charge(part.spent)
    if answer is Answer.YES:
        return BestPlacement(placement, height_of(searcher.piece, placement), best.bound)
    if answer is Answer.NO:
        return BestPlacement(best.placement, best.height, max(best.bound, capacity + 1))
    return best
