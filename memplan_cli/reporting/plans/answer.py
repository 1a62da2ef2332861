"""The report as text: the answer in the first lines, details and definitions for those who ask."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from memplan_cli.core.quantities import format_size
from memplan_cli.planning.print_log import is_left_alone
from memplan_cli.reporting import document as doc
from memplan_cli.reporting.findings.hints import how_to_know, same_numbers
from memplan_cli.reporting.plans.memory import process_line, verdict
from memplan_cli.reporting.plans.sections import details, plan_document, said_besides

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from memplan_cli.core.results.plan import Plan
    from memplan_cli.core.results.report import Report
    from memplan_cli.reporting.plans.sections import PlanSection

Tone = Literal["plain", "verdict"]
Detail = Literal["answer", "details", "definitions"]
"""How much a text says: the first lines; the tables too; and what each number means."""

_MORE = "-v shows the details, --explain also what each number means"


def text_document(
    plan: Plan, most: int, detail: Detail, sections: Sequence[PlanSection] = ()
) -> doc.Document:
    """Return the report of a plan for a terminal; of long tables, the first ``most`` rows."""
    whole = plan_document(plan, most, sections)
    if detail == "answer":
        more = doc.Paragraph(_MORE, "soft")
        blocks = (*answer(plan), more, *said_besides(plan, sections))
        return replace(whole, blocks=blocks)
    whole = replace(whole, blocks=(*answer(plan), *details(plan, most, sections)))
    return whole if detail == "definitions" else doc.without_definitions(whole)


def answer(plan: Plan) -> Iterator[doc.Block]:
    """Yield the process, the plan, what was proved, and the one thing to do next."""
    report = plan.report
    line = process_line(report)
    if line:
        yield doc.Paragraph(line, "verdict")
    tone: Tone = "plain" if report.saved is None else "verdict"
    yield doc.Paragraph(f"{verdict(report)}{_in_files_order(report)}", tone)
    shown = "; ".join(_proved(report)) or "nothing"
    compared = "" if report.validation else "; the model was not run to compare outputs"
    yield doc.Paragraph(f"proved: {shown}{compared}")
    yield from _next_step(plan)


def _in_files_order(report: Report) -> str:
    """Return what the plan takes in the order that the model came in."""
    before = report.original_planned
    if before is None or not report.memory.planned:
        return ""
    whose = "the file's" if report.target == "portable" else "its own"
    if before == report.memory.planned:
        return f"; {whose} order takes no more"
    return f", {format_size(before)} in {whose} order"


def _proved(report: Report) -> Iterator[str]:
    """Yield what was shown, each with what it was shown on."""
    found, memory = report.validation, report.memory
    if found is not None:
        where = f"on {found.provider}"
        if not found.passed:
            yield f"nothing of the outputs, {found.status} {where}"
        elif found.bit_identical:
            yield f"outputs bit for bit the original's {where}"
        else:
            yield f"outputs within the tolerance {where}"
    if report.partial:
        yield "nothing of sizes that are not known"
    elif memory.order_proved:
        yield "no order of these nodes needs less (fusion may)"
    elif memory.live_peak is not None and memory.live_peak == memory.planned:
        yield "no plan of this order is smaller"


def _next_step(plan: Plan) -> Iterator[doc.Block]:
    """Yield the one thing to do next: a command where there is one."""
    report = plan.report
    model = same_numbers(report) if report.model.path else "MODEL"
    checked, budget = report.validation, report.recompute.budget
    if is_left_alone(plan):
        yield _said(f"set mem_param.optimize_{report.phase} to true, and the model is planned")
    elif checked is not None and not checked.passed:
        yield _command(f"memplan optimize {model} --order keep")
    elif budget is not None and not report.recompute.met and report.chunked.budget is None:
        yield _command(f"memplan optimize {model} --chunk auto --budget {budget}")
    elif report.chunked.budget is not None and not report.chunked.met:
        least = report.memory.resident
        yield _command(f"memplan optimize {model} --chunk auto --budget {least}")
    elif report.memory.planned is None or report.partial:
        hint = how_to_know(plan)
        if hint:
            yield _said(hint)
    elif checked is not None:
        yield _said("open the written model with memplan.load(PATH): it has these settings")
    elif report.memory.planned == report.original_planned:
        yield _command(f"memplan settings {model}")
    else:
        yield _command(f"memplan optimize {model}")


def _said(what: str) -> doc.Block:
    return doc.Paragraph(f"next: {what}")


def _command(line: str) -> doc.Block:
    """Return a command to copy, which is never broken."""
    return doc.Code((f"next: {line}",), doc.SHELL)
