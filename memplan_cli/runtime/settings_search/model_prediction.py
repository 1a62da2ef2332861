"""Predictions for a model file. A session is created; it runs only if data decides sizes."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Literal

from memplan_cli.core.results.observations import CPU, Peaks, RuntimeSettings
from memplan_cli.core.results.report import RuntimeSummary
from memplan_cli.errors import UnknownSizeError
from memplan_cli.onnx_io.weights.stored import stored_model
from memplan_cli.runtime.graph.dumps import executed_graph, observed_graph
from memplan_cli.runtime.graph.recorded import with_file_order
from memplan_cli.runtime.installed import required_version
from memplan_cli.runtime.process.predict import (
    ProcessMeasurements,
    predict_process_bytes,
    prediction_obstacle,
    simulate_process,
)
from memplan_cli.runtime.run.baseline import DEFAULTS
from memplan_cli.runtime.run.timing import is_slower_unoptimized
from memplan_cli.runtime.settings_search.predicted import (
    predict_settings,
    settings_for_sizes,
    without_pattern,
)
from memplan_cli.runtime.simulate.predict import RUN_AS_WRITTEN, ExecutedGraph, predict_peaks
from memplan_cli.runtime.simulate.regions import OWN_INITIALIZERS
from memplan_cli.runtime.workers.session_graph import graph_settings

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from memplan_cli.core.program import Program
    from memplan_cli.core.results.observations import ProcessBytes
    from memplan_cli.runtime.process.parts import PredictedProcess
    from memplan_cli.runtime.settings_search.predicted import SettingsChoice
    from memplan_cli.runtime.workers.spec import RunConditions

Optimization = Literal["on", "off", "any"]
"""Whether ONNX Runtime optimizes the graph of a file when it loads it; ``any``: as needs less memory."""


def predict_process(
    path: Path, settings: RuntimeSettings, conditions: RunConditions
) -> PredictedProcess:
    """Return the predicted process memory of a model, with its parts.

    A session is created for the graph that it executes; its memory is not measured, so that a model has
    one prediction, the same each time.

    Raises:
        UnknownSizeError: it cannot be predicted; the message has the reason.
        RuntimeUnavailableError: weights are missing, or the model does not load, or not run.
    """
    executed = executed_or_observed_graph(path, settings, conditions)
    if obstacle := prediction_obstacle(executed, settings):
        raise UnknownSizeError(f"the process of {path} cannot be predicted: {obstacle}")
    measurements = ProcessMeasurements(opened_by_memplan=conditions.opened_by_memplan)
    process = simulate_process(
        stored_model(path), executed, settings, measurements=measurements
    )
    if process is None:  # for a reason that `prediction_obstacle` does not find
        raise UnknownSizeError(f"the process of {path} cannot be predicted")
    return process


def executed_or_observed_graph(
    path: Path, settings: RuntimeSettings, conditions: RunConditions
) -> ExecutedGraph:
    """Return the graph that a session of a model executes.

    If the process could not be predicted from it, the model is run once, unless the conditions forbid
    that; sizes that depend on data are then those of that run.

    Raises:
        RuntimeUnavailableError: weights are missing, or the model does not load, or not run.
    """
    executed = executed_graph(path, settings, conditions.dims)
    if not conditions.may_run or not prediction_obstacle(executed, settings):
        return executed
    return observed_graph(path, settings, conditions, executed)


def predicted_facts(
    path: Path,
    program: Program,
    conditions: RunConditions,
    nodes: Sequence[str],
    recorded: RuntimeSettings | None,
    *,
    optimization: Optimization = "any",
    weights: Path | None = None,
) -> RuntimeSummary:
    """Return the predicted runtime block of a report for a model and its planned order.

    Processes are predicted by rules alone, without a measured load or workspace: measured memory differs
    by some pages each time, while a report must be reproducible.

    Args:
        path: the model as it is.
        program: in the planned order, as it would be written.
        conditions: values of symbolic dims, and whether a run may provide unknown sizes.
        nodes: names of the top nodes, in the order of the file.
        recorded: the settings in the model's file, if memplan wrote it; else None.
        optimization: whether ONNX Runtime optimizes the graph of the written file: ``on``, ``off``, or ``any``
            for the better of both.
        weights: a file with the weights of the written model; None: those of ``path``.

    Raises:
        RuntimeUnavailableError: weights are missing, or the model does not load, or not run.
    """
    original = executed_or_observed_graph(path, DEFAULTS, conditions)  # optimized by default
    written = ExecutedGraph(program, conditions.dims)  # as it is in the file
    written_optimized = with_file_order(original, nodes, program)
    assumed = conditions.binding.assumed
    choice = _best_settings(original, written_optimized, written, assumed, optimization)
    process_before = _process_as_opened(path, original, recorded, conditions)
    process_after = predict_process_bytes(
        stored_model(weights or path),
        written if choice.settings.is_unoptimized else written_optimized,
        choice.settings,
        ProcessMeasurements(opened_by_memplan=True),
    )
    not_observed = Peaks(None, None)  # nothing is measured
    return RuntimeSummary(
        name="onnxruntime",
        version=required_version(),
        provider=CPU,
        # Of the original: tensors as under the defaults, but a process as users open the file.
        predicted={
            "original": replace(predict_peaks(original, DEFAULTS), process=process_before),
            "optimized": replace(choice.predicted, process=process_after),
        },
        observed={"original": not_observed, "optimized": not_observed},
        settings=choice.settings,
    )


def _process_as_opened(
    path: Path,
    default_graph: ExecutedGraph,
    recorded: RuntimeSettings | None,
    conditions: RunConditions,
) -> ProcessBytes | None:
    """Return the predicted memory of a process that opens a model as users do.

    `memplan_cli.load` opens a file that memplan wrote, with the settings ``recorded`` in it. Any other
    model (None) is opened by ONNX Runtime with its defaults, which make the ``default_graph`` of it.
    """
    settings = DEFAULTS if recorded is None else recorded
    graph = default_graph
    if not _makes_default_graph(settings):
        graph = executed_or_observed_graph(path, settings, conditions)
    opening = ProcessMeasurements(opened_by_memplan=recorded is not None)
    return predict_process_bytes(stored_model(path), graph, settings, opening)


def _makes_default_graph(settings: RuntimeSettings) -> bool:
    """Return whether a session with these settings makes the graph that it makes with `DEFAULTS`.

    Where weights are allocated does not change the graph, so this setting is made equal on both sides.
    """
    own_initializers = RuntimeSettings(session_config=OWN_INITIALIZERS)
    return graph_settings(settings.updated(own_initializers)) == graph_settings(
        DEFAULTS.updated(own_initializers)
    )


def _best_settings(
    original: ExecutedGraph,
    written_optimized: ExecutedGraph,
    written: ExecutedGraph,
    assumed: Collection[str],
    optimization: Optimization,
) -> SettingsChoice:
    """Return the predicted settings for a written model, of those that ``optimization`` allows.

    Args:
        original: the optimized graph of the original.
        written_optimized: the optimized graph of the written model.
        written: the graph in its file.
        assumed: dims whose values were assumed.
        optimization: whether ONNX Runtime optimizes the graph of the file. ``on``: it does. ``off``: it does
            not, because that would undo the plan. ``any``: it does not if runs need less memory then, and are
            not estimated to take longer.
    """
    as_written = settings_for_sizes(RUN_AS_WRITTEN, assumed)
    if optimization == "off":
        # Such a file has copies or chunks that keep its live tensors within a budget. With a memory pattern, a
        # session holds one block for all tensors of a run, which may exceed the budget.
        return predict_settings(written, without_pattern(as_written))
    choice = predict_settings(written_optimized, settings_for_sizes(DEFAULTS, assumed))
    if optimization == "on" or is_slower_unoptimized(written.program, written.dims, original):
        return choice
    return min(choice, predict_settings(written, as_written), key=attrgetter("rank"))
