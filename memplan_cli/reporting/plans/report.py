"""The report of a plan as a document: the answer on one screen, and all sections below it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import PurePath
from shlex import quote
from typing import TYPE_CHECKING, Literal

from memplan_cli.core.quantities import format_size
from memplan_cli.core.results.observations import CPU, CUDA
from memplan_cli.core.results.report import is_debug_remark
from memplan_cli.planning.print_log import is_left_alone
from memplan_cli.reporting import document as doc
from memplan_cli.reporting.hints import (
    dims_summary,
    model_arguments,
    over_budget,
    path_argument,
    report_command,
    unknown_sizes_hint,
)
from memplan_cli.reporting.plans.memory import (
    idle_sentence,
    intermediates_table,
    origin_of_saving,
    process_meanings,
    process_table,
    reason_for_no_saving,
    reason_without_totals,
)
from memplan_cli.reporting.plans.runtime import reference_text
from memplan_cli.reporting.plans.sections import (
    bindings_blocks,
    generic_sections,
    size_blocks,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from memplan_cli.core.results.observations import Validation
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.core.results.report import Report
    from memplan_cli.reporting.plans.sections import PlanSection

Detail = Literal["answer", "details", "definitions"]
"""How much a text contains: the short answer; all sections; also the meaning of each number."""

_MORE = "-v prints all tables, --explain also what each number means."

_PLAIN_SESSION = (
    "A plain InferenceSession does not have these settings and may save nothing. --settings-out FILE "
    "writes them as code that needs no memplan."
)

_PROVIDERS = {CPU: "CPU", CUDA: "CUDA"}
"""ONNX Runtime's names of providers, as people write them."""


@dataclass(frozen=True, slots=True)
class Invocation:
    """The command line that a report answers.

    Attributes:
        written: the model that was written, or that lies beside the plan; empty: there is none.
        repeated_options: command -> the user's options that it has too, quoted for a shell, for the next step.
            None: they are not known, and the next step sets the sizes that the report has.
        debug: whether warnings that only tell how memplan arrived at its result are shown.
        has_model_file: whether another command can read the model; one from standard input has no file.
    """

    written: str = ""
    repeated_options: Callable[[str], Sequence[str]] | None = None
    debug: bool = False
    has_model_file: bool = True


def plan_document(
    plan: Plan,
    max_rows: int,
    sections: Sequence[PlanSection] = (),
    invocation: Invocation | None = None,
) -> doc.Document:
    """Return the whole report of a plan, with ``max_rows`` rows of each table."""
    invocation = invocation or Invocation()
    blocks = (
        *_answer(plan, invocation),
        *generic_sections(plan, max_rows, sections),
        *_next_steps(plan, invocation),
    )
    return _document(plan, invocation, blocks)


def text_document(
    plan: Plan,
    max_rows: int,
    detail: Detail,
    sections: Sequence[PlanSection] = (),
    invocation: Invocation | None = None,
) -> doc.Document:
    """Return the report of a plan for a terminal: the short answer, or all that ``detail`` asks for."""
    if detail == "answer":
        return answer_document(plan, sections, invocation, doc.Paragraph(_MORE, "soft"))
    document = plan_document(plan, max_rows, sections, invocation)
    return document if detail == "definitions" else doc.without_definitions(document)


def answer_document(
    plan: Plan,
    sections: Sequence[PlanSection] = (),
    invocation: Invocation | None = None,
    *more: doc.Block,
) -> doc.Document:
    """Return the short answer: what a plan needs, what was checked, and the next step, without definitions.

    Each feature's section is shown without its details: only its charts, its tables, and its paragraphs that are
    not soft. ``more`` blocks precede the next step.
    """
    invocation = invocation or Invocation()
    feature_blocks = (
        block
        for section in sections
        for block in section(plan.report, 0)  # with 0 rows it makes no table of details
        if isinstance(block, doc.Chart | doc.Table)
        or (isinstance(block, doc.Paragraph) and block.tone != "soft")
    )
    blocks = (
        *_answer(plan, invocation),
        *feature_blocks,
        *bindings_blocks(plan.report),
        *more,
        *_next_steps(plan, invocation),
    )
    return doc.without_definitions(_document(plan, invocation, blocks))


