"""Orders in which a runtime needs the least memory."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from memplan_cli.analysis.storage import live_peak
from memplan_cli.core.program import Origin
from memplan_cli.core.symbolic.sizes import size_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.analysis.aliasing import Aliasing
    from memplan_cli.core.program import Program, VarId
    from memplan_cli.core.symbolic.sizes import Size
    from memplan_cli.ordering.terms import Ordering
    from memplan_cli.planning.choosing.candidate import Candidate, PlanningTask, Runtime

_WORTH = 6
"""A search that gained less than one part in two to the power of so many is the last one."""

_WORK_OF_OP = 2000
"""Of one search, in steps looked at: what is not found by then, ten times as many do not find."""


def for_runtime(task: PlanningTask, runtime: Runtime, found: Candidate) -> Candidate:
    """Prefer the order that a runtime needs least memory for, where that saves more.

    A runtime shares less than the plan does, and it holds the graph's results too. Its
    order is taken where the plan needs no more than in the order of the file, or where the
    runtime needs less by more than the plan needs more: the file is made for the runtime.
    """
    settings, program, terms = task.settings, task.program, task.terms
    if settings.recompute != "none" or settings.order == "keep":
        return found
    results = {var: program.vars[var] for var in program.body.outputs}
    made = {v: size_of(f.shape, f.dtype) for v, f in results.items() if f.origin is Origin.OP}
    sizes = {**terms.sizes, **{v: size for v, size in made.items() if size is not None}}
    sharing = runtime.aliasing
    best = _searched_again(program, sizes, sharing, settings.time_limit)
    before, peak = task.live_peak(program), task.live_peak(best.program)
    needed = min(live_peak(o, sizes, aliasing=sharing) for o in (program, found.program))
    saved = needed - live_peak(best.program, sizes, aliasing=sharing)
    if peak - before > max(saved, 0):
        return found

    def is_allowed(other: Program) -> bool:
        return task.live_peak(other) <= max(peak, before)

    chosen = runtime.settle(best.program, is_allowed)
    peaks = {**found.peaks, "runtime": task.live_peak(chosen)}
    return replace(found, program=chosen, order="runtime", peaks=peaks, measured=None)


def _searched_again(
    program: Program,
    sizes: Mapping[VarId, Size],
    sharing: Aliasing,
    time_limit: float | None,
) -> Ordering:
    """Order a program, and what came out of it, for as long as that is worth a search.

    Demand-driven orders follow the file where they have a choice, and a file that the
    runtime wrote need not be in any good order: a search that starts from a better one
    finds more (an unrolled LSTM's training step: 714 MB in the file, then 81, 54, 50).
    A limit of seconds is one search's.
    """
    from memplan_cli.ordering.best_order import DEFAULT_WORK, best_order

    work = min(DEFAULT_WORK, _WORK_OF_OP * len(program.body.ops))
    search = partial(
        best_order, sizes=sizes, aliasing=sharing, work=work, time_limit=time_limit
    )
    found = search(program)
    while time_limit is None and not found.proved and found.candidates:
        before = found.candidates[found.chosen]
        other = search(found.program)
        if other.candidates[other.chosen] >= before:
            break
        found = other
        if (before - other.candidates[other.chosen]) << _WORTH < before:
            break
    return found
