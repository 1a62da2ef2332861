"""The memory that the runtime really takes for a model under some settings."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from memplan_cli.core.bindings import given_text
from memplan_cli.core.deserialization import from_json
from memplan_cli.core.results.observations import (
    CPU,
    DEFAULT_TIMEOUT,
    ProcessBytes,
    RuntimeSettings,
)
from memplan_cli.core.serialization import to_json
from memplan_cli.onnx_io.load import load_model
from memplan_cli.onnx_io.runs.feeds import feed_specs
from memplan_cli.onnx_io.weights.inline import WORTH, inline_bytes, with_external_data
from memplan_cli.runtime.proofs.compare import require_weights
from memplan_cli.runtime.workers.profile import NodeEvent, Recording, peaks_of
from memplan_cli.runtime.workers.session import resolve_provider
from memplan_cli.runtime.workers.session_job import SessionJob
from memplan_cli.runtime.workers.worker import Outcome, run_job

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from memplan_cli.core.bindings import Binding, Feeds, FeedSpec
    from memplan_cli.core.check import Check
    from memplan_cli.core.results.observations import Peaks


def _unheard() -> None:
    """Let a process begin without a word."""


@dataclass(frozen=True, slots=True)
class Trial:
    """How a model is measured.

    Attributes:
        provider: ``auto``, ``cpu`` or ``cuda``.
        dims: values for symbolic dims; the others get small defaults.
        feeds: inputs that were given; the others are drawn.
        runs: profiled runs; from the second on they are steady.
        timing_runs: runs without profiler whose median is the time; 0 takes no time.
        timeout: seconds for the whole process.
        seed: of the inputs.
        specs: how to draw the inputs; None reads it from the model.
        begins: called before each process.
        assumed: the dims whose number nobody said.
        as_loaded: whether the file is opened as `memplan_cli.load` opens those that memplan wrote.
    """

    provider: str = "auto"
    dims: Mapping[str, int] = field(default_factory=dict)
    runs: int = 3
    timing_runs: int = 5
    timeout: float = DEFAULT_TIMEOUT
    seed: int = 0
    specs: tuple[FeedSpec, ...] | None = None
    feeds: Feeds = field(default_factory=dict)
    begins: Callable[[], None] = field(default=_unheard, compare=False)
    assumed: frozenset[str] = frozenset()
    as_loaded: bool = False

    @classmethod
    def of(cls, check: Check, binding: Binding) -> Trial:
        """Return how a model is measured where and at what it is checked."""
        return cls(check.provider, timeout=check.timeout).at(binding)

    def at(self, binding: Binding) -> Trial:
        """Return the same at the numbers and with the inputs of a binding."""
        return replace(self, dims=binding.dims, feeds=binding.feeds, assumed=binding.assumed)

    @property
    def runs_on(self) -> str:
        """ONNX Runtime's name of the provider.

        Raises:
            RuntimeUnavailableError: it does not work here.
        """
        return resolve_provider(self.provider)

    def session(self, model: Path, settings: RuntimeSettings) -> SessionJob:
        """Return how a process runs a model.

        Raises:
            RuntimeUnavailableError: the provider does not work here.
        """
        provider, specs = self.runs_on, self.specs
        if specs is None:
            specs = feed_specs(load_model(model), self.dims, self.feeds)
        return SessionJob(model, provider, specs, settings, self.seed, self.as_loaded)


def measure(model: Path, settings: RuntimeSettings, trial: Trial | None = None) -> Peaks:
    """Run a model in a process of its own and return what its arena did.

    Raises:
        RuntimeUnavailableError: weights or provider are missing, or it does not run.
    """
    recording = record(model, settings, trial)
    peaks = peaks_of(recording, recording.milliseconds)
    peaks = replace(peaks, process=recording.process)
    if not recording.effort or (trial or Trial()).runs_on != CPU:
        return peaks
    return replace(peaks, effort=median(recording.effort))


def record(model: Path, settings: RuntimeSettings, trial: Trial | None = None) -> Recording:
    """Run a model in a process of its own and return every kernel's counters.

    Raises:
        RuntimeUnavailableError: weights or provider are missing, or it does not run.
    """
    trial = trial or Trial()
    what = f"{model} could not be measured{given_text(trial.feeds)}"
    result = _run(model, settings, trial, {}).require(what)
    runs = tuple(tuple(NodeEvent(**e) for e in run) for run in result["runs"])  # type: ignore[attr-defined]
    process = result["process"]
    return Recording(
        runs,
        tuple(result["milliseconds"]),  # type: ignore[arg-type]
        tuple(result["effort"]),  # type: ignore[arg-type]
        from_json(ProcessBytes, process, "the job's result") if process else None,
    )


def workspace_of(
    model: Path, settings: RuntimeSettings, trial: Trial | None = None
) -> dict[str, int]:
    """Return the bytes of workspace that each kernel asks for, by node, where it does.

    The runtime's own statistics; they need the memory pattern off.

    Raises:
        RuntimeUnavailableError: weights or provider are missing, or it does not run.
    """
    quick = replace(trial or Trial(), runs=1, timing_runs=0)
    outcome = _run(model, settings, quick, {"workspace": True})
    result = outcome.require(f"{model} could not be measured")
    return result["workspace"]  # type: ignore[return-value]


def together(
    model: Path, settings: RuntimeSettings, trial: Trial, processes: int
) -> int | None:
    """Return the proportional bytes of processes that hold a model at once; one thread each.

    None where the system does not say.

    Raises:
        RuntimeUnavailableError: weights or provider are missing, or it does not run.
    """
    one_thread = RuntimeSettings(session={"intra_op_num_threads": 1})
    session = _session(model, one_thread.updated(settings), trial)
    job = {"session": to_json(session), "processes": processes}
    outcome = run_job("together", job, timeout=trial.timeout)
    found = outcome.require(f"{model} could not be held by {processes} processes")["bytes"]
    each = found if isinstance(found, list) else [None]
    return None if None in each else sum(each)


def _session(model: Path, settings: RuntimeSettings, trial: Trial) -> SessionJob:
    require_weights(model)
    return trial.session(model, settings)


def _run(
    model: Path, settings: RuntimeSettings, trial: Trial, more: Mapping[str, object]
) -> Outcome:
    session = _session(model, settings, trial)
    runs = {"runs": trial.runs, "timing_runs": trial.timing_runs}
    job = {"session": to_json(session), **runs, **more}
    trial.begins()
    return run_job("measure", job, timeout=trial.timeout)


@dataclass(frozen=True, slots=True)
class LoadCost:
    """Bytes of the process at its highest while a session is made.

    Attributes:
        weights: what lies in the file itself.
        inline, external: with the weights there, and with them in a file of their own.
    """

    weights: int
    inline: int
    external: int

    def __str__(self) -> str:
        """Say it in one sentence."""
        return (
            f"{self.weights} bytes of weights lie in the model file itself: loading it takes "
            f"{self.inline} bytes at its highest, {self.external} with them as external data"
        )


def load_cost(model: Path, provider: str = CPU) -> LoadCost | None:
    """Measure what inline weights cost at load; None where there are few, or no measure.

    That takes room for a copy of them among the temporary files.

    A model that keeps a part of its weights outside already is left alone.
    """
    loaded = load_model(model)
    weights = inline_bytes(loaded)
    if weights < WORTH or any(t.external_data for t in loaded.graph.initializer):
        return None
    with tempfile.TemporaryDirectory(prefix="memplan-load-") as name:
        outside = Path(name) / "outside.onnx"
        try:
            with_external_data(loaded, outside)
        except OSError:  # a second copy of the weights may have no room: no fault of the model
            return None
        inline, external = (_highest(path, provider) for path in (model, outside))
    return None if inline is None or external is None else LoadCost(weights, inline, external)


def _highest(model: Path, provider: str) -> int | None:
    found = run_job("loading", {"model": str(model), "provider": provider}).result.get("bytes")
    return found if isinstance(found, int) else None
