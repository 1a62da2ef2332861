"""Choose the settings with which a process that serves requests of any size needs least memory.

An arena that grows keeps the regions that one sequence of sizes needed, and the next sequence finds
holes of the wrong sizes. One region in which every single request fits is empty after each request.
So each request finds the arena in the same state, and the size of the region is the most that the
arena holds for any sequence of requests.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from memplan_cli.core.results.observations import RuntimeSettings
from memplan_cli.core.serialization import Keys  # noqa: TC001 - a type to read by
from memplan_cli.features.serving.loads import NO_MEMORY_PATTERN
from memplan_cli.features.serving.sizes import SEQUENCES, request_sizes_among
from memplan_cli.runtime.simulate.arena import ArenaSettings, simulate_arena
from memplan_cli.runtime.simulate.regions import (
    EXACT_UNSPLIT,
    OWN_INITIALIZERS,
    RELEASE_AFTER_RUN,
    one_region,
    shared_region,
)
from memplan_cli.runtime.simulate.trace import rounded_up

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

_MANUAL_SETTINGS: Mapping[str, RuntimeSettings] = {
    NO_ARENA: RuntimeSettings(session={"enable_cpu_mem_arena": False}),
    SHRUNK: RuntimeSettings(
        arena=EXACT_UNSPLIT, session_config=OWN_INITIALIZERS, run_config=RELEASE_AFTER_RUN
    ),
}
"""Common settings that users choose without a search, besides the defaults, by name. They are used
without a memory pattern."""

_REUSE_OFF = RuntimeSettings(session={"enable_mem_reuse": False})

_SIMULATED_REQUESTS = 48
"""Requests of each simulated sequence."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """Settings, and the bytes that the arena is predicted to hold under them, without weights.

    Attributes:
        name: describes the settings to the user.
        held: the most bytes held in the simulated sequences of requests; the bound, if there is one.
        bound: the most bytes held in any sequence; null if that depends on the sequence.
    """

    json_keys: ClassVar[Keys] = ("name", "held", "bound")

    name: str
    settings: RuntimeSettings
    held: int
    bound: int | None = None


@dataclass(frozen=True, slots=True)
class ServingSettings:
    """The settings that are chosen for all sizes within bounds.

    Attributes:
        live_bytes: the most bytes in use at once in any single request.
        simulated_sizes: how many sizes were simulated.
        sizes: how many sizes there are.
        workspace_measured: whether the workspace of kernels was measured and is included.
    """

    json_keys: ClassVar[Keys] = (
        ("bound", "chosen.bound"),
        ("live_peak", "live_bytes"),
        "sizes",
        ("sizes_simulated", "simulated_sizes"),
        "workspace_measured",
        ("chosen", "chosen.name"),
        "candidates",
    )

    chosen: Candidate
    candidates: tuple[Candidate, ...]
    live_bytes: int
    simulated_sizes: int
    sizes: int
    workspace_measured: bool

    def with_larger_region(self, factor: float) -> ServingSettings:
        """Return the settings with a region, which is the chosen candidate's bound, larger by a factor."""
        size = rounded_up((self.chosen.bound or 0) * factor)
        settings = replace(self.chosen.settings, arena=one_region(size))
        return self._with_chosen(
            replace(self.chosen, settings=settings, held=size, bound=size)
        )

    def unbounded(self) -> ServingSettings:
        """Choose an arena that grows exactly and is shrunk, the one that holds less in simulation."""
        # Two candidates: with buffer reuse and without.
        shrunk = [c for c in self.candidates if c.name.startswith(SHRUNK)]
        return self._with_chosen(min(shrunk, key=lambda candidate: candidate.held))

    def _with_chosen(self, chosen: Candidate) -> ServingSettings:
        """Return the settings with this choice, which replaces the candidate with its name."""
        candidates = tuple(
            chosen if candidate.name == chosen.name else candidate
            for candidate in self.candidates
        )
        return replace(self, chosen=chosen, candidates=candidates)

    @property
    def exhaustive(self) -> bool:
        """Whether every size within the bounds was simulated."""
        return self.simulated_sizes == self.sizes


