"""The Python twin of the command line: the commands that plan and run models, as functions.

Nothing here prints or exits. A check that fails is a result; what cannot work raises a
`MemplanError`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.core.progress import Progress, silent
from memplan_cli.core.results.observations import DEFAULT_TIMEOUT
from memplan_cli.errors import ModelError, PlanError, SettingsError
from memplan_cli.settings.settings import Settings
from memplan_cli.workflows.compare import Check
from memplan_cli.workflows.files.file_names import PLAN_SUFFIX, plan_beside, written_beside
from memplan_cli.workflows.files.model_file import plan_model, read_model
from memplan_cli.workflows.files.output_files import Rewriting, Targets, refuse_overwriting
from memplan_cli.workflows.optimize import (
    Optimized,
    warned,
    write_proved,
    write_unproved,
)
from memplan_cli.workflows.profiles import at_largest, plan_profiles

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from memplan_cli.core.problem import Allocator
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.core.results.validation import Proof
    from memplan_cli.runtime.doctor import Diagnosis
    from memplan_cli.runtime.simulation.dynamic import Simulated
    from memplan_cli.runtime.steer import Recommendation
    from memplan_cli.workflows.profiles import Profiles
    from memplan_cli.workflows.validate import Extra


FilePath = Path | str
"""Where a file is, as a path or as text."""

DEFAULT_CHECK = Check()
"""Both models on the best provider there is, two runs, bit for bit."""


def plan(
    model: FilePath,
    settings: Settings | None = None,
    progress: Progress | None = None,
    *,
    allocate: Allocator | None = None,
) -> Plan:
    """Plan a model in memory; nothing is written or run.

    Args:
        model: The ONNX file.
        settings: What decides the plan.
        progress: Told what is being done.
        allocate: Packs the arenas of level 2 in place of memplan's search. Where its arena
            is taller than the pool of level 1, that pool is the plan, as for any other.

    Raises:
        MemplanError: the model or a setting is wrong.
        InvalidLayoutError: the allocator gave a layout that is not safe.
    """
    file = read_model(Path(model))
    return plan_model(file, settings or Settings(), progress, allocate).plan


def optimize(  # noqa: PLR0913 - what the command takes, by name
    model: FilePath,
    settings: Settings | None = None,
    *,
    profiles: Profiles | None = None,
    out: FilePath | None = None,
    plan_file: FilePath | None = None,
    check: Check | None = DEFAULT_CHECK,
    progress: Progress | None = None,
) -> Optimized:
    """Plan a model, write it in its new order with its plan, and prove it.

    Args:
        model: The ONNX file to optimise; it is never changed.
        settings: What decides the plan.
        profiles: Several values of symbols: one plan that holds for all of them, and a row
            for each in its report. The models are run with the largest.
        out: The file to write; ``<stem>.memplan.onnx`` beside the model by default.
        plan_file: The plan's file; ``out`` with the suffix ``.json`` by default.
        check: How to compare both models; None leaves the comparison out.
        progress: Told what is being done.

    Raises:
        MemplanError: something could not work. Nothing is written then, nor if the
            comparison fails or the budget cannot be met.
    """
    settings, model = settings or Settings(), Path(model)
    for path in (model, *([] if out is None else [Path(out)])):
        if path.is_dir():
            raise ModelError(f"{path} is a folder", hint="name a file")
    target = written_beside(model) if out is None else Path(out)
    targets = Targets(target, Path(plan_file or plan_beside(target)))
    refuse_overwriting(model, targets)
    file = read_model(model)
    if profiles:
        planned = plan_profiles(file, settings, profiles, progress)
        settings = at_largest(settings, profiles)
    elif settings.target != "portable":
        from memplan_cli.workflows.target import optimize_for_target

        return optimize_for_target(file, settings, targets, check, progress or silent)
    else:
        planned = plan_model(file, settings, progress)
    written = Rewriting(file, planned, settings, targets)
    return write_proved(written, check, progress) if check else write_unproved(written)


def report(
    path: FilePath | None,
    settings: Settings | None = None,
    progress: Progress | None = None,
    *,
    profiles: Profiles | None = None,
) -> Plan:
    """Return the plan in a file, or make one of a model.

    Where a model beside the file is another one than the plan is about, a warning says so.

    Args:
        path: A plan, a model, or None: the newest ``*.memplan.json`` of this folder.
        settings: What decides the plan of a model.
        progress: Told what is being done.
        profiles: As for `optimize`.

    Raises:
        MemplanError: there is none, or it is not valid.
    """
    from memplan_cli.planning.checking.plan_file import read_plan
    from memplan_cli.workflows.files.provenance import doubts

    path = newest_plan(Path.cwd()) if path is None else Path(path)
    if path.suffix == ".json":
        found = read_plan(path)
        return warned(found, *doubts(found, path))
    if profiles:
        chosen = settings or Settings()
        return plan_profiles(read_model(path), chosen, profiles, progress).plan
    return plan(path, settings, progress)


def newest_plan(folder: FilePath) -> Path:
    """Return the plan file of a folder that was written last.

    Raises:
        PlanError: there is none.
    """
    found = sorted(
        Path(folder).glob(f"*{PLAN_SUFFIX}"), key=lambda p: (p.stat().st_mtime_ns, p.name)
    )
    if not found:
        raise PlanError(
            f"there is no *{PLAN_SUFFIX} in {folder}",
            hint="run `memplan optimize MODEL` first, or name a plan or a model",
        )
    return found[-1]


def validate(
    planned: FilePath,
    original: FilePath,
    check: Check | None = None,
    extras: Collection[Extra] = (),
) -> Proof:
    """Run a written model and its original, and compare what they give.

    Args:
        planned: A model that memplan wrote; its plan beside it, which the extras need.
        original: The model it was made from.
        check: Where to run, and what counts as equal.
        extras: ``replay`` runs it op by op inside the plan's arenas, ``measure`` measures
            both models' memory in the runtime.

    Raises:
        MemplanError: one of them cannot run at all.
    """
    from memplan_cli.workflows.validate import prove

    return prove(Path(planned), Path(original), check or DEFAULT_CHECK, extras)


def settings(
    model: FilePath, dims: Mapping[str, int], check: Check | None = None
) -> Recommendation:
    """Return the runtime options that make a model, as it is, need least memory.

    Args:
        model: Its weights must be there: the runtime loads it to tell what it would run.
        dims: Values for symbolic dims.
        check: Measure on its provider; None predicts only.

    Raises:
        MemplanError: the model does not load, or has no dim of a name.
    """
    from memplan_cli.runtime.facts import best_settings
    from memplan_cli.runtime.measuring.measure import Trial
    from memplan_cli.shapes.given import unused_dims

    model, dims = Path(model), Settings(dims=dims).dims
    unknown = unused_dims(read_model(model).model, dims)
    if unknown:
        raise SettingsError(unknown[0])
    trial = Trial(provider=check.provider, timeout=check.timeout) if check else None
    return best_settings(model, dims, trial)


def simulate(
    model: FilePath,
    dims: Mapping[str, int],
    allocators: Sequence[str],
    timeout: float = DEFAULT_TIMEOUT,
) -> Simulated:
    """Return what dynamic allocators need for one real run, beside the static plan.

    The run is given up after ``timeout`` seconds.

    Raises:
        MemplanError: the model cannot be read or run.
    """
    from memplan_cli.workflows.simulate import simulate_model

    return simulate_model(Path(model), Settings(dims=dims).dims, allocators, timeout)


def doctor() -> Diagnosis:
    """Say what is installed and what really works here."""
    from memplan_cli.runtime.doctor import diagnose

    return diagnose()
