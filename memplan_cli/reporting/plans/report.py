"""The report of a plan as a document: whole, or as the short answer that a terminal shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from memplan_cli.core.quantities import format_size
from memplan_cli.planning.print_log import is_left_alone
from memplan_cli.reporting import document as doc
from memplan_cli.reporting.hints import model_arguments, unknown_sizes_hint
from memplan_cli.reporting.plans.memory import process_blocks, training_lines, verdict
from memplan_cli.reporting.plans.runtime import reference_text
from memplan_cli.reporting.plans.sections import (
    bindings_section,
    dims_blocks,
    generic_sections,
    size_blocks,
    warnings_section,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from memplan_cli.core.results.plan import Plan
    from memplan_cli.core.results.report import Report
    from memplan_cli.reporting.plans.sections import PlanSection

Detail = Literal["answer", "details", "definitions"]
"""How much a text contains: the short answer; all sections; also the meaning of each number."""

_MORE = "-v prints all tables, --explain also what each number means"


def plan_document(
    plan: Plan, max_rows: int, sections: Sequence[PlanSection] = ()
) -> doc.Document:
    """Return the whole report of a plan, with ``max_rows`` rows of each table."""
    report = plan.report
    # If the saving is undefined, the verdict only tells why, which is not worth stressing.
    verdict_tone: Literal["plain", "verdict"] = "plain" if report.saved is None else "verdict"
    first = (
        *size_blocks(plan),
        *process_blocks(report),
        doc.Paragraph(verdict(report), verdict_tone),
    )
    return doc.Document(_title(report), (*first, *generic_sections(plan, max_rows, sections)))


def text_document(
    plan: Plan, max_rows: int, detail: Detail, sections: Sequence[PlanSection] = ()
) -> doc.Document:
    """Return the report of a plan for a terminal: the short answer, then what ``detail`` asks for.

    For ``answer``, a few lines of the sections follow; for the other two, all sections.
    """
    if detail == "answer":
        blocks = (
            *answer(plan),
            doc.Paragraph(_MORE, "soft"),
            *_repeated_paragraphs(plan, sections),
        )
        return doc.Document(_title(plan.report), blocks)
    blocks = (*answer(plan), *generic_sections(plan, max_rows, sections))
    document = doc.Document(_title(plan.report), blocks)
    return document if detail == "definitions" else doc.without_definitions(document)


def _title(report: Report) -> doc.Prose:
    return "Memory of ", doc.Name(report.model.path or "model")


def answer(plan: Plan) -> Iterator[doc.Block]:
    """Yield what was not done as asked, assumed sizes, memory of process and plan, proofs, and the next step."""
    report = plan.report
    yield from _not_as_asked(report)
    yield from size_blocks(plan)
    yield from process_blocks(report)
    plan_line = verdict(report)
    # Without planned bytes the verdict has no number that another order could be compared with.
    if report.original_planned is not None and report.memory.planned:
        plan_line += f", {format_size(report.original_planned)} in the original order"
    yield doc.Paragraph(plan_line, "plain" if report.saved is None else "verdict")
    proofs = "; ".join(_proofs(report)) or "nothing"
    not_run = "" if report.validation else "; the model was not run to compare outputs"
    yield doc.Paragraph(f"proved: {proofs}{not_run}")
    yield from _next_step(plan)


def _not_as_asked(report: Report) -> Iterator[doc.Block]:
    """Yield a line for each fallback, and one if a run takes noticeably longer than the original's."""
    for fallback in report.fallbacks:
        yield doc.Paragraph(str(fallback), "verdict")
    time = report.runtime.time if report.runtime else None
    if time is not None and time.is_slower:
        yield doc.Paragraph(str(time), "verdict")


def _proofs(report: Report) -> Iterator[str]:
    """Yield what was proved on outputs and on memory, at most one phrase each.

    Nothing is yielded on outputs if the model was not run. On memory, an order is proved if no
    other has a lower live peak; a layout, if it needs no more than the live peak of its order.
    Nothing is yielded if neither is. The phrase of a partial report is that unknown sizes prevent
    such a proof.
    """
    validation, memory = report.validation, report.memory
    if validation is not None:
        if not validation.passed:
            yield f"nothing on outputs: their comparison {validation.status} on {validation.provider}"
        elif validation.bit_identical:
            yield f"outputs are bit-identical on {validation.provider} to {reference_text(validation)}"
        else:
            yield f"outputs are within the tolerance on {validation.provider} of {reference_text(validation)}"
    if report.partial:
        yield "nothing on unknown sizes"
        return
    has_best_layout = memory.live_peak is not None and memory.live_peak == memory.planned
    if memory.order_proved and has_best_layout:
        yield "no order of these nodes needs less"
    elif memory.order_proved:
        yield "no order of these nodes has a lower live peak"
    elif has_best_layout:
        yield "no plan of this order is smaller"


def _next_step(plan: Plan) -> Iterator[doc.Block]:
    """Yield the most useful next step: a command to copy, or a sentence; nothing if there is none."""
    report = plan.report
    model = model_arguments(report) if report.model.path else "MODEL"
    validation, recompute, chunks = report.validation, report.recompute, report.chunked
    if is_left_alone(plan):
        yield _sentence(f"set mem_param.optimize_{report.phase} to true to plan the model")
    elif validation is not None and not validation.passed:
        # The next attempt has the runtime's fusions in the file, or keeps the order of the nodes.
        budget = chunks.budget or recompute.budget
        technique = "--chunk" if chunks.budget else "--recompute"
        if budget and report.target == "portable" and validation.has_other_outputs:
            yield _command(
                f"memplan optimize {model} {technique} auto --budget {budget} --target cpu"
            )
        else:
            yield _command(f"memplan optimize {model} --order keep")
    elif recompute.budget is not None and not recompute.met and chunks.budget is None:
        # Recomputation missed the budget, and chunking was not tried.
        yield _command(f"memplan optimize {model} --chunk auto --budget {recompute.budget}")
    elif chunks.budget is not None and not chunks.met and report.memory.resident is not None:
        # The smallest plan found, as a budget that can be met.
        budget = report.memory.resident
        yield _command(f"memplan optimize {model} --chunk auto --budget {budget}")
    elif report.memory.planned is None or report.partial:
        hint = unknown_sizes_hint(plan)
        if hint:
            yield _sentence(hint)
    elif validation is not None:
        # Only `optimize` validates, so that the model was written.
        yield _sentence("memplan.load(PATH) opens the written model with its settings")
    elif report.memory.planned == report.original_planned:
        # Writing the model gains nothing, but the settings of the runtime may still lower its memory.
        yield _command(f"memplan settings {model}")
    else:
        yield _command(f"memplan optimize {model}")


def _sentence(text: str) -> doc.Block:
    return doc.Paragraph(f"next: {text}")


def _command(text: str) -> doc.Block:
    return doc.Code((f"next: {text}",), doc.SHELL)


def _repeated_paragraphs(plan: Plan, sections: Sequence[PlanSection]) -> Iterator[doc.Block]:
    """Yield the parts of the report that the short answer repeats.

    These are the dims, the paragraphs of the features that are not soft, the memory of a training
    step, the table of bindings and warnings.
    """
    report = plan.report
    yield from dims_blocks(report)
    for section in sections:
        for block in section(report, 0):  # no rows: tables are left out below
            if isinstance(block, doc.Paragraph) and block.tone != "soft":
                yield block
    training = ", ".join(training_lines(report))
    if training:
        yield doc.Paragraph(training)
    yield from bindings_section(report)
    yield from warnings_section(report)
