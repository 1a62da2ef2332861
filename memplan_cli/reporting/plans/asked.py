"""What does a report say of what was asked for: bindings, copies, donated buffers?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.quantities import format_size
from memplan_cli.core.results.observations import CPU
from memplan_cli.core.symbolic.dims import binding_text
from memplan_cli.reporting.plans.facts import size_or_dash
from memplan_cli.reporting.snippet import binding_lines

if TYPE_CHECKING:
    from memplan_cli.core.results.report import Report


def recompute_line(report: Report) -> str:
    """Return what runs twice and what that costs; nothing where nothing was asked."""
    found = report.recompute
    if not found.nodes and found.budget is None:
        return ""
    line = f"{found.nodes} nodes run again, {100 * found.flops_increase:.1f}% more work"
    if found.budget is not None:
        met = "met" if found.met else "not met"
        line += f"; the budget of {format_size(found.budget)} is {met}"
    if found.bound is not None:
        line += f"; no order needs less than {format_size(found.bound)}, whatever runs twice"
    return line


def curve_rows(report: Report) -> tuple[tuple[str, str, str], ...]:
    """Return the trade-off curve: live peak, extra work, nodes that run again."""
    return tuple(
        (format_size(point.peak), f"{100 * point.extra:.1f}%", str(point.nodes))
        for point in report.recompute.curve
    )


def profiles_line(report: Report) -> str:
    """Return what the rows are beside; nothing where the plan is for one binding."""
    if not report.profiles:
        return ""
    planned = report.memory.planned
    size = "" if planned is None else f" takes {format_size(planned)} and"
    return f"this plan{size} was checked at each; what a plan for each alone takes:"


PROFILE_COLUMNS = ("dims", ">inputs", ">outputs", ">naive", ">live peak", ">planned", ">total")


def profile_rows(report: Report) -> tuple[tuple[str, ...], ...]:
    """Return, for each binding, its dims and sizes in the order of `PROFILE_COLUMNS`."""
    return tuple(
        (
            binding_text(row.dims),
            *map(
                size_or_dash,
                (
                    row.memory.inputs,
                    row.memory.outputs,
                    row.memory.naive,
                    row.memory.live_peak,
                    row.memory.planned,
                    row.memory.total,
                ),
            ),
        )
        for row in report.profiles
    )


def donated_line(report: Report) -> str:
    """Return what donation saves; nothing where nothing was asked."""
    found = report.donated
    if not found.pairs and not found.refused:
        return ""
    refused = f"; {len(found.refused)} may not" if found.refused else ""
    # Over symbols what it saves is in the expression of the total alone.
    less = "" if report.symbolic else f", {format_size(found.bytes)} less in total"
    return (
        f"{len(found.pairs)} outputs take the memory of the input they replace{less}{refused}"
    )


def donated_rows(report: Report) -> tuple[tuple[str, str], ...]:
    """Return each output with the input whose memory it takes, or why it may not."""
    found = report.donated
    taken = tuple((new, f"takes the memory of {old}") for old, new in found.pairs)
    return taken + tuple((refusal.name, refusal.reason) for refusal in found.refused)


def donated_code(report: Report) -> tuple[str, ...]:
    """Return Python that binds each pair to one buffer; nothing where nothing is donated."""
    if not report.donated.pairs:
        return ()
    provider = report.runtime.provider if report.runtime else CPU
    lines = (
        "import json",
        "import onnxruntime as ort",
        "session = ...  # of the written model, with the settings of this report",
        'plan = json.load(open("PLAN.memplan.json"))',
    )
    pairs = '{made: given for given, made in plan["report"]["donated"]["pairs"]}'
    return (*lines, *filter(None, binding_lines(pairs, provider)))
