"""The pipeline from a program to its plan: rewrite, order, allocate, choose, and write down.

1. Constant expressions become weights, if the settings ask for it.
2. Regions are computed in chunks, if the settings ask for it.
3. Candidates are made: the program in several orders, perhaps with values computed again.
4. Each candidate is allocated, and the one that needs the least memory is chosen.
5. The choice is written down as a plan, and the plan is checked.

If the settings exclude the model's phase, the order is kept and no memory is reused.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from memplan_cli.analysis.phase import find_phases
from memplan_cli.core.progress import silent
from memplan_cli.core.results.plan import check
from memplan_cli.planning.allocation import Needs, allocate_apart, heights_by_level
from memplan_cli.planning.allocation import allocate as allocate_level
from memplan_cli.planning.candidate import Candidate, PlanningTask
from memplan_cli.planning.candidates import candidates
from memplan_cli.planning.choose import choose
from memplan_cli.planning.notes import (
    budget_notes,
    fallbacks,
    left_alone,
    settings_notes,
    weights_notes,
)
from memplan_cli.planning.record import plan_of
from memplan_cli.planning.report import Decision, resident_peak
from memplan_cli.planning.rewrites import Folding
from memplan_cli.planning.scope import find_scope, planned_vars_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memplan_cli.analysis.phase import Phases
    from memplan_cli.core.problem import Allocator
    from memplan_cli.core.program import Program, VarId
    from memplan_cli.core.progress import Progress
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.ordering.records import PlannedVars
    from memplan_cli.planning.allocation import Allocation
    from memplan_cli.planning.candidate import Runtime, Source
    from memplan_cli.planning.choose import EvaluatedCandidate
    from memplan_cli.planning.rewrites import Rewrites
    from memplan_cli.planning.scope import Scope
    from memplan_cli.settings.settings import Settings


@dataclass(frozen=True, slots=True)
class PlannedProgram:
    """A plan, the program in the planned order, and the settings of the plan.

    Attributes:
        constants: Values of the constants that chunks read.
    """

    program: Program
    plan: Plan
    settings: Settings
    constants: Mapping[VarId, tuple[int, ...]] = field(default_factory=dict)


def make_plan(
    program: Program,
    settings: Settings,
    source: Source,
    rewrites: Rewrites,
    *,
    runtime: Runtime | None = None,
    allocate: Allocator | None = None,
    progress: Progress | None = None,
) -> PlannedProgram:
    """Plan the memory of a program.

    Without a ``runtime``, the order in which the plan needs least memory is searched. With a runtime, it is the
    order in which the runtime needs least, unless that order costs the plan more bytes than the runtime saves.

    ``allocate`` packs the arenas of level 2 in place of the portfolio.

    Raises:
        SettingsError: a tensor to exclude, or the value given as training loss, is not in the
            model, or options contradict each other.
        InvalidLayoutError: an allocator returned a layout that is not safe.
    """
    context = _Context(settings, source, rewrites, runtime, allocate, progress)
    decision = _decide(program, context)
    plan = plan_of(decision, rewrites.foldable_tensors)
    program, constants = decision.program, decision.constants
    del decision  # of a large program, most of what is in memory
    check(plan)  # raises if the layout is not safe
    # To free the dataflow that the block caches, and the problems that the plan caches: copies have
    # empty caches.
    program = replace(program, body=replace(program.body))
    return PlannedProgram(program, replace(plan), settings, constants)


@dataclass(frozen=True, slots=True)
class _Context:
    """The arguments of `make_plan` apart from the program."""

    settings: Settings
    source: Source
    rewrites: Rewrites
    runtime: Runtime | None
    allocator: Allocator | None
    progress: Progress | None

    def tell(self, stage: str) -> None:
        """Report the stage that begins."""
        (self.progress or silent)(stage)

    def phases(self, program: Program) -> Phases:
        """Return which ops are forward, backward and update."""
        recorded = self.source.recorded_phases
        return find_phases(program, loss=self.settings.loss, recorded=recorded)

    def planned_vars(self, program: Program, scope: Scope) -> PlannedVars:
        """Return the vars whose bytes count in searches for orders and rewrites."""
        patterns = self.settings.donate
        donated = self.rewrites.donated_outputs(program, patterns) if patterns else ()
        return planned_vars_of(program, scope, self.settings, donated)


def _decide(program: Program, context: _Context) -> Decision:
    """Rewrite, order and allocate a program.

    If the settings exclude training graphs, or inference graphs, such a program is left as it is.
    """
    settings = context.settings
    context.tell("planning")
    phases = context.phases(program)
    reasons_to_keep = tuple(left_alone(settings, phases))
    folding = Folding(program)
    if reasons_to_keep:
        decision = _without_reuse(program, context, phases)
    else:
        if settings.fold_constants:
            folding = context.rewrites.fold_constants(program, settings, phases.loss)
        decide = _chunked if settings.chunk == "auto" else _best_candidate
        decision = decide(folding.program, context)
    candidate, allocation = decision.candidate, decision.allocation
    return replace(
        decision,
        # Restored, because `_chunked` decides with other settings (the budget in bytes) and another original
        # (the program in chunks). The report compares the plan with the program before chunking.
        settings=settings,
        original=folding.program,
        warnings=(
            *reasons_to_keep,
            *settings_notes(folding.program, settings),
            *weights_notes(folding.program),
            *candidate.warnings,
            *budget_notes(candidate, allocation),
        ),
        fallbacks=() if reasons_to_keep else tuple(fallbacks(candidate, allocation, settings)),
        folded=folding.facts,
    )


def _without_reuse(program: Program, context: _Context, phases: Phases) -> Decision:
    """Keep the order of the file, with storage of its own for each tensor."""
    settings = context.settings
    scope = find_scope(program, settings, phases)
    needs = Needs(program, scope.sizes, scope.pinned, settings.alignment)
    apart = allocate_apart(needs, settings.level)  # the level decides the live peak only
    return Decision(
        source=context.source,
        settings=settings,
        phases=phases,
        original=program,
        scope=scope,
        candidate=Candidate(program, scope.sizes),
        needs=needs,
        allocation=apart,
        heights_by_level=(apart.heights,) * 3,  # the same at the reuse levels 0, 1 and 2
        original_allocation=apart,
    )


def _chunked(program: Program, context: _Context) -> Decision:
    """Compute regions in chunks, and choose the best candidate of the new program.

    With recomputation, chunks reduce the peak first and recomputation the rest. The program without chunks is planned
    too, if recomputation alone may add less work or if a runtime's arena may hold less: its best candidate is chosen
    if its `_rewrite_cost` is lower.
    """
    settings, rewrites, runtime = context.settings, context.rewrites, context.runtime
    scope = find_scope(program, settings, context.phases(program))
    planned_vars = context.planned_vars(program, scope)
    chunking = rewrites.chunk(program, planned_vars, settings, context.source, context.tell)
    # Settings may have the budget as a share of the peak. Chunking has turned it into bytes.
    budget = chunking.facts.budget
    context_in_bytes = replace(context, settings=replace(settings, budget=budget))
    decision = replace(
        _best_candidate(chunking.program, context_in_bytes),
        chunked=chunking.facts,
        constants=chunking.constants,
    )
    if not chunking.facts.regions:
        return decision
    may_add_less_work = settings.recompute == "auto"
    arena_may_hold_less = (
        runtime is not None and budget is None
    )  # with a budget, arenas do not count
    if may_add_less_work or arena_may_hold_less:
        unchunked = _best_candidate(program, context_in_bytes)
        unchunked_cost = _rewrite_cost(unchunked, budget, runtime)
        if unchunked_cost < _rewrite_cost(decision, budget, runtime):
            if budget is not None:
                # Without ``chunking.facts``: they tell whether the program with chunks meets the budget.
                return unchunked
            return replace(unchunked, chunked=chunking.facts.without_regions())
    # The report compares the plan with the program before chunking, in the order of the file.
    needs = Needs(program, scope.sizes, scope.pinned, settings.alignment)
    return replace(decision, original_allocation=allocate_level(needs, settings.level))


def _rewrite_cost(
    decision: Decision, budget: int | None, runtime: Runtime | None
) -> tuple[int, float]:
    """Return the bytes that a program needs, and then the added work as a share of the model's work.

    With a budget, the bytes are those of intermediates and outputs above it. Without one, they are what the
    runtime's arena holds; without a runtime, the bytes of intermediates and outputs. Sizes with symbols,
    which no budget is compared with, count 0.
    """
    program = decision.candidate.program
    work = decision.chunked.flops_increase + decision.candidate.recompute.flops_increase
    held = runtime.arena_bytes(program) if runtime is not None and budget is None else None
    if held is not None:
        return held, work
    resident = resident_peak(decision, decision.needs) or 0
    return max(resident - (budget or 0), 0), work


def _best_candidate(program: Program, context: _Context) -> Decision:
    """Evaluate the candidates of a program, and choose the one that needs the least memory."""
    settings = context.settings
    phases = context.phases(program)
    scope = find_scope(program, settings, phases)
    planned_vars = context.planned_vars(program, scope)
    task = PlanningTask(
        program, planned_vars, phases, settings, context.runtime, context.progress
    )
    programs = candidates(task, context.rewrites)
    evaluated = choose(programs, settings, scope.pinned, context.allocator, task.tell)
    best = evaluated[0]  # `choose` returns the best one first
    candidate = best.candidate
    if candidate.peaks:  # empty if sizes have symbols
        # ``order`` names the search of an order, ``peaks`` has the live peak that each search found. The chosen
        # order may have been changed after these searches, and its peak is missing then.
        chosen_peak = {candidate.order: best.allocation.live_peak}
        candidate = replace(candidate, peaks={**candidate.peaks, **chosen_peak})
    return Decision(
        source=context.source,
        settings=settings,
        phases=phases,
        original=program,
        scope=scope,
        candidate=candidate,
        needs=best.needs,
        allocation=best.allocation,
        heights_by_level=heights_by_level(best.needs, best.allocation, settings.level),
        original_allocation=_original_allocation(task, scope, evaluated),
    )


def _original_allocation(
    task: PlanningTask, scope: Scope, evaluated: Sequence[EvaluatedCandidate]
) -> Allocation:
    """Return the allocation in the order of the file, from a candidate if one has that order.

    ``evaluated`` is from `choose`: the best candidate, whose allocation is planned, is the first. Others
    may have been packed by heuristics only, and are searched now.
    """
    best, *others = evaluated
    if best.candidate.program is task.program:
        return best.allocation
    for contender in others:
        if contender.candidate.program is task.program:
            return contender.searched().allocation
    needs = replace(best.needs, program=task.program, sizes=scope.sizes)
    return allocate_level(needs, task.settings.level)
