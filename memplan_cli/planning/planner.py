"""The pipeline: Program + Settings -> Plan. No step looks back; each can be called alone.

Order the ops, find who lives when, decide who shares storage, split into problems by unit,
allocate each, refuse any layout with violations, say what it all comes to.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.analysis.dataflow import dataflow
from memplan_cli.analysis.dry_run import dry_run
from memplan_cli.analysis.phase import find_phases
from memplan_cli.analysis.storage import measured
from memplan_cli.core.compact.heap import give_back
from memplan_cli.core.results.plan import check
from memplan_cli.core.selection import select
from memplan_cli.core.symbolic.sizes import symbols_of
from memplan_cli.errors import SettingsError
from memplan_cli.planning.allocation import (
    Needs,
    beside_pools,
    place_apart,
    place_level,
    place_levels,
)
from memplan_cli.planning.loosening import place_in_better_order
from memplan_cli.planning.record import Decided, plan_of
from memplan_cli.planning.scheduling import (
    aliasing_of,
    as_it_is,
    for_runtime,
    schedule,
    with_donations,
)
from memplan_cli.planning.scope import find_scope
from memplan_cli.transforms.terms import Terms

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from memplan_cli.analysis.dataflow import Dataflow
    from memplan_cli.analysis.phase import Phases
    from memplan_cli.core.program import Program
    from memplan_cli.core.progress import Progress
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.planning.allocation import Levels, Placed
    from memplan_cli.planning.loosening import InOrder
    from memplan_cli.planning.record import Source
    from memplan_cli.planning.scheduling import Runtime, Schedule
    from memplan_cli.planning.scope import Scope
    from memplan_cli.settings.settings import Settings


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan, and the program in the order that the plan is about."""

    program: Program
    plan: Plan


def make_plan(
    program: Program,
    settings: Settings,
    source: Source,
    *,
    runtime: Runtime | None = None,
    progress: Progress | None = None,
) -> Planned:
    """Plan the memory of a program.

    Args:
        program: In the order of the file.
        settings: What is asked for.
        source: The file it came from.
        runtime: The runtime that the order is made for; None makes it for the plan.
        progress: Told what is being done.

    Raises:
        SettingsError: an exclusion or the loss names no tensor of the model.
        InvalidLayoutError: an allocator broke its promise.
    """
    decided = _decided(program, settings, source, runtime, progress)
    program, plan = decided.program, plan_of(decided)
    del decided  # of a large program, most of what is in memory
    give_back(len(program.vars))
    check(plan)
    give_back(len(program.vars))
    return Planned(program, plan)


def _decided(
    program: Program,
    settings: Settings,
    source: Source,
    runtime: Runtime | None,
    progress: Progress | None,
) -> Decided:
    """Decide everything; how it is written down, and whether it is safe, is for others."""
    phases, scope, estimate = _looked_at(program, settings, source)
    give_back(len(program.vars))
    terms = Terms(scope.sizes, frozenset(scope.pinned), aliasing_of(settings.level))
    refusal = tuple(_left_alone(settings, phases))
    if refusal:
        chosen = as_it_is(program, scope.sizes)
    else:
        chosen = schedule(program, terms, phases, settings, progress)
        if runtime is not None:
            chosen = for_runtime(program, terms, chosen, runtime, settings)
        chosen = with_donations(chosen, terms, settings)
    chosen, needs, answer = _placed(program, scope, chosen, settings, left_alone=bool(refusal))
    give_back(len(program.vars))
    over = (*_over_budget(chosen, answer.placed), *_lost_alignment(settings, answer.placed))
    return Decided(
        source=source,
        settings=settings,
        phases=phases,
        original=program,
        scope=scope,
        schedule=chosen,
        needs=needs,
        placed=answer.placed,
        levels=answer.levels,
        before=answer.before,
        warnings=(*refusal, *_notes(program, settings), *chosen.warnings, *over),
        estimate=estimate,
    )


