"""``memplan why``: what needs the memory at the peak or in a process, or keeps a tensor alive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from memplan_cli.api.model_or_plan import is_plan_file, plan_and_name, reject_settings_of_plans
from memplan_cli.api.models.binding import dims_of_run
from memplan_cli.api.models.sources import model_paths
from memplan_cli.api.option_names import (
    RUN_SETTINGS,
    accepts_option_names,
    setting_without_effect,
)
from memplan_cli.api.process import predicted_process, settings_of_run
from memplan_cli.api.report import interface_of
from memplan_cli.api.request import request_of
from memplan_cli.core.results.plan import Plan
from memplan_cli.errors import PlanError, SettingsError
from memplan_cli.reporting.commands.why import why_peak, why_tensor
from memplan_cli.settings.sources import option_name

if TYPE_CHECKING:
    from pathlib import Path

    from memplan_cli.api.models.sources import ModelSource
    from memplan_cli.api.request import FilePath, Request
    from memplan_cli.core.progress import Progress
    from memplan_cli.reporting.commands.why import PeakExplanation, TensorExplanation
    from memplan_cli.reporting.commands.why_process import ProcessBreakdown


@accepts_option_names(process={"of": "process"})
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
    reject_settings_of_plans((model,), request.option_names)
    if of == "process":
        if tensor is not None:
            raise SettingsError(
                "--tensor and --process cannot be combined", hint="remove one of them"
            )
        if unused := setting_without_effect(options, RUN_SETTINGS):
            raise SettingsError(
                f"{option_name(unused)} has no effect on the process, which runs the model as it is",
                hint="remove it",
            )
        if isinstance(model, Plan):
            raise PlanError(
                "a process can only be predicted for a model",
                hint="give the model instead of the plan",
            )
        with model_paths(model) as files:
            return files.without_temporary_folder(_process_breakdown(files.path, request))
    plan, _ = plan_and_name(model, request)
    return why_peak(plan) if tensor is None else why_tensor(plan, tensor)


def _process_breakdown(path: Path, request: Request) -> ProcessBreakdown:
    """Return the predicted memory of a process that runs a model, by purpose.

    Raises:
        PlanError: the path is a plan.
        UnknownSizeError: sizes are unknown, so that no prediction is possible.
        RuntimeUnavailableError: weights are missing, or the model does not load.
        MemplanError: the file or a setting is wrong.
    """
    from memplan_cli.reporting.commands.why_process import ProcessBreakdown
    from memplan_cli.runtime.installed import required_version

    if is_plan_file(path):
        raise PlanError(
            f"{path} is a plan; a process can only be predicted for a model",
            hint="name the model that was written with it",
        )
    bound_settings = settings_of_run(path, request.load(path))
    request.progress("loading the model")
    prediction = predicted_process(path, bound_settings)
    interface = interface_of(path, bound_settings)
    return ProcessBreakdown(
        model=str(path),
        runtime=f"onnxruntime {required_version()}",
        process=prediction.process,
        inputs=sum(port.bytes or 0 for port in interface.inputs),
        outputs=sum(port.bytes or 0 for port in interface.outputs),
        parts=prediction.parts,
        bindings=dims_of_run(bound_settings),
    )
