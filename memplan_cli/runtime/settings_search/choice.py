"""Runtime settings as the result of a search, with the memory predicted and observed under them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan_cli.core.results.memory import OBSERVED
from memplan_cli.core.results.observations import CPU, Peaks, RuntimeSettings

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class SettingsChoice:
    """Settings, and the memory that a model needs under them.

    Attributes:
        settings: the runtime's own options.
        predicted: by simulation; ``held`` excludes weights.
        observed: in a run; ``held`` includes weights, as in the report. None without a run.
        notes: for the report.
        provider: ONNX Runtime's name of the execution provider.
        bytes_for_speed: bytes that the arena holds only to make runs shorter; not counted in ``rank``.
    """

    settings: RuntimeSettings
    predicted: Peaks
    observed: Peaks | None = None
    notes: tuple[str, ...] = ()
    provider: str = CPU
    bytes_for_speed: int = 0

    @property
    def rank(self) -> tuple[bool, int]:
        """The sort key, lower is better: whether memory is unknown, then first-run peak plus arena in bytes."""
        peaks = self.predicted
        is_unknown = peaks.first_run_peak is None or peaks.held is None
        return is_unknown, (peaks.first_run_peak or 0) + (
            peaks.held or 0
        ) - self.bytes_for_speed

    @property
    def sources(self) -> Mapping[str, str]:
        """The settings that were derived from an observed run, by name."""
        return settings_from_runs(self.settings)


def settings_from_runs(settings: RuntimeSettings) -> Mapping[str, str]:
    """Return the settings whose values follow from an observed run.

    These are the size of the arena's first region, which depends on the workspace of kernels, and
    the order by priority of an optimised graph, whose node indices the runtime does not report.
    """
    sources = {}
    level = settings.session.get("graph_optimization_level")
    if settings.session.get("execution_order") == "PRIORITY_BASED" and level is None:
        sources["session.execution_order"] = OBSERVED
    if "initial_chunk_size_bytes" in settings.arena:
        sources["arena.initial_chunk_size_bytes"] = OBSERVED
    return sources


def held_without_weights(peaks: Peaks) -> int:
    """Return the observed bytes of an arena, without the weights in it."""
    return (peaks.held or 0) - (peaks.weights or 0)


def peak_plus_arena(peaks: Peaks) -> int:
    """Return the sum of the observed first-run peak and the arena without weights, in bytes."""
    return (peaks.first_run_peak or 0) + held_without_weights(peaks)
