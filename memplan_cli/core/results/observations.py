"""Observations of a runtime and its settings, as data without ONNX Runtime."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, ClassVar

from memplan_cli.core.json_types import Count, NotNegative, Range, one_of
from memplan_cli.core.serialization import OPTIONAL, SORTED, SPARSE, Keys, json_form

if TYPE_CHECKING:
    from collections.abc import Mapping

Setting = str | int | bool

DEFAULT_TIMEOUT = 600.0
"""The default limit in seconds of a process that runs a session."""

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"

PROVIDERS: Mapping[str, str] = {"cpu": CPU, "cuda": CUDA}
"""The name of a provider in options -> ONNX Runtime's name."""

OPTION_ENUMS: Mapping[str, str] = {
    "execution_order": "ExecutionOrder",
    "graph_optimization_level": "GraphOptimizationLevel",
    "execution_mode": "ExecutionMode",
}
"""Attributes of ``SessionOptions`` -> the enum of ONNX Runtime that they take."""

EXTEND_STRATEGIES: Mapping[str, int] = {"kNextPowerOfTwo": 0, "kSameAsRequested": 1}
"""``arena_extend_strategy``, which ``OrtArenaCfg`` takes as a number."""


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
    def runs_as_written(self) -> bool:
        """Whether graph optimization is disabled, so that the graph runs as it is in the file."""
        return self.session.get("graph_optimization_level") == "ORT_DISABLE_ALL"

    def updated(self, other: RuntimeSettings) -> RuntimeSettings:
        """Return these settings with those of ``other`` on top, scope by scope."""
        return replace(
            self,
            session={**self.session, **other.session},
            session_config={**self.session_config, **other.session_config},
            arena={**self.arena, **other.arena},
            provider={**self.provider, **other.provider},
            run_config={**self.run_config, **other.run_config},
            io_binding={**self.io_binding, **other.io_binding},
        )


UNOPTIMISED = RuntimeSettings(session={"graph_optimization_level": "ORT_DISABLE_ALL"})
"""Settings under which the graph runs as it is in the file."""


@dataclass(frozen=True, slots=True)
class ProcessBytes:
    """Bytes of a process beyond the same process with the runtime imported and nothing loaded.

    Attributes:
        load: the highest resident bytes until the session exists.
        run: the highest resident bytes until the end of the first runs.
        private: anonymous resident bytes after them, which no other process shares.
        file: resident bytes of mapped files after them, which are shared and evictable.
        device: bytes on CUDA devices after them, with the context; None: on other devices, or
            unknown.
    """

    load: Count
    run: Count
    private: Count
    file: Count
    device: Count | None = field(default=None, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class Together:
    """The memory of several processes that hold the same model at the same time.

    Attributes:
        count: the number of processes.
        original: their proportional bytes (PSS) with the original model, Python and the runtime
            included; None: unknown.
        optimized: the same with the written model.
    """

    count: Annotated[int, Range(1)]
    original: Count | None = None
    optimized: Count | None = None


@dataclass(frozen=True, slots=True)
class Peaks:
    """Bytes that a run needs; None: not measured, or not predictable.

    Times are not written to files, because they differ from run to run.

    Attributes:
        first_run_peak: the most bytes of intermediates and outputs live in the first run.
        steady_peak: the same from the second run on, with the block of the memory pattern.
        held: bytes reserved by the arena, with the weights in it.
        scratch: the arena's high-water mark above the tensors: the workspace of kernels.
        weights: bytes of weights in the arena.
        milliseconds: median time of a run.
        effort: median processor time of a run in milliseconds, over all threads. It depends
            little on the load of the machine.
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
    past_keys: ClassVar[tuple[str, ...]] = ("milliseconds",)

    first_run_peak: Count | None
    steady_peak: Count | None
    held: Count | None = field(default=None, metadata=OPTIONAL)
    scratch: int | None = field(default=None, metadata=OPTIONAL)
    weights: int | None = field(default=None, metadata=OPTIONAL)
    milliseconds: float | None = None
    effort: float | None = None
    process: ProcessBytes | None = field(default=None, metadata=OPTIONAL)


@dataclass(frozen=True, slots=True)
class TimeRatio:
    """The time of a run of the written model over that of the original, run alternately.

    Attributes:
        median: the median of the ratios of all rounds.
        low: their lower quartile.
        high: their upper quartile.
        rounds: the number of rounds.
    """

    median: NotNegative
    low: NotNegative
    high: NotNegative
    rounds: Annotated[int, Range(1)]


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
        max_abs_diff: the largest difference of all outputs; null: unknown or infinite.
        bit_identical: whether all outputs have the same bits.
        replay: the run in one poisoned arena; null: not asked for.
        differences: the outputs that differ.
        notes: remarks for the user.
        donated: two steps with each donated pair in one buffer; null: nothing is donated.
    """

    status: Annotated[str, one_of("passed", "failed", "nondeterministic", "skipped")]
    provider: str
    max_abs_diff: float | None = None
    bit_identical: bool | None = None
    replay: Outcome | None = None
    differences: tuple[Difference, ...] = ()
    notes: tuple[str, ...] = ()
    donated: Outcome | None = field(default=None, metadata=SPARSE)

    @property
    def passed(self) -> bool:
        """Whether the comparison and all other checks passed."""
        extras = (self.replay, self.donated)
        return self.status == "passed" and all(e in (None, "passed") for e in extras)
