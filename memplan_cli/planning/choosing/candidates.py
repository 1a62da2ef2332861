"""The programs that may be planned for one model, each with where it came from.

Ordering, recomputation and donation are transforms, `Program -> Program`; what they find out
goes along with the programs that they give, to be compared and to be reported.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memplan_cli.errors import SettingsError
from memplan_cli.ordering.terms import Ordering
from memplan_cli.planning.choosing.candidate import FILE, Candidate
from memplan_cli.planning.choosing.tied_orders import for_runtime

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from memplan_cli.core.program import Program, VarId
    from memplan_cli.core.symbolic.sizes import Size
    from memplan_cli.planning.choosing.candidate import PlanningTask
    from memplan_cli.planning.rewrites import Rewrites
    from memplan_cli.settings.settings import Settings


def candidates(task: PlanningTask, rewrites: Rewrites) -> Iterator[Candidate]:
    """Yield the programs that may be planned: the best known first, the file's order next.

    What follows is for a plan that is not at its bound yet. Where copies, donations or a
    runtime tie the order, there is one candidate.

    Raises:
        SettingsError: options that need each other are not there together, or a name is
            none of the model.
    """
    settings = task.settings
    _reject_unused(settings)
    if settings.recompute == "none" and not settings.donate:
        yield from _orders(task)
        return
    recompute = rewrites.recompute.get(settings.recompute)
    if recompute is None:
        found = in_best_order(task, task.program, task.terms.sizes)
    else:
        found = recompute(task)
    if task.runtime is not None:
        found = for_runtime(task, task.runtime, found)
    yield rewrites.donate(found, task) if settings.donate else found


def _orders(task: PlanningTask) -> Iterator[Candidate]:
    """Yield the order of the lowest live peak, the file's, then others worth allocating."""
    program, sizes = task.program, task.terms.sizes
    found = _searched(task, program, sizes)
    best = Candidate.ordered(found, sizes)
    if task.runtime is not None:
        made = for_runtime(task, task.runtime, best)
        if made is not best:
            yield made
            return
    best = _with_late_outputs(task, program, found, best)
    yield best
    if best.program is not program:
        yield _at(task, best, FILE, program)
    if task.settings.order == "keep" or not found.candidates:
        return
    if task.settings.level < 2:
        yield from _simple_orders(task, best)
        return
    if best.resident or task.settings.time_limit is not None:
        return  # there outputs would be made early again; here seconds are one search's
    if found.looser is not None:
        yield replace(best, program=found.looser(), measured=None)


def _at(task: PlanningTask, best: Candidate, order: str, program: Program) -> Candidate:
    """Return a candidate in another order, measured as the best one was."""
    resident = task.resident(program) if best.resident else 0
    return replace(best, program=program, order=order, resident=resident, measured=None)


def _with_late_outputs(
    task: PlanningTask, program: Program, found: Ordering, best: Candidate
) -> Candidate:
    """Return the order in which less is resident, where one is as good for the plan.

    At levels 0 and 1 slots are whole, and another order may need more of them. Seconds of a
    limit are one search's.
    """
    settings = task.settings
    terms = replace(task.terms, sizes=best.sizes)
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


def _simple_orders(task: PlanningTask, best: Candidate) -> Iterator[Candidate]:
    """Yield the orders of one pass: slots are whole, and another peak may need fewer."""
    from memplan_cli.ordering.best_order import simple_orders

    terms = task.terms
    seen = [best.program.body, task.program.body]
    for name, program in simple_orders(task.program, terms):
        if program.body not in seen:
            seen.append(program.body)
            yield _at(task, best, name, program)


def _searched(task: PlanningTask, program: Program, sizes: Mapping[VarId, Size]) -> Ordering:
    """Return the order of the lowest live peak, or the file's where that is to be kept."""
    if task.settings.order == "keep":
        return Ordering(program, {}, FILE, None, proved=False)
    from memplan_cli.ordering.best_order import best_order

    task.tell("ordering")
    return best_order(
        program,
        sizes,
        pinned=frozenset(task.terms.pinned),
        aliasing=task.terms.aliasing,
        time_limit=task.settings.time_limit,
        progress=task.progress,
    )


def in_best_order(
    task: PlanningTask, program: Program, sizes: Mapping[VarId, Size]
) -> Candidate:
    """Return a program, which may have copies of ops, in the order of the lowest live peak."""
    found = _searched(task, program, sizes)
    return _with_late_outputs(task, program, found, Candidate.ordered(found, sizes))


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
