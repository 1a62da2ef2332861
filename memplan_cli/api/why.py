"""``memplan why``: what needs the memory at the peak or in a process, or keeps a tensor alive."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from memplan_cli.api.model_or_plan import (
    is_plan_file,
    plan_and_name,
    reject_settings_of_plans,
)
from memplan_cli.api.models.binding import dims_of_run
from memplan_cli.api.models.sources import model_paths
from memplan_cli.api.process import hint_to_optimize, prediction_conditions, settings_of_run
from memplan_cli.api.request import request_of
from memplan_cli.core.results.plan import Plan
from memplan_cli.errors import PlanError, SettingsError
from memplan_cli.reporting.commands.why import why_peak, why_tensor

if TYPE_CHECKING:
    from pathlib import Path

    from memplan_cli.api.models.sources import ModelSource
    from memplan_cli.api.request import FilePath, Request
    from memplan_cli.core.progress import Progress
    from memplan_cli.reporting.commands.why import PeakExplanation, TensorExplanation
    from memplan_cli.reporting.commands.why_process import ProcessBreakdown


def why(
    model: ModelSource | Plan,
    tensor: str | None = None,
    *,
    of: Literal["peak", "process"] = "peak",
    config: FilePath | None = None,
    progress: Progress | None = None,
    warn: Progress | None = None,
    **options: object,
) -> PeakExplanation | TensorExplanation | ProcessBreakdown:
    """Explain which tensors need the memory at the peak, or what keeps one tensor alive.

    Args:
        model: A model or a plan, as a file or in memory.
        tensor: The tensor to explain; None: the peak.
        of: ``peak`` explains the plan of a model, or a plan. ``process`` predicts the memory of a
            process that runs a model, and divides it by purpose: weights, arena, code.
        config: A settings file, for what has to be planned.
        progress: Called with the name of each stage.
        warn: Called with each warning of the plan.
        options: Settings by name, as for `plan`.

    Raises:
        MemplanError: the file or a setting is wrong, or there is no such tensor.
    """
    request = request_of(config, options, progress, warn)
    reject_settings_of_plans((model,), request)
    if of == "process":
        if tensor is not None:
            raise SettingsError(
                "tensor and of='process' cannot be combined",
                hint="remove one of them",
            )
        if isinstance(model, Plan):
            raise PlanError(
                "a process can only be predicted for a model",
                hint="give the model instead of the plan",
            )
        with model_paths(model) as files:
            breakdown = _process_breakdown(files.path, request)
            return files.without_folder(breakdown)  # that of a model in memory is temporary
    plan, _ = plan_and_name(model, request)
    return why_peak(plan) if tensor is None else why_tensor(plan, tensor)


def _process_breakdown(path: Path, request: Request) -> ProcessBreakdown:
    """Return the predicted memory of a process that runs a model, by purpose.

    The session has the settings that memplan recorded in the model's file. A file without recorded
    settings is predicted with ONNX Runtime's defaults.

    Raises:
        PlanError: the path is a plan.
        UnknownSizeError: sizes are unknown, so that no prediction is possible.
        RuntimeUnavailableError: weights are missing, or the model does not load.
        MemplanError: the file or a setting is wrong.
    """
    from memplan_cli.onnx_io.settings_metadata import recorded_settings
    from memplan_cli.onnx_io.wire_format import scanned_metadata
    from memplan_cli.reporting.commands.why_process import ProcessBreakdown
    from memplan_cli.runtime.installed import required_version
    from memplan_cli.runtime.run.baseline import DEFAULTS
    from memplan_cli.runtime.settings_search.model_prediction import predict_process

    if is_plan_file(path):
        raise PlanError(
            f"{path} is a plan; a process can only be predicted for a model",
            hint="name the model that was written with it",
        )
    bound_settings = settings_of_run(path, request.load(path))
    recorded = recorded_settings(scanned_metadata(path))
    request.progress("loading the model")
    runtime_settings = recorded.settings if recorded else DEFAULTS
    conditions = prediction_conditions(bound_settings)
    # A file that memplan wrote is loaded with its recorded settings, as `memplan_cli.load` does.
    run = replace(conditions.run, opened_by_memplan=recorded is not None)
    with hint_to_optimize(path):
        prediction = predict_process(path, runtime_settings, replace(conditions, run=run))
    return ProcessBreakdown(
        model=str(path),
        runtime=f"onnxruntime {required_version()}",
        process=prediction.process,
        parts=prediction.parts,
        bindings=dims_of_run(bound_settings),
    )
