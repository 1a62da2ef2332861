"""The pipeline: candidates -> evaluate -> choose -> Plan.

What is planned is decided by one search over candidates: programs in some order, with or
without copies, each evaluated by the same code. No step looks back; each can be called alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.analysis.phase import find_phases
from memplan_cli.core.progress import silent
from memplan_cli.core.results.folded import Folded
from memplan_cli.core.results.plan import check
from memplan_cli.features.chunking.plan import Chunking, chunk
from memplan_cli.features.folding.plan import fold_constants
from memplan_cli.packing.portfolio import DEFAULT_WORK
from memplan_cli.planning.choosing.allocation import Needs, allocate_apart
from memplan_cli.planning.choosing.candidate import Candidate, Question
from memplan_cli.planning.choosing.candidates import candidates
from memplan_cli.planning.choosing.choose import Limits, choose
from memplan_cli.planning.choosing.levels import allocate, heights_by_level
from memplan_cli.planning.decided import Decided
from memplan_cli.planning.notes import (
    fallbacks,
    left_alone,
    plan_notes,
    settings_notes,
    weights_notes,
)
from memplan_cli.planning.record import plan_of
from memplan_cli.planning.scope import find_scope
from memplan_cli.planning.terms import terms_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memplan_cli.analysis.phase import Phases
    from memplan_cli.core.problem import Allocator
    from memplan_cli.core.program import Program, VarId
    from memplan_cli.core.progress import Progress
    from memplan_cli.core.results.chunks import NewWeight
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.planning.choosing.allocation import Allocation, Heights
    from memplan_cli.planning.choosing.candidate import Runtime
    from memplan_cli.planning.choosing.choose import Evaluated
    from memplan_cli.planning.decided import Source
    from memplan_cli.planning.scope import Scope
    from memplan_cli.settings.settings import Settings


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan, the program in the order that it is about, and the settings that it is for."""

    program: Program
    plan: Plan
    settings: Settings
    constants: Mapping[VarId, NewWeight] = field(default_factory=dict)
    """Values of the constants that pieces of regions read."""


class _Means(NamedTuple):
    """What a caller brings along, each None for the planner's own."""

    runtime: Runtime | None
    allocator: Allocator | None
    progress: Progress | None


def make_plan(
    program: Program,
    settings: Settings,
    source: Source,
    *,
    runtime: Runtime | None = None,
    allocate: Allocator | None = None,
    progress: Progress | None = None,
) -> Planned:
    """Plan the memory of a program.

    Args:
        program: In the order of the file.
        settings: What is asked for.
        source: The file it came from.
        runtime: The runtime that the order is made for; None makes it for the plan.
        allocate: Packs the arenas of level 2; None searches with the portfolio.
        progress: Told what is being done.

    Raises:
        SettingsError: an exclusion or the loss names no tensor of the model.
        InvalidLayoutError: an allocator broke its promise.
    """
    means = _Means(runtime, allocate, progress)
    decided = _decided(program, settings, source, means)
    program, plan, constants = decided.program, plan_of(decided), decided.constants
    del decided  # of a large program, most of what is in memory
    # A copy of the block has no cached dataflow, which writing does not need.
    program = replace(program, body=replace(program.body))
    check(plan)
    return Planned(program, plan, settings, constants)


def _decided(program: Program, settings: Settings, source: Source, means: _Means) -> Decided:
    """Decide everything; how it is written down, and whether it is safe, is for others."""
    tell = means.progress or silent
    tell("planning")
    phases, scope = _looked_at(program, settings, source)
    refusal = tuple(left_alone(settings, phases))
    folded, chunking = Folded(), Chunking(program)
    if refusal:
        chosen = _as_it_is(program, scope, settings)
    else:
        if settings.fold_constants:
            folding = fold_constants(program, settings, phases.loss)
            program, folded = folding.program, folding.facts
            chunking = Chunking(program)
            phases, scope = _looked_at(program, settings, source)
        if settings.chunk == "auto":
            chunking = chunk(program, scope, settings, source, tell)
        chunking, chosen = _cheaper(chunking, program, settings, source, means)
        phases, scope = _looked_at(chunking.program, settings, source)
        if chunking.facts.regions:
            chosen = chosen._replace(before=_as_given(program, settings, source))
    return Decided(
        source=source,
        settings=settings,
        phases=phases,
        original=program,
        scope=scope,
        candidate=chosen.candidate,
        needs=chosen.needs,
        allocation=chosen.allocation,
        levels=chosen.levels,
        before=chosen.before,
        warnings=(
            *refusal,
            *settings_notes(program, settings),
            *weights_notes(program),
            *chosen.candidate.warnings,
            *plan_notes(chosen.candidate, chosen.allocation),
        ),
        fallbacks=()
        if refusal
        else tuple(fallbacks(chosen.candidate, chosen.allocation, settings)),
        folded=folded,
        chunked=chunking.facts,
        constants=chunking.constants,
    )


