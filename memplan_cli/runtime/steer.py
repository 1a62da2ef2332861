"""The settings with which the runtime needs least memory, outputs unchanged, by prediction.

Execution order, reuse and the arena's first region are tried on the simulated planner and arena.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan_cli.core.results.figures import OBSERVED
from memplan_cli.core.results.observations import CPU, Peaks, RuntimeSettings
from memplan_cli.errors import RuntimeUnavailableError
from memplan_cli.runtime.candidates import (
    OWN_INITIALIZERS,
    Candidate,
    by_score,
    in_arena,
    quicker,
    without_pattern,
)
from memplan_cli.runtime.profile.in_place import version_warning
from memplan_cli.runtime.profile.workspace import as_requested, for_threads
from memplan_cli.runtime.simulate.arena import (
    ArenaSettings,
    held_after_runs,
    simulate_arena,
)
from memplan_cli.runtime.simulate.execution import trace_session
from memplan_cli.runtime.simulate.planner import ORDERS
from memplan_cli.runtime.simulate.predict import Executed, session_traces, simulated_model
from memplan_cli.runtime.simulate.regions import (
    EXACT,
    EXACT_UNSPLIT,
    ArenaChoice,
    best_arena,
    one_region,
    refined_arena,
)
from memplan_cli.runtime.simulate.trace import UnknownBytesError, rounded_up

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from memplan_cli.runtime.simulate.execution import SessionTraces
    from memplan_cli.runtime.simulate.trace import AllocationTrace

_THREADS = 16
"""Somebody else's threads: kernels that go piece by piece ask for a piece for each."""

_OF_ONE_RUN = (
    "branches, turns or sizes depend on data: what is predicted of the runtime holds for the "
    "inputs that were measured"
)

DEFAULTS = RuntimeSettings()
"""What a user has who sets nothing."""

GROWTH = (1.03, 1.08, 1.15, 1.3)
"""Larger first regions to try where kernels' workspace did not fit into the first one."""

_BY_DATA = "sizes depend on data: the settings are those that win on average"

_NEAR = 1.05
"""Peaks so near to the lowest may be held in a smaller arena."""


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Settings, and what they do.

    ``predicted.held`` leaves weights out; ``observed.held`` has them in, as the contract
    asks. ``observed`` is None where the model was not run. ``provider`` is whose settings
    these are.
    """

    settings: RuntimeSettings
    predicted: Peaks
    observed: Peaks | None = None
    notes: tuple[str, ...] = ()
    provider: str = CPU
    recorded_order: bool = False
    """Whether the order of execution won by the order in which runs were seen."""
    for_time: int = 0
    """Bytes that the arena holds for shorter runs."""

    @property
    def sources(self) -> Mapping[str, str]:
        """The settings that follow from what a run was seen to do, once one was seen."""
        found = sources_of(self.settings)
        recorded = {"session.execution_order": OBSERVED} if self.recorded_order else {}
        return {**recorded, **found}

    @property
    def rank(self) -> tuple[bool, int]:
        """Whether what the settings take is unknown, and the arena and first run's peak."""
        peaks = self.predicted
        unknown = peaks.first_run_peak is None or peaks.held is None
        return unknown, (peaks.first_run_peak or 0) + (peaks.held or 0) - self.for_time

    @property
    def measured(self) -> Peaks:
        """Return what was observed.

        Raises:
            RuntimeUnavailableError: nothing was: what is predicted never stands for it.
        """
        if self.observed is None:
            raise RuntimeUnavailableError("no settings could be measured")
        return self.observed


def sources_of(settings: RuntimeSettings) -> Mapping[str, str]:
    """Return the settings that are sized by kernels' workspace, which only a run shows."""
    key = "initial_chunk_size_bytes"
    return {f"arena.{key}": OBSERVED} if key in settings.arena else {}


def recommend_unmeasured(executed: Executed, base: RuntimeSettings) -> Recommendation:
    """Return the best settings by prediction alone: kernels' workspace is not in it."""
    try:
        best = best_predicted(executed, base, {})
    except UnknownBytesError:
        return Recommendation(tuned(base), Peaks(None, None), notes=(_BY_DATA,))
    return Recommendation(
        best.settings,
        dataclasses.replace(best.predicted, held=best.choice.held),
        notes=("predicted, not measured: kernels' workspace is not included",),
        for_time=best.for_time,
    )


def foreseen(
    executed: Executed, base: RuntimeSettings, workspace: Mapping[str, int]
) -> Recommendation:
    """Return the best settings by prediction, kernels' workspace in it as far as it is known.

    Execution orders and reuse with a low peak compete by the arena that suits each best.
    """
    try:
        best = _foreseen(executed, base, workspace)
    except UnknownBytesError:
        return Recommendation(tuned(base), Peaks(None, None), notes=(_BY_DATA,))
    return _recommended(best, executed.provider)


def with_best_arena(
    executed: Executed, settings: RuntimeSettings, workspace: Mapping[str, int]
) -> Recommendation | None:
    """Return settings with the arena that suits them best; None where sizes are not known.

    A memory pattern stays where it holds no more still.
    """
    base = RuntimeSettings() if settings.session.get("enable_mem_pattern") else settings
    try:
        found = [_with_arena(executed, without_pattern(settings), workspace)]
        best = _chosen(executed, found, base, workspace)
    except UnknownBytesError:
        return None
    return _recommended(best, executed.provider)


def _recommended(best: Candidate, provider: str) -> Recommendation:
    predicted = dataclasses.replace(best.predicted, held=best.choice.held)
    return Recommendation(best.settings, predicted, provider=provider, for_time=best.for_time)


