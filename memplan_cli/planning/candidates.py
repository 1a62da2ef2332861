"""The candidates for a plan: one program in several orders, with or without rewrites.

The searches for orders are imported where they are used: a plan in the file's order loads none.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from memplan_cli.analysis.storage import live_peak, result_sizes
from memplan_cli.errors import SettingsError
from memplan_cli.ordering.records import Ordering
from memplan_cli.planning.candidate import FILE, Candidate

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from memplan_cli.analysis.aliasing import Aliasing
    from memplan_cli.core.program import Program, VarId
    from memplan_cli.core.symbolic.sizes import Size
    from memplan_cli.planning.candidate import PlanningTask, Runtime
    from memplan_cli.planning.rewrites import Rewrites
    from memplan_cli.settings.settings import Settings

_MIN_GAIN = 1 / 64
"""Searching for a runtime's order ends if a search lowers the peak by less than this share."""

_MAX_WORK_PER_OP = 2000
"""Steps per op of a search for a runtime's order. On the models measured, ten times as many
steps found no better order."""


def candidates(task: PlanningTask, rewrites: Rewrites) -> Iterator[Candidate]:
    """Yield the programs that may be planned: the expected best first, the file's order next.

    A caller stops at the first candidate that is proved to be the best. With recomputation or donated
    outputs there is one candidate only. Candidates above a budget in bytes are left out if any fits it.

    Raises:
        SettingsError: an option has no effect without another one, or a name is not in the
            model.
    """
    settings = task.settings
    _reject_unused(settings)
    if settings.recompute == "none" and not settings.donate:
        yield from _within_budget(task, _orders(task))
        return
    recompute = rewrites.recompute.get(settings.recompute)
    if recompute is None:  # outputs are donated, and nothing is computed again
        candidate = in_best_order(task, task.program, task.planned_vars.sizes)
    else:
        candidate = recompute(task)
    if task.runtime is not None:  # in the runtime's best order, unless that is refused (None)
        candidate = for_runtime(task, task.runtime, candidate) or candidate
    for within_budget in _within_budget(task, [candidate]):
        yield rewrites.donate(within_budget, task) if settings.donate else within_budget


def _within_budget(
    task: PlanningTask, candidates_found: Iterable[Candidate]
) -> Iterator[Candidate]:
    """Yield the candidates whose intermediates and outputs fit the budget in bytes of the settings.

    If no candidate fits, the task's program is yielded unchanged, provided that it fits; else all candidates.
    There must be a candidate.
    """
    budget = task.settings.budget
    if not isinstance(budget, int):  # no budget, or one that is not in bytes
        yield from candidates_found
        return

    def fits(candidate: Candidate) -> bool:
        planned_vars = replace(task.planned_vars, sizes=candidate.sizes)
        return planned_vars.resident.live_peak(candidate.program) <= budget

    found = list(candidates_found)
    fitting = [candidate for candidate in found if fits(candidate)]
    unchanged = Candidate(task.program, task.planned_vars.sizes)
    if fitting:
        yield from fitting
    elif fits(unchanged):
        # Chunking may have brought this program under the budget. New orders are searched without outputs in
        # mind, and may exceed it again. In the report no node runs twice, and the budget is met.
        recompute = replace(found[0].recompute, nodes=0, flops_increase=0.0, met=True)
        yield replace(unchanged, recompute=recompute)
    else:
        yield from found


def _reject_unused(settings: Settings) -> None:
    """Reject options that have no effect without others, that lack another one, or that exclude each other."""
    if settings.budget is not None and "auto" not in (settings.recompute, settings.chunk):
        raise SettingsError(
            "--budget has no effect without --recompute auto or --chunk auto",
            hint="add --recompute auto or --chunk auto",
        )
    if settings.best_effort and settings.budget is None:
        raise SettingsError(
            "--best-effort has no effect without --budget", hint="remove it or add --budget"
        )
    if settings.checkpoints and settings.recompute != "checkpoints":
        raise SettingsError(
            "--checkpoint has no effect without --recompute checkpoints",
            hint="add --recompute checkpoints",
        )
    if settings.recompute == "checkpoints" and not settings.checkpoints:
        raise SettingsError(
            "--recompute checkpoints needs the tensors to keep", hint="add --checkpoint NAME"
        )
    if settings.recompute == "auto" and settings.order == "keep":
        raise SettingsError(
            "--recompute auto and --order keep cannot be combined", hint="remove --order keep"
        )
    if settings.donate and settings.order == "keep":
        raise SettingsError(
            "--donate and --order keep cannot be combined: it moves nodes",
            hint="remove --order keep",
        )


