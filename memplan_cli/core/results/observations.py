"""Settings of ONNX Runtime, and what was measured or compared in its runs, as plain data."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, ClassVar

from memplan_cli.core.json_types import Count, NotNegative, Range, one_of
from memplan_cli.core.serialization import OPTIONAL, SORTED, SPARSE, Keys, json_form

if TYPE_CHECKING:
    from collections.abc import Mapping

Setting = str | int | bool
"""The value of an option of ONNX Runtime."""

DEFAULT_TIMEOUT = 600.0
"""The default time limit in seconds of a process that runs a session."""

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"

PROVIDERS: Mapping[str, str] = {"cpu": CPU, "cuda": CUDA}
"""The name of a provider in options -> ONNX Runtime's name."""

MODEL_OPTIONS: Mapping[str, Mapping[Setting, int]] = {
    "execution_mode": {"ORT_SEQUENTIAL": 0, "ORT_PARALLEL": 1},
    "graph_optimization_level": {
        "ORT_DISABLE_ALL": 0,
        "ORT_ENABLE_BASIC": 1,
        "ORT_ENABLE_EXTENDED": 2,
        "ORT_ENABLE_LAYOUT": 3,
        "ORT_ENABLE_ALL": 99,
    },
}
"""Session options that ONNX Runtime reads from a model -> the number of each value."""

_SCOPE = {**OPTIONAL, **SORTED}


@dataclass(frozen=True, slots=True)
class RuntimeSettings:
    """Options of ONNX Runtime under its own names, by the scope where they are set.

    Attributes:
        session: attributes of ``SessionOptions``; enum values by name.
        session_config: entries for ``SessionOptions.add_session_config_entry``.
        arena: keys of ``OrtArenaCfg``; registered for the environment on CPU.
        provider: options of the execution provider.
        run_config: entries for ``RunOptions.add_run_config_entry``.
        io_binding: outputs to bind to the buffer of an input: ``{output: input}``.
    """

    session: Mapping[str, Setting] = field(default_factory=dict, metadata=_SCOPE)
    session_config: Mapping[str, str] = field(default_factory=dict, metadata=_SCOPE)
    arena: Mapping[str, Setting] = field(default_factory=dict, metadata=_SCOPE)
    provider: Mapping[str, Setting] = field(default_factory=dict, metadata=_SCOPE)
    run_config: Mapping[str, str] = field(default_factory=dict, metadata=_SCOPE)
    io_binding: Mapping[str, str] = field(default_factory=dict, metadata={**SPARSE, **SORTED})

    @property
    def is_unoptimized(self) -> bool:
        """Whether graph optimization is disabled, so that the graph runs as it is in the file."""
        return self.session.get("graph_optimization_level") == "ORT_DISABLE_ALL"

    @property
    def runs_by_priority(self) -> bool:
        """Whether nodes run in the order of their indices, those with priority first (``PRIORITY_BASED``)."""
        return self.session.get("execution_order") == "PRIORITY_BASED"

    def updated(self, other: RuntimeSettings) -> RuntimeSettings:
        """Return the union of two settings; ``other`` wins if both have a key in the same scope."""
        return replace(
            self,
            session={**self.session, **other.session},
            session_config={**self.session_config, **other.session_config},
            arena={**self.arena, **other.arena},
            provider={**self.provider, **other.provider},
            run_config={**self.run_config, **other.run_config},
            io_binding={**self.io_binding, **other.io_binding},
        )


UNOPTIMIZED = RuntimeSettings(session={"graph_optimization_level": "ORT_DISABLE_ALL"})
"""Settings with which the graph runs as it is in the file."""


