"""Decode loops of a model and of the one with its caches in place, compared bit for bit.

The original's caches grow and are fed back, as its users do; the written model's stay in their
buffers. Both begin empty, take a prefill of several entries and steps of one, and every output
of every step is compared, and at the end what the caches hold.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path  # noqa: TC003 - a type to read by
from typing import TYPE_CHECKING, Any

from memplan_cli.core.results.observations import (
    DEFAULT_TIMEOUT,
    Difference,
    RuntimeSettings,
)
from memplan_cli.core.serialization import to_json
from memplan_cli.runtime.run.run_model import differences_in, require_weights
from memplan_cli.runtime.workers.spec import InputSet, SessionSpec
from memplan_cli.runtime.workers.worker import run_job

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.core.bindings import FeedSpec
    from memplan_cli.core.results.rewrites import Caches
    from memplan_cli.runtime.workers.worker import Json

LENGTHS = (4, 1, 1, 1, 2, 1, 1)
"""New entries in each step, as far as the capacity allows."""


@dataclass(frozen=True, slots=True)
class DecodeLoop:
    """How a loop is run.

    Attributes:
        provider: ONNX Runtime's name of it.
        folder: where the original's outputs go.
        dims: numbers that somebody gave.
        specs: inputs that somebody gave, used where a step has one of that shape.
        settings: of the session, beside those that make it deterministic.
        timeout: seconds for each process.
        tolerance: ``(rtol, atol)``; two zeros ask for the same bits.
        lengths: new entries in each step.
        choosing: the original's input that chooses its branch with a past, and what it is
            for that; where the caches are empty, it is the other.
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
    """What the original's loop says of itself.

    Attributes:
        rules: of each dim, what its number is in a step.
        start: entries that the caches had before the first step.
        lengths: what each step was asked for.
        steps: entries that each step added.
        tokens: an input and the axis that is as long as the new entries.
    """

    model: Path
    rules: Mapping[str, str]
    start: int
    lengths: tuple[int, ...]
    steps: tuple[int, ...]
    tokens: tuple[tuple[str, int], ...]

    def dims_at(self, past: int, new: int) -> dict[str, int]:
        """Return the numbers of dims of a step, but for the caches' own lengths."""
        from memplan_cli.core.results.rewrites import step_dims

        return step_dims(self.rules, past, new)


@dataclass(frozen=True, slots=True)
class DecodeComparison:
    """What the written model's loop gives beside the original's."""

    differences: tuple[Difference, ...] = ()
    failure: str = ""

    @property
    def passed(self) -> bool:
        """Whether every output of every step is the original's."""
        return not self.failure and not any(item.beyond for item in self.differences)


def decode_original(model: Path, caches: Caches, how: DecodeLoop) -> OriginalDecoding:
    """Run the original's loop and keep what it gives.

    Raises:
        RuntimeUnavailableError: no step of the model runs, or its weights are missing.
    """
    require_weights(model)
    session = _session(model, how)
    job = {**_job(session, caches, how), "way": "original"}
    found: dict[str, Any] = run_job("decode", job, timeout=how.timeout).require(
        f"{model} cannot be decoded"
    )
    return OriginalDecoding(
        model,
        found["rules"],
        found["start"],
        tuple(found["lengths"]),
        tuple(found["steps"]),
        tuple((name, axis) for name, axis in found["tokens"]),
    )


def decode_written(
    model: Path, caches: Caches, first: OriginalDecoding, how: DecodeLoop
) -> DecodeComparison:
    """Run the written model's loop against what the original's gave."""
    session = replace(_session(model, how), as_loaded=True)
    job = {
        **_job(session, caches, how),
        "way": "written",
        "original": str(first.model),
        "rules": dict(first.rules),
        "start": first.start,
        "lengths": list(first.lengths),
    }
    outcome = run_job("decode", job, timeout=how.timeout)
    found = outcome.result
    return DecodeComparison(
        differences_in(found),
        outcome.reason,
    )


def _session(model: Path, how: DecodeLoop) -> SessionSpec:
    return SessionSpec(model, how.provider, how.settings).deterministic()


def _job(session: SessionSpec, caches: Caches, how: DecodeLoop) -> Json:
    return {
        "session": to_json(session),
        "inputs": to_json(InputSet(how.specs)),
        "caches": to_json(caches),
        "dims": dict(how.dims),
        "lengths": list(how.lengths),
        "tolerance": list(how.tolerance),
        "folder": str(how.folder),
        "choosing": dict(how.choosing),
    }