def _looked_at(
    program: Program, settings: Settings, source: Source
) -> tuple[Phases, Scope, Mapping[str, int]]:
    """Return what is known before anything moves: the parts, what is planned, the dry run."""
    flow = dataflow(program.body)
    phases = find_phases(
        program, loss=settings.loss, recorded=source.recorded_phases, flow=flow
    )
    scope = find_scope(program, settings, phases)
    return phases, scope, _estimate(program, scope, settings.kind(phases.kind), flow)


class _Answer(NamedTuple):
    """Where everything lies at the level asked for, and what each level comes to."""

    placed: Placed
    levels: tuple[Mapping[str, int], ...]
    before: Placed
    """In the order of the file."""


def _placed(
    program: Program, scope: Scope, chosen: Schedule, settings: Settings, *, left_alone: bool
) -> tuple[Schedule, Needs, _Answer]:
    """Give every tensor a place at each level, in the chosen order or, if less, the file's."""
    needs = Needs(
        chosen.ordering.program,
        chosen.sizes,
        scope.pinned,
        settings.alignment,
        settings.time_limit,
        chosen.ordering.measured,
    )
    if left_alone:
        # What is live counts shared bytes once, although nothing shares here.
        placed = replace(place_apart(needs), storage=needs.storage(settings.level))
        return chosen, needs, _Answer(placed, (placed.heights,) * 3, placed)
    chosen, needs, levels = _in_better_order(chosen, needs, settings)
    before = levels.placed
    if chosen.ordering.program is not program:
        kept = replace(needs, program=program, sizes=scope.sizes)
        before = place_level(kept, settings.level)
        found = levels.placed
        if _is_free(chosen, settings) and _is_worse(found, before):
            chosen = _in_the_files_order(program, chosen, found)
            needs, levels = kept, place_levels(kept, settings.level)
            before = levels.placed
    return chosen, needs, _Answer(levels.placed, levels.heights, before)


def _in_better_order(
    chosen: Schedule, needs: Needs, settings: Settings
) -> tuple[Schedule, Needs, Levels]:
    """Place everything in the chosen order, or in a looser one that is packed lower.

    Seconds of a limit are one search's, and an order that something else depends on stays.
    """
    looser = chosen.ordering.looser
    bound_to = settings.level < 2 or settings.time_limit is not None
    if looser is None or bound_to or not _is_free(chosen, settings):
        return chosen, needs, place_levels(needs, settings.level)

    def loosened() -> Needs:
        known = measured(looser(), needs.sizes, needs.pinned, aliasing_of(settings.level))
        return replace(needs, program=known.timeline.program, measured=known)

    found = place_in_better_order(needs, loosened)
    levels = beside_pools(found.needs, found.placed)
    if found.needs is needs:
        return chosen, needs, levels
    return _in_looser_order(chosen, found), found.needs, levels


def _in_looser_order(chosen: Schedule, found: InOrder) -> Schedule:
    """Take the looser order for the one that was chosen: a method's peak is that of both."""
    ordering, peak = chosen.ordering, found.placed.live_peak
    ordering = replace(
        ordering,
        program=found.needs.program,
        candidates={**ordering.candidates, ordering.chosen: peak},
        proved=peak == ordering.bound,
        measured=found.needs.measured,
    )
    return replace(chosen, ordering=ordering)


def _over_budget(chosen: Schedule, placed: Placed) -> Iterator[str]:
    """Say where live bytes keep a budget and the places for them, padded, take more."""
    budget, planned = chosen.recompute.budget, placed.heights.get("1", 0)
    if budget is not None and chosen.recompute.met and planned > budget:
        yield (
            f"the live bytes keep the budget of {budget} bytes, and the plan takes {planned}: "
            "places are aligned, and slots are handed on whole"
        )


def _lost_alignment(settings: Settings, placed: Placed) -> Iterator[str]:
    """Say where offsets are not aligned as asked, and why."""
    asked = settings.alignment
    kept = min((arena.problem.alignment for arena in placed.arenas), default=asked)
    if asked is not None and kept is not None and kept < asked:
        why = "aligned so, level 2 would need more than level 1"
        if settings.level < 2:
            why = f"at level {settings.level} each slot is an allocation of its own"
        yield f"offsets are multiples of {kept} bytes, not of {asked}: {why}"