def _document(
    plan: Plan, invocation: Invocation, blocks: tuple[doc.Block, ...]
) -> doc.Document:
    """Return a document whose subject line has the model, the written model and the runtime."""
    report = plan.report
    model = PurePath(report.model.path or "model")
    arrow = (" -> ", doc.Name(invocation.written)) if invocation.written else ()
    title = (doc.Name(str(model)), *arrow)
    runtime = report.runtime
    context = ""
    if runtime is not None:
        provider = _PROVIDERS.get(runtime.provider, runtime.provider)
        context = f"ONNX Runtime {runtime.version}, {provider}"
    return doc.Document(title, blocks, context)


def _answer(plan: Plan, invocation: Invocation) -> Iterator[doc.Block]:
    """Yield the sizes and warnings that the figures depend on, the figures, and the checks."""
    report = plan.report
    yield from size_blocks(plan)
    yield from _remarks(report, invocation)
    yield from _process_blocks(report)
    if reason := reason_without_totals(report):
        yield doc.Paragraph(f"{reason[0].upper()}{reason[1:]}.")
    elif table := intermediates_table(report):
        yield table
    yield from _checks(report)


def _process_blocks(report: Report) -> Iterator[doc.Block]:
    """Yield the memory of the process, with what it results from; nothing if the process is unknown."""
    process = process_table(report)
    if process is None:
        return
    yield process
    if reason := reason_for_no_saving(report):
        dims = {name: dim.value for name, dim in report.bindings.items()}
        sizes = f" at {dims_summary(dims)}" if dims else ""
        yield doc.Paragraph(f"No saving{sizes}: {reason}.")
    elif origin := origin_of_saving(report):
        yield doc.Paragraph(origin)
    if sentence := idle_sentence(report):
        yield doc.Paragraph(sentence)
    yield process_meanings(process)


def _remarks(report: Report, invocation: Invocation) -> Iterator[doc.Block]:
    """Yield notes: an unoptimized reference, what was done otherwise than requested, a slower run, warnings."""
    validation = report.validation
    if validation is not None and validation.reference == "unoptimized":
        yield doc.Note("note", f"outputs are compared with {reference_text(validation)}")
    time = report.runtime.time if report.runtime else None
    # The text of a time is a sentence, which the warnings of `--tune` repeat.
    slower_run = (str(time),) if time is not None and time.is_slower else ()
    for text in dict.fromkeys((*map(str, report.fallbacks), *slower_run, *report.warnings)):
        if invocation.debug or not is_debug_remark(text):
            yield doc.Note("warning", text)


def _checks(report: Report) -> Iterator[doc.Check]:
    """Yield the comparison of outputs and further runs, the budget, and what was proved about the plan."""
    validation = report.validation
    if validation is not None:
        yield doc.Check(_output_sentence(validation), passed=validation.status == "passed")
        for outcome, runs in (
            (validation.replay, "A run with each tensor at its place in the plan has"),
            (validation.donated, "Two steps with donated buffers have"),
        ):
            if outcome == "passed":
                yield doc.Check(f"{runs} the same outputs.")
            elif outcome is not None:
                yield doc.Check(f"{runs} other outputs, or failed.", passed=False)
    budget = report.chunked.budget or report.recompute.budget
    if message := over_budget(report):
        yield doc.Check(f"{message[0].upper()}{message[1:]}.", passed=False)
    elif budget is not None:
        yield doc.Check(f"The plan is within the budget of {format_size(budget)}.")
    if proof := _proof(report):
        yield doc.Check(proof)


def _output_sentence(validation: Validation) -> str:
    """Return the result of the comparison of outputs."""
    reference = reference_text(validation)
    if validation.status == "passed":
        if validation.bit_identical:
            return f"The outputs are bit-identical to {reference}."
        return f"The outputs are within the tolerance of {reference}."
    if validation.status == "nondeterministic":
        return "The outputs could not be compared: two runs of the original differ."
    if validation.did_not_run:
        return "The outputs could not be compared: the written model did not run."
    return f"The outputs differ from {reference}."


def _proof(report: Report) -> str:
    """Return what was proved about the node order or the layout; empty if nothing was.

    An order is proved if no other has a lower live peak; a layout, if it needs no more than the live peak
    of its order. Unknown sizes prevent both.
    """
    memory = report.memory
    has_best_layout = memory.live_peak is not None and memory.live_peak == memory.planned
    if report.partial:
        return ""
    if memory.order_proved:
        lower = "needs less memory" if has_best_layout else "has a lower live peak"
        return f"The node order is optimal: no other order of these nodes {lower}."
    return "The plan is optimal for this order of the nodes." if has_best_layout else ""


