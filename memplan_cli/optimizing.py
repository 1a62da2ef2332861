"""How does a planned model reach the disk? Written aside, proved, measured, then renamed.

Nothing is left behind by what fails: the trial file lies beside the target under a
temporary name, so that it finds the weights, and only a model that gave the original's
outputs takes the target's name.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from memplan_cli.comparing import Compared, compare_models, compare_under
from memplan_cli.errors import ModelError, RuntimeUnavailableError
from memplan_cli.output_files import OutputFiles
from memplan_cli.progress import silent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from memplan_cli.comparing import Check
    from memplan_cli.modelfile import ModelFile
    from memplan_cli.plan import Plan
    from memplan_cli.planner import Planned
    from memplan_cli.report import RuntimeFacts
    from memplan_cli.runtime.facts import Pair
    from memplan_cli.settings import Settings


@dataclass(frozen=True, slots=True)
class Targets:
    """The two files to write."""

    model: Path
    plan: Path


@dataclass(frozen=True, slots=True)
class Rewriting:
    """A model, what was planned for it, and where both go."""

    file: ModelFile
    planned: Planned
    settings: Settings
    targets: Targets
    original: Path | None = None
    """What the model is compared with, where it was not planned as it is."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """Further metadata for the written model."""

    @property
    def compared_with(self) -> Path:
        """Return the file whose outputs count."""
        return self.original or self.file.path

    @property
    def only_as_written(self) -> bool:
        """Whether the runtime's optimisation must not touch the written file."""
        report = self.planned.plan.report
        # Copies would be merged, and a pair is safe only in the order of the file.
        moved = report.recompute.nodes > 0 or bool(report.donated.pairs)
        return self.original is not None or moved


@dataclass(frozen=True, slots=True)
class Optimized:
    """What `optimize` did: the plan, and the files it wrote (none if it failed)."""

    plan: Plan
    model: Path | None
    plan_file: Path | None
    data_files: tuple[Path, ...] = ()
    """The weights that were brought beside the model."""

    @property
    def written(self) -> tuple[Path, ...]:
        """Every file that was written."""
        return tuple(
            path for path in (self.model, *self.data_files, self.plan_file) if path is not None
        )

    @property
    def passed(self) -> bool:
        """Whether the budget is met, and the outputs are the original's or nobody asked."""
        validation = self.plan.report.validation
        met = self.plan.report.recompute.met
        return met and (validation is None or validation.passed)


def refuse_overwriting(model: Path, targets: Targets) -> None:
    """Refuse targets that cannot be written or that are the model itself.

    Raises:
        ModelError: naming the file.
    """
    for path in (targets.model, targets.plan):
        if path.is_dir():
            raise ModelError(f"{path} is a folder", hint="name a file with -o")
        if not path.parent.is_dir():
            raise ModelError(
                f"there is no folder {path.parent} to write into", hint="create it first"
            )
        if path.exists() and model.exists() and path.samefile(model):
            raise ModelError(
                f"{path} is the model itself, which is never overwritten",
                hint="name another file with -o",
            )
    if targets.model == targets.plan:
        raise ModelError(f"the model and its plan cannot both be {targets.model}")


def write_unproved(rewriting: Rewriting) -> Optimized:
    """Write the model and its plan without running anything.

    Raises:
        ModelError: a file cannot be written.
    """
    from memplan_cli.onnx_io.external_data import missing

    plan = rewriting.planned.plan
    if not plan.report.recompute.met:
        return Optimized(plan, None, None)
    left = missing(rewriting.file.data_files, rewriting.file.path.parent)
    if left:
        name = rewriting.targets.model.name
        plan = warned(plan, f"{left[0]} is not there: {name} needs it beside it to run")
    with OutputFiles(rewriting) as files:
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
    within = [c for c in candidates if c.rewriting.planned.plan.report.recompute.met]
    if not within:
        return Optimized(candidates[0].rewriting.planned.plan, None, None)
    with ExitStack() as stack:
        tried: list[tuple[OutputFiles, Plan]] = []
        for candidate in within:
            files = stack.enter_context(OutputFiles(candidate.rewriting))
            # All candidates have one original: what is known of it need not be found again.
            known = next((p.report.runtime for _, p in tried if p.report.runtime), None)
            tried.append((files, _tried(candidate, files, known)))
        passed = [(files, plan) for files, plan in tried if _passed(plan)]
        if not passed:
            return Optimized(tried[0][1], None, None)
        files, plan = min(passed, key=lambda found: _cost(found[1]))
        done = _finished(candidates[0].rewriting, files, plan)
        for other, _ in tried:
            other.forget()
        return done


def _finished(rewriting: Rewriting, files: OutputFiles, plan: Plan) -> Optimized:
    written, data_files = files.finish(plan)
    return Optimized(written, rewriting.targets.model, rewriting.targets.plan, data_files)


def _tried(candidate: Candidate, files: OutputFiles, known: RuntimeFacts | None) -> Plan:
    from memplan_cli.onnx_io.files import staged

    rewriting = candidate.rewriting
    plan = rewriting.planned.plan
    with staged(rewriting.targets.model, files.data) as path:
        candidate.tell("running both models")
        found = _compared(rewriting, path, candidate.check)
        notes = tuple(_by_name(note, rewriting, path) for note in found.verdict.notes)
        verdict = replace(found.verdict, notes=notes)
        plan = plan.with_report(replace(plan.report, validation=verdict))
        if not verdict.passed:
            return plan
        facts, doubts = _measured(plan, _pair(candidate, path, found, known), candidate.tell)
        plan = plan.with_report(replace(plan.report, runtime=facts))
        return warned(plan, *(_by_name(doubt, rewriting, path) for doubt in doubts), *notes)


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
    from memplan_cli.runtime.timing import is_slower

    if plan.report.runtime is None:
        return True, 0
    before = plan.report.runtime.observed["original"]
    after = plan.report.runtime.observed["optimized"]
    return is_slower(after, before), (after.held or 0) + (after.first_run_peak or 0)


def _compared(rewriting: Rewriting, path: Path, check: Check) -> Compared:
    """Compare: a graph that was optimised offline runs as it stands."""
    from memplan_cli.donating import Donation, with_donation
    from memplan_cli.runtime.offline import RUN_AS_WRITTEN

    dims = rewriting.settings.dims
    if rewriting.original is None:
        found = compare_models(rewriting.file.path, path, check, dims)
    else:
        settings = {"rewritten": RUN_AS_WRITTEN}
        verdict = compare_under(rewriting.original, path, check, dims, settings)
        found = Compared(verdict, as_written=True)
    pairs = rewriting.planned.plan.report.donated.pairs
    donation = Donation(pairs, offline=rewriting.original is not None)
    models = (rewriting.compared_with, path)
    verdict = with_donation(found.verdict, models, donation, check, dims)
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
        rewriting.settings.dims,
        as_written=found.as_written or rewriting.only_as_written,
        timeout=check.timeout,
        known=known,
    )


def _measured(
    plan: Plan, pair: Pair, tell: Callable[[str], None]
) -> tuple[RuntimeFacts | None, Sequence[str]]:
    """Return the runtime's side, and warnings; not to be measured is one, and no failure."""
    from memplan_cli.donating import with_binding
    from memplan_cli.runtime.facts import runtime_account

    try:
        account = runtime_account(pair, tell)
    except RuntimeUnavailableError as error:
        return None, (f"the runtime's memory was not measured: {error}",)
    return with_binding(account.facts, plan.report.donated.pairs), account.warnings