def _orders(task: PlanningTask) -> Iterator[Candidate]:
    """Yield candidates: the order of the lowest live peak, the file's, and at levels 0 and 1 those of schedulers.

    For a runtime, the only candidate is the one in the runtime's best order. If `for_runtime` refuses that
    order, the candidates are the same as without a runtime.
    """
    program, settings, sizes = task.program, task.settings, task.planned_vars.sizes
    ordering = _search_order(task, program, sizes)
    best = Candidate.ordered(ordering, sizes)
    if task.runtime is not None:
        runtime_candidate = for_runtime(task, task.runtime, best)
        if runtime_candidate is not None:
            yield runtime_candidate
            return
    # The search above has counted intermediates only. Less is needed if the graph's outputs are computed late.
    best = _with_late_outputs(task, ordering, best)
    yield best
    if best.program is not program:  # the order changed
        yield _reordered(task, best, FILE, program)
    # Levels 0 and 1 divide the memory into slots, each of which one tensor at a time takes as a whole. An
    # order with a higher live peak may need fewer slots. Level 2 places single bytes.
    # There are no peaks if orders are not compared: the settings forbid another one, or sizes are symbolic.
    if settings.level < 2 and ordering.peaks:
        from memplan_cli.ordering.best_order import simple_orders
        from memplan_cli.ordering.demand_orders import DEMAND_SCHEDULERS
        from memplan_cli.ordering.list_orders import SCHEDULERS

        bodies = [best.program.body, program.body]
        schedulers = {**SCHEDULERS, **DEMAND_SCHEDULERS}
        for name, ordered in simple_orders(program, task.planned_vars, schedulers):
            if ordered.body not in bodies:
                bodies.append(ordered.body)
                yield _reordered(task, best, name, ordered)


def _reordered(
    task: PlanningTask, candidate: Candidate, order: str, program: Program
) -> Candidate:
    """Return a candidate with its program in another order, and with a resident peak if it had one."""
    resident = task.planned_vars.resident.live_peak(program) if candidate.resident else 0
    return replace(candidate, program=program, order=order, resident=resident)


def in_best_order(
    task: PlanningTask, program: Program, sizes: Mapping[VarId, Size]
) -> Candidate:
    """Return a program, which may have copies of ops, in the order of the lowest live peak."""
    ordering = _search_order(task, program, sizes)
    return _with_late_outputs(task, ordering, Candidate.ordered(ordering, sizes))


def _search_order(
    task: PlanningTask, program: Program, sizes: Mapping[VarId, Size]
) -> Ordering:
    """Return the order of the lowest live peak, or the file's if the settings keep it."""
    if task.settings.order == "keep":
        return Ordering(program, peaks={}, chosen=FILE, bound=None, proved=False)
    from memplan_cli.ordering.best_order import best_order

    task.tell("ordering")
    return best_order(
        program,
        sizes,
        pinned=frozenset(task.planned_vars.pinned),
        aliasing=task.planned_vars.aliasing,
        time_limit=task.settings.time_limit,
        progress=task.progress,
    )


