"""Rewritten models: written aside, proved, measured, and the best one renamed.

Nothing is left behind by what fails: the trial file lies beside the target under a
temporary name, so that it finds the weights, and only a model that gave the original's
outputs takes the target's name.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memplan_cli.core.progress import silent
from memplan_cli.core.results.amounts import BoundDim
from memplan_cli.errors import RuntimeUnavailableError
from memplan_cli.workflows.compare import Compared, compare_models, compare_under
from memplan_cli.workflows.files.binding import binding_of
from memplan_cli.workflows.files.rewriting import Rewriting, RewrittenFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from memplan_cli.core.results.plan import Plan
    from memplan_cli.core.results.report import RuntimeFacts
    from memplan_cli.runtime.facts import Pair
    from memplan_cli.workflows.compare import Check


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

    @property
    def written(self) -> tuple[Path, ...]:
        """Every file that was written."""
        paths = (self.model, *self.data_files, self.plan_file, *self.settings_files)
        return tuple(path for path in paths if path is not None)

    @property
    def passed(self) -> bool:
        """Whether the budget is met, and the outputs are the original's or nobody asked."""
        validation = self.plan.report.validation
        met = self.plan.report.budget_met
        return met and (validation is None or validation.passed)


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
        done = _finished(rewriting, files, plan)
        files.forget()
        return done


def write_proved(
    rewriting: Rewriting, check: Check, progress: Callable[[str], None] | None
) -> Optimized:
    """Write the model and its plan if it gives the original's outputs; measure both.

    Raises:
        RuntimeUnavailableError: the original cannot run here, so nothing can be shown.
        ModelError: a file cannot be written.
    """
    return best_candidate([Candidate(rewriting, check, progress or silent)])


@dataclass(frozen=True, slots=True)
class Candidate:
    """A rewriting to be proved and measured."""

    rewriting: Rewriting
    check: Check
    tell: Callable[[str], None]


def best_candidate(candidates: Sequence[Candidate]) -> Optimized:
    """Prove and measure each rewriting; write the one that needs least, if one passes.

    Raises:
        RuntimeUnavailableError: the original cannot run here, so nothing can be shown.
        ModelError: a file cannot be written.
    """
    within = [c for c in candidates if c.rewriting.planned.plan.report.budget_met]
    if not within:
        return Optimized(candidates[0].rewriting.planned.plan, None, None)
    with ExitStack() as stack:
        tried: list[tuple[RewrittenFiles, Plan]] = []
        for candidate in within:
            files = stack.enter_context(RewrittenFiles(candidate.rewriting))
            # All candidates have one original: what is known of it need not be found again.
            known = next((p.report.runtime for _, p in tried if p.report.runtime), None)
            tried.append((files, _tried(candidate, files, known)))
        passed = [(files, plan) for files, plan in tried if _passed(plan)]
        if not passed:
            return Optimized(tried[0][1], None, None)
        candidates[0].tell("writing")
        files, plan = min(passed, key=lambda found: _cost(found[1]))
        done = _finished(candidates[0].rewriting, files, plan)
        for other, _ in tried:
            other.forget()
        return done


def _finished(rewriting: Rewriting, files: RewrittenFiles, plan: Plan) -> Optimized:
    written, data_files = files.finish(plan)
    targets = rewriting.targets
    return Optimized(written, targets.model, targets.plan, data_files, targets.settings_files)


def _tried(candidate: Candidate, files: RewrittenFiles, known: RuntimeFacts | None) -> Plan:
    from memplan_cli.core.files import staged

    rewriting = candidate.rewriting
    plan = rewriting.planned.plan
    with staged(rewriting.targets.model, files.data) as path:
        candidate.tell("running both models")
        found = _compared(rewriting, path, candidate.check)
        notes = tuple(_by_name(note, rewriting, path) for note in found.verdict.notes)
        verdict = replace(found.verdict, notes=notes)
        bindings = {**plan.report.bindings, **_run_at(rewriting)}
        plan = plan.with_report(
            replace(plan.report, validation=verdict, bindings=dict(sorted(bindings.items())))
        )
        if not verdict.passed:
            return plan
        facts, caveats = _measured(plan, _pair(candidate, path, found, known), candidate.tell)
        plan = plan.with_report(replace(plan.report, runtime=facts))
        return warned(plan, *(_by_name(caveat, rewriting, path) for caveat in caveats), *notes)


