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
    without_pattern,
    without_pattern_if_assumed,
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

    A session is created to get the graph that ONNX Runtime executes. The memory is computed from this graph.

    Raises:
        UnknownSizeError: the memory cannot be predicted; the message has the reason.
        RuntimeUnavailableError: weights are missing, or the model does not load or run.
    """
    executed = executed_or_observed_graph(path, settings, conditions)
    if obstacle := prediction_obstacle(executed, settings):
        raise UnknownSizeError(f"the process of {path} cannot be predicted: {obstacle}")
    # Nothing is measured, but the way of opening counts: only `memplan_cli.load` returns free memory to the system.
    opening = ProcessMeasurements(opened_by_memplan=conditions.opened_by_memplan)
    process = simulate_process(stored_model(path), executed, settings, opening)
    if process is None:  # for a reason that `prediction_obstacle` does not find
        raise UnknownSizeError(f"the process of {path} cannot be predicted")
    return process


def executed_or_observed_graph(
    path: Path, settings: RuntimeSettings, conditions: RunConditions
) -> ExecutedGraph:
    """Return the graph that a session of a model executes.

    Sizes that depend on data are recorded in one run of the model, if the memory of the process cannot be predicted
    without them. If the conditions forbid runs, such sizes stay unknown.

    Raises:
        RuntimeUnavailableError: weights are missing, or the model does not load or run.
    """
    executed = executed_graph(path, settings, conditions.dims)
    is_sufficient = not prediction_obstacle(executed, settings)
    if is_sufficient or not conditions.may_run:
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
        path: the original file.
        program: the original's graph in the planned order.
        conditions: values of symbolic dims, and whether a run may provide unknown sizes.
        nodes: names of the original's top nodes, in the order of its file.
        recorded: the settings in the original's file, if memplan wrote it; else None.
        optimization: whether ONNX Runtime optimizes the graph of the written file: ``on``, ``off``, or ``any``
            for the better of both.
        weights: a file with the weights of the written model; None: those of ``path``.

    Raises:
        RuntimeUnavailableError: weights are missing, or the model does not load or run.
    """
    original_optimized = executed_or_observed_graph(path, DEFAULTS, conditions)
    written_as_in_file = ExecutedGraph(program, conditions.dims)
    # The optimized graph of the original, in the order that ONNX Runtime gives it in the written file.
    written_optimized = with_file_order(original_optimized, nodes, program)
    assumed = conditions.binding.assumed
    choice = _best_settings(written_optimized, written_as_in_file, assumed, optimization)
    process_before = _process_as_opened(path, original_optimized, recorded, conditions)
    process_after = predict_process_bytes(
        stored_model(weights or path),
        written_as_in_file if choice.settings.is_unoptimized else written_optimized,
        choice.settings,
        ProcessMeasurements(opened_by_memplan=True),  # as users open a written file
    )
    not_observed = Peaks(None, None)  # nothing is measured
    return RuntimeSummary(
        name="onnxruntime",
        version=required_version(),
        provider=CPU,
        predicted={
            # Peaks of tensors are those under the defaults, even if the file records other settings.
            "original": replace(
                predict_peaks(original_optimized, DEFAULTS), process=process_before
            ),
            # The written file, even if ONNX Runtime does not optimize its graph.
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
    written_optimized: ExecutedGraph,
    written_as_in_file: ExecutedGraph,
    assumed: Collection[str],
    optimization: Optimization,
) -> SettingsChoice:
    """Return the predicted settings for a written model, of those that ``optimization`` allows.

    Args:
        written_optimized: the optimized graph of the written model.
        written_as_in_file: its graph without optimization.
        assumed: dims whose values were assumed.
        optimization: ``on``: ONNX Runtime optimizes the graph. ``off``: ONNX Runtime does not, because that
            would undo the plan. ``any``: ONNX Runtime optimizes the graph if runs of the graph in the file are
            estimated to take longer, or need more memory.
    """
    as_written = without_pattern_if_assumed(RUN_AS_WRITTEN, assumed)
    if optimization == "off":
        # Such a file has copies or chunks that keep its live tensors within a budget. With a memory pattern, a
        # session holds one block for all tensors of a run, which may exceed the budget.
        return predict_settings(written_as_in_file, without_pattern(as_written))
    optimized = predict_settings(
        written_optimized, without_pattern_if_assumed(DEFAULTS, assumed)
    )
    if optimization == "on" or is_slower_unoptimized(
        written_as_in_file.program, written_as_in_file.dims, written_optimized
    ):
        return optimized
    unoptimized = predict_settings(written_as_in_file, as_written)
    return min(optimized, unoptimized, key=attrgetter("rank"))
