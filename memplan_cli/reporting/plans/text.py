"""The report in a terminal: as wide as it is, in colour where that is wanted."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from memplan_cli.core.compact.columns import cells
from memplan_cli.core.program import var_id
from memplan_cli.core.quantities import format_share, format_size
from memplan_cli.core.results.timeline import curve, main_arena, nodes_at, peak_tick
from memplan_cli.reporting.escape import per_unit, shortened, terminal
from memplan_cli.reporting.plans.asked import (
    PROFILE_COLUMNS,
    curve_rows,
    donated_code,
    donated_line,
    donated_rows,
    profile_rows,
    profiles_line,
    recompute_line,
)
from memplan_cli.reporting.plans.bars import bars, sampled
from memplan_cli.reporting.plans.facts import (
    EVIDENCE_HEADER,
    certainty_lines,
    evidence_rows,
    headline,
    memory_rows,
    refused,
    settings_lines,
    total_rows,
    validation_line,
    verdict,
)
from memplan_cli.reporting.plans.precision import HEADER, wide_tensors

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from rich.console import RenderableType

    from memplan_cli.core.results.placements import Placement
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.reporting.plans.facts import Row

MOST_TENSORS = 12
"""Rows of a table of tensors."""

MOST_REASONS = 8
"""Rows of the table of refusals."""

MOST_COLUMNS = 100
"""A bar wider than this says no more."""
LONGEST_NUMBER = 24
"""What is longer is an expression of several products, too wide for a column."""


@dataclass(frozen=True, slots=True)
class Screen:
    """What is written on: its width in characters, and ``color`` if it shows any."""

    width: int = 100
    color: bool = False


def render(plan: Plan, screen: Screen | None = None) -> str:
    """Return the report of a plan as text."""
    screen = screen or Screen()
    return printed(Group(*_sections(plan, screen.width)), screen)


def printed(content: RenderableType, screen: Screen) -> str:
    """Return what rich makes of a renderable, trailing blanks removed."""
    console = Console(
        file=io.StringIO(),
        width=screen.width,
        force_terminal=screen.color,
        color_system="standard" if screen.color else None,
        legacy_windows=False,
        markup=False,
        highlight=False,
        emoji=False,
        # rich looks at NO_COLOR, COLUMNS and TERM; the caller has done so already.
        _environ={},
    )
    with console.capture() as capture:
        console.print(content)
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def _sections(plan: Plan, width: int) -> Iterator[RenderableType]:
    report = plan.report
    name = Text(shortened(report.model.path or "model", max(width - 10, 10)), style="bold")
    yield name
    yield Text(headline(report), style="dim")
    yield Text(verdict(report), style="bold green")
    yield titled("Intermediates", _rows_table(memory_rows(report)))
    yield titled("Whole model", _rows_table(total_rows(report)))
    yield Text("\n" + "; ".join(certainty_lines(report)), style="dim")
    yield from _live_bytes(plan, width)
    yield from _peak(plan, width)
    yield from _wide(plan)
    yield from _asked_for(plan)
    yield from _runtime(plan)
    yield from _refusals(plan)
    if report.warnings:
        lines = Text("\n".join(terminal(warning) for warning in report.warnings))
        yield titled("Warnings", lines)


def titled(title: str, content: RenderableType) -> RenderableType:
    """Return a section: a blank line, its title, its content set in."""
    return Group(Text(""), Text(title, style="bold cyan"), Padding(content, (0, 0, 0, 2)))


def grid(*columns: str) -> Table:
    """Return an empty table; a column that begins with ``>`` is of numbers."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for column in columns:
        number = column.startswith(">")
        table.add_column(
            column.removeprefix(">"),
            justify="right" if number else "left",
            no_wrap=number,
            overflow="fold",
        )
    return table


def _rows_table(rows: Sequence[Row]) -> RenderableType:
    if any(len(row.size) > LONGEST_NUMBER for row in rows):
        return _stacked(rows)
    savings = any(row.saved for row in rows)
    sure = any(row.certainty for row in rows)
    table = grid("", ">", ">saved" if savings else ">", *([""] * sure), "")
    table.show_header = savings
    for row in rows:
        style = "bold green" if row.chosen else ""
        name = Text(f"{row.name} *" if row.chosen else row.name, style=style)
        size, saved = Text(terminal(row.size), style=style), Text(row.saved, style=style)
        words = [row.certainty] * sure + [row.definition]
        table.add_row(name, size, saved, *(Text(word, style="dim") for word in words))
    return table


def _stacked(rows: Sequence[Row]) -> RenderableType:
    """Return the rows one below the other: expressions are too long for a column."""
    lines = Text()
    for row in rows:
        mark = " *" if row.chosen else ""
        lines.append(f"{row.name}{mark}  ", style="bold green" if row.chosen else "bold")
        lines.append(terminal(row.size))
        if row.certainty:
            lines.append(f"  {row.certainty}", style="dim")
        lines.append(f"\n    {row.definition}\n", style="dim")
    lines.right_crop(1)
    return lines