def choose_settings(
    sampled: SampledSizes, size_count: int, base: RuntimeSettings | None = None
) -> ServingSettings:
    """Return the settings with the lowest bound of the arena's bytes, `Candidate.bound`.

    If no candidate has a bound, those whose arena holds least when the sampled sizes are simulated.
    ``size_count`` is the number of all sizes that requests may have, sampled or not. All candidates
    contain the options of ``base``.
    """
    candidates = tuple(_candidates(sampled, base or RuntimeSettings()))
    bounded = [candidate for candidate in candidates if candidate.bound is not None]
    # With a bound, `held` is the bound; without one, it is simulated.
    chosen = min(bounded or candidates, key=lambda candidate: candidate.held)
    return ServingSettings(
        chosen,
        candidates,
        live_bytes=_largest_peak(sampled.traces(chosen.settings)),
        simulated_sizes=len(sampled.executed),
        sizes=size_count,
        workspace_measured=sampled.workspace is not None,
    )


def _candidates(sampled: SampledSizes, base: RuntimeSettings) -> Iterator[Candidate]:
    """Yield the defaults, and the candidates without a memory pattern, with and without buffer reuse."""
    yield Candidate(DEFAULTS, base, _most_held(sampled.traces(base), base))
    yield from _candidates_without_pattern(sampled, base, RuntimeSettings(), suffix="")
    yield from _candidates_without_pattern(sampled, base, _REUSE_OFF, suffix=", reuse off")


def _candidates_without_pattern(
    sampled: SampledSizes, base: RuntimeSettings, reuse_setting: RuntimeSettings, suffix: str
) -> Iterator[Candidate]:
    """Yield a candidate for each of `_MANUAL_SETTINGS`, and one whose arena is a single region.

    All candidates have the options of the user (``base``), no memory pattern, and ``reuse_setting``: whether
    buffers are reused. Their names end in ``suffix``.
    """
    common = base.updated(NO_MEMORY_PATTERN).updated(reuse_setting)
    traces = sampled.traces(common)  # the same for all candidates
    for name, manual in _MANUAL_SETTINGS.items():
        settings = common.updated(manual)
        yield Candidate(name + suffix, settings, _most_held(traces, settings))
    # Without a memory pattern, the first run at a size allocates as later ones do.
    first_runs = [trace.first for trace in traces.values()]
    # In a region smaller than the largest peak, the run of that peak does not fit.
    size = shared_region(first_runs, lowest=_largest_peak(traces))
    if size is not None:  # a region can be large enough for a run at any sampled size
        # Weights get memory of their own: in the arena they would take the region.
        arena = RuntimeSettings(arena=one_region(size), session_config=OWN_INITIALIZERS)
        settings = common.updated(arena)
        # The arena holds this region and nothing else, after any sequence of runs.
        yield Candidate(ONE_REGION + suffix, settings, held=size, bound=size)


def _largest_peak(traces: Mapping[Point, SessionTraces]) -> int:
    """Return the most bytes in use at once in any single request, in whole chunks of the arena."""
    return max(trace.first.rounded_peak for trace in traces.values())


def _most_held(traces: Mapping[Point, SessionTraces], settings: RuntimeSettings) -> int:
    """Return the most bytes that an arena holds over simulated sequences of every order.

    Without an arena, that is the largest peak of a single request.
    """
    if settings.session.get("enable_cpu_mem_arena") is False:
        return _largest_peak(traces)
    arena = ArenaSettings.from_settings(settings.arena)
    # The only option of a run is to shrink the arena after it.
    after_run: AfterRun = "shrink" if settings.run_config else "keep"
    sizes = tuple(traces)
    sequences = (request_sizes_among(sizes, order, _SIMULATED_REQUESTS) for order in SEQUENCES)
    return max(
        simulate_arena(
            _traces_in_order(traces, sequence), arena, after_run=after_run
        ).most_held
        for sequence in sequences
    )


def _traces_in_order(
    traces: Mapping[Point, SessionTraces], sequence: tuple[Point, ...]
) -> Iterator[AllocationTrace]:
    """Yield the trace of each request of a sequence.

    The first request of a size differs from later ones: it records the memory pattern.
    """
    served: set[Point] = set()
    for size in sequence:
        yield traces[size].later if size in served else traces[size].first
        served.add(size)
