"""Find an order in which graph outputs are computed late, so that fewer bytes are resident.

Graph outputs are not planned and count no bytes in the live peak, but a runtime allocates them when
they are computed. The order of the lowest live peak computes an output as soon as that frees
anything. *Resident* is the live peak with outputs counted (`PlannedVars.resident`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.ordering.best_order import best_order

if TYPE_CHECKING:
    from memplan_cli.core.program import Program
    from memplan_cli.ordering.records import Ordering, PlannedVars

MAX_WORK, WORK_PER_OP = 400_000, 250
"""Units of work of the search, in all and for each op. More gained nothing for small graphs, which
are proved, and made their plans five times as slow."""

_LEAST_GAIN_DIVISOR = 64
"""An order must save at least the resident bytes divided by this."""

_PEAK_RISE_DIVISOR = 2048
"""A live peak that is not proved may rise by itself divided by this: an order may save much more."""


def fewer_resident(ordering: Ordering, planned_vars: PlannedVars) -> Program | None:
    """Return the program in an order with fewer resident bytes; None if none is found that saves enough.

    Resident bytes are the live peak if graph outputs count too, each from its producer to the end.
    ``ordering`` has the lowest live peak that was found. All sizes are numbers.
    """
    peak_of, resident_of = planned_vars.live_peak, planned_vars.resident.live_peak
    live, resident = peak_of(ordering.program), resident_of(ordering.program)
    output_bytes = sum(size.coefficient for size in planned_vars.results.values())
    # Nearly always a lower bound: outputs only add to the live peak, and all of them are live at the end.
    least_resident = max(live, output_bytes)
    if not _is_worthwhile(resident, least_resident):
        return None  # without a search
    late = best_order(
        ordering.program,
        planned_vars.resident.sizes,
        pinned=planned_vars.pinned,
        aliasing=planned_vars.resident.aliasing,
        work=min(MAX_WORK, WORK_PER_OP * len(ordering.program.body.ops)),
    ).program
    # A very small rise of the live peak is accepted, unless this peak is proved to be the lowest.
    max_live = live if ordering.proved else live + live // _PEAK_RISE_DIVISOR
    if peak_of(late) <= max_live and _is_worthwhile(resident, resident_of(late)):
        return late
    return None


def _is_worthwhile(resident: int, new_resident: int) -> bool:
    """Return whether a fall of the resident bytes is worth another order."""
    return resident - new_resident > resident // _LEAST_GAIN_DIVISOR
