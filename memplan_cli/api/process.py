"""The process of a model, predicted without running it.

The model is loaded to find the graph that ONNX Runtime would execute. It is run only if sizes depend
on data, and runs are allowed.
"""

from __future__ import annotations

from dataclasses import replace
from shlex import quote
from typing import TYPE_CHECKING

from memplan_cli.api.models.binding import binding_of, sizes_and_inputs_only
from memplan_cli.api.models.model_file import bind_all_dims, plan_model, read_model
from memplan_cli.core.quantities import format_size
from memplan_cli.core.results.observations import CPU
from memplan_cli.errors import RuntimeUnavailableError, UnknownSizeError

if TYPE_CHECKING:
    from pathlib import Path

    from memplan_cli.core.progress import Progress
    from memplan_cli.core.results.observations import ProcessBytes
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.core.results.report import RuntimeSummary
    from memplan_cli.onnx_io.settings_metadata import RecordedSettings
    from memplan_cli.runtime.process.parts import PredictedProcess
    from memplan_cli.runtime.workers.spec import RunConditions
    from memplan_cli.settings.settings import Settings


def settings_of_run(path: Path, settings: Settings, plan: Plan | None = None) -> Settings:
    """Return the sizes and inputs of a run of a model, with a number for every dim.

    Dims that the settings leave open get the numbers that were assumed for the model's ``plan``. Without a
    plan, or if the settings have bounds, the model may be run to find numbers for all of them.
    """
    sizes = sizes_and_inputs_only(settings)
    # Assumed numbers have to be complete, and dims with bounds have none in a plan.
    if plan is not None and not settings.bounds:
        bindings = plan.report.bindings.items()
        assumed = {name: dim.value for name, dim in bindings if dim.source == "assumed"}
        sizes = replace(sizes, inputs=replace(sizes.inputs, assumed=assumed))
    return bind_all_dims(read_model(path), sizes)


def prediction_conditions(bound_settings: Settings) -> RunConditions:
    """Return how a process is predicted: on the CPU, at the sizes of bound settings."""
    from memplan_cli.runtime.workers.spec import RunConditions

    return RunConditions(CPU, binding_of(bound_settings), may_run=bound_settings.run)


def predicted_process(path: Path, bound_settings: Settings) -> PredictedProcess:
    """Predict the memory of a process that runs a model as it is.

    The session has the settings that memplan recorded in the model's file; a file without recorded
    settings is predicted with ONNX Runtime's defaults. ``bound_settings`` are of `settings_of_run`.

    Raises:
        UnknownSizeError: sizes are unknown, so that no prediction is possible.
        RuntimeUnavailableError: weights are missing, or the model does not load.
        MemplanError: the file or a setting is wrong.
    """
    from memplan_cli.runtime.run.baseline import DEFAULTS
    from memplan_cli.runtime.settings_search.model_prediction import predict_process

    recorded = _recorded_settings(path)
    runtime_settings = recorded.settings if recorded else DEFAULTS
    # A file that memplan wrote is loaded with its recorded settings, as `memplan_cli.load` does.
    conditions = replace(
        prediction_conditions(bound_settings), opened_by_memplan=recorded is not None
    )
    try:
        return predict_process(path, runtime_settings, conditions)
    except UnknownSizeError as error:
        hint = f"`memplan optimize {quote(str(path))}` runs it, and its plan has what was observed"
        raise UnknownSizeError(error.message, hint=hint) from error


def _recorded_settings(path: Path) -> RecordedSettings | None:
    """Return the runtime settings that memplan recorded in a model's file; None if there are none."""
    from memplan_cli.loading.metadata import scanned_metadata
    from memplan_cli.onnx_io.settings_metadata import recorded_settings

    return recorded_settings(scanned_metadata(path))


def process_or_obstacle(
    path: Path, settings: Settings, plan: Plan
) -> tuple[ProcessBytes | None, str]:
    """Return the predicted memory of a process that runs the unchanged model, or None and why not.

    ``plan`` is that of the model with these settings; it has the numbers of assumed dims.

    Raises:
        MemplanError: the file or a setting is wrong.
    """
    try:
        return predicted_process(path, settings_of_run(path, settings, plan)).process, ""
    except (RuntimeUnavailableError, UnknownSizeError) as error:
        return None, error.message


def plan_with_prediction(
    path: Path, settings: Settings, progress: Progress | None = None
) -> Plan:
    """Plan a model; its report gets the predicted peaks and process memory, original and planned.

    The original is predicted with ONNX Runtime's defaults, or with the settings recorded in its file if
    memplan wrote it; the planned model with the best predicted settings. If weights or ONNX Runtime are
    missing, or the model does not load, the report has no prediction, and a warning says why.
    """
    file = read_model(path)
    planned = plan_model(file, settings, progress)
    try:  # binding dims may run the model, and the prediction loads it
        from memplan_cli.runtime.settings_search.model_prediction import predicted_facts

        conditions = prediction_conditions(bind_all_dims(file, planned.settings))
        nodes = [node.name for node in file.model.graph.node]
        recorded = _recorded_settings(path)
        original_settings = recorded.settings if recorded else None
        facts = predicted_facts(path, planned.program, conditions, nodes, original_settings)
    except RuntimeUnavailableError as error:
        return planned.plan.with_warnings(f"the process is not predicted: {error.message}")
    plan = planned.plan.with_report(replace(planned.plan.report, runtime=facts))
    return plan.with_warnings(*_low_prediction_warning(path, facts))


def _low_prediction_warning(path: Path, facts: RuntimeSummary) -> tuple[str, ...]:
    """Return a warning if ConstantOfShape nodes make large convolution filters, which predictions count too low.

    While ONNX Runtime loads the model, it holds three copies of such a filter: as the node makes it, as fused
    with a BatchNormalization, and as reordered for runs. Only the reordered copy is predicted.
    """
    from memplan_cli.onnx_io.weights.stored import filled_filter_bytes
    from memplan_cli.runtime.profile.record import PROFILE

    process = facts.predicted["original"].process
    if process is None:
        return ()
    size = filled_filter_bytes(path)
    # Few predictions have a larger error. Processes with larger filters took up to half more (measured).
    usual_error = PROFILE.process_margin * (PROFILE.imported_process + process.run)
    if size <= usual_error:
        return ()
    warning = (
        "the predicted process may be far too low, because nodes of the model make "
        f"{format_size(size)} of its filters at load: `memplan optimize {quote(str(path))}` measures it"
    )
    return (warning,)
