"""Compare the decode loop of a model with that of the model with its caches in place.

The original's caches grow and are fed back, as its users do. The written model's caches stay in
their buffers. Both loops begin with empty caches, run a prefill of several entries and then short
steps. All outputs of all steps must have the same bits, and so must the caches at the end.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path  # noqa: TC003 - a type to read by
from typing import TYPE_CHECKING

from memplan_cli.core.results.observations import (
    DEFAULT_TIMEOUT,
    Difference,
    RuntimeSettings,
)
from memplan_cli.core.results.rewrites import step_dims
from memplan_cli.core.serialization import to_json
from memplan_cli.runtime.run.run_model import differences_in, require_weights
from memplan_cli.runtime.workers.spec import InputSet, SessionSpec
from memplan_cli.runtime.workers.worker import run_job

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.core.bindings import FeedSpec
    from memplan_cli.core.json_types import Json
    from memplan_cli.core.results.rewrites import Caches

_DECODE_JOB = "memplan_cli.features.kv_cache.decode_job:run"

LENGTHS = (4, 1, 1, 1, 2, 1, 1)
"""New entries of each step; steps that the capacity has no room for are left out."""


@dataclass(frozen=True, slots=True)
class DecodeLoop:
    """How decode loops are run.

    Attributes:
        provider: ONNX Runtime's name of the execution provider.
        folder: the folder for the original's outputs.
        dims: values of dims that the user gave.
        specs: inputs that the user gave, used in each step in which their shape fits.
        settings: of the sessions, besides those that make them deterministic.
        timeout: seconds for each process.
        tolerance: ``(rtol, atol)``; two zeros require the same bits.
        lengths: new entries of each step.
        choosing: the input with which the original chooses the branch that reads a past, and its
            value for that; with empty caches it has the other value.
    """

    provider: str
    folder: Path
    dims: Mapping[str, int] = field(default_factory=dict)
    specs: tuple[FeedSpec, ...] = ()
    settings: RuntimeSettings = field(default_factory=RuntimeSettings)
    timeout: float = DEFAULT_TIMEOUT
    tolerance: tuple[float, float] = (0.0, 0.0)
    lengths: tuple[int, ...] = LENGTHS
    choosing: Mapping[str, bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OriginalDecoding:
    """What running the original's loop has shown.

    Attributes:
        model: the original.
        rules: for each dim, how its value follows from past and new entries: a key of
            `STEP_NUMBERS`.
        start: entries in the caches before the first step.
        lengths: new entries that each step was asked for.
        steps: entries that each step added.
        tokens: an input and its axis that is as long as the new entries; empty if there is none.
    """

    model: Path
    rules: Mapping[str, str]
    start: int
    lengths: tuple[int, ...]
    steps: tuple[int, ...]
    tokens: tuple[tuple[str, int], ...]

    def dims_at(self, past: int, new: int) -> dict[str, int]:
        """Return the value of each dim in a step, apart from the dims along which caches grow."""
        return step_dims(self.rules, past, new)


@dataclass(frozen=True, slots=True)
class DecodeComparison:
    """How the written model's loop differs from the original's.

    Attributes:
        differences: of outputs, named ``name@step``, and of caches.
        failure: why the written model did not run; empty if it did.
    """

    differences: tuple[Difference, ...] = ()
    failure: str = ""

    @property
    def passed(self) -> bool:
        """Whether the loop ran, and every output of every step equals the original's."""
        return not self.failure and not any(item.beyond for item in self.differences)


def decode_original(model: Path, caches: Caches, loop: DecodeLoop) -> OriginalDecoding:
    """Run the original's decode loop, and save its outputs in the loop's folder.

    Raises:
        RuntimeUnavailableError: no step of the model runs, or its weights are missing.
    """
    require_weights(model)
    job = {**_job(_session(model, loop), caches, loop), "way": "original"}
    outcome = run_job(_DECODE_JOB, job, timeout=loop.timeout)
    facts = outcome.require(f"{model} cannot be decoded")
    return OriginalDecoding(
        model=model,
        rules=facts["rules"],
        start=facts["start"],
        lengths=tuple(facts["lengths"]),
        steps=tuple(facts["steps"]),
        tokens=tuple((name, axis) for name, axis in facts["tokens"]),
    )


def decode_written(
    model: Path, caches: Caches, original: OriginalDecoding, loop: DecodeLoop
) -> DecodeComparison:
    """Run the written model's decode loop, and compare it with the saved outputs."""
    session = replace(_session(model, loop), as_loaded=True)
    job = {
        **_job(session, caches, loop),
        "way": "written",
        "original": str(original.model),
        "rules": dict(original.rules),
        "start": original.start,
        "lengths": list(original.lengths),
    }
    outcome = run_job(_DECODE_JOB, job, timeout=loop.timeout)
    return DecodeComparison(differences_in(outcome.result), outcome.reason)


def _session(model: Path, loop: DecodeLoop) -> SessionSpec:
    return SessionSpec(model, loop.provider, loop.settings).deterministic()


def _job(session: SessionSpec, caches: Caches, loop: DecodeLoop) -> Json:
    """Return the entries that the jobs of both models have."""
    return {
        "session": to_json(session),
        "inputs": to_json(InputSet(loop.specs)),
        "caches": to_json(caches),
        "dims": dict(loop.dims),
        "lengths": list(loop.lengths),
        "tolerance": list(loop.tolerance),
        "folder": str(loop.folder),
        "choosing": dict(loop.choosing),
    }
