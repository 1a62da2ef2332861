"""Plan -> something to look at, or to feed to another program: the table RENDERERS."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from memplan_cli.errors import SettingsError
from memplan_cli.planning.print_log import print_log as log_lines
from memplan_cli.reporting.escape import terminal

if TYPE_CHECKING:
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.reporting.plans.html import Beside

Renderer = Callable[["Plan"], str]


def _of(module: str, function: str = "render") -> Renderer:
    """Return a renderer whose module is loaded when it draws: few runs need two."""

    def draw(plan: Plan) -> str:
        text = getattr(import_module(f"memplan_cli.reporting.plans.{module}"), function)(plan)
        assert isinstance(text, str)  # noqa: S101 - our own table
        return text

    return draw


RENDERERS: Mapping[str, Renderer] = {
    "text": _of("text"),
    "json": _of("json_text"),
    "markdown": _of("markdown"),
    "html": _of("html"),
    "svg": _of("svg"),
    "csv": _of("tables", "tensors_csv"),
    "chrome-trace": _of("chrome_trace"),
    "c-header": _of("static_runtime", "c_header"),
    "tflm": _of("static_runtime", "tflm"),
    "minimalloc": _of("tables", "minimalloc"),
}

_LOGGED: Mapping[str, Renderer] = {
    "text": _of("text"),
    "json": _of("json_text", "render_logged"),
    "markdown": _of("markdown", "render_logged"),
}


def render(
    plan: Plan,
    form: str,
    *,
    color: bool = False,
    print_log: bool = False,
    beside: Beside | None = None,
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
        from memplan_cli.reporting.plans.html import render as page

        return page(plan, beside)
    if form != "text":
        return table[form](plan)
    log = "".join(f"{terminal(line)}\n" for line in log_lines(plan)) if print_log else ""
    return f"{log}\n{_drawn(plan, color=color)}" if log else _drawn(plan, color=color)


def _drawn(plan: Plan, *, color: bool) -> str:
    from memplan_cli.reporting.plans.text import Screen
    from memplan_cli.reporting.plans.text import render as draw

    return draw(plan, Screen(_width(), color))


def _width() -> int:
    """Return the columns to write into: the terminal's, or COLUMNS, or 100 in a pipe."""
    columns = shutil.get_terminal_size((100, 24)).columns
    if not os.environ.get("COLUMNS") and not os.isatty(1):
        columns = 100
    return min(max(columns, 40), 160)
