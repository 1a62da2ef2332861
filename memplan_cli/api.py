"""The Python twin of the command line: one function a command.

Nothing here prints or exits. A check that fails is a result; what cannot work raises a
`MemplanError`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.errors import ModelError, PlanError
from memplan_cli.optimizing import (
    Check,
    Optimized,
    Rewriting,
    Targets,
    refuse_overwriting,
    write_proved,
    write_unproved,
)
from memplan_cli.proving import Extra, Proof, prove
from memplan_cli.settings import Settings

if TYPE_CHECKING:
    from onnx import ModelProto  # noqa: TID251 - the type only; onnx_io makes the value

    from memplan_cli.plan import Plan
    from memplan_cli.planner import Planned
    from memplan_cli.runtime.doctor import Diagnosis
    from memplan_cli.runtime.steer import Recommendation

Progress = Callable[[str], None]

DEFAULT_CHECK = Check()
"""Both models on the best provider there is, two runs, bit for bit."""

PLAN_SUFFIX = ".memplan.json"


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
    check: Check | None = DEFAULT_CHECK,
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
    for path in (model, *([] if out is None else [out])):
        if path.is_dir():
            raise ModelError(f"{path} is a folder", hint="name a file")
    target = out or model.with_name(f"{model.stem}.memplan.onnx")
    targets = Targets(target, plan_file or target.with_suffix(".json"))
    refuse_overwriting(model, targets)
    read = _read(model)
    planned = plan_program(model, read.model, settings, progress)
    written = Rewriting(model, read.model, planned, settings, targets)
    return write_proved(written, check, progress) if check else write_unproved(written)


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


def validate(
    planned: Path,
    original: Path,
    check: Check | None = None,
    extras: Collection[Extra] = (),
) -> Proof:
    """Run a written model and its original, and compare what they give.

    Args:
        planned: A model that memplan wrote, its plan beside it.
        original: The model it was made from.
        check: Where to run, and what counts as equal.
        extras: ``replay`` runs it op by op inside the plan's arenas, ``measure`` measures
            both models' memory in the runtime.

    Raises:
        MemplanError: one of them cannot run at all.
    """
    return prove(planned, original, check or DEFAULT_CHECK, extras)


def settings(
    model: Path, dims: Mapping[str, int], check: Check | None = None
) -> Recommendation:
    """Return the runtime options that make a model, as it is, need least memory.

    Args:
        model: Its weights must be there: the runtime loads it to tell what it would run.
        dims: Values for symbolic dims.
        check: Measure on its provider; None predicts only.

    Raises:
        MemplanError: the model does not load.
    """
    from memplan_cli.runtime.facts import best_settings
    from memplan_cli.runtime.measure import Trial

    _read(model)
    trial = Trial(provider=check.provider, timeout=check.timeout) if check else None
    return best_settings(model, dims, trial)


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
