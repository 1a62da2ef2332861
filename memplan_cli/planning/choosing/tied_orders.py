"""Orders that something besides the plan depends on: a runtime's, and those of donated pairs."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from memplan_cli.analysis.storage import live_peak
from memplan_cli.core.program import Origin
from memplan_cli.core.results.report import Donated, Refusal
from memplan_cli.core.symbolic.sizes import size_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from memplan_cli.analysis.aliasing import Aliasing
    from memplan_cli.core.program import Program, VarId
    from memplan_cli.core.symbolic.sizes import Size
    from memplan_cli.ordering.terms import Ordering
    from memplan_cli.planning.choosing.candidate import Candidate, Question, Runtime

_WORTH = 6
"""A search that gained less than one part in two to the power of so many is the last one."""

_WORK_OF_OP = 2000
"""Of one search, in steps looked at: what is not found by then, ten times as many do not find."""


def for_runtime(question: Question, runtime: Runtime, found: Candidate) -> Candidate:
    """Prefer the order that a runtime needs least memory for, where that saves more.

    A runtime shares less than the plan does, and it holds the graph's results too. Its
    order is taken where the plan needs no more than in the order of the file, or where the
    runtime needs less by more than the plan needs more: the file is made for the runtime.
    """
    settings, program, terms = question.settings, question.program, question.terms
    if settings.recompute != "none" or settings.order == "keep":
        return found
    results = {var: program.vars[var] for var in program.body.outputs}
    made = {v: size_of(f.shape, f.dtype) for v, f in results.items() if f.origin is Origin.OP}
    sizes = {**terms.sizes, **{v: size for v, size in made.items() if size is not None}}
    sharing = runtime.aliasing
    best = _searched_again(program, sizes, sharing, settings.time_limit)
    before, peak = question.live_peak(program), question.live_peak(best.program)
    needed = min(live_peak(o, sizes, aliasing=sharing) for o in (program, found.program))
    saved = needed - live_peak(best.program, sizes, aliasing=sharing)
    if peak - before > max(saved, 0):
        return found

    def is_allowed(other: Program) -> bool:
        return question.live_peak(other) <= max(peak, before)

    chosen = runtime.settle(best.program, is_allowed)
    peaks = {**found.peaks, "runtime": question.live_peak(chosen)}
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


def with_donations(found: Candidate, question: Question) -> Candidate:
    """Donate what may be donated, moving consumers of old values where that pays.

    This comes last: a pair is safe in one order of the nodes, and any other may undo it.
    Where the order that all pairs need takes more than they save, or breaks a budget, only
    the pairs that need no other order are made.
    """
    from memplan_cli.features.donation.transform import donations, donations_in_place

    terms, program = question.terms, found.program
    patterns = tuple(question.settings.donate.items())
    given = donations(program, patterns)
    held = replace(terms, sizes=found.sizes).resident
    needs = partial(live_peak, sizes=held.sizes, pinned=held.pinned, aliasing=held.aliasing)
    if given.program is not program:
        before, peak = needs(program), needs(given.program)
        budget = found.recompute.budget
        breaks = found.recompute.met and budget is not None and peak > budget
        if breaks or peak - before > _saved(program, given.pairs):
            given = donations_in_place(program, patterns)
        found = replace(found, program=given.program, measured=None)
    names = program.vars
    told = Donated(
        tuple((names[one].name, names[other].name) for one, other in given.pairs),
        tuple(
            Refusal(f"{names[one].name}={names[other].name}", why)
            for one, other, why in given.refused
        ),
    )
    return replace(found, donated=told)


def _saved(program: Program, pairs: Iterable[tuple[VarId, VarId]]) -> int:
    """Return the bytes that donated pairs save, of sizes that are numbers."""
    made = (program.vars[made] for _, made in pairs)
    sizes = [size_of(var.shape, var.dtype) for var in made]
    return sum(size.coefficient for size in sizes if size is not None and size.unit == "1")
