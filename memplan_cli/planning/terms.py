"""What the planner tells the transforms of a program's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.analysis.storage import result_sizes
from memplan_cli.core.symbolic.bounds import at_most
from memplan_cli.ordering.terms import Terms
from memplan_cli.planning.choosing.allocation import aliasing_of

if TYPE_CHECKING:
    from memplan_cli.core.program import Program
    from memplan_cli.planning.rewrites import Rewrites
    from memplan_cli.planning.scope import Scope
    from memplan_cli.settings.settings import Settings


def terms_of(program: Program, scope: Scope, settings: Settings, rewrites: Rewrites) -> Terms:
    """Return what is planned, what shares bytes, and the bytes of the graph's outputs.

    Outputs that are to be donated lie in their inputs' memory, and are left out.
    """
    donated = rewrites.donated_outputs(program, settings.donate) if settings.donate else ()
    results = {
        var: at_most(size, settings.bounds)
        for var, size in result_sizes(program).items()
        if var not in donated
    }
    return Terms(scope.sizes, frozenset(scope.pinned), aliasing_of(settings.level), results)
