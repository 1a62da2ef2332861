"""What `optimize` results in: a plan, and the files that were written."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memplan_cli.api.files.rewriting import Rewriting, RewrittenFiles

if TYPE_CHECKING:
    from pathlib import Path

    from memplan_cli.core.results.plan import Plan

_NOTE_OF_A_NODE, _NOTE_OF_A_VALUE = 600, 1_700
"""Bytes that a session keeps for what stands on a node and on a value, about."""

_NOTICED = 0.01
"""Share of a process that is more than one differs from the next by."""


@dataclass(frozen=True, slots=True)
class Optimized:
    """What `optimize` did: the plan, and the files that it wrote (none if it failed).

    Attributes:
        plan: of the written model, or of the candidate that failed.
        model: the written model.
        plan_file: the plan as a file.
        data_files: weights that were brought beside the model.
        settings_files: the settings to run the model with, as Python and as JSON, if asked for.
        certificate: the witness of the plan's bounds, if asked for.
    """

    plan: Plan
    model: Path | None
    plan_file: Path | None
    data_files: tuple[Path, ...] = ()
    settings_files: tuple[Path, ...] = ()
    certificate: Path | None = None

    @property
    def written(self) -> tuple[Path, ...]:
        """Return every file that was written."""
        beside = (self.plan_file, self.certificate, *self.settings_files)
        paths = (self.model, *self.data_files, *beside)
        return tuple(path for path in paths if path is not None)

    @property
    def passed(self) -> bool:
        """Return whether the budget is met, and the outputs are the original's or were not compared."""
        validation = self.plan.report.validation
        met = self.plan.report.budget_met
        return met and (validation is None or validation.passed)

    def _repr_html_(self) -> str:
        """Return the plan's report, for notebooks."""
        from memplan_cli.api.plan_sections import FEATURE_SECTIONS
        from memplan_cli.reporting.pages.plan_page import notebook_report

        return notebook_report(self.plan, FEATURE_SECTIONS)


def write_unverified(rewriting: Rewriting) -> Optimized:
    """Write a model and its plan without running anything.

    Raises:
        ModelError: a file cannot be written.
    """
    from memplan_cli.onnx_io.weights.external_data import missing

    plan = rewriting.planned.plan
    if not plan.report.budget_met:
        return Optimized(plan, None, None)
    left = missing(rewriting.file.data_files, rewriting.file.path.parent)
    if left:
        name = rewriting.targets.model.name
        plan = warned(plan, f"{left[0]} is not there: {name} needs it beside it to run")
    with RewrittenFiles(rewriting) as files:
        return publish(rewriting, files, plan)


def publish(rewriting: Rewriting, files: RewrittenFiles, plan: Plan) -> Optimized:
    """Give the written files their names.

    Raises:
        ModelError: a file cannot be written.
    """
    plan = warned(plan, *_heavy_notes(rewriting, plan))
    written, data_files = files.finish(plan)
    files.forget()
    targets = rewriting.targets
    settings_files, certificate = targets.settings_files, targets.certificate
    return Optimized(
        written, targets.model, targets.plan, data_files, settings_files, certificate
    )


def _heavy_notes(rewriting: Rewriting, plan: Plan) -> tuple[str, ...]:
    """Return what to do if a process is larger than the original's because of the model's notes."""
    runtime = plan.report.runtime
    if runtime is None or rewriting.settings.notes != "model":
        return ()
    sides = runtime.observed or runtime.predicted
    before, after = (sides.get(side) for side in ("original", "optimized"))
    if not (before and after and before.process and after.process):
        return ()
    more = after.process.load - before.process.load
    nodes = sum(len(block.nodes) for block in plan.order)
    notes = _NOTE_OF_A_NODE * nodes + _NOTE_OF_A_VALUE * len(plan.tensors)
    if more < _NOTICED * before.process.load or notes < more / 2:
        return ()
    words = f"notes on nodes and values are some {notes / 1e6:.1f} MB of it"
    return (
        f"loading takes more than the original does; {words}: --notes plan leaves them out",
    )


def passed(plan: Plan) -> bool:
    """Return whether a plan's report says that the written model gives the original's outputs."""
    return plan.report.validation is not None and plan.report.validation.passed


def warned(plan: Plan, *warnings: str) -> Plan:
    """Return a plan whose report has further warnings."""
    everything = (*plan.report.warnings, *warnings)
    return plan.with_report(replace(plan.report, warnings=everything))