def _next_steps(plan: Plan, invocation: Invocation) -> Iterator[doc.Block]:
    """Yield what most readers do next, but no command that would read a model without a file."""
    for block in _next_step(plan, invocation):
        is_command = isinstance(block, doc.NextStep) and block.language == doc.SHELL
        if invocation.has_model_file or not is_command:
            yield block


def _next_step(plan: Plan, invocation: Invocation) -> Iterator[doc.Block]:
    """Yield what most readers do next, as a command to copy or a sentence, with a remark on `memplan.load`."""
    report = plan.report

    def step(label: str, command: str, *options: str) -> doc.NextStep:
        arguments = _arguments(report, command, invocation, options)
        return doc.NextStep(label, f"memplan {command} {arguments}")

    if is_left_alone(plan):  # the user's settings exclude models of this phase
        setting = f"mem_param.optimize_{report.phase}"
        yield doc.Paragraph(f"To plan the model, set {setting} to true.")
    elif (attempt := _next_attempt(report, step)) is not None:  # a check or a budget failed
        yield attempt
    elif report.partial:
        if hint := unknown_sizes_hint(plan):
            yield doc.Paragraph(f"Next: {hint}.")
    elif report.memory.planned is None:
        if command := report_command(report):
            yield doc.NextStep("Get numbers", command)
        elif hint := unknown_sizes_hint(plan):
            yield doc.Paragraph(f"Next: {hint}.")
    elif report.validation is not None:
        # Only `optimize` validates, and it wrote a model. A plan file may be read without this model beside it.
        path = json.dumps(invocation.written or "PATH")
        yield doc.NextStep("Run it", f"session = memplan.load({path})", "python")
        yield doc.Paragraph(_PLAIN_SESSION)
    elif invocation.written:
        models = f"{quote(invocation.written)} --original {path_argument(report)}"
        yield doc.NextStep("Compare the outputs", f"memplan validate {models}")
    elif reason_for_no_saving(report):
        yield step("See what takes the memory", "why", "--process")
    else:
        yield step("Write the smaller model", "optimize")


def _next_attempt(report: Report, step: Callable[..., doc.NextStep]) -> doc.NextStep | None:
    """Return the next attempt if the check of the outputs failed or a budget is missed; else None.

    ``step`` makes a block of its label, a command and options.
    """
    validation, recompute, chunks = report.validation, report.recompute, report.chunked
    if validation is not None and not validation.passed:
        budget = chunks.budget or recompute.budget
        if budget and report.target == "portable" and validation.has_other_outputs:
            # In the rewritten graph, the runtime fuses other nodes, which changes bits of the outputs. A
            # file for a target has the fusions of the original.
            technique = "--chunk auto" if chunks.budget else "--recompute auto"
            options = (technique, f"--budget {budget}", "--target cpu")
            return step("Keep the runtime's fusions", "optimize", *options)
        return step("Keep the node order", "optimize", "--order keep")
    if recompute.budget is not None and not recompute.met and chunks.budget is None:
        # Recomputation missed the budget, and chunking was not tried.
        limit = f"--budget {recompute.budget}"
        return step("Compute in slices", "optimize", "--chunk auto", limit)
    if chunks.budget is not None and not chunks.met and report.memory.resident is not None:
        # The smallest plan found, as a budget that can be met.
        limit = f"--budget {report.memory.resident}"
        return step("Write the smallest plan found", "optimize", "--chunk auto", limit)
    return None


def _arguments(
    report: Report, command: str, invocation: Invocation, options: Sequence[str]
) -> str:
    """Return the model, the user's options that a command has too, and ``options``.

    An option of the user with the name of one of ``options`` is left out: ``--order keep`` replaces
    ``--order auto``. If the user's options are unknown, those that set the sizes of the report are given instead.
    """
    if not report.model.path:
        return " ".join(("MODEL", *options))
    if invocation.repeated_options is None:
        return " ".join((model_arguments(report), *options))
    replaced = {option.partition(" ")[0] for option in options}
    repeated = (
        option
        for option in invocation.repeated_options(command)
        if option.partition(" ")[0] not in replaced
    )
    return " ".join((path_argument(report), *repeated, *options))
