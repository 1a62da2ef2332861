"""The best of the rewritten models: written aside, proved, and renamed.

Nothing is left behind by what fails: the trial file lies beside the target under a
temporary name, so that it finds the weights, and only a model that gave the original's
outputs takes the target's name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.progress import silent
from memplan_cli.workflows.candidates import Candidate, Optimized

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memplan_cli.core.check import Check
    from memplan_cli.workflows.ahead import Ahead
    from memplan_cli.workflows.files.rewriting import Rewriting


def write_proved(
    rewriting: Rewriting,
    check: Check,
    progress: Callable[[str], None] | None,
    ahead: Ahead,
) -> Optimized:
    """Write the model and its plan if it gives the original's outputs; account both.

    Args:
        rewriting: what is written.
        check: how both models are compared.
        progress: told what is being done.
        ahead: has the original, if it was begun already.

    Raises:
        RuntimeUnavailableError: the original cannot run here, so nothing can be shown.
        ModelError: a file cannot be written.
    """
    return best_candidate([Candidate(rewriting, check, progress or silent)], ahead)


def best_candidate(candidates: Sequence[Candidate], ahead: Ahead) -> Optimized:
    """Write the rewriting that needs least, if one gives the original's outputs.

    Raises:
        RuntimeUnavailableError: the original cannot run here, so nothing can be shown.
        ModelError: a file cannot be written.
    """
    within = [c for c in candidates if c.rewriting.planned.plan.report.budget_met]
    if not within:
        return Optimized(candidates[0].rewriting.planned.plan, None, None)
    from memplan_cli.workflows.foreseen import best_verified

    return best_verified(within, ahead)
