"""The choice among candidates: each is evaluated, and the least by one objective is taken.

The objective is what the level asked for plans; of equals the one with the lower live peak is
taken, then the one of fewer resident bytes where that was searched, then the simpler one.
Level 2's arenas are searched in rounds of growing work, and a candidate whose bound is no
better than what another one was packed to is not searched further.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memplan_cli.core.progress import silent
from memplan_cli.core.symbolic.dims import parse_dim
from memplan_cli.core.symbolic.polynomials import names_in
from memplan_cli.core.symbolic.sizes import unit_value
from memplan_cli.packing.portfolio import DEFAULT_WORK
from memplan_cli.planning.choosing.allocation import Needs
from memplan_cli.planning.choosing.candidate import FILE
from memplan_cli.planning.choosing.levels import allocate
from memplan_cli.settings.choices import DEFAULT_ALIGNMENT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from memplan_cli.core.problem import Allocator
    from memplan_cli.core.program import VarId
    from memplan_cli.core.progress import Progress
    from memplan_cli.planning.choosing.allocation import Allocation, Heights
    from memplan_cli.planning.choosing.candidate import Candidate
    from memplan_cli.settings.settings import Settings

LITTLE_WORK = DEFAULT_WORK // 6
"""Work of the first searches: of twelve generated training steps of which one order is packed at
its bound, all but two needed no more; what misses it has failed in a second. ResNet-18's step, in
the order of the lowest live peak, needs an eighth of the work."""

ROUNDS = (0, LITTLE_WORK, DEFAULT_WORK)
"""The work that each arena of a candidate gets, round by round."""

SAMPLE = 64
"""What every symbol stands for while candidates with symbolic sizes are compared."""


Cost = tuple[int, int, int, int]
"""Bytes planned, live peak, that with outputs counted, rank: compared in this order."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How candidates are evaluated.

    Attributes:
        level: Whose allocation counts.
        pinned: The vars that keep storage of their own for the whole run.
        alignment: Bytes, or None for the default, which tiny models may go below.
        time_limit: Seconds that may cut each search short.
        allocator: Packs the arenas of level 2; None searches with the portfolio.
    """

    level: int
    pinned: Mapping[VarId, str]
    alignment: int | None = None
    time_limit: float | None = None
    allocator: Allocator | None = None

    @classmethod
    def of(
        cls,
        settings: Settings,
        pinned: Mapping[VarId, str],
        allocator: Allocator | None = None,
    ) -> Limits:
        """Return the limits that settings give."""
        found = settings.level, pinned, settings.alignment, settings.time_limit
        return cls(*found, allocator)

    @property
    def rounds(self) -> Sequence[int]:
        """The work of each round: only the portfolio works in rounds, and seconds are one's."""
        searched = self.level == 2 and self.time_limit is None and self.allocator is None
        return ROUNDS if searched else ROUNDS[-1:]


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A candidate, its allocation, and the work that was spent on it."""

    candidate: Candidate
    needs: Needs
    allocation: Allocation
    work: int

    @property
    def rank(self) -> int:
        """Of candidates that need as much, the one of the least rank is simpler."""
        return 0 if self.candidate.order == FILE else 1

    @property
    def cost(self) -> Cost:
        """What is minimised: the bytes planned, the live peaks, and at last the rank."""
        return (_total(self.allocation.heights), *self._peaks, self.rank)

    @property
    def bound(self) -> Cost:
        """No work brings the cost below this."""
        least = {arena.unit: arena.bound for arena in self.allocation.arenas}
        return (_total(least), *self._peaks, self.rank)

    @property
    def _peaks(self) -> tuple[int, int]:
        return self.allocation.live_peak, self.candidate.resident

    @property
    def is_settled(self) -> bool:
        """Whether more work would change nothing."""
        return self.work == DEFAULT_WORK or (self.is_aligned and self.allocation.is_minimal)

    @property
    def is_aligned(self) -> bool:
        """Whether every arena has the alignment that is asked for.

        A coarse alignment is given up where padding costs too much, or for want of work.
        """
        asked = self.needs.alignment or DEFAULT_ALIGNMENT
        return all(arena.problem.alignment == asked for arena in self.allocation.arenas)

    @property
    def is_at_its_bound(self) -> bool:
        """Whether the allocation takes no more than what is live at once in this order."""
        return self.cost <= self.bound and self.is_aligned and self.allocation.is_minimal

    def searched(self, work: int) -> Evaluated:
        """Return the same candidate after more work; what was found before is not lost."""
        if self.is_settled:
            return self
        if not self.is_aligned:
            return evaluate(self.candidate, self.needs, 2, DEFAULT_WORK)
        found = evaluate(self.candidate, self.needs, 2, work)
        kept = found if found.cost <= self.cost else replace(self, work=work)
        proves = found.cost == self.cost and found.allocation.is_minimal
        return found if proves else kept


def evaluate(candidate: Candidate, needs: Needs, level: int, work: int) -> Evaluated:
    """Find live ranges, storage and layout of a candidate.

    Raises:
        InvalidLayoutError: an allocator gave a layout that is not safe.
    """
    return Evaluated(candidate, needs, allocate(needs, level, work), work)


def choose(
    found: Iterable[Candidate], limits: Limits, tell: Progress = silent
) -> tuple[Evaluated, ...]:
    """Return the candidates that were evaluated, the one to take first.

    Candidates are taken from the iterable for as long as none is known to be the least.

    Raises:
        InvalidLayoutError: an allocator gave a layout that is not safe.
    """
    contenders: list[Evaluated] = []
    for candidate in found:
        needs = _needs(candidate, limits)
        contenders.append(evaluate(candidate, needs, limits.level, limits.rounds[0]))
        if len(limits.rounds) == 1:
            contenders = _kept(contenders)
        if candidate.order == FILE and _is_enough(contenders, limits.level):
            break
    for work in limits.rounds[1:]:
        tell("packing")
        for index, contender in enumerate(contenders):
            if _may_win(contender, contenders):
                contenders[index] = contender.searched(work)
    return tuple(sorted(contenders, key=_cost))


def _needs(candidate: Candidate, limits: Limits) -> Needs:
    return Needs(
        candidate.program,
        candidate.sizes,
        limits.pinned,
        limits.alignment,
        limits.time_limit,
        limits.allocator,
        candidate.measured,
    )


def _kept(contenders: Sequence[Evaluated]) -> list[Evaluated]:
    """Return the best and the file's: what no more work is spent on need not be in memory."""
    best = min(contenders, key=_cost)
    return [found for found in contenders if found is best or found.candidate.order == FILE]


