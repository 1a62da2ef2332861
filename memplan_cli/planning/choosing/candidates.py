"""The programs that may be planned for one model, each with where it came from.

Ordering, recomputation and donation are transforms, `Program -> Program`; what they find out
goes along with the programs that they give, to be compared and to be reported.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memplan_cli.analysis.cost import op_cost, total_cost
from memplan_cli.analysis.storage import live_peak
from memplan_cli.core.binding_options import LOOK_AT_A_RUN, input_shapes, sizing_options
from memplan_cli.core.results.recomputed import CurvePoint, Recompute
from memplan_cli.errors import SettingsError
from memplan_cli.ordering.terms import Ordering
from memplan_cli.planning.choosing.candidate import FILE, Candidate
from memplan_cli.planning.choosing.tied_orders import for_runtime, with_donations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from memplan_cli.core.program import Program, VarId
    from memplan_cli.core.symbolic.sizes import Size
    from memplan_cli.planning.choosing.candidate import Question
    from memplan_cli.settings.settings import Settings


def candidates(question: Question) -> Iterator[Candidate]:
    """Yield the programs that may be planned: the best known first, the file's order next.

    What follows is for a plan that is not at its bound yet. Where copies, donations or a
    runtime tie the order, there is one candidate.

    Raises:
        SettingsError: options that need each other are not there together, or a name is
            none of the model.
    """
    settings = question.settings
    _reject_unused(settings)
    if settings.recompute == "none" and not settings.donate:
        yield from _orders(question)
        return
    found = RECOMPUTATIONS[settings.recompute](question)
    if question.runtime is not None:
        found = for_runtime(question, question.runtime, found)
    yield with_donations(found, question) if settings.donate else found


def transformed(question: Question) -> Candidate:
    """Return the first candidate: what the transforms make of the program.

    Raises:
        SettingsError: as for `candidates`.
    """
    return next(candidates(question))


def _orders(question: Question) -> Iterator[Candidate]:
    """Yield the order of the lowest live peak, the file's, then others worth allocating."""
    program, sizes = question.program, question.terms.sizes
    found = _searched(question, program, sizes)
    best = Candidate.ordered(found, sizes)
    if question.runtime is not None:
        made = for_runtime(question, question.runtime, best)
        if made is not best:
            yield made
            return
    best = _with_late_outputs(question, program, found, best)
    yield best
    if best.program is not program:
        yield _at(question, best, FILE, program)
    if question.settings.order == "keep" or not found.candidates:
        return
    if question.settings.level < 2:
        yield from _simple_orders(question, best)
        return
    if best.resident or question.settings.time_limit is not None:
        return  # there outputs would be made early again; here seconds are one search's
    if found.looser is not None:
        yield replace(best, program=found.looser(), measured=None)


def _at(question: Question, best: Candidate, order: str, program: Program) -> Candidate:
    """Return a candidate in another order, measured as the best one was."""
    resident = question.resident(program) if best.resident else 0
    return replace(best, program=program, order=order, resident=resident, measured=None)


def _with_late_outputs(
    question: Question, program: Program, found: Ordering, best: Candidate
) -> Candidate:
    """Return the order in which less is resident, where one is as good for the plan.

    At levels 0 and 1 slots are whole, and another order may need more of them. Seconds of a
    limit are one search's.
    """
    settings = question.settings
    terms = replace(question.terms, sizes=best.sizes)
    if settings.order == "keep" or settings.level < 2 or not terms.results:
        return best
    if settings.time_limit is not None or any(
        size.symbols for size in terms.resident.sizes.values()
    ):
        return best
    from memplan_cli.ordering.late_outputs import fewer_resident, peak

    late = fewer_resident(program, found, terms)
    if late is None:
        return best
    resident = peak(late, terms.resident)
    return replace(best, program=late, order="resident", resident=resident, measured=None)


