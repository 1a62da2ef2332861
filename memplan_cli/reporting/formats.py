"""A plan in each format: as a report for people, and as a file for other programs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memplan_cli.core.serialization import to_json
from memplan_cli.errors import SettingsError
from memplan_cli.planning.print_log import log_lines
from memplan_cli.reporting.document import Items, Name, section
from memplan_cli.reporting.escape import printable
from memplan_cli.reporting.media import draw_document, json_text
from memplan_cli.reporting.pages import plan_page
from memplan_cli.reporting.plans import exports, svg
from memplan_cli.reporting.plans.report import plan_document, text_document

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from memplan_cli.core.results.plan import Plan
    from memplan_cli.reporting.pages.graph_facts import GraphFacts
    from memplan_cli.reporting.plans.report import Detail, Invocation
    from memplan_cli.reporting.plans.sections import PlanSection

_MAX_TEXT_ROWS, _MAX_MARKDOWN_ROWS = 12, 20
"""Rows of each table: a report is about one page."""

EXPORTS: Mapping[str, Callable[[Plan], str]] = {
    "svg": svg.render,
    "csv": exports.tensors_csv,
    "chrome-trace": exports.chrome_trace,
    "c-header": exports.c_header,
    "tflm": exports.tflm,
    "minimalloc": exports.minimalloc,
}
"""Format without options -> its renderer."""

_FORMATS_WITH_LOG = ("text", "json", "markdown")

FORMATS = (*_FORMATS_WITH_LOG, "html", *EXPORTS)
"""All formats of `render`."""


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
    """Return a plan in one of `FORMATS`.

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
    check_options(form, detail, print_log=print_log)
    log = tuple(log_lines(plan)) if print_log else ()
    match form:
        case "text":
            from memplan_cli.reporting.media.text import (
                Screen,
                draw,
                terminal_width,
            )  # loads rich

            document = text_document(plan, _MAX_TEXT_ROWS, detail, sections, invocation)
            report = draw(document, Screen(terminal_width(), color))
            # The log comes first: the end of a long output stays visible.
            lines = [f"{printable(line)}\n" for line in log]
            return "".join([*lines, "\n", report]) if lines else report
        case "json":
            entry = {"print_log": list(log)} if print_log else {}
            return json_text({**to_json(plan.report), **entry})
        case "markdown":
            document = plan_document(plan, _MAX_MARKDOWN_ROWS, sections, invocation)
            # The log comes last: a page is read from its beginning.
            log_items = Items(tuple(map(Name, log))) if log else None
            log_section = section("Reuse, in the order of the plan", log_items)
            document = replace(document, blocks=(*document.blocks, *log_section))
            return draw_document(document, "markdown")
        case "html":
            return plan_page.render(plan, facts, sections, invocation)
    return EXPORTS[form](plan)


def check_options(form: str, detail: Detail, *, print_log: bool) -> None:
    """Reject an unknown format, and options of reports that this format does not support.

    Raises:
        SettingsError: There is such an option, or no such format.
    """
    forms = _FORMATS_WITH_LOG if print_log else FORMATS
    if form not in forms:
        supported = "--print-log goes with" if print_log else "the formats are"
        raise SettingsError(f"{form!r}: {supported} {', '.join(forms)}")
    if detail != "answer" and form != "text":
        raise SettingsError(
            f"--verbose and --explain are for --format text: {form} always has all details",
            hint="remove --verbose and --explain",
        )
