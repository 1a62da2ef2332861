"""Settings with the least predicted memory, on the simulated planner and arena of the runtime.

Execution orders, reuse and the arena's regions are tried. With the runtime's memory pattern the
first run asks for each tensor, and later ones for one block with a place for each: a run of a
millisecond or less is 5 to 20 % shorter, so the pattern is taken where it holds no more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING

from memplan_cli.core.results.observations import CPU, Peaks, RuntimeSettings
from memplan_cli.runtime.profile.in_place import version_warning
from memplan_cli.runtime.profile.record import PROFILE
from memplan_cli.runtime.profile.workspace import as_requested, for_threads
from memplan_cli.runtime.settings_search.choice import SettingsChoice
from memplan_cli.runtime.settings_search.speed import work_of
from memplan_cli.runtime.simulate.arena import (
    ArenaSettings,
    held_after_runs,
    simulate_arena,
)
from memplan_cli.runtime.simulate.execution import SessionTraces, trace_session
from memplan_cli.runtime.simulate.planner import ORDERS
from memplan_cli.runtime.simulate.predict import (
    ExecutedGraph,
    needs_run,
    session_traces,
    simulated_model,
)
from memplan_cli.runtime.simulate.regions import (
    EXACT,
    EXACT_UNSPLIT,
    OWN_INITIALIZERS,
    ArenaChoice,
    best_arena,
    one_region,
    refined_arena,
    shared_region,
)
from memplan_cli.runtime.simulate.trace import UnknownBytesError, rounded_up

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from memplan_cli.runtime.simulate.trace import AllocationTrace

SHORT_RUNS = (
    "sizes were assumed, and with a memory pattern others would hold more: it is off, and runs at "
    "these take up to a fifth longer than they need; --dim says the sizes"
)
"""The note of a model for which the pattern is off only because its sizes were assumed."""

_PATTERN = RuntimeSettings(session={"enable_mem_pattern": True})

_NO_PATTERN = RuntimeSettings(session={"enable_mem_pattern": False})

_NO_MORE = 1 << 17
"""Bytes that an arena may hold more for shorter runs: 1.5 % of what a session of nothing takes,
less than the difference of two measurements of one process."""

_ROOM = 4 << 10
"""Bytes of a region for workspace that was not predicted: a pattern's block leaves no holes."""

_WON = 0.01
"""Share of a run that a memory pattern has to save."""

_THREADS = 16
"""Intra-op threads of a user with many: kernels that go piece by piece ask for a piece for each."""

_NEAR = 1.05
"""Orders whose peak is within this factor of the lowest are tried with arenas too."""

_GROWTH = 1.08
"""Factor of a single region for what the prediction misses."""

_OF_ONE_RUN = (
    "branches, turns or sizes depend on data: what is predicted of the runtime holds for the "
    "inputs that were measured"
)

_BY_DATA = "sizes depend on data: the settings are those that win on average"

_NO_WORKSPACE = "predicted, not measured: kernels' workspace is not included"


@dataclass(frozen=True, slots=True)
class _Candidate:
    """Settings with the arena that suits them, what they are predicted to take, and their requests.

    ``for_time`` are bytes that the arena holds for shorter runs; they do not count in the score.
    """

    settings: RuntimeSettings
    predicted: Peaks
    arena: ArenaChoice
    traces: SessionTraces
    for_time: int = 0

    @property
    def score(self) -> tuple[int, int]:
        """Return the bytes of peak and arena together, and the peak to decide ties."""
        peak = self.predicted.first_run_peak or 0
        return peak + self.arena.held - self.for_time, peak


def predict_settings(
    executed: ExecutedGraph, base: RuntimeSettings, workspace: Mapping[str, int] | None = None
) -> SettingsChoice:
    """Return the settings of the least predicted memory.

    Execution orders and reuse whose peak is near the lowest compete with the arena that suits
    each best. Where sizes depend on data, the result is a set of options that wins on average.

    Args:
        executed: the graph that the runtime runs.
        base: settings that stay as they are.
        workspace: bytes that kernels request besides their outputs, by node; None if unknown.
    """
    try:
        found = _best_near_lowest_peak(executed, base, workspace or {})
    except UnknownBytesError:
        settings = _plain(base).updated(
            RuntimeSettings(arena=EXACT, session_config=OWN_INITIALIZERS)
        )
        return SettingsChoice(
            settings, Peaks(None, None), notes=(_BY_DATA,), provider=executed.provider
        )
    choice = _choice_of(found, executed.provider)
    return choice if workspace is not None else replace(choice, notes=(_NO_WORKSPACE,))


