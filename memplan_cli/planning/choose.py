"""The choice among candidates: each is allocated, and the one of the least cost is chosen.

The cost is what the level of the settings plans. Among equals it is the live peak, then the
resident peak if the order was searched by it, then the order of the file before others.
The arenas of level 2 are packed in rounds of growing work. A candidate whose lower bound is not
below the cost of another one is not packed further.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.core.progress import silent
from memplan_cli.core.symbolic.dims import parse_dim
from memplan_cli.core.symbolic.polynomials import symbol_names
from memplan_cli.core.symbolic.sizes import unit_value
from memplan_cli.packing.portfolio import DEFAULT_WORK
from memplan_cli.planning.allocation import Needs, allocate
from memplan_cli.planning.candidate import FILE
from memplan_cli.settings.choices import DEFAULT_ALIGNMENT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from memplan_cli.core.problem import Allocator
    from memplan_cli.core.program import VarId
    from memplan_cli.core.progress import Progress
    from memplan_cli.planning.allocation import Allocation, Heights
    from memplan_cli.planning.candidate import Candidate
    from memplan_cli.settings.settings import Settings

LITTLE_WORK = DEFAULT_WORK // 6
"""Work of the first search. Of twelve generated training steps with one order that is packed at
its bound, all but two needed no more; an arena that is not at its bound by then fails within a
second. ResNet-18's training step, in the order of the lowest live peak, needs an eighth."""

ROUNDS = (0, LITTLE_WORK, DEFAULT_WORK)
"""The work for each arena of a candidate, round by round."""

SYMBOL_VALUE = 64
"""The value of every symbol when candidates with symbolic sizes are compared."""


class Cost(NamedTuple):
    """The cost of a candidate, compared field by field.

    Attributes:
        planned: Bytes that the plan needs.
        live_peak: Most bytes live at one tick.
        resident: The live peak with outputs counted, if the order was searched by it; else 0.
        rank: 0 for the order of the file, 1 for others.
    """

    planned: int
    live_peak: int
    resident: int
    rank: int


