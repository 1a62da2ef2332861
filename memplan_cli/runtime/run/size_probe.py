"""Sizes with which a model runs, found by running it: one process tries several in turn."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.core.results.observations import UNOPTIMISED
from memplan_cli.runtime.run.run_model import run_model
from memplan_cli.runtime.shapes import shapes_of
from memplan_cli.runtime.workers.session import resolve_provider
from memplan_cli.runtime.workers.spec import InputSet, RunSpec, SessionSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan_cli.core.bindings import FeedSpec
    from memplan_cli.onnx_io.shapes.bindings import Known
    from memplan_cli.onnx_io.shapes.runtime_query import Numbered

_TIMEOUT = 90.0
"""Seconds for all sizes together, the time to load the model included."""

_SECONDS = 30.0
"""Seconds after which no further size is begun."""

_LOADING = ("Load model from", "Could not find an implementation", "during initialization")
"""What ONNX Runtime says where it cannot load a model, with whatever inputs."""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Which of several input sets a model runs with.

    Attributes:
        ran: indices of those that it runs with: the first one, or all.
        reasons: why it does not run with others, or why nothing could be tried.
        known: shapes of values in a run with the first one, if they were asked for.
    """

    ran: tuple[int, ...] = ()
    reasons: tuple[str, ...] = ()
    known: Known = field(default_factory=dict)

    @property
    def loaded(self) -> bool:
        """Return whether the model loads, so that it may run with other inputs."""
        return not any(word in reason for reason in self.reasons[:1] for word in _LOADING)


def first_that_runs(
    model: Path, tries: Sequence[Sequence[FeedSpec]], observed: Numbered | None = None
) -> ProbeResult:
    """Run a model with one input set after the other until it runs with one.

    Args:
        model: the file; its weights are there.
        tries: the input sets.
        observed: a copy of the model whose values' shapes are recorded in a run with that set.
    """
    if observed is None or len(tries) > 1:
        found = _tried(model, tries, "at a set that runs")
    else:
        found = ProbeResult((0,) if tries else ())
    if observed is None or not found.ran:
        return found
    return _observed(model, tries[found.ran[0]], observed, found)


def all_that_run(model: Path, tries: Sequence[Sequence[FeedSpec]]) -> ProbeResult:
    """Run a model with each input set."""
    return _tried(model, tries, "never")


def _tried(model: Path, tries: Sequence[Sequence[FeedSpec]], stop: str) -> ProbeResult:
    if not tries:
        return ProbeResult()
    spec = RunSpec(
        _session(model),
        tuple(InputSet(tuple(specs)) for specs in tries),
        collect=(),
        stop=stop,
        failures="recorded",
        seconds=_SECONDS,
    )
    record = run_model(spec, timeout=_TIMEOUT)
    if record.failure is not None:
        return ProbeResult(reasons=(record.failure.reason,))
    failures = [one.failure for one in record.inputs]
    return ProbeResult(
        tuple(at for at, failure in enumerate(failures) if not failure),
        tuple(failure for failure in failures if failure),
    )


def _observed(
    model: Path, specs: Sequence[FeedSpec], copy: Numbered, found: ProbeResult
) -> ProbeResult:
    """Add the shapes that a run of a model's copy shows."""
    with tempfile.TemporaryDirectory(prefix="memplan-trial-") as folder:
        # The copy is not written beside the model: that folder may be read-only.
        file = Path(folder) / "model.onnx"
        file.write_bytes(copy.data)
        session = _session(file, model.absolute().parent)
        spec = RunSpec(session, (InputSet(tuple(specs)),), ("kernels",), runs=1)
        record = run_model(spec, timeout=_TIMEOUT, about=model)
    if record.failure is not None:
        return ProbeResult(reasons=(record.failure.reason,))
    (kernels,) = record.kernels or ((),)
    return replace(found, known=shapes_of(copy, [kernel[:3] for kernel in kernels]))


def _session(model: Path, weights: Path | None = None) -> SessionSpec:
    """Return a session without optimisation: nothing is gained by fusing what runs once."""
    return SessionSpec(
        model.absolute(), resolve_provider("auto"), UNOPTIMISED, weights_folder=weights
    )