def _run_at(rewriting: Rewriting) -> Mapping[str, BoundDim]:
    """Return the number of each dim in the first run: what nobody said is assumed."""
    from memplan_cli.onnx_io.runs.feeds import default_dims

    settings = rewriting.settings
    said = settings.inputs.provenance
    assumed = default_dims(rewriting.file.model)
    return {
        **{name: BoundDim(value, "assumed") for name, value in assumed.items()},
        **{n: BoundDim(v, said.get(n, "given")) for n, v in settings.dims.items()},
    }


def _by_name(text: str, rewriting: Rewriting, path: Path) -> str:
    """Name both models without their folders, the trial file as the one that it becomes.

    Where somebody stood, and the name of a temporary file, are other ones each time.
    """
    text = text.replace(str(path), rewriting.targets.model.name)
    return text.replace(str(rewriting.compared_with), rewriting.compared_with.name)


def _passed(plan: Plan) -> bool:
    return plan.report.validation is not None and plan.report.validation.passed


def _cost(plan: Plan) -> tuple[bool, int]:
    """Rank what was measured: not slower than allowed, then the least memory.

    Weights in the arena count: one graph may map from its file what another packs at load.
    """
    from memplan_cli.runtime.measuring.timing import is_slower

    if plan.report.runtime is None:
        return True, 0
    before = plan.report.runtime.observed["original"]
    after = plan.report.runtime.observed["optimized"]
    return is_slower(after, before), (after.held or 0) + (after.first_run_peak or 0)


def _compared(rewriting: Rewriting, path: Path, check: Check) -> Compared:
    """Compare: a graph that was optimised offline runs as it stands."""
    from memplan_cli.runtime.graph.offline import RUN_AS_WRITTEN
    from memplan_cli.workflows.donate import Donation, with_donation

    binding = binding_of(rewriting.settings)
    if rewriting.original is None:
        found = compare_models(rewriting.file.path, path, check, binding)
    else:
        settings = {"rewritten": RUN_AS_WRITTEN}
        verdict = compare_under(rewriting.original, path, check, binding, settings)
        found = Compared(verdict, as_written=True)
    pairs = rewriting.planned.plan.report.donated.pairs
    donation = Donation(pairs, offline=rewriting.original is not None)
    models = (rewriting.compared_with, path)
    verdict = with_donation(found.verdict, models, donation, check, binding)
    return replace(found, verdict=verdict)


def warned(plan: Plan, *warnings: str) -> Plan:
    """Return a plan whose report says more."""
    everything = (*plan.report.warnings, *warnings)
    return plan.with_report(replace(plan.report, warnings=everything))


def _pair(
    candidate: Candidate, path: Path, found: Compared, known: RuntimeFacts | None
) -> Pair:
    """Return what is measured: the original, and the trial file as it may be run."""
    from memplan_cli.runtime.facts import Pair

    rewriting, check = candidate.rewriting, candidate.check
    return Pair(
        rewriting.compared_with,
        path,
        check.provider,
        {name: dim.value for name, dim in _run_at(rewriting).items()},
        rewriting.settings.inputs.feeds or {},
        as_written=found.as_written or rewriting.only_as_written,
        timeout=check.timeout,
        known=known,
    )


def _measured(
    plan: Plan, pair: Pair, tell: Callable[[str], None]
) -> tuple[RuntimeFacts | None, Sequence[str]]:
    """Return the runtime's side, and warnings; not to be measured is one, and no failure."""
    from memplan_cli.runtime.facts import runtime_account
    from memplan_cli.workflows.donate import with_binding

    try:
        account = runtime_account(pair, tell)
    except RuntimeUnavailableError as error:
        return None, (f"the runtime's memory was not measured: {error}",)
    return with_binding(account.facts, plan.report.donated.pairs), account.warnings
