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
    from collections.abc import Callable, Mapping, Sequence

    from memplan_cli.workflows.compare import Check, Search
    from memplan_cli.workflows.files.rewriting import Rewriting


def write_proved(
    rewriting: Rewriting, check: Check, progress: Callable[[str], None] | None
) -> Optimized:
    """Write the model and its plan if it gives the original's outputs; account both.

    Raises:
        RuntimeUnavailableError: the original cannot run here, so nothing can be shown.
        ModelError: a file cannot be written.
    """
    return best_candidate([Candidate(rewriting, check, progress or silent)])


def best_candidate(candidates: Sequence[Candidate]) -> Optimized:
    """Write the rewriting that needs least, if one gives the original's outputs.

    Raises:
        RuntimeUnavailableError: the original cannot run here, so nothing can be shown.
        ModelError: a file cannot be written.
    """
    within = [c for c in candidates if c.rewriting.planned.plan.report.budget_met]
    if not within:
        return Optimized(candidates[0].rewriting.planned.plan, None, None)
    return _SEARCHES[within[0].check.search](within)


def _foreseen(candidates: Sequence[Candidate]) -> Optimized:
    from memplan_cli.workflows.foreseen import best_foreseen

    return best_foreseen(candidates)


def _measured(candidates: Sequence[Candidate]) -> Optimized:
    from memplan_cli.workflows.measured import best_measured

    return best_measured(candidates)


_SEARCHES: Mapping[Search, Callable[[Sequence[Candidate]], Optimized]] = {
    "foreseen": _foreseen,
    "measured": _measured,
}
