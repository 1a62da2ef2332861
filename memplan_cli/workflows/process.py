"""The process that a model takes, predicted without running it, and what it is made of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.errors import PlanError, RuntimeUnavailableError
from memplan_cli.settings.settings import Settings
from memplan_cli.shapes.reading import NOT_BELIEVED
from memplan_cli.workflows.files.binding import binding_of
from memplan_cli.workflows.files.model_file import bind_whole, plan_model, read_model
from memplan_cli.workflows.request import Request

if TYPE_CHECKING:
    from memplan_cli.core.progress import Progress
    from memplan_cli.core.results.observations import ProcessBytes
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.reporting.findings.process import ProcessStory
    from memplan_cli.workflows.request import FilePath


def why_process(path: FilePath, request: Request | None = None) -> ProcessStory:
    """Say what the process of a model is made of, under the settings that its file asks for.

    A file that memplan did not write has the runtime's defaults. Nothing is run: the session
    is made, for the graph that it would run.

    Raises:
        PlanError: the path is a plan.
        RuntimeUnavailableError: weights are missing, or it cannot be told.
        MemplanError: the file or a setting is wrong.
    """
    from memplan_cli.onnx_io.recorded import recorded_settings
    from memplan_cli.onnx_io.scan import scanned_metadata
    from memplan_cli.reporting.findings.process import ProcessStory
    from memplan_cli.runtime.facts import required_version
    from memplan_cli.runtime.process.unrun import unrun_process
    from memplan_cli.runtime.steer import DEFAULTS

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
    found = unrun_process(path, settings, binding_of(bound).dims)
    if found is None:
        raise RuntimeUnavailableError(
            f"the process of {path} cannot be predicted: data decides sizes, or a kernel "
            "packs weights in a way that was not measured",
            hint=f"`memplan settings {path} --measure` runs it",
        )
    return ProcessStory(
        str(path), f"onnxruntime {required_version()}", found.process, found.parts
    )


def predicted_process(path: Path, settings: Settings) -> ProcessBytes | None:
    """Return the process of a model under the runtime's defaults; None if it cannot be told.

    Raises:
        RuntimeUnavailableError: weights are missing, or the model does not load.
        MemplanError: the file or a setting is wrong.
    """
    from memplan_cli.runtime.process.unrun import unrun_process
    from memplan_cli.runtime.steer import DEFAULTS

    found = unrun_process(path, DEFAULTS, binding_of(_bound(path, settings)).dims)
    return found.process if found else None


def report_with_prediction(
    path: Path, settings: Settings, progress: Progress | None = None
) -> Plan:
    """Plan a model, with what the runtime is predicted to need; nothing is run for that.

    Where weights or the runtime are missing, the model does not load, or it declares what its
    nodes contradict, the plan says nothing of a runtime.

    Raises:
        MemplanError: the model or a setting is wrong.
    """
    file = read_model(path)
    planned = plan_model(file, settings, progress)
    if any(said.startswith(NOT_BELIEVED) for said in planned.plan.report.warnings):
        return planned.plan  # the runtime's own graph would have the wrong sizes
    try:
        from memplan_cli.runtime.process.unrun import unrun_facts

        dims = binding_of(bind_whole(file, settings)).dims
        nodes = [node.name for node in file.model.graph.node]
        facts = unrun_facts(path, planned.program, dims, nodes)
    except (RuntimeUnavailableError, ImportError):
        return planned.plan
    report = replace(planned.plan.report, runtime=facts)
    return planned.plan.with_report(report)


def _bound(path: Path, settings: Settings) -> Settings:
    own = Settings(
        dims=settings.dims, shapes=settings.shapes, inputs=settings.inputs, run=settings.run
    )
    return bind_whole(read_model(path), own)
