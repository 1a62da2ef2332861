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
from typing import TYPE_CHECKING, NamedTuple

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
from memplan_cli.planning.report import Decision
from memplan_cli.planning.rewrites import Chunking, Folding
from memplan_cli.planning.scope import find_scope, terms_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memplan_cli.analysis.phase import Phases
    from memplan_cli.core.problem import Allocator
    from memplan_cli.core.program import Program, VarId
    from memplan_cli.core.progress import Progress
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.core.results.rewrites import NewWeight
    from memplan_cli.ordering.records import PlannedVars
    from memplan_cli.planning.allocation import Allocation, Heights
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
    constants: Mapping[VarId, NewWeight] = field(default_factory=dict)


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

    The order is made for the plan, or for ``runtime`` too. ``allocate`` packs the arenas of
    level 2 in place of the portfolio.

    Raises:
        SettingsError: an exclusion or the loss names no tensor of the model, or options
            contradict each other.
        InvalidLayoutError: an allocator returned a layout that is not safe.
    """
    context = _Context(settings, source, rewrites, runtime, allocate, progress)
    decision = _decide(program, context)
    plan = plan_of(decision, rewrites.foldable_tensors)
    program, constants = decision.program, decision.constants
    del decision  # of a large program, most of what is in memory
    # A copy of the block has no cached dataflow, which writing does not need.
    program = replace(program, body=replace(program.body))
    check(plan)  # raises if the layout is not safe
    return PlannedProgram(program, plan, settings, constants)


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

    def terms(self, program: Program, scope: Scope) -> PlannedVars:
        """Return the sizes and the sharing of bytes by which orders are searched."""
        patterns = self.settings.donate
        donated = self.rewrites.donated_outputs(program, patterns) if patterns else ()
        return terms_of(program, scope, self.settings, donated)


class _Selection(NamedTuple):
    """The candidate that is planned, and its allocation at the level of the settings.

    Attributes:
        heights_by_level: The height of each arena by unit, at levels 0, 1 and 2, in the
            planned order.
        original_allocation: At the level of the settings, in the order of the file.
    """

    phases: Phases
    scope: Scope
    candidate: Candidate
    needs: Needs
    allocation: Allocation
    heights_by_level: tuple[Heights, ...]
    original_allocation: Allocation


def _decide(program: Program, context: _Context) -> Decision:
    """Rewrite, order and allocate a program.

    If the settings exclude the model's phase, the program is left as it is.
    """
    settings = context.settings
    context.tell("planning")
    phases = context.phases(program)
    reasons_to_keep = tuple(left_alone(settings, phases))
    folding, chunking = Folding(program), Chunking(program)
    if reasons_to_keep:
        selection = _without_reuse(program, phases, settings)
    else:
        if settings.fold_constants:
            folding = context.rewrites.fold_constants(program, settings, phases.loss)
        if settings.chunk == "auto":
            chunking, selection = _chunked(folding.program, context)
        else:
            chunking = Chunking(folding.program)
            selection = _best_candidate(folding.program, context)
    candidate, allocation = selection.candidate, selection.allocation
    return Decision(
        source=context.source,
        settings=settings,
        phases=selection.phases,
        original=folding.program,
        scope=selection.scope,
        candidate=candidate,
        needs=selection.needs,
        allocation=allocation,
        heights_by_level=selection.heights_by_level,
        original_allocation=selection.original_allocation,
        warnings=(
            *reasons_to_keep,
            *settings_notes(folding.program, settings),
            *weights_notes(folding.program),
            *candidate.warnings,
            *budget_notes(candidate, allocation),
        ),
        fallbacks=() if reasons_to_keep else tuple(fallbacks(candidate, allocation, settings)),
        folded=folding.facts,
        chunked=chunking.facts,
        constants=chunking.constants,
    )


def _without_reuse(program: Program, phases: Phases, settings: Settings) -> _Selection:
    """Return the order of the file, with storage of its own for each tensor, at every level."""
    scope = find_scope(program, settings, phases)
    needs = Needs(program, scope.sizes, scope.pinned, settings.alignment)
    apart = allocate_apart(needs, settings.level)
    candidate = Candidate(program, scope.sizes)
    return _Selection(phases, scope, candidate, needs, apart, (apart.heights,) * 3, apart)


def _chunked(program: Program, context: _Context) -> tuple[Chunking, _Selection]:
    """Compute regions in chunks, and return the best candidate of the new program.

    With recomputation, chunks reduce the peak first and recomputation the rest. If the
    program without chunks needs less memory above the budget, or as much with less added
    work, it is returned instead.
    """
    settings, rewrites = context.settings, context.rewrites
    scope = find_scope(program, settings, context.phases(program))
    terms = context.terms(program, scope)
    chunking = rewrites.chunk(program, terms, settings, context.source, context.tell)
    budget = chunking.facts.budget  # in bytes, also where the settings have a share
    context = replace(context, settings=replace(settings, budget=budget))
    selection = _best_candidate(chunking.program, context)
    if not chunking.facts.regions:
        return chunking, selection
    if settings.recompute == "auto":

        def cost(selection: _Selection, chunking: Chunking) -> tuple[int, float]:
            bytes_above_budget = max(selection.allocation.live_peak - (budget or 0), 0)
            recomputed = selection.candidate.recompute.flops_increase
            return bytes_above_budget, chunking.facts.flops_increase + recomputed

        unchunked = _best_candidate(program, context)
        if cost(unchunked, Chunking(program)) < cost(selection, chunking):
            return Chunking(program), unchunked
    # The plan is compared with the program before chunking, in the order of the file.
    needs = Needs(program, scope.sizes, scope.pinned, settings.alignment)
    original_allocation = allocate_level(needs, settings.level)
    return chunking, selection._replace(original_allocation=original_allocation)


def _best_candidate(program: Program, context: _Context) -> _Selection:
    """Evaluate the candidates of a program, and return the one that needs the least memory."""
    settings = context.settings
    phases = context.phases(program)
    scope = find_scope(program, settings, phases)
    terms = context.terms(program, scope)
    task = PlanningTask(program, terms, phases, settings, context.runtime, context.progress)
    evaluated = choose(
        candidates(task, context.rewrites),
        settings,
        scope.pinned,
        context.allocator,
        task.tell,
    )
    best = evaluated[0]
    candidate = best.candidate
    if candidate.peaks:  # those of the methods, which may lack the order that was chosen
        peaks = {**candidate.peaks, candidate.order: best.allocation.live_peak}
        candidate = replace(candidate, peaks=peaks)
    return _Selection(
        phases,
        scope,
        candidate,
        best.needs,
        best.allocation,
        heights_by_level(best.needs, best.allocation, settings.level),
        _original_allocation(task, scope, evaluated),
    )


def _original_allocation(
    task: PlanningTask, scope: Scope, evaluated: Sequence[EvaluatedCandidate]
) -> Allocation:
    """Return the allocation in the order of the file, from a candidate if one has that order.

    A candidate that lost may have been packed by heuristics only: it is searched now.
    """
    best = evaluated[0]
    if best.candidate.program is task.program:
        return best.allocation
    for contender in evaluated:
        if contender.candidate.program is task.program:
            return contender.searched().allocation
    needs = replace(best.needs, program=task.program, sizes=scope.sizes, measured=None)
    return allocate_level(needs, task.settings.level)
