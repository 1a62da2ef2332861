"""The result of `optimize`, and publishing a rewritten model under its final names."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memplan_cli.api.output.rewriting import Rewriting, RewrittenFiles, rewritten_files
from memplan_cli.core.quantities import format_size
from memplan_cli.errors import RuntimeUnavailableError

if TYPE_CHECKING:
    from pathlib import Path

    from memplan_cli.core.results.plan import Plan
    from memplan_cli.core.results.report import RuntimeSummary

_BYTES_PER_NODE_NOTE, _BYTES_PER_VALUE_NOTE = 600, 1_700
"""Memory of a session for the metadata of one node, and of one value, approximately."""

_MAX_WEIGHTS, _MAX_NODES = 1 << 30, 10_000
"""Bytes of weights and number of nodes up to which a model is loaded to predict its memory without a
validation. The session of a Llama of 4 GiB takes 9 s and its weights' memory, its plan 1 s and 77 MiB."""

_PROCESS_NOISE = 0.01
"""Share of a process by which two runs may differ."""


@dataclass(frozen=True, slots=True)
class Optimized:
    """What `optimize` did: the plan, and the files that it wrote (none if it failed).

    Attributes:
        plan: of the written model, or of the candidate that failed.
        model: the written model.
        plan_file: the plan as a file.
        data_files: weight files that were brought beside the model.
        settings_files: the settings to run the model with, as Python and as JSON, if asked for.
        certificate: the certificate of the plan's bounds, if asked for.
    """

    plan: Plan
    model: Path | None = None
    plan_file: Path | None = None
    data_files: tuple[Path, ...] = ()
    settings_files: tuple[Path, ...] = ()
    certificate: Path | None = None

    def __repr__(self) -> str:
        """Return one line with what was written, whether it was validated, and the plan's bytes."""
        validation = self.plan.report.validation
        wrote = "nothing was written" if self.model is None else f"wrote {str(self.model)!r}"
        verdict = "not validated" if validation is None else f"validation {validation.status}"
        return f"<Optimized: {wrote}, {verdict}, {self.plan!r}>"

    @property
    def written(self) -> tuple[Path, ...]:
        """Return every file that was written."""
        beside = (self.plan_file, self.certificate, *self.settings_files)
        paths = (self.model, *self.data_files, *beside)
        return tuple(path for path in paths if path is not None)

    @property
    def passed(self) -> bool:
        """Return whether the budget is met, and the outputs are the original's or were not compared."""
        report = self.plan.report
        return report.budget_met and (report.validation is None or report.validation.passed)

    def _repr_html_(self) -> str:
        """Return the plan's report, for notebooks."""
        from memplan_cli.api.plan_sections import FEATURE_SECTIONS
        from memplan_cli.reporting.pages.plan_page import notebook_report

        return notebook_report(self.plan, FEATURE_SECTIONS)


def may_be_written(rewriting: Rewriting) -> bool:
    """Return whether a plan is within its budget, or the smallest one found is wanted in any case."""
    return rewriting.plan.report.budget_met or rewriting.settings.best_effort


def write_unverified(rewriting: Rewriting) -> Optimized:
    """Write a model and its plan without running anything; nothing is written if the budget is missed.

    The report has predicted memory and settings. If weight files of the model are missing, or a prediction
    would need a run, it has a warning instead.

    Raises:
        ModelError: a file cannot be written.
    """
    from memplan_cli.onnx_io.weights.external_data import missing

    if not may_be_written(rewriting):
        return Optimized(rewriting.plan)
    missing_files = missing(rewriting.file.data_files, rewriting.file.path.parent)
    if missing_files:
        name = rewriting.targets.model.name
        plan = rewriting.plan.with_warnings(
            f"{missing_files[0]} is not there: {name} needs it beside it to run"
        )
    else:
        plan = _plan_with_predicted_facts(rewriting)
    with rewritten_files(rewriting) as files:
        return publish(files, plan)