def _is_free(chosen: Schedule, settings: Settings) -> bool:
    """Whether the order is there for the plan alone, and the file's would do as well."""
    bound_to = settings.recompute != "none" or settings.donate
    return not bound_to and chosen.ordering.chosen != "runtime"


def _is_worse(placed: Placed, before: Placed) -> bool:
    """Whether the file's order, placed before, takes less memory than the one that was chosen.

    An order is chosen by its live peak. Slots are handed on whole and offsets are aligned,
    so a lower peak may take more of them.
    """
    old, new = before.heights, placed.heights
    return old != new and all(old[unit] <= new.get(unit, 0) for unit in old)


def _in_the_files_order(program: Program, chosen: Schedule, found: Placed) -> Schedule:
    """Go back to the order of the file, and say why."""
    ordering, planned = chosen.ordering, found.heights.get("1")
    peak = ordering.candidates.get("file")
    proved = peak is not None and peak == ordering.bound
    kept = replace(ordering, program=program, chosen="file", proved=proved)
    note = (
        f"the order of the file is kept: another has a live peak of {found.live_peak} bytes, "
        f"but places for its tensors take {planned}"
    )
    told = () if peak is None or planned is None else (note,)
    return replace(chosen, ordering=kept, warnings=(*chosen.warnings, *told))


def _notes(program: Program, settings: Settings) -> Iterator[str]:
    """Yield what a reader must know of settings that do less than they say, or nothing.

    Raises:
        SettingsError: a dim has both a number and bounds.
    """
    yield from _bounds_notes(program, settings)
    yield from _hidden_notes(program, settings)


def _hidden_notes(program: Program, settings: Settings) -> Iterator[str]:
    """Say which excluded vars cannot become outputs of the graph, or that there are none."""
    if not settings.expose:
        return
    if not settings.excluded:
        yield "nothing is excluded, so there is nothing to expose"
    for identity in select(program, settings.excluded):
        if program.vars[identity].block:
            yield f"{identity!r} is inside a body and cannot be exposed as an output"


def _bounds_notes(program: Program, settings: Settings) -> Iterator[str]:
    """Yield what a reader must know of bounds, and which of them bind nothing.

    Raises:
        SettingsError: a dim has both a number and bounds.
    """
    if not settings.bounds:
        return
    dims = {dim for var in program.vars.values() for dim in var.shape or ()}
    names = {name for dim in dims for name in symbols_of(dim)}
    for name, (low, high) in settings.bounds.items():
        if name in settings.dims:
            raise SettingsError(f"dim {name!r} has both a number and bounds")
        if name in names:
            yield f"sizes are the most for {name} from {low} to {high}"
        else:
            yield f"no free dim is called {name!r}: its bounds do nothing"


def _left_alone(settings: Settings, phases: Phases) -> Iterator[str]:
    """Yield why models of this kind are left as they are, if they are."""
    kind = settings.kind(phases.kind)
    allowed = {
        "train": settings.mem_param.optimize_train,
        "test": settings.mem_param.optimize_test,
    }
    if not allowed[kind]:
        yield f"left as it is: mem_param.optimize_{kind} is false and the phase is {kind}"


def _estimate(program: Program, scope: Scope, kind: str, flow: Dataflow) -> Mapping[str, int]:
    """Return Caffe's dry run where the model is a forward one and all sizes are numbers.

    Not where ops have bodies: the run knows layers, and what is in bodies can be most of it.
    """
    if kind == "train" or any(op.bodies for op in program.body.ops):
        return {}
    if scope.unplanned or any(size.symbols for size in scope.sizes.values()):
        return {}
    found = dry_run(program, scope.sizes, flow)
    return {"raw": found.raw, "optimized": found.optimised}