def _cheaper(
    chunking: Chunking, program: Program, settings: Settings, source: Source, means: _Means
) -> tuple[Chunking, _Chosen]:
    """Return what is put in pieces, and the candidate: a budget is met by what adds less work.

    Where ops may be recomputed too, what pieces leave above the budget is recomputed.
    """
    if settings.chunk == "auto":
        settings = replace(settings, budget=chunking.facts.budget)
    chosen = _planned_as(chunking.program, settings, source, means)
    if not chunking.facts.regions or settings.recompute != "auto":
        return chunking, chosen
    alone = _planned_as(program, settings, source, means)
    budget = chunking.facts.budget or 0
    added = chunking.facts.flops_increase
    if _cost(alone, budget, 0.0) < _cost(chosen, budget, added):
        return Chunking(program), alone
    return chunking, chosen


def _cost(chosen: _Chosen, budget: int, added: float) -> tuple[int, float]:
    """Return the bytes above a budget, then the work that was added."""
    above = max(chosen.allocation.live_peak - budget, 0)
    return above, added + chosen.candidate.recompute.flops_increase


def _planned_as(
    program: Program, settings: Settings, source: Source, means: _Means
) -> _Chosen:
    """Return the best candidate of a program."""
    phases, scope = _looked_at(program, settings, source)
    terms = terms_of(program, scope, settings)
    question = Question(program, terms, phases, settings, means.runtime, means.progress)
    return _chosen(question, scope, Limits.of(settings, scope.pinned, means.allocator))


def _as_given(program: Program, settings: Settings, source: Source) -> Allocation:
    """Return the allocation of the program before regions were put in pieces."""
    _, scope = _looked_at(program, settings, source)
    needs = Needs(program, scope.sizes, scope.pinned, settings.alignment)
    return allocate(needs, settings.level)


def _looked_at(program: Program, settings: Settings, source: Source) -> tuple[Phases, Scope]:
    """Return what is known before anything moves: the parts, and what is planned."""
    phases = find_phases(program, loss=settings.loss, recorded=source.recorded_phases)
    return phases, find_scope(program, settings, phases)


class _Chosen(NamedTuple):
    """The candidate that is planned, and its allocation at the level asked for."""

    candidate: Candidate
    needs: Needs
    allocation: Allocation
    levels: tuple[Heights, ...]
    """The height of each arena by unit, at levels 0, 1 and 2, in the order that is planned."""
    before: Allocation
    """The allocation at the level asked for, in the order of the file."""


def _as_it_is(program: Program, scope: Scope, settings: Settings) -> _Chosen:
    """Leave the model as it is: its order, and no memory reused."""
    needs = Needs(program, scope.sizes, scope.pinned, settings.alignment)
    apart = allocate_apart(needs, settings.level)
    return _Chosen(Candidate(program, scope.sizes), needs, apart, (apart.heights,) * 3, apart)


def _chosen(question: Question, scope: Scope, limits: Limits) -> _Chosen:
    """Evaluate the candidates, take the least, and find what the file's order would take."""
    evaluated = choose(candidates(question), limits, question.tell)
    best = evaluated[0]
    candidate = best.candidate
    if candidate.peaks:
        peaks = {**candidate.peaks, candidate.order: best.allocation.live_peak}
        candidate = replace(candidate, peaks=peaks)
    levels = heights_by_level(best.needs, best.allocation, question.settings.level)
    before = _before(question, scope, evaluated)
    return _Chosen(candidate, best.needs, best.allocation, levels, before)


def _before(question: Question, scope: Scope, evaluated: Sequence[Evaluated]) -> Allocation:
    """Return the allocation in the order of the file, at the level asked for."""
    best = evaluated[0]
    if best.candidate.program is question.program:
        return best.allocation
    for found in evaluated:
        if found.candidate.program is question.program:
            return found.searched(DEFAULT_WORK).allocation
    needs = replace(best.needs, program=question.program, sizes=scope.sizes, measured=None)
    return allocate(needs, question.settings.level)