def predict_arena(
    executed: ExecutedGraph, settings: RuntimeSettings, workspace: Mapping[str, int]
) -> SettingsChoice | None:
    """Return settings with the arena that suits them best; None if sizes are not known.

    A memory pattern stays if it holds no more.
    """
    base = RuntimeSettings() if settings.session.get("enable_mem_pattern") else settings
    try:
        candidate = _with_arena(executed, without_pattern(settings), workspace)
        found = _refined(executed, candidate, base, workspace)
    except UnknownBytesError:
        return None
    return _choice_of(found, executed.provider)


def has_several_regions(choice: SettingsChoice) -> bool:
    """Return whether an arena grows from a first region by others that are cut to fit exactly."""
    first = int(choice.settings.arena.get("initial_chunk_size_bytes", 0))
    return 0 < first < (choice.predicted.held or 0)


def in_one_region(choice: SettingsChoice) -> SettingsChoice:
    """Return settings whose arena begins with one region, somewhat larger than predicted."""
    size = rounded_up((choice.predicted.held or 0) * _GROWTH)
    return replace(
        choice,
        settings=replace(choice.settings, arena=one_region(size)),
        predicted=replace(choice.predicted, held=size),
    )


def predict_held(
    executed: ExecutedGraph, settings: RuntimeSettings, workspace: Mapping[str, int]
) -> int | None:
    """Return what an arena is predicted to hold beside weights; None if sizes are not known."""
    try:
        traces = session_traces(executed, settings, workspace)
    except UnknownBytesError:
        return None
    return simulate_arena(traces.in_order, ArenaSettings.from_settings(settings.arena)).held


def would_have_pattern(
    executed: ExecutedGraph, settings: RuntimeSettings, held: int, workspace: Mapping[str, int]
) -> bool:
    """Return whether a memory pattern would be taken if no size had been assumed.

    Args:
        executed: the graph that the runtime runs.
        settings: under which it ran.
        held: bytes that its arena held.
        workspace: bytes that kernels request besides their outputs, by node.
    """
    if executed.provider != CPU or needs_run(executed):
        return False
    traces = session_traces(executed, settings, workspace)
    peaks = Peaks(traces.first_peak, traces.first_peak)
    now = _Candidate(settings, peaks, ArenaChoice(settings.arena, held), traces)
    return _with_pattern(executed, now, RuntimeSettings(), workspace) is not now


def without_pattern(settings: RuntimeSettings) -> RuntimeSettings:
    """Return settings with the memory pattern off."""
    return settings.updated(_NO_PATTERN)


def settings_for_sizes(base: RuntimeSettings, assumed: Collection[str]) -> RuntimeSettings:
    """Return settings with the pattern off if sizes were assumed: others are to come.

    At sizes other than the arena's, a memory pattern holds both what the first run of a size
    requests piece by piece, and the block of the later ones.
    """
    return without_pattern(base) if assumed else base


def settings_as_recorded(base: RuntimeSettings, recorded: RuntimeSettings) -> RuntimeSettings:
    """Return settings with the memory pattern off if a written file records that."""
    return base if recorded.session.get("enable_mem_pattern", True) else without_pattern(base)


def caveats(graph: ExecutedGraph) -> Iterator[str]:
    """Yield why the predictions of a graph may differ from what it takes."""
    if graph.observed:
        yield _OF_ONE_RUN
    other_version = version_warning(graph.provider)
    if other_version:
        yield other_version


def _choice_of(found: _Candidate, provider: str) -> SettingsChoice:
    predicted = replace(found.predicted, held=found.arena.held)
    return SettingsChoice(
        found.settings, predicted, provider=provider, for_time=found.for_time
    )


def _best_near_lowest_peak(
    executed: ExecutedGraph, base: RuntimeSettings, workspace: Mapping[str, int]
) -> _Candidate:
    """Return the best of all orders and reuse whose peak is near the lowest one."""
    every = [
        (settings, session_traces(executed, settings, workspace))
        for settings in _variants(executed, base)
    ]
    lowest = min(traces.first.peak for _, traces in every)
    arenas: dict[AllocationTrace, ArenaChoice] = {}
    near: list[_Candidate] = []
    for settings, traces in every:
        if traces.first.peak <= _NEAR * lowest:
            if traces.first not in arenas:  # several orders often make the same requests
                arenas[traces.first] = _arena_for(traces.first, executed.provider)
            near.append(_in_arena(base.updated(settings), traces, arenas[traces.first]))
    return _refined(executed, min(near, key=attrgetter("score")), base, workspace)


