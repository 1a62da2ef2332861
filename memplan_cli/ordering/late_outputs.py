"""Find an order in which outputs are computed late, so that fewer bytes are resident.

Outputs of the graph are not planned and count no bytes in the live peak, but a runtime allocates
them when they are computed. The order of the lowest live peak computes an output as soon as that
frees anything. *Resident* is the live peak with outputs counted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memplan_cli.analysis.storage import live_peak
from memplan_cli.core.symbolic.sizes import Size
from memplan_cli.ordering.best_order import best_order

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memplan_cli.core.program import Program
    from memplan_cli.ordering.records import Ordering, PlannedVars

SHARES = (1, 4, 512)
"""Searches count outputs whole, or one byte of so many: the less, the lower the live peak.

Momentum on ResNet-18: 0.4 % above the least live peak with all of them counted, 0.03 % with a
quarter; resident falls from 177 to 154 and 156 MB."""

WORK, WORK_PER_OP = 400_000, 250
"""Steps that each of the searches may look at, in all and for each op: small graphs, which are
proved, gained nothing by more, and their plans took five times as long."""

_WORTH = 6
"""Less than one part in two to the power of so many of what is resident is no search's worth."""

_GIVEN = 11
"""A live peak that is not proved may rise by one part in two to the power of so many."""


def fewer_resident(program: Program, found: Ordering, terms: PlannedVars) -> Program | None:
    """Return the program in an order with fewer resident bytes; None if no order saves enough.

    Args:
        program: The ops in the order of the file.
        found: The order of the lowest live peak, which stays that low where it is proved.
        terms: What is planned and what the graph gives, all sizes being numbers.
    """
    live, resident = peak(found.program, terms), peak(found.program, terms.resident)
    given = sum(size.coefficient for size in terms.results.values())
    if not _gains(resident, max(live, given)):
        return None
    allowed = live if found.proved else live + (live >> _GIVEN)
    best, least = found.program, resident
    for other in _orders(program, found.program, terms):
        size = peak(other, terms.resident)
        if size < least and peak(other, terms) <= allowed:
            best, least = other, size
    return best if _gains(resident, least) else None


def peak(program: Program, terms: PlannedVars) -> int:
    """Return the live peak of a program under the given sizes and rules of sharing."""
    return live_peak(program, terms.sizes, terms.pinned, terms.aliasing)


def _gains(resident: int, least: int) -> bool:
    return resident - least > resident >> _WORTH


def _orders(program: Program, ordered: Program, terms: PlannedVars) -> Iterator[Program]:
    for share, start in zip(SHARES, (ordered, ordered, program), strict=True):
        results = {var: _part(size, share) for var, size in terms.results.items()}
        counted = replace(terms, results=results).resident
        # Counted in part, outputs only guide the search for the plan's own live peak.
        yield _searched(
            start, counted if share == 1 else replace(counted, aliasing=terms.aliasing)
        )


def _part(size: Size, share: int) -> Size:
    return Size(-(-size.coefficient // share))


def _searched(program: Program, terms: PlannedVars) -> Program:
    work = min(WORK, WORK_PER_OP * len(program.body.ops))
    found = best_order(
        program, terms.sizes, pinned=terms.pinned, aliasing=terms.aliasing, work=work
    )
    return found.program