def _live_bytes(plan: Plan, width: int) -> Iterator[RenderableType]:
    arena = main_arena(plan)
    points = curve(plan, arena)
    end = points[-1][0] if points else 0
    columns = min(max(width - 4, 10), MOST_COLUMNS)
    lines = bars(sampled(points, end, columns), rows=4)
    if not lines or arena is None:
        return
    peak = max(size for _, size in points)
    highest = f"{format_size(peak)}{per_unit(arena.unit)}"
    where = f"highest {highest} at step {peak_tick(points)} of {end}"
    content = Group(Text("\n".join(lines), style="cyan"), Text(where, style="dim"))
    yield titled("Live bytes over time", content)


def _named(plan: Plan, names: Collection[str]) -> Iterator[Placement]:
    """Yield the tensors of some names."""
    for at, (name, block) in enumerate(cells(plan.tensors, "name", "block")):
        if var_id(block, name) in names:
            yield plan.tensors[at]


def _peak(plan: Plan, width: int) -> Iterator[RenderableType]:
    peak = plan.report.peak
    if peak is None or not peak.tensors:
        return
    whole = sum(size for _, size in peak.tensors)
    nodes = nodes_at(plan)
    room = max((width - 34) // 3, 12)
    table = grid("tensor", ">bytes", ">share", "made by", "last read by")
    shown = frozenset(name for name, _ in peak.tensors[:MOST_TENSORS])
    places = {tensor.id: tensor for tensor in _named(plan, shown)}
    for name, size in peak.tensors[:MOST_TENSORS]:
        place = places.get(name)
        made = read = ""
        if place is not None and place.pinned:
            made, read = "(whole run)", place.pinned
        elif place is not None:
            made, read = nodes.get(place.first, ""), nodes.get(place.last - 1, "")
        table.add_row(
            Text(shortened(name, room)),
            Text(format_size(size)),
            Text(format_share(size, whole)),
            Text(shortened(made, room)),
            Text(shortened(read, room)),
        )
    node = shortened(peak.node, room * 2)
    yield titled(f"At the peak: step {peak.step}, {node}", table)
    if len(peak.tensors) > MOST_TENSORS:
        yield Text(f"  and {len(peak.tensors) - MOST_TENSORS} more", style="dim")


def _wide(plan: Plan) -> Iterator[RenderableType]:
    wide = wide_tensors(plan)
    if wide is None:
        return
    table = grid(*HEADER)
    for name, size, shape in wide.rows[:MOST_TENSORS]:
        table.add_row(Text(shortened(name, 40)), Text(terminal(size)), Text(terminal(shape)))
    yield titled("Not at 16 bits", Group(Text(terminal(wide.line)), table))
    if len(wide.rows) > MOST_TENSORS:
        yield Text(f"  and {len(wide.rows) - MOST_TENSORS} more", style="dim")


def _asked_for(plan: Plan) -> Iterator[RenderableType]:
    report = plan.report
    if line := profiles_line(report):
        table = grid(*PROFILE_COLUMNS)
        for row in profile_rows(report):
            table.add_row(*(Text(terminal(word)) for word in row))
        yield titled("Each binding", Group(Text(line), table))
    if line := recompute_line(report):
        table = grid(">live peak", ">more work", ">nodes run again")
        for row in curve_rows(report):
            table.add_row(*row)
        table.show_header = bool(table.rows)
        yield titled("Recomputed", Group(Text(line), table))
    if line := donated_line(report):
        table = grid("output", "")
        for name, what in donated_rows(report)[:MOST_TENSORS]:
            table.add_row(Text(shortened(name, 40)), Text(terminal(what), style="dim"))
        code = Text("\n".join(donated_code(report)), style="dim")
        yield titled("Donated", Group(Text(line), table, code))


def _runtime(plan: Plan) -> Iterator[RenderableType]:
    runtime = plan.report.runtime
    rows = evidence_rows(runtime)
    if runtime is not None and rows:
        table = grid(*EVIDENCE_HEADER[:-1])
        for row in rows:
            table.add_row(*map(Text, row.cells[:-1]))
        words = "\n".join(f"{row.name.replace('_', ' ')}: {row.definition}" for row in rows)
        name = f"{runtime.name} {runtime.version}, {runtime.provider}"
        yield titled(
            f"Predicted and observed: {terminal(name)}", Group(table, Text(words, style="dim"))
        )
    lines = settings_lines(runtime)
    if lines:
        yield titled("Settings of the written model", Text("\n".join(map(terminal, lines))))
    yield Text("")
    yield Text(terminal(validation_line(plan.report)))


def _refusals(plan: Plan) -> Iterator[RenderableType]:
    rows = refused(plan)
    if not rows:
        return
    table = grid(">tensors", ">bytes", "reason", "for example")
    for row in rows[:MOST_REASONS]:
        examples = ", ".join(shortened(name, 40) for name in row.examples[:2])
        table.add_row(
            Text(str(row.count)),
            Text(format_size(row.bytes) if row.bytes else "-"),
            Text(terminal(row.reason)),
            Text(examples, style="dim"),
        )
    yield titled("Not reused, and why", table)
    if len(rows) > MOST_REASONS:
        yield Text(f"  and {len(rows) - MOST_REASONS} more reasons", style="dim")
