"""Hints for totals that are not known: the options that bind what is missing in this model."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from memplan_cli.core.binding_options import LOOK_AT_A_RUN, binding_options, sizing_options
from memplan_cli.core.symbolic.dims import symbols_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memplan_cli.core.results.plan import Plan
    from memplan_cli.core.results.report import Report


def symbols_in(units: Iterable[str]) -> tuple[str, ...]:
    """Return the names that units are made of, sorted: ``batch*(new + past)`` has three."""
    names = {name for unit in units if unit != "1" for name in symbols_of(unit)}
    return tuple(sorted(names))


def binding_words(report: Report) -> str:
    """Return the options that give each free dim of the inputs a number; empty of none."""
    numbers = {name: dim.value for name, dim in report.bindings.items()}
    return binding_options(report.model.inputs, numbers)


def command_with(report: Report, options: str) -> str:
    """Return a whole command with options for the model of a report."""
    name = report.model.path
    # What begins with a dash is an option to a shell's commands.
    path = quote(f"./{name}" if name.startswith("-") else name)
    return f"memplan report {path} {options}"


def how_to_know(plan: Plan) -> str:
    """Return what makes numbers of sizes that are none, the surest way first.

    Each clause is an option, or several that belong together, of the commands that plan.
    """
    report = plan.report
    units = (arena.unit for arena in plan.arenas)
    numbers = {name: dim.value for name, dim in report.bindings.items()}
    words = sizing_options(report.model.inputs, units, numbers)
    if not report.partial and LOOK_AT_A_RUN not in words:
        return f"bind every dim of the inputs: {words}" if words else ""
    options = words if LOOK_AT_A_RUN in words else f"{words} {LOOK_AT_A_RUN}".strip()
    look = f"some sizes are known only in a run: {options} looks at one"
    return f"{look}; --allow-partial counts the rest alone" if report.partial else look
