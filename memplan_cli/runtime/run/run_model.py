"""Running models in worker processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.bindings import given_text
from memplan_cli.core.results.observations import DEFAULT_TIMEOUT, RuntimeSettings
from memplan_cli.core.serialization import to_json
from memplan_cli.errors import RuntimeUnavailableError
from memplan_cli.onnx_io.runs.prepared_models import missing_weights
from memplan_cli.runtime.run.record import RunRecord, record_of
from memplan_cli.runtime.workers.spec import RunSpec
from memplan_cli.runtime.workers.worker import run_job, start_job

if TYPE_CHECKING:
    from pathlib import Path

    from onnx import ModelProto

    from memplan_cli.core.results.observations import ProcessBytes
    from memplan_cli.runtime.workers.spec import RunConditions
    from memplan_cli.runtime.workers.worker import Job


def run_model(
    spec: RunSpec, *, timeout: float = DEFAULT_TIMEOUT, about: Path | None = None
) -> RunRecord:
    """Run a model in a worker process and wait for it.

    Args:
        spec: what is run and recorded.
        timeout: seconds for the process.
        about: the model whose waiting process may do the run: the one that is run itself, or
            the one that it is a copy of.

    Returns:
        The record; a run that fails is a record with a ``failure``, not an exception.
    """
    with start_run(spec, timeout=timeout, about=about) as job:
        return record_of(spec, job.outcome())


def start_run(
    spec: RunSpec, *, timeout: float = DEFAULT_TIMEOUT, about: Path | None = None
) -> Job:
    """Start a run in a worker process; `record_of` reads its outcome.

    A process that has done nothing before is used if memory of the process or time is measured,
    or if the run registers an arena: an arena lasts as long as its process.
    """
    measured = spec.collects("process") or spec.collects("time")
    kind = "measure" if measured or spec.session.settings.arena else "run"
    job = {"spec": to_json(spec)}
    return start_job(kind, job, timeout=timeout, about=about or spec.session.model)


def require_weights(
    path: Path,
    instead: str = "--no-validate leaves the comparison out",
    model: ModelProto | None = None,
) -> None:
    """Refuse a model whose external data is missing.

    Args:
        path: the file.
        instead: what the user may do without the data, for the hint.
        model: the parsed file, if it was read already.

    Raises:
        RuntimeUnavailableError: naming the file that is missing.
    """
    missing = missing_weights(path, model)
    if missing:
        raise RuntimeUnavailableError(
            f"{path} cannot run: its weights file {missing[0]} is not in {path.parent}",
            hint=f"put the file there; {instead}" if instead else "put the file there",
        )


def observe_run(
    model: Path,
    settings: RuntimeSettings,
    conditions: RunConditions,
    *collect: str,
    runs: int = 3,
) -> RunRecord:
    """Run a model with deterministic settings and record what is asked for, outputs left out.

    Raises:
        RuntimeUnavailableError: weights are missing, or the run failed.
    """
    require_weights(model)
    session = conditions.session(model, settings).deterministic()
    inputs = (conditions.input_set(model),)
    spec = RunSpec(session, inputs, collect, runs=runs, compared_runs=0)
    what = f"{model} could not be measured{given_text(conditions.binding.feeds)}"
    return run_model(spec, timeout=conditions.timeout).require(what)


def process_of_run(
    model: Path, settings: RuntimeSettings, conditions: RunConditions
) -> ProcessBytes | None:
    """Return the memory of a process that runs a model three times, with nothing else in it.

    None if the system does not provide it.

    Raises:
        RuntimeUnavailableError: weights are missing, or the run failed.
    """
    return observe_run(model, settings, conditions, "process").peaks.process


def process_of_load(
    model: Path, settings: RuntimeSettings, conditions: RunConditions
) -> ProcessBytes | None:
    """Return the memory of a process that creates a session and runs nothing.

    Loading creates and drops tens of thousands of small objects between the weights; which
    holes of the heap stay open decides what stays resident, and no rule predicts that. Inputs
    are drawn as for a run, for they leave holes too. None if the system does not provide it.

    Raises:
        RuntimeUnavailableError: weights are missing, or the model does not load.
    """
    return observe_run(model, settings, conditions, "process", runs=0).peaks.process


def memory_of_processes(
    model: Path, settings: RuntimeSettings, conditions: RunConditions, count: int
) -> int | None:
    """Return the proportional bytes of ``count`` processes that hold a model at the same time.

    Each process has one intra-op thread. None if the system does not provide it.

    Raises:
        RuntimeUnavailableError: weights are missing, or a run failed.
    """
    require_weights(model)
    one_thread = RuntimeSettings(session={"intra_op_num_threads": 1})
    session = conditions.session(model, one_thread.updated(settings))
    job = {
        "session": to_json(session),
        "inputs": to_json(conditions.input_set(model)),
        "processes": count,
    }
    outcome = run_job("together", job, timeout=conditions.timeout)
    found = outcome.require(f"{model} could not be held by {count} processes")["bytes"]
    each = found if isinstance(found, list) else [None]
    return None if None in each else sum(each)
