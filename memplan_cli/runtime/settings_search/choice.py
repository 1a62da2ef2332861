"""Runtime settings as a result of a search, with what is predicted and observed under them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan_cli.core.results.memory import OBSERVED
from memplan_cli.core.results.observations import CPU, Peaks, RuntimeSettings

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class SettingsChoice:
    """Settings, and the memory that a model takes under them.

    Attributes:
        settings: the runtime's own options.
        predicted: by simulation; ``held`` leaves weights out.
        observed: in a run; ``held`` includes weights, as the report does. None without a run.
        notes: what the report says about them.
        provider: ONNX Runtime's name of the provider that they are for.
        for_time: bytes that the arena holds for shorter runs; they do not count in the rank.
    """

    settings: RuntimeSettings
    predicted: Peaks
    observed: Peaks | None = None
    notes: tuple[str, ...] = ()
    provider: str = CPU
    for_time: int = 0

    @property
    def rank(self) -> tuple[bool, int]:
        """Return whether the memory is unknown, and the bytes of first run's peak and arena."""
        peaks = self.predicted
        unknown = peaks.first_run_peak is None or peaks.held is None
        return unknown, (peaks.first_run_peak or 0) + (peaks.held or 0) - self.for_time

    @property
    def sources(self) -> Mapping[str, str]:
        """Return the settings that were derived from an observed run, by name."""
        return settings_from_runs(self.settings)


def settings_from_runs(settings: RuntimeSettings) -> Mapping[str, str]:
    """Return the settings whose values follow from an observed run.

    The first region of an arena is sized by the workspace of kernels, and the order by priority
    of an optimised graph is not predicted: the runtime does not tell the numbers of its nodes.
    """
    found = {}
    level = settings.session.get("graph_optimization_level")
    if settings.session.get("execution_order") == "PRIORITY_BASED" and level is None:
        found["session.execution_order"] = OBSERVED
    if "initial_chunk_size_bytes" in settings.arena:
        found["arena.initial_chunk_size_bytes"] = OBSERVED
    return found


def held_without_weights(peaks: Peaks) -> int:
    """Return what an arena was observed to hold, the weights in it left out."""
    return (peaks.held or 0) - (peaks.weights or 0)


def total_of(peaks: Peaks) -> int:
    """Return the observed bytes of tensors at the first run's peak, and of the arena without weights."""
    return (peaks.first_run_peak or 0) + held_without_weights(peaks)
