"""The choice among candidates: each is allocated, and the one of the least cost is chosen.

The cost is what the level of the settings plans. Among equals it is the live peak, then the
resident peak if the order was searched by it, then the order of the file before others.
The arenas of level 2 are packed by fast heuristics first. Then a layout is searched for, but not
for a candidate whose lower bound is not below the cost of another one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.core.progress import silent
from memplan_cli.core.symbolic.sizes import sampled_unit
from memplan_cli.packing.portfolio import DEFAULT_WORK
from memplan_cli.planning.allocation import Needs, allocate
from memplan_cli.planning.candidate import FILE
from memplan_cli.settings.choices import DEFAULT_ALIGNMENT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from memplan_cli.core.problem import Allocator
    from memplan_cli.core.program import VarId
    from memplan_cli.core.progress import Progress
    from memplan_cli.planning.allocation import Allocation, Heights
    from memplan_cli.planning.candidate import Candidate
    from memplan_cli.settings.settings import Settings


class Cost(NamedTuple):
    """The cost of a candidate, compared field by field.

    Attributes:
        resident: The live peak with outputs counted, if the order was searched by it; else 0.
        rank: 0 for the order of the file, 1 for others.
    """

    planned: int
    live_peak: int
    resident: int
    rank: int


@dataclass(frozen=True, slots=True)
class EvaluatedCandidate:
    """A candidate and its allocation.

    Attributes:
        is_searched: Whether a layout was searched for, beyond the fast heuristics.
    """

    candidate: Candidate
    needs: Needs
    allocation: Allocation
    is_searched: bool

    @property
    def cost(self) -> Cost:
        """The cost, which is minimized."""
        return self._cost_of(self.allocation.heights)

    @property
    def bound(self) -> Cost:
        """A cost that no search goes below."""
        return self._cost_of({arena.unit: arena.bound for arena in self.allocation.arenas})

    def _cost_of(self, heights: Heights) -> Cost:
        """Return the cost if the arenas had these heights, with a sample value for each symbol."""
        planned = sum(height * sampled_unit(unit) for unit, height in heights.items())
        rank = 0 if self.candidate.order == FILE else 1
        return Cost(planned, self.allocation.live_peak, self.candidate.resident, rank)

    @property
    def is_settled(self) -> bool:
        """Whether a search would change nothing: it was made, or the layout is proved."""
        return self.is_searched or (self.is_aligned and self.allocation.is_minimal)

    @property
    def is_aligned(self) -> bool:
        """Whether every arena has the alignment of the settings, or the default one.

        `allocate` halves the default where an arena would be taller than the pool of level 1: because
        padding costs too much, or because the heuristics found no lower layout.
        """
        alignment = self.needs.alignment or DEFAULT_ALIGNMENT
        return all(arena.problem.alignment == alignment for arena in self.allocation.arenas)

    def searched(self) -> EvaluatedCandidate:
        """Return this candidate with the layouts that a search finds, or itself if a search would change nothing.

        The search begins with the layouts of the fast heuristics, and only lowers the arenas. The alignment of
        an arena stays, or gets larger.
        """
        if self.is_settled:
            return self
        level = 2  # `choose` makes no unsettled candidates at levels 0 and 1
        return replace(self, allocation=allocate(self.needs, level), is_searched=True)


def choose(
    candidates: Iterable[Candidate],
    settings: Settings,
    pinned: Mapping[VarId, str],
    allocator: Allocator | None = None,
    progress: Progress = silent,
) -> tuple[EvaluatedCandidate, ...]:
    """Return the candidates that were evaluated, by rising cost.

    Evaluation ends when the order of the file is evaluated and the best candidate is proved to need least
    of all orders. At level 2, without an allocator and a time limit, all evaluated candidates are returned;
    else only the best one and the order of the file.

    The settings give the level, the alignment and the time limit of each search; ``pinned`` are
    the vars with storage of their own, and why. The allocator packs the arenas of level 2 in
    place of the portfolio.
    """
    # Whether fast heuristics pack the arenas of all candidates before layouts are searched for the best of
    # them. Levels 0 and 1 have slots instead of arenas.
    has_fast_pass = settings.level == 2 and settings.time_limit is None and allocator is None

    def evaluate(candidate: Candidate) -> EvaluatedCandidate:
        """Allocate a candidate: in the fast pass by heuristics alone, else with a search for layouts."""
        needs = Needs(
            program=candidate.program,
            sizes=candidate.sizes,
            pinned=pinned,
            alignment=settings.alignment,
            time_limit=settings.time_limit,
            allocator=allocator,
            progress=progress,
        )
        search_work = 0 if has_fast_pass else DEFAULT_WORK  # 0: heuristics alone
        allocation = allocate(needs, settings.level, search_work)
        return EvaluatedCandidate(candidate, needs, allocation, is_searched=not has_fast_pass)

    evaluated = _evaluated_until_enough(map(evaluate, candidates))  # lazy, like `map`
    if has_fast_pass:
        contenders = list(evaluated)
        progress("packing")
        _search_contenders(contenders)  # replaces them in place
    else:
        contenders = _best_and_file(evaluated)
    return tuple(sorted(contenders, key=attrgetter("cost")))


def _evaluated_until_enough(
    evaluated: Iterable[EvaluatedCandidate],
) -> Iterator[EvaluatedCandidate]:
    """Yield candidates until no other can need less than the best of them.

    The order of the file is always among them: every plan is compared with it.
    """
    best: EvaluatedCandidate | None = None
    has_file_order = False
    for contender in evaluated:
        best = contender if best is None else min(best, contender, key=attrgetter("cost"))
        has_file_order = has_file_order or contender.candidate.order == FILE
        yield contender
        bound = best.candidate.bound  # of the live peak in any order; None: not computed
        is_minimal = bound is not None and best.cost.planned <= bound
        if has_file_order and is_minimal:
            return


def _best_and_file(evaluated: Iterable[EvaluatedCandidate]) -> list[EvaluatedCandidate]:
    """Return the best candidate and the order of the file; the memory of the others is freed."""
    kept: list[EvaluatedCandidate] = []
    for contender in evaluated:
        kept.append(contender)
        best = min(kept, key=attrgetter("cost"))
        kept = [one for one in kept if one is best or one.candidate.order == FILE]
    return kept


def _search_contenders(contenders: list[EvaluatedCandidate]) -> None:
    """Replace each candidate that may be the best by the result of a search, in place."""
    for index, contender in enumerate(contenders):
        best = min(contenders, key=attrgetter("cost"))
        # The best one is searched too, to lower it or to prove it.
        if contender is best or contender.bound < best.cost:
            contenders[index] = contender.searched()
