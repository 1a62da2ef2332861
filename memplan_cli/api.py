"""The Python twin of the command line: one function a command.

Nothing here prints or exits. A check that fails is a result; what cannot work raises a
`MemplanError`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.errors import ModelError, PlanError
from memplan_cli.settings import Settings

if TYPE_CHECKING:
    from onnx import ModelProto  # noqa: TID251 - the type only; onnx_io makes the value

    from memplan_cli.evidence import Validation
    from memplan_cli.plan import Plan
    from memplan_cli.planner import Planned
    from memplan_cli.runtime.doctor import Diagnosis

Progress = Callable[[str], None]

PLAN_SUFFIX = ".memplan.json"


@dataclass(frozen=True, slots=True)
class Check:
    """How a written model is proved: where it runs, and what counts as equal."""

    provider: str = "auto"
    runs: int = 2
    rtol: float = 0.0
    atol: float = 0.0
    timeout: float = 600.0


@dataclass(frozen=True, slots=True)
class Optimized:
    """What `optimize` did: the plan, and the files it wrote (none if it failed)."""

    plan: Plan
    model: Path | None
    plan_file: Path | None

    @property
    def passed(self) -> bool:
        """Whether the written model gave what the original gives, or nobody asked."""
        validation = self.plan.report.validation
        return validation is None or validation.passed


@dataclass(frozen=True, slots=True)
class _Read:
    """A model file in memory, planned or not."""

    path: Path
    model: ModelProto = field(repr=False)


def plan(
    model: Path, settings: Settings | None = None, progress: Progress | None = None
) -> Plan:
    """Plan a model in memory; nothing is written or run.

    Raises:
        MemplanError: the model or a setting is wrong.
    """
    read = _read(model)
    return plan_program(read.path, read.model, settings or Settings(), progress).plan


def optimize(  # noqa: PLR0913 - what the command takes, by name
    model: Path,
    settings: Settings | None = None,
    *,
    out: Path | None = None,
    plan_file: Path | None = None,
    check: Check | None = Check(),
    progress: Progress | None = None,
) -> Optimized:
    """Plan a model, write it in its new order with its plan, and prove it.

    Args:
        model: The ONNX file to optimise; it is never changed.
        settings: What decides the plan.
        out: The file to write; ``<stem>.memplan.onnx`` beside the model by default.
        plan_file: The plan's file; ``out`` with the suffix ``.json`` by default.
        check: How to compare both models; None leaves the comparison out.
        progress: Told what is being done.

    Raises:
        MemplanError: something could not work. Nothing is written then, nor if the
            comparison fails.
    """
    settings = settings or Settings()
    target = out or model.with_name(f"{model.stem}.memplan.onnx")
    beside = plan_file or target.with_suffix(".json")
    _refuse_overwriting(model, target, beside)
    read = _read(model)
    planned = plan_program(model, read.model, settings, progress)
    return _write(read, planned, settings, _Targets(target, beside, check), progress)


@dataclass(frozen=True, slots=True)
class _Targets:
    model: Path
    plan: Path
    check: Check | None


def report(
    path: Path | None, settings: Settings | None = None, progress: Progress | None = None
) -> Plan:
    """Return the plan in a file, or make one of a model.

    Args:
        path: A plan, a model, or None: the newest ``*.memplan.json`` of this folder.
        settings: What decides the plan of a model.
        progress: Told what is being done.

    Raises:
        MemplanError: there is none, or it is not valid.
    """
    from memplan_cli.plan import read_plan

    path = path or newest_plan(Path.cwd())
    if path.suffix == ".json":
        return read_plan(path)
    return plan(path, settings, progress)


def newest_plan(folder: Path) -> Path:
    """Return the plan file of a folder that was written last.

    Raises:
        PlanError: there is none.
    """
    found = sorted(
        folder.glob(f"*{PLAN_SUFFIX}"), key=lambda p: (p.stat().st_mtime_ns, p.name)
    )
    if not found:
        raise PlanError(
            f"there is no *{PLAN_SUFFIX} in {folder}",
            hint="run `memplan optimize MODEL` first, or name a plan or a model",
        )
    return found[-1]


def validate(planned: Path, original: Path, check: Check | None = None) -> Validation:
    """Run a written model and its original, and compare what they give.

    Raises:
        MemplanError: one of them cannot run at all.
    """
    from memplan_cli.onnx_io.load import load_model
    from memplan_cli.onnx_io.notes import read_notes

    if not read_notes(load_model(planned)):
        raise ModelError(
            f"{planned} carries no plan of memplan",
            hint="name the file that `memplan optimize` wrote",
        )
    return _compare(original, planned, check or Check(), Settings())


def doctor() -> Diagnosis:
    """Say what is installed and what really works here."""
    from memplan_cli.runtime.doctor import diagnose

    return diagnose()


def _read(path: Path) -> _Read:
    from memplan_cli.onnx_io.external_data import check_external
    from memplan_cli.onnx_io.load import load_model

    model = load_model(path)
    check_external(model, path.parent)
    return _Read(path, model)


def plan_program(
    path: Path, model: ModelProto, settings: Settings, progress: Progress | None = None
) -> Planned:
    """Plan a model that is in memory; ``path`` is where it came from.

    Raises:
        MemplanError: the model or a setting is wrong.
    """
    from memplan_cli.onnx_io.load import file_digest, graph_digest
    from memplan_cli.onnx_io.notes import recorded_phases
    from memplan_cli.onnx_io.shapes import Bindings
    from memplan_cli.plan_of import Source
    from memplan_cli.planner import make_plan
    from memplan_cli.runtime.shapes import read_completely, read_observed

    read = read_observed if settings.profile_shapes else read_completely
    loaded = read(model, path, Bindings(settings.dims, settings.shapes))
    source = Source(
        path=str(path),
        sha256=file_digest(path),
        graph_sha256=graph_digest(model),
        warnings=loaded.warnings,
        recorded_phases=recorded_phases(model),
    )
    return make_plan(loaded.program, settings, source, progress=progress)


def _refuse_overwriting(model: Path, target: Path, plan_file: Path) -> None:
    for path in (target, plan_file):
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
    if target == plan_file:
        raise ModelError(f"the model and its plan cannot both be {target}")


def _write(
    read: _Read,
    planned: Planned,
    settings: Settings,
    targets: _Targets,
    progress: Progress | None,
) -> Optimized:
    from memplan_cli.onnx_io.external_data import copy_along, missing
    from memplan_cli.onnx_io.files import staged, write_files
    from memplan_cli.onnx_io.write import written_model

    data = written_model(read.model, planned.program, planned.plan)
    here, there = read.path.parent, targets.model.parent
    created = copy_along(read.model, here, there)
    plan = planned.plan
    try:
        if targets.check is not None:
            if progress:
                progress("running both models")
            with staged(targets.model, data) as trial:
                verdict = _compare(read.path, trial, targets.check, settings)
            plan = replace(plan, report=replace(plan.report, validation=verdict))
            if not verdict.passed:
                _remove(created)
                return Optimized(plan, None, None)
        elif left := missing(read.model, there):
            note = f"{left[0]} is not beside {targets.model.name}: bring it before running"
            warnings = (*plan.report.warnings, note)
            plan = replace(plan, report=replace(plan.report, warnings=warnings))
        write_files({targets.plan: plan.dumps().encode(), targets.model: data})
    except BaseException:
        _remove(created)
        raise
    return Optimized(plan, targets.model, targets.plan)


def _remove(paths: tuple[Path, ...]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def _compare(original: Path, rewritten: Path, check: Check, settings: Settings) -> Validation:
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
