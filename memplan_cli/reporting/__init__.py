"""Plans and results as reports for people, and as files for other programs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

from memplan_cli.core.serialization import to_json
from memplan_cli.errors import SettingsError
from memplan_cli.planning.print_log import print_log as log_lines
from memplan_cli.reporting.escape import terminal
from memplan_cli.reporting.media import drawn
from memplan_cli.reporting.media.json_text import json_text

if TYPE_CHECKING:
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.reporting.media import Medium
    from memplan_cli.reporting.media.text import Screen
    from memplan_cli.reporting.plans.answer import Detail
    from memplan_cli.reporting.plans.html import Beside

Renderer = Callable[["Plan"], str]

_MOST_IN_TEXT, _MOST_ROWS = 12, 20
"""Rows of each table, so that a report stays a page."""


def _of(module: str, function: str = "render") -> Renderer:
    """Return a renderer whose module is loaded when it draws: few runs need two."""

    def draw(plan: Plan) -> str:
        text = getattr(import_module(f"memplan_cli.reporting.plans.{module}"), function)(plan)
        assert isinstance(text, str)  # noqa: S101 - our own table
        return text

    return draw


def _medium(medium: Medium) -> Renderer:
    """Return a renderer that draws the report's document in a medium."""

    def draw(plan: Plan) -> str:
        from memplan_cli.reporting.plans.sections import plan_document

        return drawn(plan_document(plan, _MOST_ROWS), medium)

    return draw


def _text(plan: Plan, screen: Screen | None = None, detail: Detail = "answer") -> str:
    from memplan_cli.reporting.media.text import Screen, draw
    from memplan_cli.reporting.plans.answer import text_document

    return draw(text_document(plan, _MOST_IN_TEXT, detail), screen or Screen())


def _markdown_logged(plan: Plan) -> str:
    from memplan_cli.reporting.plans.reuse import logged
    from memplan_cli.reporting.plans.sections import plan_document

    document = plan_document(plan, _MOST_ROWS)
    return drawn(replace(document, blocks=(*document.blocks, *logged(plan))), "markdown")


def _json(plan: Plan) -> str:
    return json_text(to_json(plan.report))


def _json_logged(plan: Plan) -> str:
    return json_text({**to_json(plan.report), "print_log": list(log_lines(plan))})


RENDERERS: Mapping[str, Renderer] = {
    "text": _text,
    "json": _json,
    "markdown": _medium("markdown"),
    "html": _of("html"),
    "svg": _of("svg"),
    "csv": _of("exports", "tensors_csv"),
    "chrome-trace": _of("chrome_trace"),
    "c-header": _of("c_header", "c_header"),
    "tflm": _of("exports", "tflm"),
    "minimalloc": _of("exports", "minimalloc"),
}

_LOGGED: Mapping[str, Renderer] = {
    "text": _text,
    "json": _json_logged,
    "markdown": _markdown_logged,
}


def render(  # noqa: PLR0913 - one parameter an option
    plan: Plan,
    form: str,
    *,
    color: bool = False,
    print_log: bool = False,
    beside: Beside | None = None,
    detail: Detail = "answer",
) -> str:
    """Return a plan in one of the formats, as the command line shows it.

    Args:
        plan: What to show.
        form: A key of `RENDERERS`.
        color: Whether text may hold colours: it goes to a terminal, and is as wide as it.
        print_log: Whether to add a line for each tensor that reuses memory, and why not.
        beside: What the page tells besides: another plan's live bytes, the model's types.
        detail: How much a text says: the first lines, the tables, what numbers mean.

    Raises:
        SettingsError: there is no such format, or it has no place for the log or has but
            one length.
    """
    table = _LOGGED if print_log else RENDERERS
    what = "--print-log goes with" if print_log else "the formats are"
    if form not in table:
        raise SettingsError(f"{form!r}: {what} {', '.join(table)}")
    check_detail(detail, form)
    if form == "html":
        from memplan_cli.reporting.plans.html import render as page

        return page(plan, beside)
    if form != "text":
        return table[form](plan)
    from memplan_cli.reporting.media.text import Screen

    log = "".join(f"{terminal(line)}\n" for line in log_lines(plan)) if print_log else ""
    shown = _text(plan, Screen(_width(), color), detail)
    return f"{log}\n{shown}" if log else shown


def check_detail(detail: Detail, form: str) -> None:
    """Refuse a length for a format that has but one.

    Raises:
        SettingsError: the format is not text.
    """
    if detail != "answer" and form != "text":
        raise SettingsError(
            f"--format {form} has no details to ask for: it always has them all",
            hint="leave --verbose and --explain out",
        )


def _width() -> int:
    """Return the columns to write into: the terminal's, or COLUMNS, or 100 in a pipe."""
    columns = shutil.get_terminal_size((100, 24)).columns
    if not os.environ.get("COLUMNS") and not os.isatty(1):
        columns = 100
    return min(max(columns, 40), 160)
