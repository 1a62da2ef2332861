"""Observations of a runtime and its settings, as data without ONNX Runtime."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from memplan_cli.core.serialization import SORTED, Form, Key, Keys, optional, past, sparse

if TYPE_CHECKING:
    from collections.abc import Mapping

Setting = str | int | bool

DEFAULT_TIMEOUT = 600.0
"""Seconds that a process with a session may take, where nobody says another limit."""

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"

PROVIDERS: Mapping[str, str] = {"cpu": CPU, "cuda": CUDA}
"""What users call a provider -> ONNX Runtime's name of it."""

OPTION_ENUMS: Mapping[str, str] = {
    "execution_order": "ExecutionOrder",
    "graph_optimization_level": "GraphOptimizationLevel",
    "execution_mode": "ExecutionMode",
}
"""Attributes of ``SessionOptions`` that take a member of an enum of ONNX Runtime's."""

EXTEND_STRATEGIES: Mapping[str, int] = {"kNextPowerOfTwo": 0, "kSameAsRequested": 1}
"""``arena_extend_strategy``, which ``OrtArenaCfg`` takes as a number."""


@dataclass(frozen=True, slots=True)
class RuntimeSettings:
    """ONNX Runtime's own option names, each in the scope where it has to be set.

    Attributes:
        session: attributes of ``SessionOptions``; enum values by name.
        session_config: entries for ``SessionOptions.add_session_config_entry``.
        arena: keys of ``OrtArenaCfg``; registered for the environment on CPU.
        provider: options of the execution provider.
        run_config: entries for ``RunOptions.add_run_config_entry``.
        io_binding: outputs to bind to the buffer of an input: ``{output: input}``.
    """

    json_keys: ClassVar[Keys] = (
        *optional("session", "session_config", "arena", "provider", "run_config", form=SORTED),
        *sparse("io_binding", form=SORTED),
    )

    session: Mapping[str, Setting] = field(default_factory=dict)
    session_config: Mapping[str, str] = field(default_factory=dict)
    arena: Mapping[str, Setting] = field(default_factory=dict)
    provider: Mapping[str, Setting] = field(default_factory=dict)
    run_config: Mapping[str, str] = field(default_factory=dict)
    io_binding: Mapping[str, str] = field(default_factory=dict)

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
"""The graph runs as it stands in the file."""


@dataclass(frozen=True, slots=True)
class ProcessBytes:
    """What a process takes beyond the same one with the runtime imported and nothing loaded.

    Attributes:
        load: the highest resident bytes when the session stands.
        run: the highest with the first runs.
        private: anonymous bytes after them, which no other process shares.
        file: bytes of mapped files after them, which are shared and can be dropped.
        device: bytes on CUDA devices after them, the context included; None on others, and
            where nobody says it.
    """

    json_keys: ClassVar[Keys] = ("load", "run", "private", "file", *sparse("device"))

    load: int
    run: int
    private: int
    file: int
    device: int | None = None


@dataclass(frozen=True, slots=True)
class Together:
    """Processes that hold the same model at once, in fresh processes of their own.

    Attributes:
        count: how many.
        original, optimized: their proportional bytes, Python and the runtime included: a page
            that n of them share counts an n-th to each. None where the system does not say.
    """

    count: int
    original: int | None = None
    optimized: int | None = None


@dataclass(frozen=True, slots=True)
class Peaks:
    """Bytes a run needs; None is what was not measured (or cannot be predicted).

    Attributes:
        first_run_peak: most bytes of intermediates and outputs live in the first run.
        steady_peak: the same from the second run on, memory pattern's block included.
        held: bytes reserved by the arena, weights in it included.
        scratch: the arena's high-water mark above the tensors: kernels' workspace.
        weights: bytes of weights in the arena.
        milliseconds: median time of a run.
        effort: median milliseconds of processor time of a run, all threads together: what
            a busy machine hardly changes.
        process: what the whole process takes, where the system says it.

    Times are there to compare with: no two runs take the same, so no file has them.
    """

    json_keys: ClassVar[Keys] = (
        "first_run_peak",
        "steady_peak",
        *optional("held", "scratch", "weights", "process"),
        *past("milliseconds"),
    )

    first_run_peak: int | None
    steady_peak: int | None
    held: int | None = None
    scratch: int | None = None
    weights: int | None = None
    milliseconds: float | None = None
    effort: float | None = None
    process: ProcessBytes | None = None


@dataclass(frozen=True, slots=True)
class TimeRatio:
    """Time of a run of the written model over that of the original, both in turn.

    ``low`` and ``high`` are the quartiles of the rounds' ratios.
    """

    median: float
    low: float
    high: float
    rounds: int


_MAY_BE_INFINITE = Form(
    kind=float | None, read=lambda number: math.inf if number is None else number
)


@dataclass(frozen=True, slots=True)
class Difference:
    """One output that is not the same.

    Attributes:
        output: its name, with an index where it is a sequence.
        elements: how many elements have other bits.
        max_abs_diff: the largest distance between two elements.
        beyond: how many elements the tolerance does not excuse.
        reason: why there was nothing to compare element by element.
    """

    json_keys: ClassVar[Keys] = (
        "output",
        "elements",
        Key("max_abs_diff", form=_MAY_BE_INFINITE),
        "beyond",
        "reason",
    )

    output: str
    elements: int
    max_abs_diff: float
    beyond: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Validation:
    """The verdict of a comparison, and of what else was asked for.

    ``status`` is ``passed``, ``failed``, ``nondeterministic`` (the original differs from
    itself by more than the tolerance, so nothing is shown) or ``skipped``. ``replay`` is
    ``passed``, ``failed`` or None where no replay was asked for. ``donated`` is the verdict
    on two steps with each donated pair in one buffer, None where nothing is donated.
    """

    json_keys: ClassVar[Keys] = (
        "status",
        "provider",
        "max_abs_diff",
        "bit_identical",
        "replay",
        "differences",
        "notes",
        *sparse("donated"),
    )

    status: str
    provider: str
    max_abs_diff: float | None = None
    bit_identical: bool | None = None
    replay: str | None = None
    differences: tuple[Difference, ...] = ()
    notes: tuple[str, ...] = ()
    donated: str | None = None

    @property
    def passed(self) -> bool:
        """Whether everything that was asked for holds."""
        extras = (self.replay, self.donated)
        return self.status == "passed" and all(e in (None, "passed") for e in extras)
