"""The programs that may be planned for one model, each with where it came from.

Ordering, recomputation and donation are transforms, `Program -> Program`; what they find out
goes along with the programs that they give, to be compared and to be reported.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from memplan_cli.analysis.cost import op_cost, total_cost
from memplan_cli.analysis.storage import live_peak
from memplan_cli.core.program import Origin
from memplan_cli.core.results.recomputed import CurvePoint, Recompute
from memplan_cli.core.results.report import Donated, Refusal
from memplan_cli.core.symbolic.sizes import size_of
from memplan_cli.errors import SettingsError
from memplan_cli.transforms.terms import Ordering

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from memplan_cli.analysis.aliasing import Aliasing
    from memplan_cli.analysis.phase import Phases
    from memplan_cli.analysis.storage import Measured
    from memplan_cli.core.program import Program, VarId
    from memplan_cli.core.progress import Progress
    from memplan_cli.core.symbolic.sizes import Size
    from memplan_cli.settings.settings import Settings
    from memplan_cli.transforms.terms import Terms

FILE = "file"
"""The provenance of the order that the model is stored in."""

_WORTH = 6
"""A search that gained less than one part in two to the power of so many is the last one."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A program that may be planned, and what was found out on the way to it.

    Attributes:
        program: The ops in the order to be planned, copies included.
        sizes: The vars to plan in it.
        order: Where the order came from: `FILE`, a method of ordering, a transform.
        peaks: The live peak by the method that found an order; empty where sizes are symbolic.
        bound: No order of the program has a lower live peak; None where not computed.
        measured: What is live in this order, where a search has measured it.
    """

    program: Program
    sizes: Mapping[VarId, Size]
    order: str = FILE
    peaks: Mapping[str, int] = field(default_factory=dict)
    bound: int | None = None
    recompute: Recompute = field(default_factory=Recompute)
    donated: Donated = field(default_factory=Donated)
    warnings: tuple[str, ...] = ()
    measured: Measured | None = field(default=None, repr=False, compare=False)

    @classmethod
    def ordered(cls, found: Ordering, sizes: Mapping[VarId, Size]) -> Candidate:
        """Return what a search for an order has found."""
        return cls(
            found.program,
            sizes,
            found.chosen,
            found.candidates,
            found.bound,
            measured=found.measured,
        )


@dataclass(frozen=True, slots=True)
class Question:
    """What the candidates are for.

    Attributes:
        program: In the order of the file.
        terms: What is planned, what is pinned, what may share bytes.
        phases: The program's parts.
        settings: What is asked for.
        runtime: The runtime that the order is made for; None makes it for the plan.
        progress: Told what is being done.
    """

    program: Program
    terms: Terms
    phases: Phases
    settings: Settings
    runtime: Runtime | None = None
    progress: Progress | None = None

    def live_peak(self, program: Program) -> int:
        """Return the live peak of the program in another order."""
        terms = self.terms
        return live_peak(program, terms.sizes, terms.pinned, terms.aliasing)


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
        found = _for_runtime(question, question.runtime, found)
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
        made = _for_runtime(question, question.runtime, best)
        if made is not best:
            yield made
            return
    yield best
    if found.program is not program:
        yield replace(best, program=program, order=FILE, measured=None)
    if question.settings.order == "keep" or not found.candidates:
        return
    if question.settings.level < 2:
        yield from _simple_orders(question, best)
    elif found.looser is not None and question.settings.time_limit is None:
        # Seconds of a limit are one search's.
        yield replace(best, program=found.looser(), measured=None)


def _simple_orders(question: Question, best: Candidate) -> Iterator[Candidate]:
    """Yield the orders of one pass: slots are whole, and another peak may need fewer."""
    from memplan_cli.transforms.ordering.order import simple_orders

    terms = question.terms
    seen = [best.program.body, question.program.body]
    for name, program in simple_orders(question.program, terms):
        if program.body not in seen:
            seen.append(program.body)
            yield replace(best, program=program, order=name, measured=None)


def _searched(question: Question, program: Program, sizes: Mapping[VarId, Size]) -> Ordering:
    """Return the order of the lowest live peak, or the file's where that is to be kept."""
    if question.settings.order == "keep":
        return Ordering(program, {}, FILE, None, proved=False)
    from memplan_cli.transforms.ordering.order import best_order

    return best_order(
        program,
        sizes,
        pinned=frozenset(question.terms.pinned),
        aliasing=question.terms.aliasing,
        time_limit=question.settings.time_limit,
        progress=question.progress,
    )


def _nothing_again(question: Question) -> Candidate:
    sizes = question.terms.sizes
    return Candidate.ordered(_searched(question, question.program, sizes), sizes)


def _within_budget(question: Question) -> Candidate:
    """Compute again what does not fit into a budget."""
    from memplan_cli.transforms.rematerialization.auto import auto

    terms = question.terms
    if any(size.symbols for size in terms.sizes.values()):
        raise SettingsError(
            "--recompute auto needs sizes that are numbers", hint="bind the dims with --dim"
        )
    before = question.live_peak(question.program)
    budget = question.settings.budget
    allowed = int(budget * before) if isinstance(budget, float) else budget
    found = auto(question.program, terms, question.phases, allowed, question.progress)
    told = Recompute(
        nodes=len(found.copies),
        flops_increase=found.chosen.extra,
        budget=allowed,
        met=found.met,
        bound=found.bound,
        curve=tuple(CurvePoint(p.peak, p.extra, p.nodes) for p in found.curve),
    )
    peaks = {FILE: before, "recompute": found.chosen.peak}
    return Candidate(found.program, found.sizes, "recompute", peaks, recompute=told)


def _from_checkpoints(question: Question) -> Candidate:
    """Compute everything between checkpoints again."""
    from memplan_cli.transforms.rematerialization.checkpoints import checkpoints

    program, terms = question.program, question.terms
    found = checkpoints(program, terms, question.settings.checkpoints, question.phases)
    ordering = _searched(question, found.program, found.sizes)
    work = total_cost(program).work
    copied = sum(op_cost(op, found.program.vars).work for op in found.copies)
    told = Recompute(nodes=len(found.copies), flops_increase=copied / work if work else 0.0)
    warnings = tuple(f"checkpoint {name!r} buys nothing: {why}" for name, why in found.useless)
    made = Candidate.ordered(ordering, found.sizes)
    return replace(made, recompute=told, warnings=warnings)


RECOMPUTATIONS: Mapping[str, Callable[[Question], Candidate]] = {
    "none": _nothing_again,
    "auto": _within_budget,
    "checkpoints": _from_checkpoints,
}
"""The recomputations by the name of their setting; all order the ops too."""


def _for_runtime(question: Question, runtime: Runtime, found: Candidate) -> Candidate:
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


def with_donations(found: Candidate, question: Question) -> Candidate:
    """Donate what may be donated, moving readers of old values where that pays.

    This comes last: a pair is safe in one order of the nodes, and any other may undo it.
    Where the order that all pairs need takes more than they save, or breaks a budget, only
    the pairs that need no other order are made.
    """
    from memplan_cli.transforms.donation import donations, donations_in_place

    terms, program = question.terms, found.program
    patterns = tuple(question.settings.donate.items())
    given = donations(program, patterns)
    needs = partial(live_peak, sizes=found.sizes, pinned=terms.pinned, aliasing=terms.aliasing)
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


def _reject_unused(settings: Settings) -> None:
    """Reject options that would do nothing without others.

    Raises:
        SettingsError: naming the option that is missing.
    """
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