def _is_enough(contenders: Sequence[Evaluated], level: int) -> bool:
    """Whether no further candidate can be better than the best of these.

    Those that follow have no lower live peak than the first one; at levels 0 and 1 they may
    have fewer slots all the same, unless these take no more than any order must.
    """
    best = min(contenders, key=_cost)
    if level == 2:
        return best.is_at_its_bound and not any(_may_win(c, contenders) for c in contenders)
    bound = best.candidate.bound
    return bound is not None and best.cost[0] <= bound


def _may_win(contender: Evaluated, contenders: Sequence[Evaluated]) -> bool:
    """Whether more work on a contender may make it the one to take, or prove that it is."""
    if contender.is_settled:
        return False
    best = min(contenders, key=_cost)
    return contender is best or contender.bound < best.cost


def _cost(found: Evaluated) -> Cost:
    return found.cost


def _total(heights: Heights) -> int:
    """Return bytes by unit as one number, every symbol standing for a sample."""
    return sum(height * _sampled(unit) for unit, height in heights.items())


def _sampled(unit: str) -> int:
    dims = dict.fromkeys(names_in(parse_dim(unit)), SAMPLE)
    try:
        return unit_value(unit, dims)
    except ValueError:  # a difference of dims, which no one sample suits
        return SAMPLE