def _variants(executed: ExecutedGraph, base: RuntimeSettings) -> Iterator[RuntimeSettings]:
    """Yield every order and reuse to try; the graph of an optimised session keeps its order."""
    fixed = base.session.get("execution_order")
    orders = [str(fixed)] if fixed else ["DEFAULT"] if executed.in_run_order else list(ORDERS)
    for order in orders:
        for reuse in (False, True):
            yield _plain(base).updated(
                RuntimeSettings(session={"execution_order": order, "enable_mem_reuse": reuse})
            )


def _plain(base: RuntimeSettings) -> RuntimeSettings:
    """Return settings without memory pattern and reuse."""
    off = {"enable_mem_pattern": False, "enable_mem_reuse": False}
    return base.updated(RuntimeSettings(session=off))


def _with_arena(
    executed: ExecutedGraph, settings: RuntimeSettings, workspace: Mapping[str, int]
) -> _Candidate:
    traces = session_traces(executed, settings, workspace)
    return _in_arena(settings, traces, _arena_for(traces.first, executed.provider))


def _arena_for(trace: AllocationTrace, provider: str) -> ArenaChoice:
    # The CUDA arena cannot be told its first region from Python.
    return best_arena(trace) if provider == CPU else ArenaChoice(EXACT_UNSPLIT, 0)


def _in_arena(
    settings: RuntimeSettings, traces: SessionTraces, arena: ArenaChoice
) -> _Candidate:
    """Return settings with an arena that holds tensors alone, without a memory pattern."""
    own = settings.updated(RuntimeSettings(session_config=OWN_INITIALIZERS))
    # Without a memory pattern all runs are alike.
    peaks = Peaks(traces.first_peak, traces.first_peak)
    return _Candidate(replace(own, arena=arena.arena), peaks, arena, traces)


def _refined(
    executed: ExecutedGraph,
    best: _Candidate,
    base: RuntimeSettings,
    workspace: Mapping[str, int],
) -> _Candidate:
    """Return a candidate with its arena searched for longer, and a memory pattern if it is free."""
    best = _in_finer_arena(executed, best, workspace)
    return _with_pattern(executed, best, base, workspace)


def _in_finer_arena(
    executed: ExecutedGraph, best: _Candidate, workspace: Mapping[str, int]
) -> _Candidate:
    """Return a candidate in the arena of a longer search, unless that holds more for many threads."""
    if executed.provider != CPU:
        return best
    found = refined_arena(best.traces.first, best.arena)
    if found is best.arena:
        return best
    one = as_requested(executed.program, executed.dims, workspace)
    wide = for_threads(one, _THREADS)
    if wide != one:  # a kernel goes piece by piece
        many = trace_session(simulated_model(executed, best.settings), wide).first
        held, before = (
            held_after_runs(many, ArenaSettings.from_settings(choice.arena), runs=1)
            for choice in (found, best.arena)
        )
        if held > before:
            return best
    return _in_arena(best.settings, best.traces, found)


def _with_pattern(
    executed: ExecutedGraph,
    best: _Candidate,
    base: RuntimeSettings,
    workspace: Mapping[str, int],
) -> _Candidate:
    """Return a candidate with a memory pattern if runs are shorter with it at no more memory.

    The first run of some sizes requests each tensor, later ones one block with a place for
    each. Where data decides sizes, or subgraphs run, another run's block may not do.
    """
    if "enable_mem_pattern" in base.session or executed.provider != CPU or needs_run(executed):
        return best
    settings = best.settings.updated(_PATTERN)
    traces = session_traces(executed, settings, workspace)
    won = PROFILE.arena_call_work * traces.saved_allocations
    if won < _WON * work_of(executed.program, executed.dims):
        return best
    most = best.arena.held + _NO_MORE
    lowest = max(trace.peak for trace in traces.in_order)
    region = shared_region(lambda: traces.in_order, lowest) if 0 < lowest <= most else None
    if region is None or region + _ROOM > most:
        return best
    arena = ArenaChoice(one_region(region + _ROOM), region + _ROOM)
    found = _in_arena(settings, traces, arena)
    return replace(
        found,
        predicted=Peaks(traces.first_peak, traces.later_peak),
        for_time=arena.held - best.arena.held,
    )
