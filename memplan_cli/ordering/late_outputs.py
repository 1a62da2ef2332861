"""Find an order in which graph outputs are computed late, so that fewer bytes are resident.

Graph outputs are not planned and count no bytes in the live peak, but a runtime allocates them when
they are computed. The order of the lowest live peak computes an output as soon as that frees
anything. *Resident* is the live peak with outputs counted (`PlannedVars.resident`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memplan_cli.core.symbolic.sizes import Size
from memplan_cli.ordering.best_order import best_order

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memplan_cli.core.program import Program
    from memplan_cli.ordering.records import Ordering, PlannedVars

OUTPUT_DIVISORS = (1, 4, 512)
"""Each search counts the bytes of outputs divided by one of these: the larger the divisor, the
lower the live peak.

Momentum on ResNet-18: 0.4 % above the least live peak with all of them counted, 0.03 % with a
quarter; resident falls from 177 to 154 and 156 MB."""

MAX_WORK, WORK_PER_OP = 400_000, 250
"""Units of work of one search, in all and for each op. More gained nothing for small graphs, which
are proved, and made their plans five times as slow."""

_LEAST_GAIN_DIVISOR = 64
"""An order must save at least the resident bytes divided by this."""

_PEAK_RISE_DIVISOR = 2048
"""A live peak that is not proved may rise by itself divided by this. Such a peak is not exact in any
case, and for a rise so small an order may save much more."""


def fewer_resident(
    program: Program, ordering: Ordering, planned_vars: PlannedVars
) -> Program | None:
    """Return the program in an order with fewer resident bytes; None if no order saves enough.

    Resident bytes are the live peak if graph outputs count too, each from its producer to the end.
    ``program`` is in the file's order, ``ordering`` the order of the lowest live peak. The new order has
    no higher live peak than ``ordering`` if that is proved to be the lowest; else a very small rise is
    allowed. All sizes are numbers.
    """
    peak_of, resident_of = planned_vars.live_peak, planned_vars.resident.live_peak
    live, resident = peak_of(ordering.program), resident_of(ordering.program)
    # Without a search: outputs only add to the live peak, and all are live at the end. So hardly any order
    # has fewer resident bytes than the larger of the two.
    output_bytes = sum(size.coefficient for size in planned_vars.results.values())
    if not _is_worthwhile(resident, max(live, output_bytes)):
        return None
    max_live = live if ordering.proved else live + live // _PEAK_RISE_DIVISOR
    best, least_resident = ordering.program, resident
    for candidate in _searched_orders(program, ordering.program, planned_vars):
        candidate_resident = resident_of(candidate)
        if candidate_resident < least_resident and peak_of(candidate) <= max_live:
            best, least_resident = candidate, candidate_resident
    return best if _is_worthwhile(resident, least_resident) else None


def _is_worthwhile(resident: int, new_resident: int) -> bool:
    """Return whether a fall of the resident bytes is worth another order."""
    return resident - new_resident > resident // _LEAST_GAIN_DIVISOR


def _searched_orders(
    program: Program, ordered: Program, planned_vars: PlannedVars
) -> Iterator[Program]:
    """Yield three orders that compute outputs late: each is searched with the bytes of outputs divided by a number.

    The first search, with whole outputs, finds the fewest resident bytes, the last one the lowest live
    peak of the plan. ``program`` is in the file's order, ``ordered`` in the order of the lowest live peak,
    where outputs count no bytes. All sizes are numbers.
    """
    undivided, a_part, hardly_any = OUTPUT_DIVISORS
    runtime_aliasing, plan_aliasing = planned_vars.resident.aliasing, planned_vars.aliasing
    searches = (
        # Resident bytes are those of a runtime, in which variables share fewer bytes than in the plan.
        (undivided, ordered, runtime_aliasing),
        (a_part, ordered, plan_aliasing),
        # If outputs count hardly any bytes, ``ordered`` is already the best: a search from it finds no other.
        (hardly_any, program, plan_aliasing),
    )
    for divisor, start, aliasing in searches:
        # Rounded up, so that no output counts as free.
        results = {
            var: Size(-(-size.coefficient // divisor))
            for var, size in planned_vars.results.items()
        }
        resident = replace(planned_vars, results=results).resident
        yield best_order(
            start,
            resident.sizes,
            pinned=resident.pinned,
            aliasing=aliasing,
            work=min(MAX_WORK, WORK_PER_OP * len(start.body.ops)),
        ).program
