"""In which order do the ops run, and which of them twice?

Ordering, recomputation and donation are each a transform; here they are put together as
the settings ask, and what they found out is handed to the report.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from memplan_cli.analysis.aliasing import SHARE_NOTHING, SHARE_SAFELY, Aliasing
from memplan_cli.analysis.cost import op_cost, total_cost
from memplan_cli.analysis.storage import live_peak
from memplan_cli.core.program import Origin
from memplan_cli.core.results.recomputed import CurvePoint, Recompute
from memplan_cli.core.results.report import Donated, Refusal
from memplan_cli.core.symbolic.sizes import size_of
from memplan_cli.errors import SettingsError
from memplan_cli.transforms.terms import Ordering

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from memplan_cli.analysis.phase import Phases
    from memplan_cli.core.program import Program, VarId
    from memplan_cli.core.progress import Progress
    from memplan_cli.core.symbolic.sizes import Size
    from memplan_cli.settings.settings import Settings
    from memplan_cli.transforms.terms import Terms


_WORTH = 6
"""A search that gained less than one part in two to the power of so many is the last one."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """An order, the vars to plan in it (copies included), and what was found out."""

    ordering: Ordering
    sizes: Mapping[VarId, Size]
    recompute: Recompute = field(default_factory=Recompute)
    donated: Donated = field(default_factory=Donated)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Runtime:
    """What an order is made for, besides the plan.

    Attributes:
        aliasing: which operators share bytes there.
        settle: takes a program in an order of the lowest peak to one that suits its
            arena better, by steps that each are allowed.
    """

    aliasing: Aliasing
    settle: Callable[[Program, Callable[[Program], bool]], Program]


def as_it_is(program: Program, sizes: Mapping[VarId, Size]) -> Schedule:
    """Leave the order of the file."""
    return Schedule(Ordering(program, {}, "file", None, proved=False), sizes)


def schedule(
    program: Program,
    terms: Terms,
    phases: Phases,
    settings: Settings,
    progress: Progress | None = None,
) -> Schedule:
    """Order a program, and compute again what does not fit.

    Args:
        program: In the order of the file.
        terms: What is planned, what is pinned, what may share bytes.
        phases: The program's parts.
        settings: What is asked for.
        progress: Told what is being done.

    Raises:
        SettingsError: options that need each other are not there together, or a name is
            none of the model.
    """
    _refuse_idle(settings)
    if settings.recompute == "auto":
        return _fitted(program, terms, phases, settings, progress)
    if settings.recompute == "checkpoints":
        return _checkpointed(program, terms, phases, settings, progress)
    return Schedule(_ordered(program, terms, settings, progress), terms.sizes)


def for_runtime(
    program: Program,
    terms: Terms,
    found: Schedule,
    runtime: Runtime,
    settings: Settings,
) -> Schedule:
    """Prefer the order that a runtime needs least memory for, where that saves more.

    A runtime shares less than the plan does, and it holds the graph's results too. Its
    order is taken where the plan needs no more than in the order of the file, or where the
    runtime needs less by more than the plan needs more: the file is made for the runtime.
    """
    if settings.recompute != "none" or settings.order == "keep":
        return found
    results = {var: program.vars[var] for var in program.body.outputs}
    made = {v: size_of(f.shape, f.dtype) for v, f in results.items() if f.origin is Origin.OP}
    sizes = {**terms.sizes, **{v: size for v, size in made.items() if size is not None}}
    sharing = runtime.aliasing
    best = _searched_again(program, sizes, sharing, settings.time_limit)
    before = live_peak(program, terms.sizes, terms.pinned, terms.aliasing)
    peak = live_peak(best.program, terms.sizes, terms.pinned, terms.aliasing)
    others = (program, found.ordering.program)
    needed = min(live_peak(other, sizes, aliasing=sharing) for other in others)
    saved = needed - live_peak(best.program, sizes, aliasing=sharing)
    if peak - before > max(saved, 0):
        return found

    def is_allowed(other: Program) -> bool:
        needs = live_peak(other, terms.sizes, terms.pinned, terms.aliasing)
        return needs <= max(peak, before)

    chosen = runtime.settle(best.program, is_allowed)
    peak = live_peak(chosen, terms.sizes, terms.pinned, terms.aliasing)
    ordering = replace(
        found.ordering,
        program=chosen,
        candidates={**found.ordering.candidates, "runtime": peak},
        chosen="runtime",
        proved=peak == found.ordering.bound,
    )
    return replace(found, ordering=ordering)


def _searched_again(
    program: Program,
    sizes: Mapping[VarId, Size],
    sharing: Aliasing,
    time_limit: float | None,
) -> Ordering:
    """Order a program, and what came out of it, for as long as that is worth a search.

    Orders made on demand follow the file where they have a choice, and a file that the
    runtime wrote need not be in any good order: a search that starts from a better one
    finds more (an unrolled LSTM's training step: 714 MB in the file, then 81, 54, 50).
    A limit of seconds is one search's.
    """
    from memplan_cli.transforms.ordering.order import best_order

    search = partial(best_order, sizes=sizes, aliasing=sharing, time_limit=time_limit)
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


def aliasing_of(level: int) -> Aliasing:
    """Return which operators share bytes at a level."""
    return SHARE_SAFELY if level == 2 else SHARE_NOTHING


def _refuse_idle(settings: Settings) -> None:
    """Refuse options that would do nothing without others."""
    if settings.budget is not None and settings.recompute != "auto":
        raise SettingsError("a budget is met by recomputing", hint="add --recompute auto")
    if settings.checkpoints and settings.recompute != "checkpoints":
        raise SettingsError(
            "checkpoints cut what is recomputed", hint="add --recompute checkpoints"
        )
    if settings.recompute == "checkpoints" and not settings.checkpoints:
        raise SettingsError(
            "--recompute checkpoints needs the tensors to keep", hint="add --checkpoint NAME"
        )
    if settings.recompute == "auto" and settings.order == "keep":
        raise SettingsError(
            "--recompute auto chooses the order too", hint="leave out --order keep"
        )
    if settings.donate and settings.order == "keep":
        raise SettingsError(
            "--donate moves nodes so that more pairs are safe", hint="leave out --order keep"
        )


def _ordered(
    program: Program, terms: Terms, settings: Settings, progress: Progress | None
) -> Ordering:
    if settings.order == "keep":
        return Ordering(program, {}, "file", None, proved=False)
    from memplan_cli.transforms.ordering.order import best_order

    return best_order(
        program,
        terms.sizes,
        pinned=frozenset(terms.pinned),
        aliasing=terms.aliasing,
        time_limit=settings.time_limit,
        progress=progress,
    )


def _fitted(
    program: Program,
    terms: Terms,
    phases: Phases,
    settings: Settings,
    progress: Progress | None,
) -> Schedule:
    from memplan_cli.transforms.rematerialization.auto import auto

    if any(size.symbols for size in terms.sizes.values()):
        raise SettingsError(
            "--recompute auto needs sizes that are numbers", hint="bind the dims with --dim"
        )
    before = live_peak(program, terms.sizes, terms.pinned, terms.aliasing)
    budget = settings.budget
    allowed = int(budget * before) if isinstance(budget, float) else budget
    found = auto(program, terms, phases, allowed, progress)
    told = Recompute(
        nodes=len(found.copies),
        flops_increase=found.chosen.extra,
        budget=allowed,
        met=found.met,
        bound=found.bound,
        curve=tuple(CurvePoint(p.peak, p.extra, p.nodes) for p in found.curve),
    )
    candidates = {"file": before, "recompute": found.chosen.peak}
    ordering = Ordering(found.program, candidates, "recompute", None, proved=False)
    return Schedule(ordering, found.sizes, told)


def _checkpointed(
    program: Program,
    terms: Terms,
    phases: Phases,
    settings: Settings,
    progress: Progress | None,
) -> Schedule:
    from memplan_cli.transforms.rematerialization.checkpoints import checkpoints

    found = checkpoints(program, terms, settings.checkpoints, phases)
    ordering = _ordered(found.program, replace(terms, sizes=found.sizes), settings, progress)
    work = total_cost(program).work
    copied = sum(op_cost(op, found.program.vars).work for op in found.copies)
    told = Recompute(nodes=len(found.copies), flops_increase=copied / work if work else 0.0)
    warnings = tuple(f"checkpoint {name!r} buys nothing: {why}" for name, why in found.useless)
    return Schedule(ordering, found.sizes, told, warnings=warnings)


def with_donations(found: Schedule, terms: Terms, settings: Settings) -> Schedule:
    """Donate what may be donated, moving readers of old values where that pays.

    This comes last: a pair is safe in one order of the nodes, and any other may undo it.
    Where the order that all pairs need takes more than they save, or breaks a budget, only
    the pairs that need no other order are made.
    """
    if not settings.donate:
        return found
    from memplan_cli.transforms.donation import donations, donations_in_place

    program, patterns = found.ordering.program, tuple(settings.donate.items())
    given, ordering = donations(program, patterns), found.ordering
    needs = partial(live_peak, sizes=found.sizes, pinned=terms.pinned, aliasing=terms.aliasing)
    if given.program is not program:
        before, peak = needs(program), needs(given.program)
        budget = found.recompute.budget
        breaks = found.recompute.met and budget is not None and peak > budget
        if breaks or peak - before > _saved(program, given.pairs):
            given, peak = donations_in_place(program, patterns), before
        ordering = replace(ordering, program=given.program, proved=peak == ordering.bound)
    names = program.vars
    told = Donated(
        tuple((names[one].name, names[other].name) for one, other in given.pairs),
        tuple(
            Refusal(f"{names[one].name}={names[other].name}", why)
            for one, other, why in given.refused
        ),
    )
    return replace(found, ordering=ordering, donated=told)


def _saved(program: Program, pairs: Iterable[tuple[VarId, VarId]]) -> int:
    """Return the bytes that donated pairs save, of sizes that are numbers."""
    made = (program.vars[made] for _, made in pairs)
    sizes = [size_of(var.shape, var.dtype) for var in made]
    return sum(size.coefficient for size in sizes if size is not None and size.unit == "1")
