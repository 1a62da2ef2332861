"""Choice of the settings with which a serving process needs least memory, for requests of any size.

An arena that grows keeps the regions that one sequence of sizes needed, and the next sequence finds
holes of the wrong sizes. One region with room for every single request is empty again after each. So
each request finds the arena in the same state, and the region bounds what is held in any sequence.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from memplan_cli.core.results.observations import RuntimeSettings
from memplan_cli.core.serialization import Keys  # noqa: TC001 - a type to read by
from memplan_cli.features.serving.sizes import SEQUENCES, requests_among
from memplan_cli.runtime.simulate.arena import UNLIMITED, ArenaSettings, simulate_arena
from memplan_cli.runtime.simulate.regions import (
    EXACT_UNSPLIT,
    OWN_INITIALIZERS,
    ArenaChoice,
    best_arena,
    one_region,
    shared_region,
    shared_regions,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from memplan_cli.features.serving.loads import SampledSizes
    from memplan_cli.features.serving.sizes import Point
    from memplan_cli.runtime.simulate.arena import AfterRun
    from memplan_cli.runtime.simulate.execution import SessionTraces
    from memplan_cli.runtime.simulate.trace import AllocationTrace

DEFAULTS = "defaults"
NO_ARENA = "no arena"
SHRUNK = "exact growth, shrunk after each run"
ONE_REGION = "one region for the largest request"
FEW_REGIONS = "a few regions for the largest request"

_SHRINKING = {"memory.enable_memory_arena_shrinkage": "cpu:0"}

_NO_PATTERN = RuntimeSettings(session={"enable_mem_pattern": False})

_EXACT = _NO_PATTERN.updated(
    RuntimeSettings(arena=EXACT_UNSPLIT, session_config=OWN_INITIALIZERS)
)

HAND_MADE: Mapping[str, RuntimeSettings] = {
    DEFAULTS: RuntimeSettings(),
    NO_ARENA: _NO_PATTERN.updated(RuntimeSettings(session={"enable_cpu_mem_arena": False})),
    "pattern off": _NO_PATTERN,
    "exact growth": _EXACT,
    SHRUNK: _EXACT.updated(RuntimeSettings(run_config=_SHRINKING)),
}
"""Settings that users choose by hand, by name."""

_REUSE_OFF = RuntimeSettings(session={"enable_mem_reuse": False})

_REQUESTS = 48
"""Requests of each simulated sequence."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """Settings, and the bytes that the arena is predicted to hold under them, without weights.

    Attributes:
        name: the name of the settings.
        settings: the runtime's options.
        highest: the most bytes held in the simulated sequences of requests.
        bound: the most bytes held in any sequence; null: it depends on the sequence.
    """

    json_keys: ClassVar[Keys] = ("name", ("held", "highest"), "bound")

    name: str
    settings: RuntimeSettings
    highest: int
    bound: int | None = None


@dataclass(frozen=True, slots=True)
class ServingSettings:
    """The settings that are chosen for all sizes within bounds.

    Attributes:
        chosen: the chosen candidate.
        candidates: all candidates.
        live: the most bytes in use at once in the largest single request.
        looked_at: how many sizes were simulated.
        sizes: how many sizes there are.
        workspace: whether the workspace of kernels was measured and is included.
    """

    json_keys: ClassVar[Keys] = (
        ("bound", "chosen.bound"),
        ("live_peak", "live"),
        "sizes",
        ("sizes_simulated", "looked_at"),
        ("workspace_measured", "workspace"),
        ("chosen", "chosen.name"),
        "candidates",
    )

    chosen: Candidate
    candidates: tuple[Candidate, ...]
    live: int
    looked_at: int
    sizes: int
    workspace: bool

    def in_regions(self, factor: float) -> ServingSettings:
        """Return the settings with larger regions. The chosen candidate must have a bound."""
        arena = ArenaChoice(self.chosen.settings.arena, self.chosen.bound or 0).enlarged(
            factor
        )
        settings = replace(self.chosen.settings, arena=arena.arena)
        return self._with_chosen(
            replace(self.chosen, settings=settings, highest=arena.held, bound=arena.held)
        )

    def unbounded(self) -> ServingSettings:
        """Choose, among the candidates without a bound, the one that holds least in the simulation."""
        growing = [one for one in self.candidates if one.bound is None and one.settings.arena]
        return self._with_chosen(min(growing, key=lambda one: one.highest))

    def _with_chosen(self, chosen: Candidate) -> ServingSettings:
        kept = (chosen if one.name == chosen.name else one for one in self.candidates)
        return replace(self, chosen=chosen, candidates=tuple(kept))

    @property
    def exhaustive(self) -> bool:
        """Whether every size within the bounds was simulated."""
        return self.looked_at == self.sizes


def choose(
    served: SampledSizes, sizes: int, base: RuntimeSettings | None = None, seed: int = 0
) -> ServingSettings:
    """Return the settings with the lowest bound, or if none has one, that hold least in simulation.

    Args:
        served: the simulated sizes.
        sizes: number of sizes within the bounds.
        base: settings that must not change.
        seed: of the simulated sequences.
    """
    candidates = tuple(_candidates(served, base or RuntimeSettings(), seed))
    bounded = [one for one in candidates if one.bound is not None]
    chosen = min(bounded or candidates, key=lambda one: one.bound or one.highest)
    live = _largest_peak(served.loads(chosen.settings))
    return ServingSettings(chosen, candidates, live, served.count, sizes, served.measured)


def _candidates(served: SampledSizes, base: RuntimeSettings, seed: int) -> Iterator[Candidate]:
    """Yield the hand-made settings and the bounded arenas, with and without buffer reuse."""
    for reuse in (RuntimeSettings(), _REUSE_OFF):
        suffix = ", reuse off" if reuse.session else ""
        loads = served.loads(base.updated(_NO_PATTERN).updated(reuse))
        for name, settings in HAND_MADE.items():
            if name == DEFAULTS and suffix:
                continue
            together = base.updated(settings).updated(reuse)
            own = served.loads(together) if name == DEFAULTS else loads
            yield Candidate(name + suffix, together, _highest(own, together, seed))
        plain = base.updated(_NO_PATTERN).updated(reuse)
        for name, choice in _bounded(served, plain, loads):
            region = RuntimeSettings(arena=choice.arena, session_config=OWN_INITIALIZERS)
            settings = plain.updated(region)
            yield Candidate(name + suffix, settings, choice.held, choice.held)


def _bounded(
    served: SampledSizes, plain: RuntimeSettings, loads: Mapping[Point, SessionTraces]
) -> Iterator[tuple[str, ArenaChoice]]:
    """Yield arenas that do not grow in any sequence of requests, with their names."""
    every_size = partial(served.first_requests, plain)
    size = shared_region(every_size, _largest_peak(loads))
    if size is not None:
        yield ONE_REGION, ArenaChoice(one_region(size), size)
    largest = next(iter(served.loads(plain).values())).first
    several = shared_regions(
        every_size, best_arena(largest), UNLIMITED if size is None else size
    )
    if several is not None:
        yield FEW_REGIONS, several


def _largest_peak(loads: Mapping[Point, SessionTraces]) -> int:
    """Return the most bytes in use at once in any single request, in whole chunks."""
    return max(load.first.peak for load in loads.values())


def _highest(
    loads: Mapping[Point, SessionTraces], settings: RuntimeSettings, seed: int
) -> int:
    """Return the most bytes that an arena holds over sequences of all kinds."""
    if settings.session.get("enable_cpu_mem_arena") is False:
        return _largest_peak(loads)
    arena = ArenaSettings.from_settings(settings.arena)
    after_run: AfterRun = "shrink" if settings.run_config else "keep"
    points = tuple(loads)
    orders = (requests_among(points, name, _REQUESTS, seed) for name in SEQUENCES)
    return max(
        simulate_arena(_traces(loads, order), arena, after_run=after_run).most_held
        for order in orders
    )


def _traces(
    loads: Mapping[Point, SessionTraces], order: tuple[Point, ...]
) -> Iterator[AllocationTrace]:
    """Yield the trace of each request in turn. The first of each size traces a memory pattern."""
    seen: set[Point] = set()
    for point in order:
        yield loads[point].later if point in seen else loads[point].first
        seen.add(point)