def has_several_regions(choice: Recommendation) -> bool:
    """Whether an arena grows from a first region by others that are cut to fit exactly."""
    first = int(choice.settings.arena.get("initial_chunk_size_bytes", 0))
    return 0 < first < (choice.predicted.held or 0)


def in_one_region(choice: Recommendation) -> Recommendation:
    """Return settings whose arena begins with one region, somewhat larger than foreseen."""
    size = rounded_up((choice.predicted.held or 0) * GROWTH[1])
    return dataclasses.replace(
        choice,
        settings=dataclasses.replace(choice.settings, arena=one_region(size)),
        predicted=dataclasses.replace(choice.predicted, held=size),
    )


def held_under(
    executed: Executed, settings: RuntimeSettings, workspace: Mapping[str, int]
) -> int | None:
    """Return what an arena is predicted to hold beside weights; None where nobody can tell."""
    try:
        traces = session_traces(executed, settings, workspace)
    except UnknownBytesError:
        return None
    arena = ArenaSettings.from_settings(settings.arena)
    return simulate_arena(traces.in_order, arena).held


def _foreseen(
    executed: Executed, base: RuntimeSettings, workspace: Mapping[str, int]
) -> Candidate:
    peaks = [
        (traces.first.peak, settings, traces)
        for settings in _variants(executed, base)
        for traces in (session_traces(executed, settings, workspace),)
    ]
    lowest = min(peak for peak, _, _ in peaks)
    arenas: dict[AllocationTrace, ArenaChoice] = {}
    near: list[tuple[Candidate, SessionTraces]] = []
    for peak, settings, traces in peaks:
        if peak <= _NEAR * lowest:
            if traces.first not in arenas:  # several orders often make the same requests
                arenas[traces.first] = _arena_for(traces.first, executed.provider)
            # Without a memory pattern all runs are alike.
            predicted = Peaks(traces.first_peak, traces.first_peak)
            choice = arenas[traces.first]
            near.append((in_arena(base.updated(settings), predicted, choice), traces))
    return _chosen(executed, near, base, workspace)


def _with_arena(
    executed: Executed, settings: RuntimeSettings, workspace: Mapping[str, int]
) -> tuple[Candidate, SessionTraces]:
    traces = session_traces(executed, settings, workspace)
    choice = _arena_for(traces.first, executed.provider)
    peak = traces.first_peak
    return in_arena(settings, Peaks(peak, peak), choice), traces


def _chosen(
    executed: Executed,
    found: Sequence[tuple[Candidate, SessionTraces]],
    base: RuntimeSettings,
    workspace: Mapping[str, int],
) -> Candidate:
    """Return the best candidate, its arena searched for longer, and quicker where that is free."""
    best, traces = min(found, key=lambda item: by_score(item[0]))
    best = _in_finer_arena(executed, best, workspace, traces.first)
    return quicker(executed, best, base, workspace)


def _in_finer_arena(
    executed: Executed,
    best: Candidate,
    workspace: Mapping[str, int],
    trace: AllocationTrace,
) -> Candidate:
    """Return the same in the arena of a longer search, unless that holds more for many threads."""
    if executed.provider != CPU:
        return best
    found = refined_arena(trace, best.choice)
    if found is best.choice:
        return best
    one = as_requested(executed.program, executed.dims, workspace)
    wide = for_threads(one, _THREADS)
    if wide == one:  # no kernel goes piece by piece
        return in_arena(best.settings, best.predicted, found)
    many = trace_session(simulated_model(executed, best.settings), wide).first
    held, before = (
        held_after_runs(many, ArenaSettings.from_settings(choice.arena), runs=1)
        for choice in (found, best.choice)
    )
    return in_arena(best.settings, best.predicted, found) if held <= before else best


def _arena_for(trace: AllocationTrace, provider: str) -> ArenaChoice:
    # The CUDA arena cannot be told its first region from Python.
    return best_arena(trace) if provider == CPU else ArenaChoice(EXACT_UNSPLIT, 0)


def best_predicted(
    executed: Executed, base: RuntimeSettings, workspace: Mapping[str, int]
) -> Candidate:
    """Return the best of all orders and reuse, each with the arena that suits it."""
    found = [
        _with_arena(executed, settings, workspace) for settings in _variants(executed, base)
    ]
    return _chosen(executed, found, base, workspace)


def _variants(executed: Executed, base: RuntimeSettings) -> Iterator[RuntimeSettings]:
    """Yield every order and reuse to try; a dump under optimisation keeps its order."""
    fixed = base.session.get("execution_order")
    orders = [str(fixed)] if fixed else ["DEFAULT"] if executed.ordered else list(ORDERS)
    for order in orders:
        for reuse in (False, True):
            yield plain(base).updated(
                RuntimeSettings(session={"execution_order": order, "enable_mem_reuse": reuse})
            )


def plain(base: RuntimeSettings) -> RuntimeSettings:
    """Return settings without memory pattern and reuse."""
    return base.updated(
        RuntimeSettings(session={"enable_mem_pattern": False, "enable_mem_reuse": False})
    )


def tuned(base: RuntimeSettings) -> RuntimeSettings:
    """Return settings for sizes that depend on data: they win on average."""
    return plain(base).updated(RuntimeSettings(arena=EXACT, session_config=OWN_INITIALIZERS))


def held_without_weights(peaks: Peaks) -> int:
    """Return what was observed that the arena holds beside weights."""
    return (peaks.held or 0) - (peaks.weights or 0)


def caveats(graph: Executed) -> Iterator[str]:
    """Yield why what is predicted of a graph may not be what it takes."""
    if graph.observed:
        yield _OF_ONE_RUN
    other_version = version_warning(graph.provider)
    if other_version:
        yield other_version
