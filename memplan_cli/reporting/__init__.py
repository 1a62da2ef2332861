"""Plans and results as reports for people, and as files for other programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

from memplan_cli.core.serialization import to_json
from memplan_cli.errors import SettingsError
from memplan_cli.planning.print_log import print_log as log_lines
from memplan_cli.reporting.escape import terminal
from memplan_cli.reporting.media import json_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan_cli.core.results.plan import Plan
    from memplan_cli.reporting.pages.graph_facts import GraphFacts
    from memplan_cli.reporting.plans.report import Detail, Invocation
    from memplan_cli.reporting.plans.sections import PlanSection

Renderer = Callable[["Plan"], str]

_MAX_TEXT_ROWS, _MAX_MARKDOWN_ROWS = 12, 20
"""Rows of each table: a report is about one page."""


def _text(
    plan: Plan,
    sections: Sequence[PlanSection] = (),
    *,
    detail: Detail = "answer",
    color: bool = False,
    log: Sequence[str] | None = None,
    invocation: Invocation | None = None,
) -> str:
    """Return the report for a terminal, below a log: the end of a long output stays visible."""
    from memplan_cli.reporting.media.text import Screen, draw, terminal_width
    from memplan_cli.reporting.plans.report import text_document

    document = text_document(plan, _MAX_TEXT_ROWS, detail, sections, invocation)
    report = draw(document, Screen(terminal_width(), color))
    lines = [f"{terminal(line)}\n" for line in log or ()]
    return "".join([*lines, "\n", report]) if lines else report


def _json(plan: Plan, *, log: Sequence[str] | None = None) -> str:
    """Return the report as JSON, with a log under the key ``print_log``."""
    entry = {} if log is None else {"print_log": list(log)}
    return json_text({**to_json(plan.report), **entry})


def _markdown(
    plan: Plan,
    sections: Sequence[PlanSection] = (),
    *,
    log: Sequence[str] | None = None,
    invocation: Invocation | None = None,
) -> str:
    """Return the report as Markdown, above a log: a page is read from its beginning."""
    from memplan_cli.reporting.document import Items, Name, section
    from memplan_cli.reporting.media.markdown import draw
    from memplan_cli.reporting.plans.report import plan_document

    document = plan_document(plan, _MAX_MARKDOWN_ROWS, sections, invocation)
    lines = Items(tuple(map(Name, log))) if log else None
    log_section = section("Reuse, in the order of the plan", lines)
    return draw(replace(document, blocks=(*document.blocks, *log_section)))


def _html(
    plan: Plan,
    sections: Sequence[PlanSection] = (),
    *,
    facts: GraphFacts | None = None,
    invocation: Invocation | None = None,
) -> str:
    from memplan_cli.reporting.pages.plan_page import render as plan_page

    return plan_page(plan, facts, sections, invocation)


def _imported(module: str, function: str) -> Renderer:
    """Return a renderer that imports its module of this package when it is called."""

    def render_plan(plan: Plan) -> str:
        text = getattr(import_module(f"memplan_cli.reporting.{module}"), function)(plan)
        assert isinstance(text, str)  # noqa: S101 - our own modules
        return text

    return render_plan


RENDERERS: Mapping[str, Renderer] = {
    "text": _text,
    "json": _json,
    "markdown": _markdown,
    "html": _html,
    "svg": _imported("plans.svg", "render"),
    "csv": _imported("plans.exports", "tensors_csv"),
    "chrome-trace": _imported("plans.exports", "chrome_trace"),
    "c-header": _imported("plans.exports", "c_header"),
    "tflm": _imported("plans.exports", "tflm"),
    "minimalloc": _imported("plans.exports", "minimalloc"),
}
"""Format -> renderer with its default options. A renderer loads its modules when it is called."""

_FORMATS_WITH_LOG = ("text", "json", "markdown")


def render(
    plan: Plan,
    form: str,
    *,
    color: bool = False,
    print_log: bool = False,
    facts: GraphFacts | None = None,
    detail: Detail = "answer",
    sections: Sequence[PlanSection] = (),
    invocation: Invocation | None = None,
) -> str:
    """Return a plan in one of the formats of `RENDERERS`.

    Args:
        plan: The plan to show.
        form: The format.
        color: Whether text is colored for a terminal.
        print_log: Whether to add one line per tensor: the memory that it reuses, or why it
            reuses none. For text, JSON and Markdown only.
        facts: Op types and tensor categories from the model, for an HTML page; None: the model is not
            at hand.
        detail: How much a text contains: the answer, the tables, or also definitions.
        sections: The features' sections of a text, a Markdown document or an HTML page.
        invocation: The command line that a text, a Markdown document or an HTML page answers.

    Raises:
        SettingsError: The format is unknown, or it does not support ``print_log`` or ``detail``.
    """
    forms = _FORMATS_WITH_LOG if print_log else tuple(RENDERERS)
    if form not in forms:
        supported = "--print-log goes with" if print_log else "the formats are"
        raise SettingsError(f"{form!r}: {supported} {', '.join(forms)}")
    check_detail(detail, form)
    log = tuple(log_lines(plan)) if print_log else None
    match form:
        case "text":
            return _text(
                plan, sections, detail=detail, color=color, log=log, invocation=invocation
            )
        case "json":
            return _json(plan, log=log)
        case "markdown":
            return _markdown(plan, sections, log=log, invocation=invocation)
        case "html":
            return _html(plan, sections, facts=facts, invocation=invocation)
    return RENDERERS[form](plan)


def check_detail(detail: Detail, form: str) -> None:
    """Reject --verbose and --explain for a format other than text.

    Raises:
        SettingsError: The format is not text, and a detail was chosen.
    """
    if detail != "answer" and form != "text":
        raise SettingsError(
            f"--verbose and --explain are for --format text: {form} always has all details",
            hint="remove --verbose and --explain",
        )