def _with_late_outputs(task: PlanningTask, ordering: Ordering, best: Candidate) -> Candidate:
    """Return a candidate whose graph outputs are computed later, or ``best`` if that saves too little.

    Outputs are allocated until the end of the run. The later they are computed, the lower is the *resident
    peak*, that is the live peak of intermediates and outputs together. ``best`` is the candidate in ``ordering``,
    the order in which intermediates alone have the lowest live peak.
    """
    settings = task.settings
    planned_vars = replace(task.planned_vars, sizes=best.sizes)
    if settings.order == "keep" or not planned_vars.results:
        return best
    if settings.level < 2:
        return best  # there, memory is divided into slots, of which a lower peak may need more
    if settings.time_limit is not None:  # the limit is for the search that was made already
        return best
    if any(size.symbols for size in planned_vars.resident.sizes.values()):
        return best  # symbolic peaks cannot be compared
    from memplan_cli.ordering.late_outputs import fewer_resident

    # The live peak of intermediates rises hardly, and not at all if ``ordering`` is proved to have the lowest.
    late = fewer_resident(ordering, planned_vars)
    if late is None:
        return best
    resident = planned_vars.resident.live_peak(late)
    # ``best.bound`` holds for every order. `planner` adds the live peak of this order to ``best.peaks``.
    return replace(best, program=late, order="resident", resident=resident)


def for_runtime(
    task: PlanningTask, runtime: Runtime, candidate: Candidate
) -> Candidate | None:
    """Return the candidate in the order for which a runtime needs least; None: the candidate should keep its order.

    An order has two live peaks: a runtime shares less memory than the plan, and holds the graph's outputs too.
    The bytes that the new order saves of the runtime's peak, compared with the better one of the candidate's order
    and the file's, must not be fewer than those that it adds to the plan's peak in the file's order.
    """
    settings, program = task.settings, task.program
    # With recomputation the order of the candidate is part of the rewrite.
    if settings.recompute != "none" or settings.order == "keep":
        return None
    sizes = {**task.planned_vars.sizes, **result_sizes(program)}  # with the graph's outputs
    plan_peak_of = task.planned_vars.live_peak
    searched = _search_repeatedly(program, sizes, runtime.aliasing, settings.time_limit)
    searched_peak, candidate_peak, file_peak = [
        live_peak(ordered, sizes, aliasing=runtime.aliasing)
        for ordered in (searched, candidate.program, program)
    ]
    known_peak = min(candidate_peak, file_peak)
    saved_by_search = max(known_peak - searched_peak, 0)
    if searched_peak <= known_peak:
        best = searched
    else:
        best = candidate.program if candidate_peak == known_peak else program
    file_plan_peak = plan_peak_of(program)  # users compare a plan with the file's order
    added_to_plan = max(plan_peak_of(best) - file_plan_peak, 0)
    if added_to_plan > saved_by_search:
        return None
    # An order similar to ``best`` may leave smaller gaps in the runtime's arena. It must not add more to the plan.
    for_arena = runtime.order_for_arena(
        best, lambda ordered: plan_peak_of(ordered) - file_plan_peak <= added_to_plan
    )
    peaks = {**candidate.peaks, "runtime": plan_peak_of(for_arena)}  # the plan's, by order
    return replace(candidate, program=for_arena, order="runtime", peaks=peaks)


def _search_repeatedly(
    program: Program,
    sizes: Mapping[VarId, Size],
    aliasing: Aliasing,
    time_limit: float | None,
) -> Program:
    """Search for the best order, and again from the order found, until a search gains little.

    A search that starts from a better order finds more (the training step of an unrolled LSTM:
    714 MB in the file, then 81, 54, 50). With a time limit, which is for one search, there is one
    only.
    """
    from memplan_cli.ordering.best_order import DEFAULT_WORK, best_order

    work = min(DEFAULT_WORK, _MAX_WORK_PER_OP * len(program.body.ops))
    search = partial(
        best_order, sizes=sizes, aliasing=aliasing, work=work, time_limit=time_limit
    )
    best = search(program)
    while time_limit is None and not best.proved and best.peaks:  # none if sizes are symbolic
        best_peak = best.peaks[best.chosen]
        ordering = search(best.program)
        gain = best_peak - ordering.peaks[ordering.chosen]
        if gain > 0:
            best = ordering
        if gain < _MIN_GAIN * best_peak:
            break
    return best.program
