"""Descriptions of runs, made by the parent process and read in a worker process."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path  # noqa: TC003 - read from JSON by its type
from typing import TYPE_CHECKING, Any, Literal

from memplan_cli.core.bindings import Binding, FeedSpec
from memplan_cli.core.check import Tolerance
from memplan_cli.core.deserialization import from_json
from memplan_cli.core.results.observations import CPU, DEFAULT_TIMEOUT, RuntimeSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.core.check import Check
    from memplan_cli.core.json_types import Json
    from memplan_cli.runtime.workers.inputs import Feed

Collect = Literal["outputs", "arena", "process", "kernels", "time", "graph"]
"""What a run records.

``outputs``: every output of the compared runs, saved to files or compared with files.
``arena``: counters of the arena after each kernel, and each kernel's workspace.
``process``: memory of the process; it needs a process that has done nothing before.
``kernels``: types and shapes that each kernel read and wrote.
``time``: time of a run in a second session without profiler.
``graph``: the runtime's own graph, written by a further session that runs nothing.
"""

Caller = Literal["drops outputs", "keeps outputs"]
"""What a caller does with the outputs of a run: it drops them at once, or keeps them until the next run has
returned, as a loop over ``outputs = session.run(...)`` does. Kept outputs stay in the arena."""

MEASURED_RUNS = 3
"""Runs of a process whose memory is measured: the first grows the arena, the second makes the block of
the memory pattern, the third is steady."""

FULL: tuple[Collect, ...] = ("outputs", "arena", "process", "kernels", "graph")
"""All that a run can record, except for its time."""

_WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"


@dataclass(frozen=True, slots=True)
class SessionSpec:
    """How a session is created.

    Attributes:
        model: the file.
        provider: ONNX Runtime's name of the execution provider.
        settings: of the session and its runs.
        opened_by_memplan: create the session as `memplan_cli.load` does for files that memplan wrote.
        weights_folder: the folder of the external weights, if not the model's own; the model is
            then passed to ONNX Runtime as bytes.
    """

    model: Path
    provider: str = CPU
    settings: RuntimeSettings = field(default_factory=RuntimeSettings)
    opened_by_memplan: bool = False
    weights_folder: Path | None = None

    @classmethod
    def of_job(cls, job: Json) -> SessionSpec:
        """Return the session in a worker's job."""
        return from_json(cls, job["session"], "the job")

    def updated(self, settings: RuntimeSettings) -> SessionSpec:
        """Return this session with further settings on top of its own."""
        return replace(self, settings=self.settings.updated(settings))

    def deterministic(self) -> SessionSpec:
        """Return this session with the settings that make its provider deterministic."""
        from memplan_cli.runtime.workers.session import deterministic

        return self.updated(deterministic(self.provider))

    def create(self) -> Any:  # noqa: ANN401 - ONNX Runtime has no types
        """Create and return the session; in a worker process only.

        Raises:
            RuntimeUnavailableError: the session is not on the provider asked for.
        """
        from memplan_cli.loading.heap import release_after_loading
        from memplan_cli.runtime.workers.session import make_session

        settings = self.settings
        if self.weights_folder is not None:
            location = {_WEIGHTS_FOLDER: str(self.weights_folder)}
            settings = settings.updated(RuntimeSettings(session_config=location))
            # ONNX Runtime reads this setting only for a model that is passed as bytes. The memory of such a session
            # is never measured, so no free memory is released after loading.
            return make_session(self.model.read_bytes(), settings, self.provider)
        if not self.opened_by_memplan:
            return make_session(self.model, settings, self.provider)
        with release_after_loading(settings.run_config):  # as `memplan_cli.load` does
            return make_session(self.model, settings, self.provider)