@dataclass(frozen=True, slots=True)
class ProcessBytes:
    """Memory of a process, beyond that of a process that only imported ONNX Runtime.

    Attributes:
        load: the highest resident bytes until the session exists.
        run: the highest resident bytes during the first runs.
        private: anonymous resident bytes after the runs, which no other process shares.
        file: resident bytes of mapped files after the runs, which are shared and evictable.
        device: bytes on CUDA devices after the runs, including the CUDA context; None: the
            provider is not CUDA, or unknown.
        kept: bytes by which ``run`` is higher if the caller keeps the outputs of each run until the next one
            has returned; None: not known. They lie in the arena, so that its other tensors get other places.
    """

    load: Count
    run: Count
    private: Count
    file: Count
    device: Count | None = field(default=None, metadata=SPARSE)
    kept: Count | None = field(default=None, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class Peaks:
    """Bytes and times of a model's runs; None: not measured, or not predictable.

    Times are not written to files, so that the same command writes the same bytes.

    Attributes:
        first_run_peak: the most bytes of intermediates and outputs live in the first run.
        steady_peak: the same from the second run on, including ONNX Runtime's memory pattern
            block.
        held: bytes that the arena reserved, including the weights in it.
        scratch: the arena's high-water mark beyond the tensors: the workspace of kernels.
        weights: bytes of weights in the arena.
        milliseconds: median time of a run.
        processor_milliseconds: median processor time of a run, over all threads. It depends less on the
            load of the machine than ``milliseconds``.
        process: bytes of the whole process.
    """

    json_keys: ClassVar[Keys] = (
        "first_run_peak",
        "steady_peak",
        "held",
        "scratch",
        "weights",
        "process",
    )

    first_run_peak: Count | None
    steady_peak: Count | None
    held: Count | None = field(default=None, metadata=OPTIONAL)
    scratch: int | None = field(default=None, metadata=OPTIONAL)
    weights: int | None = field(default=None, metadata=OPTIONAL)
    milliseconds: float | None = None
    processor_milliseconds: float | None = None
    process: ProcessBytes | None = field(default=None, metadata=OPTIONAL)


def comparable_times(before: Peaks, after: Peaks) -> tuple[float | None, float | None]:
    """Return the milliseconds of two runs: processor times if both have one, else elapsed times.

    Elapsed times depend on the load of the machine. Processor times are measured on the CPU only.
    """
    if before.processor_milliseconds is None or after.processor_milliseconds is None:
        return before.milliseconds, after.milliseconds
    return before.processor_milliseconds, after.processor_milliseconds


SLOWEST = 1.05
"""The allowed ratio of run times: 5 % longer than the original under default settings."""


@dataclass(frozen=True, slots=True)
class TimeRatio:
    """The time of a run divided by that of another one, such as the original's, from runs in turn.

    Attributes:
        median: the median of the ratios of two runs.
        low: their lower quartile.
        high: their upper quartile.
        rounds: the number of ratios.
    """

    median: NotNegative
    low: NotNegative
    high: NotNegative
    rounds: Annotated[int, Range(1)]

    @property
    def is_slower(self) -> bool:
        """Whether the run takes longer than allowed."""
        return self.median > SLOWEST

    def __str__(self) -> str:
        """Return the ratio of a written model to its original as a sentence."""
        return (
            f"a run of the written model takes {self.median:.2f} times as long as the original "
            f"({self.low:.2f} to {self.high:.2f}, the quartiles of {self.rounds} rounds in turn)"
        )


@dataclass(frozen=True, slots=True)
class IdleArena:
    """What the arena of a written model does between runs, and what the other choice would cost.

    Attributes:
        after_run: ``release``: its memory is given back to the system after each run; ``keep``: it is held
            for the next run.
        keep: bytes of the process if the arena is kept.
        release: bytes of the process if it is released.
        time: the time of a run that releases it, divided by that of a run that keeps it; null: not measured.
    """

    after_run: Annotated[str, one_of("release", "keep")]
    keep: ProcessBytes
    release: ProcessBytes
    time: TimeRatio | None


_INFINITE_AS_NULL = json_form(
    type_hint=float | None, read=lambda number: math.inf if number is None else number
)


@dataclass(frozen=True, slots=True)
class Difference:
    """One output that differs between two runs.

    Attributes:
        output: its name, with an index if it is a sequence.
        elements: how many elements have other bits.
        max_abs_diff: the largest distance between two elements; null: infinite.
        beyond: how many elements differ by more than the tolerance.
        reason: why the elements could not be compared; empty if they were.
    """

    output: str
    elements: int
    max_abs_diff: float = field(metadata=_INFINITE_AS_NULL)
    beyond: int
    reason: str = ""


Outcome = Annotated[str, one_of("passed", "failed")]


@dataclass(frozen=True, slots=True)
class Validation:
    """The verdict on a written model.

    Attributes:
        status: the comparison of outputs; ``nondeterministic``: two runs of the original differ
            by more than the tolerance.
        provider: ONNX Runtime's name of the execution provider.
        reference: the run of the original that outputs were compared with: under ONNX Runtime's
            ``defaults``, or ``unoptimized``.
        max_abs_diff: the largest difference of all outputs; null: unknown or infinite.
        bit_identical: whether all outputs have the same bits.
        replay: the run in one arena whose free bytes are overwritten; null: not requested.
        differences: the outputs that differ.
        notes: remarks for the user; the first one is the reason if outputs were not compared.
        donated: two steps with each donated pair in one buffer; null: nothing is donated.
        diff_from_defaults: with an ``unoptimized`` reference, the largest difference of its outputs
            from those of a default run; null: infinite, or the two cannot be compared.
    """

    status: Annotated[str, one_of("passed", "failed", "nondeterministic", "skipped")]
    provider: str
    reference: Annotated[str, one_of("defaults", "unoptimized")] = field(
        default="defaults", metadata=OPTIONAL
    )
    max_abs_diff: float | None = None
    bit_identical: bool | None = None
    replay: Outcome | None = None
    differences: tuple[Difference, ...] = ()
    notes: tuple[str, ...] = ()
    donated: Outcome | None = field(default=None, metadata=SPARSE)
    diff_from_defaults: float | None = field(default=None, metadata=SPARSE)

    @property
    def did_not_run(self) -> bool:
        """Whether the comparison failed because the written model did not run."""
        return self.status == "failed" and self.max_abs_diff is None

    @property
    def has_other_outputs(self) -> bool:
        """Whether the comparison failed because outputs differ, not because a model did not run."""
        return self.status == "failed" and self.max_abs_diff is not None

    @property
    def passed(self) -> bool:
        """Whether the comparison of outputs and all requested further checks passed."""
        further_checks = (self.replay, self.donated)
        return self.status == "passed" and all(
            outcome in (None, "passed") for outcome in further_checks
        )
