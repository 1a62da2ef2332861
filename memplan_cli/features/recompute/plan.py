"""Candidates of a plan in which values are computed again, as planning calls for them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memplan_cli.analysis.cost import op_cost, total_cost
from memplan_cli.core.binding_options import RUN_OPTION, input_shapes, sizing_options
from memplan_cli.core.results.rewrites import RecomputeSummary
from memplan_cli.errors import SettingsError
from memplan_cli.planning.candidate import FILE, Candidate
from memplan_cli.planning.candidates import in_best_order

if TYPE_CHECKING:
    from memplan_cli.features.recompute.search import Recomputation
    from memplan_cli.planning.candidate import PlanningTask


def recompute_within_budget(task: PlanningTask) -> Candidate:
    """Return the program with values computed again until its resident peak fits the budget.

    Without a budget, the candidate is the knee of the curve of memory and work.

    Raises:
        SettingsError: a size of the program is not a number.
    """
    from memplan_cli.features.recompute.search import search_recomputation

    planned_vars = task.planned_vars
    _require_numbers(task)
    before = planned_vars.resident.live_peak(task.program)
    budget = task.settings.budget
    # A float is a share of the resident peak.
    max_bytes = int(budget * before) if isinstance(budget, float) else budget
    task.tell("recomputing")
    result = search_recomputation(
        task.program, planned_vars, task.phases, max_bytes, task.progress
    )
    peaks = {
        FILE: planned_vars.live_peak(task.program),
        "recompute": replace(planned_vars, sizes=result.sizes).live_peak(result.program),
    }
    return Candidate(
        result.program,
        result.sizes,
        order="recompute",
        peaks=peaks,
        recompute=_summary(result),
        resident=result.chosen.peak,
    )


def _summary(result: Recomputation) -> RecomputeSummary:
    """Return the report's record of a search within a budget."""
    return RecomputeSummary(
        nodes=len(result.copies),
        flops_increase=result.chosen.flops_increase,
        budget=result.budget,
        met=result.met,
        bound=result.bound,
        resident_bound=result.resident_bound,
        curve=result.curve,
    )


def _require_numbers(task: PlanningTask) -> None:
    """Refuse a program with symbolic sizes, which no budget in bytes can be compared with.

    Raises:
        SettingsError: naming the symbols, and the options that give them numbers.
    """
    sizes = task.planned_vars.resident.sizes
    symbols = {name for size in sizes.values() for name in size.symbols}
    if not symbols:
        return
    hint = sizing_options(input_shapes(task.program), symbols)
    if task.settings.run and hint == RUN_OPTION:  # a run did not show these sizes
        hint = "no option sets these sizes: no input has them, and a run did not show them"
    raise SettingsError(
        f"--recompute auto needs sizes that are numbers, not {', '.join(sorted(symbols))}",
        hint=hint,
    )


def recompute_between_checkpoints(task: PlanningTask) -> Candidate:
    """Return the program with the forward ops between checkpoints run again, in the best order.

    Raises:
        SettingsError: the program has no backward part, or a checkpoint is no forward tensor.
    """
    from memplan_cli.features.recompute.checkpoints import recompute_segments

    program = task.program
    result = recompute_segments(
        program, task.planned_vars, task.settings.checkpoints, task.phases
    )
    work = total_cost(program).work
    added_work = sum(op_cost(op, result.program.vars).work for op in result.copies)
    return replace(
        in_best_order(task, result.program, result.sizes),
        recompute=RecomputeSummary(
            nodes=len(result.copies), flops_increase=added_work / work if work else 0.0
        ),
        warnings=tuple(
            f"checkpoint {name!r} buys nothing: {why}"
            for name, why in result.ineffective.items()
        ),
    )