def _plan_with_predicted_facts(rewriting: Rewriting) -> Plan:
    """Return the plan with the predicted memory of both models and predicted settings in its report.

    The settings bind each donated output to the input whose memory it takes. If nothing can be predicted, the
    plan has a warning that says why.
    """
    plan, obstacle = rewriting.plan, _prediction_obstacle(rewriting)
    if obstacle:
        return plan.with_warnings(obstacle)
    try:
        facts = _predicted_facts(rewriting)
    except RuntimeUnavailableError as error:
        return plan.with_warnings(f"memory and settings are not predicted: {error.message}")
    if facts.settings is not None:
        output_to_input = {output: input_ for input_, output in plan.report.donated.pairs}
        facts = replace(facts, settings=replace(facts.settings, io_binding=output_to_input))
    return plan.with_report(replace(plan.report, runtime=facts))


def _prediction_obstacle(rewriting: Rewriting) -> str:
    """Return the warning why memory and settings are not predicted; empty if they can be tried."""
    if rewriting.settings.target == "cuda":
        return "memory and settings are predicted for the CPU only"
    report = rewriting.plan.report
    if report.memory.weights > _MAX_WEIGHTS or report.model.nodes > _MAX_NODES:
        return (
            "memory and settings are not predicted: a session of so large a model takes longer than its "
            "plan; `memplan report` predicts them"
        )
    if rewriting.settings.bounds:  # settings for a range need a run at its largest size
        return "memory and settings are not predicted for a range of sizes"
    return ""


def _predicted_facts(rewriting: Rewriting) -> RuntimeSummary:
    """Predict memory and settings of an original and its rewritten model; neither is run.

    Raises:
        RuntimeUnavailableError: ONNX Runtime is not installed, or cannot load the original.
    """
    from memplan_cli.api.process import prediction_conditions
    from memplan_cli.runtime.settings_search.model_prediction import predicted_facts

    original = rewriting.original_file
    conditions = prediction_conditions(rewriting.settings)
    return predicted_facts(
        original.path,
        rewriting.planned.program,
        replace(conditions, may_run=False),
        nodes=[node.name for node in original.model.graph.node],
        recorded=None,  # the original is opened with ONNX Runtime's defaults
        # The written model is optimized when it is opened, unless it must run as written.
        optimization="off" if rewriting.unoptimized_only else "on",
        # The written model gets the weights of this file: the original, or ONNX Runtime's graph of it with packed weights.
        weights=rewriting.file.path,
    )


def publish(files: RewrittenFiles, plan: Plan) -> Optimized:
    """Write a rewritten model, its plan, and the settings and certificate asked for, under their final names.

    The plan gets a warning if the metadata in the model needs noticeable memory to load.

    Raises:
        ModelError: a file cannot be written.
    """
    rewriting = files.rewriting
    plan = plan.with_warnings(*_warnings_of_heavy_notes(rewriting, plan))
    plan, data_files = files.finish(plan)
    targets = rewriting.targets
    return Optimized(
        plan,
        targets.model,
        targets.plan,
        data_files,
        targets.settings_files,
        targets.certificate,
    )


def _warnings_of_heavy_notes(rewriting: Rewriting, plan: Plan) -> tuple[str, ...]:
    """Return a warning if the notes, the plan in the model's metadata, need noticeable memory to load.

    Empty if what loading takes is unknown, did not grow beyond the noise, or grew mostly for another
    reason.
    """
    runtime = plan.report.runtime
    if runtime is None or not rewriting.settings.has_notes_in_model:
        return ()
    facts = runtime.observed or runtime.predicted
    before, after = facts.get("original"), facts.get("optimized")
    if not (before and after and before.process and after.process):
        return ()
    growth = after.process.load - before.process.load
    nodes = sum(len(block.nodes) for block in plan.order)
    bytes_of_notes = _BYTES_PER_NODE_NOTE * nodes + _BYTES_PER_VALUE_NOTE * len(plan.tensors)
    if growth < _PROCESS_NOISE * before.process.load or bytes_of_notes < growth / 2:
        return ()
    return (
        (
            "Loading needs more memory than loading the original. The plan in the metadata of nodes "
            f"and values is about {format_size(bytes_of_notes)} of it. --notes plan omits that metadata."
        ),
    )


def is_verified(plan: Plan) -> bool:
    """Return whether a plan's report has a verdict that the written model's outputs are the original's."""
    return plan.report.validation is not None and plan.report.validation.passed
