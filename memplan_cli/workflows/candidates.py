"""Rewritten models that compete: what they are, and what is said of each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memplan_cli.workflows.files.binding import binding_of, run_at
from memplan_cli.workflows.files.rewriting import Rewriting, RewrittenFiles
from memplan_cli.workflows.turning import with_turns

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from memplan_cli.core.check import Check
    from memplan_cli.core.results.observations import Validation
    from memplan_cli.core.results.plan import Plan

_NOTE_OF_A_NODE, _NOTE_OF_A_VALUE = 600, 1_700
"""Bytes that a session keeps for what stands on a node and on a value, about."""

_NOTICED = 0.01
"""Share of a process that is more than one differs from the next by."""


@dataclass(frozen=True, slots=True)
class Optimized:
    """What `optimize` did: the plan, and the files it wrote (none if it failed)."""

    plan: Plan
    model: Path | None
    plan_file: Path | None
    data_files: tuple[Path, ...] = ()
    """The weights that were brought beside the model."""
    settings_files: tuple[Path, ...] = ()
    """The settings to run the model with, as Python and as JSON, where asked for."""
    certificate: Path | None = None
    """What shows the plan's bounds, where asked for."""

    @property
    def written(self) -> tuple[Path, ...]:
        """Every file that was written."""
        beside = (self.plan_file, self.certificate, *self.settings_files)
        paths = (self.model, *self.data_files, *beside)
        return tuple(path for path in paths if path is not None)

    @property
    def passed(self) -> bool:
        """Whether the budget is met, and the outputs are the original's or nobody asked."""
        validation = self.plan.report.validation
        met = self.plan.report.budget_met
        return met and (validation is None or validation.passed)

    def _repr_html_(self) -> str:
        """Return the plan's report, for notebooks."""
        from memplan_cli.reporting.plans.html import notebook_report

        return notebook_report(self.plan)


def write_unproved(rewriting: Rewriting) -> Optimized:
    """Write the model and its plan without running anything.

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
        done = finished(rewriting, files, plan)
        files.forget()
        return done


@dataclass(frozen=True, slots=True)
class Candidate:
    """A rewriting to be proved and measured."""

    rewriting: Rewriting
    check: Check
    tell: Callable[[str], None]


def finished(rewriting: Rewriting, files: RewrittenFiles, plan: Plan) -> Optimized:
    """Give what was written its names, and say them."""
    plan = warned(plan, *_heavy_notes(rewriting, plan))
    written, data_files = files.finish(plan)
    targets = rewriting.targets
    files_of_settings, certificate = targets.settings_files, targets.certificate
    return Optimized(
        written, targets.model, targets.plan, data_files, files_of_settings, certificate
    )


def _heavy_notes(rewriting: Rewriting, plan: Plan) -> tuple[str, ...]:
    """Return what to do where a process is larger than the original's for the model's notes."""
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


def by_name(text: str, rewriting: Rewriting, path: Path) -> str:
    """Name both models without their folders, the trial file as the one that it becomes.

    Where somebody stood, and the name of a temporary file, are other ones each time.
    """
    text = text.replace(str(path), rewriting.targets.model.name)
    return text.replace(str(rewriting.compared_with), rewriting.compared_with.name)


def passed(plan: Plan) -> bool:
    """Whether a plan's report says that the written model gives the original's outputs."""
    return plan.report.validation is not None and plan.report.validation.passed


def warned(plan: Plan, *warnings: str) -> Plan:
    """Return a plan whose report says more."""
    everything = (*plan.report.warnings, *warnings)
    return plan.with_report(replace(plan.report, warnings=everything))


def with_verdict(
    rewriting: Rewriting, path: Path, verdict: Validation, check: Check
) -> tuple[Plan, tuple[str, ...]]:
    """Return the plan with the whole verdict in its report, and what was said besides.

    The verdict counts two steps in which each donated pair is one buffer, and a size at which
    every loop has several pieces; the report has the dims of the run.
    """
    verdict = with_turns(rewriting, path, _donated(rewriting, path, verdict, check), check)
    notes = tuple(by_name(note, rewriting, path) for note in verdict.notes)
    verdict = replace(verdict, notes=notes)
    plan = rewriting.planned.plan
    bindings = {**plan.report.bindings, **run_at(rewriting.settings)}
    report = replace(plan.report, validation=verdict, bindings=dict(sorted(bindings.items())))
    return plan.with_report(report), notes


def _donated(
    rewriting: Rewriting, path: Path, verdict: Validation, check: Check
) -> Validation:
    """Add the verdict on two steps in which each donated pair is one buffer."""
    from memplan_cli.workflows.donate import Donation, with_donation

    pairs = rewriting.planned.plan.report.donated.pairs
    donation = Donation(pairs, offline=rewriting.original is not None)
    models, binding = (rewriting.compared_with, path), binding_of(rewriting.settings)
    return with_donation(verdict, models, donation, check, binding)
