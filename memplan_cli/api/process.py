"""The process that a model takes, predicted without running it, and what it is made of."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from memplan_cli.api.files.binding import binding_alone, binding_of, run_at
from memplan_cli.api.files.model_file import bind_whole, plan_model, read_model
from memplan_cli.api.request import Request
from memplan_cli.core.results.observations import CPU
from memplan_cli.errors import PlanError, RuntimeUnavailableError, UnknownSizeError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from memplan_cli.api.request import FilePath
    from memplan_cli.core.progress import Progress
    from memplan_cli.core.results.observations import ProcessBytes
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.reporting.commands.why_process import ProcessBreakdown
    from memplan_cli.reporting.snapshot import Snapshot
    from memplan_cli.runtime.settings_search.model_prediction import PredictionTerms
    from memplan_cli.settings.settings import Settings


def why_process(path: FilePath, request: Request | None = None) -> ProcessBreakdown:
    """Say what the process of a model is made of, under the settings that its file asks for.

    A file that memplan did not write has the runtime's defaults. The session is made, for the
    graph that it would run, and run only where data decides sizes.

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

    path, request = Path(path), request or Request()
    if path.suffix == ".json":
        raise PlanError(
            f"{path} is a plan, and a process is that of a model",
            hint="name the model that was written with it",
        )
    bound = _bound(path, request.load(path))
    recorded = recorded_settings(scanned_metadata(path))
    request.progress("loading the model")
    settings = recorded.settings if recorded else DEFAULTS
    terms = _terms(bound)
    conditions = replace(terms.conditions, as_loaded=recorded is not None)
    terms = replace(terms, conditions=conditions)
    with _leading_on(path):
        found = predict_process(path, settings, terms)
    return ProcessBreakdown(
        str(path),
        f"onnxruntime {required_version()}",
        found.process,
        found.parts,
        run_at(bound),
    )


def process_by_default(path: Path, settings: Settings) -> ProcessBytes:
    """Predict the memory of a process that runs a model under ONNX Runtime's defaults.

    Raises:
        UnknownSizeError: sizes are unknown, so that no prediction is possible.
        RuntimeUnavailableError: weights are missing, or the model does not load.
        MemplanError: the file or a setting is wrong.
    """
    from memplan_cli.runtime.run.baseline import DEFAULTS
    from memplan_cli.runtime.settings_search.model_prediction import predict_process

    with _leading_on(path):
        return predict_process(path, DEFAULTS, _terms(_bound(path, settings))).process


def with_asked(
    snapshot: Snapshot, plan: Plan, model: Path, metrics: Sequence[str], request: Request
) -> Snapshot:
    """Return a snapshot with the metrics asked for that a baseline does not have of all models.

    What a plan does not know of its model is predicted: the model is loaded, and run only
    where data decides sizes.

    Raises:
        UnknownSizeError: the process cannot be predicted.
        RuntimeUnavailableError: weights are missing, or the model does not load.
    """
    from memplan_cli.reporting.snapshot import metrics_of, process_metrics

    known: dict[str, int | None] = {**metrics_of(plan.report), **snapshot.metrics}
    missing = [name for name in metrics if name not in known and model.suffix != ".json"]
    if any(name.startswith("predicted.") for name in missing):
        foreseen = metrics_of(report_with_prediction(model, request.load(model)).report)
        known |= {name: foreseen[name] for name in missing if name in foreseen}
    if any(name.startswith("process.") for name in missing):
        known |= process_metrics(process_by_default(model, request.load(model)))
    found = {name: size for name in metrics if (size := known.get(name)) is not None}
    return replace(snapshot, metrics={**snapshot.metrics, **found})


@contextmanager
def _leading_on(path: Path) -> Iterator[None]:
    """Say of what cannot be predicted how it is observed."""
    try:
        yield
    except UnknownSizeError as error:
        hint = f"`memplan optimize {quote(str(path))}` runs it, and its plan has what was observed"
        raise UnknownSizeError(str(error), hint=hint) from error


def _terms(bound: Settings) -> PredictionTerms:
    """Return the terms of a prediction. The model is run where data decides sizes, unless forbidden."""
    from memplan_cli.runtime.settings_search.model_prediction import PredictionTerms, RunPolicy
    from memplan_cli.runtime.workers.spec import RunConditions

    conditions = RunConditions(CPU, binding_of(bound))
    return PredictionTerms(conditions, RunPolicy.FOR_SIZES if bound.run else RunPolicy.NEVER)


def report_with_prediction(
    path: Path, settings: Settings, progress: Progress | None = None
) -> Plan:
    """Plan a model, with what the runtime is predicted to need; only data's sizes take a run.

    Where weights or the runtime are missing, or the model does not load, the plan says nothing
    of a runtime.

    Raises:
        MemplanError: the model or a setting is wrong.
    """
    file = read_model(path)
    planned = plan_model(file, settings, progress)
    try:
        from memplan_cli.runtime.settings_search.model_prediction import predicted_facts

        terms = _terms(bind_whole(file, settings))
        nodes = [node.name for node in file.model.graph.node]
        facts = predicted_facts(path, planned.program, terms, nodes)
    except (RuntimeUnavailableError, ImportError):
        return planned.plan
    report = replace(planned.plan.report, runtime=facts)
    return planned.plan.with_report(report)


def _bound(path: Path, settings: Settings) -> Settings:
    return bind_whole(read_model(path), binding_alone(settings))