def _simple_orders(question: Question, best: Candidate) -> Iterator[Candidate]:
    """Yield the orders of one pass: slots are whole, and another peak may need fewer."""
    from memplan_cli.ordering.best_order import simple_orders

    terms = question.terms
    seen = [best.program.body, question.program.body]
    for name, program in simple_orders(question.program, terms):
        if program.body not in seen:
            seen.append(program.body)
            yield _at(question, best, name, program)


def _searched(question: Question, program: Program, sizes: Mapping[VarId, Size]) -> Ordering:
    """Return the order of the lowest live peak, or the file's where that is to be kept."""
    if question.settings.order == "keep":
        return Ordering(program, {}, FILE, None, proved=False)
    from memplan_cli.ordering.best_order import best_order

    question.tell("ordering")
    return best_order(
        program,
        sizes,
        pinned=frozenset(question.terms.pinned),
        aliasing=question.terms.aliasing,
        time_limit=question.settings.time_limit,
        progress=question.progress,
    )


def _nothing_again(question: Question) -> Candidate:
    program, sizes = question.program, question.terms.sizes
    found = _searched(question, program, sizes)
    return _with_late_outputs(question, program, found, Candidate.ordered(found, sizes))


def _within_budget(question: Question) -> Candidate:
    """Compute again what does not fit into a budget."""
    from memplan_cli.features.recompute.auto import auto

    terms = question.terms
    counted = terms.resident.sizes
    symbols = {name for size in counted.values() for name in size.symbols}
    if symbols:
        hint = sizing_options(input_shapes(question.program), symbols)
        if question.settings.run and hint == LOOK_AT_A_RUN:  # a run was looked at already
            hint = "no option says these: no tensor that is an input has them, and no run told"
        raise SettingsError(
            f"--recompute auto needs sizes that are numbers, not {', '.join(sorted(symbols))}",
            hint=hint,
        )
    before = question.resident(question.program)
    budget = question.settings.budget
    allowed = int(budget * before) if isinstance(budget, float) else budget
    question.tell("recomputing")
    found = auto(question.program, terms, question.phases, allowed, question.progress)
    told = Recompute(
        nodes=len(found.copies),
        flops_increase=found.chosen.extra,
        budget=allowed,
        met=found.met,
        bound=found.bound,
        resident_bound=found.resident_bound,
        curve=tuple(CurvePoint(p.peak, p.extra, p.nodes) for p in found.curve),
    )
    peaks = {
        FILE: question.live_peak(question.program),
        "recompute": live_peak(found.program, found.sizes, terms.pinned, terms.aliasing),
    }
    return Candidate(
        found.program,
        found.sizes,
        "recompute",
        peaks,
        recompute=told,
        resident=found.chosen.peak,
    )


def _from_checkpoints(question: Question) -> Candidate:
    """Compute everything between checkpoints again."""
    from memplan_cli.features.recompute.checkpoints import checkpoints

    program, terms = question.program, question.terms
    found = checkpoints(program, terms, question.settings.checkpoints, question.phases)
    ordering = _searched(question, found.program, found.sizes)
    work = total_cost(program).work
    copied = sum(op_cost(op, found.program.vars).work for op in found.copies)
    told = Recompute(nodes=len(found.copies), flops_increase=copied / work if work else 0.0)
    warnings = tuple(f"checkpoint {name!r} buys nothing: {why}" for name, why in found.useless)
    made = Candidate.ordered(ordering, found.sizes)
    made = _with_late_outputs(question, found.program, ordering, made)
    return replace(made, recompute=told, warnings=warnings)


RECOMPUTATIONS: Mapping[str, Callable[[Question], Candidate]] = {
    "none": _nothing_again,
    "auto": _within_budget,
    "checkpoints": _from_checkpoints,
}
"""The recomputations by the name of their setting; all order the ops too."""


def _reject_unused(settings: Settings) -> None:
    """Reject options that would do nothing without others.

    Raises:
        SettingsError: naming the option that is missing.
    """
    if settings.budget is not None and "auto" not in (settings.recompute, settings.chunk):
        raise SettingsError(
            "a budget is met by recomputing, or in pieces",
            hint="add --recompute auto or --chunk auto",
        )
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
