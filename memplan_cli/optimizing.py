"""How does a planned model reach the disk? Written aside, proved, measured, then renamed.

Nothing is left behind by what fails: the trial file lies beside the target under a
temporary name, so that it finds the weights, and only a model that gave the original's
outputs takes the target's name.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from memplan_cli.errors import ModelError, RuntimeUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from memplan_cli.evidence import Validation
    from memplan_cli.modelfile import ModelFile
    from memplan_cli.plan import Plan
    from memplan_cli.planner import Planned
    from memplan_cli.settings import Settings


@dataclass(frozen=True, slots=True)
class Check:
    """How a written model is proved: where it runs, and what counts as equal."""

    provider: str = "auto"
    runs: int = 2
    rtol: float = 0.0
    atol: float = 0.0
    timeout: float = 600.0


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


@dataclass(frozen=True, slots=True)
class Optimized:
    """What `optimize` did: the plan, and the files it wrote (none if it failed)."""

    plan: Plan
    model: Path | None
    plan_file: Path | None

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


def _refuse_weights(rewriting: Rewriting) -> None:
    """Refuse targets that are a file of the model's weights, here or where they go."""
    from memplan_cli.onnx_io.external_data import locations

    targets = (rewriting.targets.model, rewriting.targets.plan)
    for name in locations(rewriting.file.model):
        data = {
            (folder / name).resolve()
            for folder in (rewriting.file.path.parent, targets[0].parent)
        }
        for path in targets:
            if path.resolve() in data:
                raise ModelError(
                    f"{path} is where the model's weights are", hint="name another file"
                )


def write_unproved(rewriting: Rewriting) -> Optimized:
    """Write the model and its plan without running anything.

    Raises:
        ModelError: a file cannot be written.
    """
    from memplan_cli.onnx_io.external_data import missing

    plan = rewriting.planned.plan
    left = missing(rewriting.file.model, rewriting.file.path.parent)
    if left:
        name = rewriting.targets.model.name
        plan = warned(plan, f"{left[0]} is not there: {name} needs it beside it to run")
    with _Files(rewriting) as files:
        return files.finish(plan)


def write_proved(
    rewriting: Rewriting, check: Check, progress: Callable[[str], None] | None
) -> Optimized:
    """Write the model and its plan if it gives the original's outputs; measure both.

    Raises:
        RuntimeUnavailableError: the original cannot run here, so nothing can be shown.
        ModelError: a file cannot be written.
    """
    from memplan_cli.onnx_io.files import staged

    tell = progress or _say_nothing
    plan = rewriting.planned.plan
    with _Files(rewriting) as files:
        with staged(rewriting.targets.model, files.data) as trial:
            tell("running both models")
            verdict = compare_models(rewriting.file.path, trial, check, rewriting.settings)
            plan = replace(plan, report=replace(plan.report, validation=verdict))
            if not verdict.passed:
                return Optimized(plan, None, None)
            plan = _measured(plan, rewriting, trial, check, tell)
        return files.finish(plan)


def compare_models(
    original: Path, rewritten: Path, check: Check, settings: Settings
) -> Validation:
    """Run two models on the same inputs and compare every output of the first.

    Raises:
        RuntimeUnavailableError: weights or the provider are missing, or the original does
            not run.
    """
    from memplan_cli.runtime.bits import Tolerance
    from memplan_cli.runtime.compare import Comparison, compare

    how = Comparison(
        provider=check.provider,
        dims=settings.dims,
        runs=check.runs,
        timeout=check.timeout,
        tolerance=Tolerance(check.rtol, check.atol),
    )
    return compare(original, rewritten, how)


def warned(plan: Plan, *warnings: str) -> Plan:
    """Return a plan whose report says more."""
    everything = (*plan.report.warnings, *warnings)
    return replace(plan, report=replace(plan.report, warnings=everything))


def _measured(
    plan: Plan, rewriting: Rewriting, trial: Path, check: Check, tell: Callable[[str], None]
) -> Plan:
    """Add the runtime's side; that it cannot be measured is said, and no failure."""
    from memplan_cli.runtime.facts import Pair, runtime_account

    pair = Pair(
        rewriting.file.path,
        trial,
        check.provider,
        rewriting.settings.dims,
        # The runtime's optimisation would merge copies back.
        as_written=plan.report.recompute.nodes > 0,
        timeout=check.timeout,
    )
    try:
        account = runtime_account(pair, tell)
    except RuntimeUnavailableError as error:
        return warned(plan, f"the runtime's memory was not measured: {error}")
    plan = replace(plan, report=replace(plan.report, runtime=account.facts))
    return warned(plan, *account.warnings)


class _Files:
    """The files of one rewriting: its weights go along, and go again if it fails."""

    def __init__(self, rewriting: Rewriting) -> None:
        from memplan_cli.onnx_io.external_data import copy_along
        from memplan_cli.onnx_io.write import written_model

        _refuse_weights(rewriting)
        self._targets = rewriting.targets
        planned = rewriting.planned
        self.data = written_model(rewriting.file.model, planned.program, planned.plan)
        self._created = copy_along(
            rewriting.file.model, rewriting.file.path.parent, rewriting.targets.model.parent
        )
        self._done = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        from memplan_cli.onnx_io.external_data import remove

        if not self._done:
            remove(self._created)

    def finish(self, plan: Plan) -> Optimized:
        """Give both files their names."""
        from memplan_cli.onnx_io.files import write_files

        write_files(
            {self._targets.plan: plan.dumps().encode(), self._targets.model: self.data}
        )
        self._done = True
        return Optimized(plan, self._targets.model, self._targets.plan)


def _say_nothing(text: str) -> None:
    del text
