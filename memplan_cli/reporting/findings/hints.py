"""Hints for totals that are not known: the options that bind what is missing in this model."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from memplan_cli.core.binding_options import (
    LOOK_AT_A_RUN,
    InputShape,
    binding_options,
    sizing_options,
)
from memplan_cli.core.symbolic.dims import bind_dim, symbols_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memplan_cli.core.results.plan import Plan
    from memplan_cli.core.results.report import Report


def symbols_in(units: Iterable[str]) -> tuple[str, ...]:
    """Return the names that units are made of, sorted: ``batch*(new + past)`` has three."""
    names = {name for unit in units if unit != "1" for name in symbols_of(unit)}
    return tuple(sorted(names))


def free_inputs(report: Report) -> tuple[InputShape, ...]:
    """Return the inputs with a dim for which nobody said a number."""
    given = {n: dim.value for n, dim in report.bindings.items() if dim.source != "assumed"}
    bound = (
        InputShape(name, tuple(bind_dim(dim, given) for dim in shape))
        for name, shape in report.model.inputs
    )
    return tuple(each for each in bound if not all(isinstance(d, int) for d in each.shape))


def options_with_numbers(report: Report) -> str:
    """Return options that give each dim of the inputs a number; empty where all have one.

    Numbers that were given stay: they are what any command takes in all.
    """
    if not free_inputs(report):
        return ""
    numbers = {name: dim.value for name, dim in report.bindings.items()}
    return binding_options(report.model.inputs, numbers)


def command_with_numbers(report: Report) -> str:
    """Return a command that gives each dim of the inputs a number; empty where all have one."""
    options = options_with_numbers(report)
    return f"memplan report {path_word(report)} {options}" if options else ""


def same_numbers(report: Report) -> str:
    """Return a model's path and the options that bind its dims as in a report.

    What nobody gave a number is left to be assumed again; bounds are those of one plan.
    """
    numbers = {name: dim.value for name, dim in report.bindings.items()}
    given = any(dim.source == "given" for dim in report.bindings.values())
    words = binding_options(report.model.inputs, numbers) if given else ""
    return f"{path_word(report)} {words}".strip()


def path_word(report: Report) -> str:
    """Return where the model of a report is, as a word of a command."""
    name = report.model.path
    # What begins with a dash is an option.
    return quote(f"./{name}" if name.startswith("-") else name)


def how_to_know(plan: Plan) -> str:
    """Return what makes numbers of sizes that are none, the surest way first.

    Each clause is an option, or several that belong together, of the commands that plan.
    """
    report = plan.report
    units = () if plan.settings.get("run", True) else [arena.unit for arena in plan.arenas]
    numbers = {name: dim.value for name, dim in report.bindings.items()}
    free = free_inputs(report)
    left = {name for each in free for dim in each.shape for name in symbols_of(dim)}
    # Where all dims were assumed already, it is not for want of numbers that sizes are open.
    may_help = (
        units or None in (d for i in free for d in i.shape) or not left <= numbers.keys()
    )
    words = sizing_options(free, units, numbers) if may_help else ""
    if report.partial and not plan.settings.get("run", True):
        words = f"{words.removesuffix(LOOK_AT_A_RUN).strip()} {LOOK_AT_A_RUN}".strip()
    counted = report.memory.planned is not None
    clauses = (
        f"{words} makes them known" if words else "",
        "--allow-partial counts the rest alone" if report.partial and not counted else "",
    )
    return "; ".join(filter(None, clauses))
