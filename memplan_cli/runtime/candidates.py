"""Settings that compete by memory, and the memory pattern where it makes short runs shorter.

With the runtime's memory pattern the first run asks for each tensor, and later ones for one
block with a place for each: a run of a millisecond or less is 5 to 20 % shorter. The block
serves runs of the same sizes alone.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

from memplan_cli.core.results.observations import CPU, Peaks, RuntimeSettings
from memplan_cli.runtime.graph.speed import work_of
from memplan_cli.runtime.profile.record import PROFILE
from memplan_cli.runtime.simulate.predict import Executed, needs_run, session_traces
from memplan_cli.runtime.simulate.regions import ArenaChoice, one_region, shared_region

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

OWN_INITIALIZERS = {"session.use_device_allocator_for_initializers": "1"}
"""Weights get memory of their own size: in the arena they would take its first region."""

_PATTERN = RuntimeSettings(session={"enable_mem_pattern": True})

SHORT_RUNS = (
    "sizes were assumed, and with a memory pattern others would hold more: it is off, and runs at "
    "these take up to a fifth longer than they need; --dim says the sizes"
)
"""What is said where a pattern would be taken, had somebody said the sizes."""

_NO_MORE = 1 << 17
"""Bytes that an arena may hold more for shorter runs: 1.5 % of what a session of nothing takes,
less than lies between two measurements of one process."""

_ROOM = 4 << 10
"""Bytes of a region for workspace that nobody foresaw: a pattern's block leaves no holes."""

_WON = 0.01
"""Share of a run that a memory pattern has to win."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """Settings, what is predicted under them, and the arena that suits them.

    ``for_time`` are bytes that the arena holds for shorter runs: nobody competes by them.
    """

    settings: RuntimeSettings
    predicted: Peaks
    choice: ArenaChoice
    for_time: int = 0

    @property
    def score(self) -> tuple[int, int]:
        """Less of both together is better; a tie goes to the lower peak."""
        peak = self.predicted.first_run_peak or 0
        return peak + self.choice.held - self.for_time, peak


by_score = attrgetter("score")


def in_arena(settings: RuntimeSettings, predicted: Peaks, choice: ArenaChoice) -> Candidate:
    """Return settings with an arena that is for tensors alone."""
    chosen = dataclasses.replace(
        settings.updated(RuntimeSettings(session_config=OWN_INITIALIZERS)),
        arena=choice.arena,
    )
    return Candidate(chosen, predicted, choice)


def quicker(
    executed: Executed,
    best: Candidate,
    base: RuntimeSettings,
    workspace: Mapping[str, int],
) -> Candidate:
    """Return the same with a memory pattern, where runs are shorter with it at no more memory.

    The first run of some sizes asks for each tensor, later ones for one block with a place for
    each. Where data decides sizes, or subgraphs run, another run's block may not do.
    """
    if "enable_mem_pattern" in base.session or executed.provider != CPU or needs_run(executed):
        return best
    settings = best.settings.updated(_PATTERN)
    traces = session_traces(executed, settings, workspace)
    won = PROFILE.arena_call_work * traces.saved_allocations
    if won < _WON * work_of(executed.program, executed.dims):
        return best
    most = best.choice.held + _NO_MORE
    lowest = max(trace.peak for trace in traces.in_order)
    region = shared_region(lambda: traces.in_order, lowest) if 0 < lowest <= most else None
    if region is None or region + _ROOM > most:
        return best
    choice = ArenaChoice(one_region(region + _ROOM), region + _ROOM)
    found = in_arena(settings, Peaks(traces.first_peak, traces.later_peak), choice)
    return dataclasses.replace(found, for_time=choice.held - best.choice.held)


def without_pattern(settings: RuntimeSettings) -> RuntimeSettings:
    """Return settings that keep the memory pattern off, whatever it would win."""
    return settings.updated(RuntimeSettings(session={"enable_mem_pattern": False}))


def for_sizes(base: RuntimeSettings, assumed: Collection[str]) -> RuntimeSettings:
    """Return settings for models of whose dims some were assumed: other sizes are to come.

    At sizes other than the arena's a memory pattern holds both: what the first run of a size
    asked for piece by piece, and the block of the later ones.
    """
    return without_pattern(base) if assumed else base


def as_recorded(base: RuntimeSettings, recorded: RuntimeSettings) -> RuntimeSettings:
    """Return settings that leave the memory pattern off where a file says so of itself."""
    return base if recorded.session.get("enable_mem_pattern", True) else without_pattern(base)
