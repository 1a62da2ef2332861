"""The process of a session, observed in a fresh one that does nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memplan_cli.core.bindings import given_text
from memplan_cli.core.deserialization import from_json
from memplan_cli.core.results.observations import ProcessBytes
from memplan_cli.core.serialization import to_json
from memplan_cli.runtime.proofs.compare import require_weights
from memplan_cli.runtime.workers.worker import run_job

if TYPE_CHECKING:
    from pathlib import Path

    from memplan_cli.core.results.observations import RuntimeSettings
    from memplan_cli.runtime.measuring.measure import Trial


def observed_process(
    model: Path, settings: RuntimeSettings, trial: Trial
) -> ProcessBytes | None:
    """Return what one process took beyond one that has imported the runtime.

    None where the system does not say it.

    Args:
        model: a file whose weights are there.
        settings: of the session; it has one thread.
        trial: how it is run.

    Raises:
        RuntimeUnavailableError: weights or provider are missing, or it does not run.
    """
    require_weights(model)
    job = {"session": to_json(trial.session(model, settings).exact()), "runs": trial.runs}
    outcome = run_job("resident", job, timeout=trial.timeout)
    found = outcome.require(f"{model} could not be measured{given_text(trial.feeds)}")[
        "process"
    ]
    return from_json(ProcessBytes, found, "the job's result") if found else None


def loaded_process(
    model: Path, settings: RuntimeSettings, trial: Trial
) -> ProcessBytes | None:
    """Return what one process took that made a session and ran nothing.

    Tens of thousands of small objects are made and dropped between a model's weights, and
    which holes of the heap they leave open decides what stays resident. No rule has that,
    and a session costs what loading costs. Inputs are drawn as for a run, for they leave
    holes too. None where the system does not say it.

    Raises:
        RuntimeUnavailableError: weights are missing, or it does not load.
    """
    return observed_process(model, settings, replace(trial, runs=0))