@dataclass(frozen=True, slots=True)
class InputSet:
    """One set of inputs of a model, and the files of the outputs that belong to it.

    Attributes:
        specs: how each input is drawn.
        save_to: a folder for the outputs of the first run. With ``compare_with`` they are
            saved only if they differ.
        compare_with: a folder with saved outputs, which each run is compared with. None
            compares later runs with the first.
    """

    specs: tuple[FeedSpec, ...]
    save_to: Path | None = None
    compare_with: Path | None = None

    @classmethod
    def of_job(cls, job: Json) -> InputSet:
        """Return the inputs in a worker's job."""
        return from_json(cls, job["inputs"], "the job")

    def draw(self) -> Feed:
        """Return the inputs by name; each call returns equal arrays."""
        from memplan_cli.runtime.workers.inputs import draw_all

        return draw_all(self.specs)


@dataclass(frozen=True, slots=True)
class RunSpec:
    """How to run one model in a worker process.

    Attributes:
        session: how its session is created.
        inputs: input sets. Arena, process and time are those of the first; outputs of all are
            saved or compared.
        collect: what is recorded.
        runs: runs on the first input set.
        compared_runs: runs on each input set whose outputs are saved or compared. Two show
            whether a run changes the next one.
        caller: what becomes of the outputs of each run (`Caller`).
        outputs: names of the outputs that are compared; empty for all.
        tolerance: within which differences of outputs are allowed.
        graph: the file that the runtime's own graph is written to, without its weights.
        stop: when the job ends early: ``at a difference``, with the first run whose outputs
            differ by more than the tolerance, or ``at a set that runs``; else ``never``.
        failures: whether a failure on the first input set is ``raised`` or ``recorded``, each
            set then being run once. Failures on further sets are always recorded.
        seconds: no further input set is begun after this time; None is no limit.
    """

    session: SessionSpec
    inputs: tuple[InputSet, ...]
    collect: tuple[str, ...] = ("outputs",)
    runs: int = MEASURED_RUNS
    compared_runs: int = 2
    caller: str = "drops outputs"
    outputs: tuple[str, ...] = ()
    tolerance: Tolerance = field(default_factory=Tolerance)
    graph: Path | None = None
    stop: str = "never"
    failures: str = "raised"
    seconds: float | None = None

    def collects(self, item: Collect) -> bool:
        """Return whether the run records an item of `Collect`."""
        return item in self.collect

    @property
    def is_profiled(self) -> bool:
        """Whether the first session runs with the profiler on."""
        return self.collects("arena") or self.collects("kernels")


@dataclass(frozen=True, slots=True)
class RunConditions:
    """Where a model is run, on which inputs, and for how long at most.

    Attributes:
        provider: ONNX Runtime's name of the execution provider.
        binding: numbers for dims, and inputs that were given; other inputs are drawn.
        timeout: seconds for each worker process.
        opened_by_memplan: create sessions as `memplan_cli.load` does.
        specs: how inputs are drawn; None: as the model and the binding require.
        may_run: whether a prediction may run the model where data decides sizes.
    """

    provider: str = CPU
    binding: Binding = field(default_factory=Binding)
    timeout: float = DEFAULT_TIMEOUT
    opened_by_memplan: bool = False
    specs: tuple[FeedSpec, ...] | None = None
    may_run: bool = True

    @classmethod
    def of_check(cls, check: Check, binding: Binding) -> RunConditions:
        """Return the conditions of a check, on a provider that works here.

        Raises:
            RuntimeUnavailableError: the provider asked for does not work here.
        """
        from memplan_cli.runtime.workers.session import resolve_provider

        return cls(resolve_provider(check.provider), binding, check.timeout)

    @property
    def dims(self) -> Mapping[str, int]:
        """The numbers of dims."""
        return self.binding.dims

    def input_set(self, model: Path) -> InputSet:
        """Return the inputs of a model under these conditions."""
        from memplan_cli.onnx_io.load import load_model
        from memplan_cli.onnx_io.runs.random_inputs import feed_specs

        if self.specs is not None:
            return InputSet(self.specs)
        return InputSet(feed_specs(load_model(model), self.dims, self.binding.feeds))

    def session(self, model: Path, settings: RuntimeSettings) -> SessionSpec:
        """Return how a session of a model is created under these conditions."""
        return SessionSpec(model, self.provider, settings, self.opened_by_memplan)
