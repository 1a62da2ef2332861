"""Sizes with which a model runs, found by running it: one process tries several in turn."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from memplan_cli.core.serialization import to_json
from memplan_cli.runtime.shapes import shapes_of
from memplan_cli.runtime.workers.session import resolve_provider
from memplan_cli.runtime.workers.session_job import SessionJob
from memplan_cli.runtime.workers.worker import run_job

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan_cli.core.bindings import FeedSpec
    from memplan_cli.shapes.bindings import Known
    from memplan_cli.shapes.runtime_query import Numbered

_TIMEOUT = 90.0
"""Seconds for all sizes together, the time to load the model included."""

_SECONDS = 30.0
"""Seconds after which no further size is begun."""

_LOADING = ("Load model from", "Could not find an implementation", "during initialization")
"""What ONNX Runtime says where it cannot load a model, with whatever inputs."""


@dataclass(frozen=True, slots=True)
class Tried:
    """What became of trying sizes.

    Attributes:
        ran: the places of those that run: the first, or all of them.
        reasons: why others do not, or why nothing could be tried.
        known: the shapes of values in a run of the first, where that was asked for.
    """

    ran: tuple[int, ...] = ()
    reasons: tuple[str, ...] = ()
    known: Known = field(default_factory=dict)

    @property
    def loaded(self) -> bool:
        """Whether the model loads, and other inputs may make it run."""
        return not any(word in reason for reason in self.reasons[:1] for word in _LOADING)


def first_that_runs(
    model: Path, tries: Sequence[Sequence[FeedSpec]], observed: Numbered | None = None
) -> Tried:
    """Run a model with one feed after the other until one works.

    Args:
        model: Its weights are there.
        tries: What it is fed.
        observed: A copy whose values' shapes are looked at in a run with that feed.
    """
    return _tried(model, tries, observed, "first")


def all_that_run(model: Path, tries: Sequence[Sequence[FeedSpec]]) -> Tried:
    """Run a model with each feed."""
    return _tried(model, tries, None, "every")


def _tried(
    model: Path,
    tries: Sequence[Sequence[FeedSpec]],
    observed: Numbered | None,
    until: Literal["first", "every"],
) -> Tried:
    if not tries:
        return Tried()
    session = SessionJob(model.absolute(), resolve_provider("auto"), ())
    job: dict[str, object] = {"session": to_json(session), "seconds": _SECONDS}
    job |= {"tries": [[to_json(spec) for spec in specs] for specs in tries]}
    job |= {"every": until == "every", "observed": ""}
    with tempfile.TemporaryDirectory(prefix="memplan-trial-") as folder:
        if observed is not None:
            copy = Path(folder) / "model.onnx"
            copy.write_bytes(observed.data)
            job["observed"] = str(copy)
        outcome = run_job("trial", job, timeout=_TIMEOUT, about=model)
    if not outcome.ok:
        return Tried(reasons=(outcome.reason,))
    result: Any = outcome.result
    known = shapes_of(observed, result["nodes"]) if observed is not None else {}
    return Tried(tuple(result["ran"]), tuple(result["reasons"]), known)