@dataclass(frozen=True, slots=True)
class Limits:
    """How candidates are evaluated.

    Attributes:
        level: The level whose allocation is compared.
        pinned: The vars that keep storage of their own for the whole run, with the reason.
        alignment: Bytes, or None for the default, which tiny models may go below.
        time_limit: Seconds after which each search for a layout stops; None: no limit.
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
        """Return the limits of the settings."""
        return cls(settings.level, pinned, settings.alignment, settings.time_limit, allocator)

    @property
    def rounds(self) -> Sequence[int]:
        """The work of each round. Only the portfolio without a time limit works in rounds."""
        in_rounds = self.level == 2 and self.time_limit is None and self.allocator is None
        return ROUNDS if in_rounds else ROUNDS[-1:]


@dataclass(frozen=True, slots=True)
class EvaluatedCandidate:
    """A candidate, its allocation, and the work that was spent on packing it.

    Attributes:
        needs: What is allocated for the candidate, and how.
        work: The steps that the search was allowed in each arena, one of `ROUNDS`.
    """

    candidate: Candidate
    needs: Needs
    allocation: Allocation
    work: int

    @property
    def cost(self) -> Cost:
        """The cost, which is minimised."""
        return self._cost_of(self.allocation.heights)

    @property
    def bound(self) -> Cost:
        """A cost that no more work goes below."""
        return self._cost_of({arena.unit: arena.bound for arena in self.allocation.arenas})

    def _cost_of(self, heights: Heights) -> Cost:
        """Return the cost if the arenas had these heights, with `SYMBOL_VALUE` for each symbol."""
        planned = sum(height * _unit_bytes(unit) for unit, height in heights.items())
        rank = 0 if self.candidate.order == FILE else 1
        return Cost(planned, self.allocation.live_peak, self.candidate.resident, rank)

    @property
    def is_settled(self) -> bool:
        """Whether more work would change nothing: it was all spent, or a search has proved the layout."""
        return self.work == DEFAULT_WORK or (self.is_aligned and self.allocation.is_minimal)

    @property
    def is_aligned(self) -> bool:
        """Whether every arena has the alignment of the settings, or the default one.

        `allocate` halves the default where an arena would be taller than the pool of level 1: because
        padding costs too much, or because a search with little work found no lower layout.
        """
        alignment = self.needs.alignment or DEFAULT_ALIGNMENT
        return all(arena.problem.alignment == alignment for arena in self.allocation.arenas)

    @property
    def is_at_its_bound(self) -> bool:
        """Whether the allocation needs no more than the live peak of this order."""
        return self.cost <= self.bound and self.is_aligned and self.allocation.is_minimal

    def searched(self, work: int) -> EvaluatedCandidate:
        """Return the same candidate after more work, with the better of both allocations.

        Work grows at level 2 only: at the others all is settled.
        """
        if self.is_settled:
            return self
        # The default alignment is preferred even if it costs more, so costs are not compared. All the
        # work at once decides whether it was reduced for its padding or for too little work.
        if not self.is_aligned:
            return evaluate(self.candidate, self.needs, 2, DEFAULT_WORK)
        result = evaluate(self.candidate, self.needs, 2, work)
        return result if result.cost <= self.cost else replace(self, work=work)


def evaluate(candidate: Candidate, needs: Needs, level: int, work: int) -> EvaluatedCandidate:
    """Allocate a candidate at one level.

    Raises:
        InvalidLayoutError: an allocator returned a layout that is not safe.
    """
    return EvaluatedCandidate(candidate, needs, allocate(needs, level, work), work)


def choose(
    candidates: Iterable[Candidate], limits: Limits, progress: Progress = silent
) -> tuple[EvaluatedCandidate, ...]:
    """Return the candidates that were evaluated, by rising cost.

    Candidates are drawn from the iterable until one is known to be the best, which can be known only
    after the order of the file, with which every plan is compared.

    Raises:
        InvalidLayoutError: an allocator returned a layout that is not safe.
    """
    contenders: list[EvaluatedCandidate] = []
    for candidate in candidates:
        needs = Needs(
            program=candidate.program,
            sizes=candidate.sizes,
            pinned=limits.pinned,
            alignment=limits.alignment,
            time_limit=limits.time_limit,
            allocator=limits.allocator,
            measured=candidate.measured,
        )
        contenders.append(evaluate(candidate, needs, limits.level, limits.rounds[0]))
        if len(limits.rounds) == 1:
            # No more work follows: free the memory of all but the best and the file's order.
            best = min(contenders, key=_cost)
            contenders = [
                contender
                for contender in contenders
                if contender is best or contender.candidate.order == FILE
            ]
        if candidate.order == FILE and _is_enough(contenders, limits.level):
            break
    for work in limits.rounds[1:]:
        progress("packing")
        for index, contender in enumerate(contenders):
            if _may_win(contender, contenders):
                contenders[index] = contender.searched(work)
    return tuple(sorted(contenders, key=_cost))


def _is_enough(contenders: Sequence[EvaluatedCandidate], level: int) -> bool:
    """Whether no further candidate can be better than the best contender.

    Further candidates have no lower live peak than the first one, so that at level 2 it is enough
    that the best contender is packed at its live peak. At levels 0 and 1 further candidates may need
    fewer slots nevertheless, unless the best contender needs no more than the bound of all orders.
    """
    best = min(contenders, key=_cost)
    if level == 2:
        return best.is_at_its_bound and not any(
            _may_win(contender, contenders) for contender in contenders
        )
    bound = best.candidate.bound
    return bound is not None and best.cost.planned <= bound


def _may_win(contender: EvaluatedCandidate, contenders: Sequence[EvaluatedCandidate]) -> bool:
    """Whether more work on a contender may make it the best, or prove that it is."""
    if contender.is_settled:
        return False
    best = min(contenders, key=_cost)
    return contender is best or contender.bound < best.cost


def _cost(contender: EvaluatedCandidate) -> Cost:
    """Return the sort key of candidates."""
    return contender.cost


def _unit_bytes(unit: str) -> int:
    """Return the value of a unit such as ``batch*seq`` with `SYMBOL_VALUE` for each symbol."""
    dims = dict.fromkeys(symbol_names(parse_dim(unit)), SYMBOL_VALUE)
    try:
        return unit_value(unit, dims)
    except ValueError:  # a difference of dims, which is negative or 0 at one value for all
        return SYMBOL_VALUE
