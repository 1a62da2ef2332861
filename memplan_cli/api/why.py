"""Why a peak is as high as it is, and why one tensor needs memory of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from memplan_cli.api.files.sources import on_files
from memplan_cli.api.process import why_process
from memplan_cli.api.report import plan_and_name, reject_settings_of_plans
from memplan_cli.api.request import request_of
from memplan_cli.core.results.plan import Plan
from memplan_cli.errors import PlanError, SettingsError
from memplan_cli.reporting.commands.why import why_peak, why_tensor

if TYPE_CHECKING:
    from memplan_cli.api.files.sources import ModelSource
    from memplan_cli.api.request import FilePath
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
        of: ``process`` attributes the process that a model is predicted to take.
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
                "tensor explains a tensor, and of='process' a process",
                hint="give one of them",
            )
        if isinstance(model, Plan):
            raise PlanError("a process is that of a model", hint="give the model")
        return on_files((model,), lambda path: why_process(path, request))
    plan, _ = plan_and_name(model, request)
    return why_peak(plan) if tensor is None else why_tensor(plan, tensor)
