"""Plan -> something to look at, or to feed to another program: the table RENDERERS."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from memplan_cli.errors import SettingsError
from memplan_cli.print_log import print_log as log_lines
from memplan_cli.renderers import (
    chrome_trace,
    html,
    json_text,
    markdown,
    static_runtime,
    svg,
    tables,
)
from memplan_cli.renderers.escape import terminal

if TYPE_CHECKING:
    from memplan_cli.plan import Plan

Renderer = Callable[["Plan"], str]


def _plain_text(plan: Plan) -> str:
    """Return the report as plain text of the usual width."""
    from memplan_cli.renderers.text import render as draw

    return draw(plan)


RENDERERS: Mapping[str, Renderer] = {
    "text": _plain_text,
    "json": json_text.render,
    "markdown": markdown.render,
    "html": html.render,
    "svg": svg.render,
    "csv": tables.tensors_csv,
    "chrome-trace": chrome_trace.render,
    "c-header": static_runtime.c_header,
    "tflm": static_runtime.tflm,
    "minimalloc": tables.minimalloc,
}

_LOGGED: Mapping[str, Renderer] = {
    "text": _plain_text,
    "json": json_text.render_logged,
    "markdown": markdown.render_logged,
}


def render(
    plan: Plan,
    form: str,
    *,
    color: bool = False,
    print_log: bool = False,
    beside: html.Beside | None = None,
) -> str:
    """Return a plan in one of the formats, as the command line shows it.

    Args:
        plan: What to show.
        form: A key of `RENDERERS`.
        color: Whether text may hold colours: it goes to a terminal, and is as wide as it.
        print_log: Whether to add a line for each tensor that takes memory over, and why not.
        beside: Another plan, whose live bytes the page lays over this one's.

    Raises:
        SettingsError: there is no such format, or it has no place for the log.
    """
    table = _LOGGED if print_log else RENDERERS
    if form not in table:
        known = ", ".join(table)
        what = "--print-log goes with" if print_log else "the formats are"
        raise SettingsError(f"{form!r}: {what} {known}")
    if form == "html":
        return html.render(plan, beside)
    if form != "text":
        return table[form](plan)
    log = "".join(f"{terminal(line)}\n" for line in log_lines(plan)) if print_log else ""
    return f"{log}\n{_drawn(plan, color=color)}" if log else _drawn(plan, color=color)


def _drawn(plan: Plan, *, color: bool) -> str:
    from memplan_cli.renderers.text import Screen
    from memplan_cli.renderers.text import render as draw

    return draw(plan, Screen(_width(), color))


def _width() -> int:
    """Return the columns to write into: the terminal's, or COLUMNS, or 100 in a pipe."""
    columns = shutil.get_terminal_size((100, 24)).columns
    if not os.environ.get("COLUMNS") and not os.isatty(1):
        columns = 100
    return min(max(columns, 40), 160)
