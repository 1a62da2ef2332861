"""A search for the settings with which the runtime needs least memory, outputs unchanged.

Chosen by prediction: execution order, reuse and the arena's first region are tried on the
simulated planner and arena. Confirmed by measurement where the model can run; what is
measured wins over what was predicted.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan_cli.core.results.figures import OBSERVED
from memplan_cli.core.results.observations import CPU, Peaks, RuntimeSettings
from memplan_cli.errors import RuntimeUnavailableError
from memplan_cli.runtime.measuring.measure import Trial, measure, record, workspace_of
from memplan_cli.runtime.simulation.bfc import ArenaRules
from memplan_cli.runtime.simulation.ledger import UnknownBytesError
from memplan_cli.runtime.simulation.order import ORDERS
from memplan_cli.runtime.simulation.predict import Executed, model_of, predict
from memplan_cli.runtime.simulation.region import (
    EXACT,
    EXACT_UNSPLIT,
    ArenaChoice,
    best_arena,
    one_chunk,
    rounded,
)
from memplan_cli.runtime.simulation.requests import held_after, most_in_use, run_of
from memplan_cli.runtime.simulation.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from memplan_cli.core.results.observations import Setting
    from memplan_cli.runtime.simulation.trace import Request
    from memplan_cli.runtime.workers.profile import Recording

DEFAULTS = RuntimeSettings()
"""What a user has who sets nothing."""

_BY_PRIORITY = RuntimeSettings(session={"execution_order": "PRIORITY_BASED"})

_OWN_INITIALIZERS = {"session.use_device_allocator_for_initializers": "1"}
"""Weights get memory of their own size: in the arena they would take its first region."""

_GROWTH = (1.03, 1.08, 1.15, 1.3)
"""Larger first regions to try where kernels' workspace did not fit into the first one."""

_ROOM = (1.1, 1.25, 1.5)
"""First regions to try where sizes depend on data, as multiples of the peak measured."""

_BY_DATA = "sizes depend on data: the settings are those that win on average"

_NEAR = 1.05
"""Peaks so near to the lowest may be held in a smaller arena."""

_ENDLESS = 1 << 62
"""Bytes that no arena holds: the last attempt is never one too many."""


MOST_RUNS = 1 + 2 + (1 + len(_GROWTH) + 1) + 1
"""Processes of one search: workspace, an order seen twice, arenas, and the choice measured."""


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

    @property
    def sources(self) -> Mapping[str, str]:
        """The settings that follow from what a run was seen to do, once one was seen."""
        found = sources_of(self.settings)
        recorded = {"session.execution_order": OBSERVED} if self.recorded_order else {}
        return {**recorded, **found}

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


@dataclass(frozen=True, slots=True)
class _Candidate:
    settings: RuntimeSettings
    predicted: Peaks
    choice: ArenaChoice

    @property
    def score(self) -> tuple[int, int]:
        """Less of both together is better; a tie goes to the lower peak."""
        peak = self.predicted.first_run_peak or 0
        return peak + self.choice.held, peak


def recommend(
    model: Path, executed: Executed, base: RuntimeSettings, trial: Trial | None = None
) -> Recommendation:
    """Return the best settings for a model, measured.

    Args:
        model: a file whose weights are there.
        executed: the graph it runs, from `executed_graph` or from the file's program.
        base: what must stay as it is: the optimisation level, CSE off, threads.
        trial: how to run it.

    Raises:
        RuntimeUnavailableError: the model does not run here.
    """
    trial = trial or Trial()
    recorded = False
    try:
        workspace = workspace_of(model, _plain(base), trial)
        best = _best(executed, base, workspace)
        if executed.ordered and "execution_order" not in base.session:
            by_priority = base.updated(_BY_PRIORITY)
            seen = _always_so(model, executed, _plain(by_priority), trial)
            if seen:
                other = _best(seen, by_priority, workspace)
                recorded = other.score < best.score
                best = other if recorded else best
    except UnknownBytesError:
        return _by_measurement(model, base, trial)
    found = _confirmed(model, best, trial, executed.provider)
    return dataclasses.replace(found, recorded_order=recorded)


def as_recorded(executed: Executed, recording: Recording) -> Executed | None:
    """Return a graph in the order in which a run was seen; None where it cannot be told.

    A dump does not say the index that optimisation gave to each node, so the order of
    PRIORITY_BASED, which goes by it, has to be seen.
    """
    body = executed.program.body
    ops = {op.name: op for op in body.ops}
    seen = [event.name for event in recording.runs[0] if event.name in ops]
    if len(seen) != len(body.ops) or len(set(seen)) != len(seen):
        return None
    ordered = dataclasses.replace(body, ops=tuple(ops[name] for name in seen))
    program = dataclasses.replace(executed.program, body=ordered)
    return dataclasses.replace(executed, program=program)


def _always_so(
    model: Path, executed: Executed, settings: RuntimeSettings, trial: Trial
) -> Executed | None:
    """Return the graph in the order of its run, if two sessions run it in the same order.

    Where layouts are blocked, the runtime numbers its new nodes anew in each session
    (1.31.1), and an order that goes by the numbers is another one each time.
    """
    once = dataclasses.replace(trial, runs=1, timing_runs=0)
    first, second = (as_recorded(executed, record(model, settings, once)) for _ in range(2))
    if first is None or second is None:
        return None
    same = first.program.body.ops == second.program.body.ops
    return first if same else None


def recommend_unmeasured(executed: Executed, base: RuntimeSettings) -> Recommendation:
    """Return the best settings by prediction alone: kernels' workspace is not in it."""
    try:
        best = _best(executed, base, {})
    except UnknownBytesError:
        return Recommendation(_tuned(base), Peaks(None, None), notes=(_BY_DATA,))
    return Recommendation(
        best.settings,
        dataclasses.replace(best.predicted, held=best.choice.held),
        notes=("predicted, not measured: kernels' workspace is not included",),
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
        return Recommendation(_tuned(base), Peaks(None, None), notes=(_BY_DATA,))
    predicted = dataclasses.replace(best.predicted, held=best.choice.held)
    return Recommendation(best.settings, predicted, provider=executed.provider)


def with_best_arena(
    executed: Executed, settings: RuntimeSettings, workspace: Mapping[str, int]
) -> Recommendation | None:
    """Return settings with the arena that suits them best; None where sizes are not known."""
    try:
        best = _with_arena(executed, settings, workspace)
    except UnknownBytesError:
        return None
    predicted = dataclasses.replace(best.predicted, held=best.choice.held)
    return Recommendation(best.settings, predicted, provider=executed.provider)


def has_several_regions(choice: Recommendation) -> bool:
    """Whether an arena grows from a first region by others that are cut to fit exactly."""
    first = int(choice.settings.arena.get("initial_chunk_size_bytes", 0))
    return 0 < first < (choice.predicted.held or 0)


def in_one_region(choice: Recommendation) -> Recommendation:
    """Return settings whose arena begins with one region, somewhat larger than foreseen."""
    size = rounded((choice.predicted.held or 0) * _GROWTH[1])
    return dataclasses.replace(
        choice,
        settings=dataclasses.replace(choice.settings, arena=one_chunk(size)),
        predicted=dataclasses.replace(choice.predicted, held=size),
    )


def held_under(
    executed: Executed, settings: RuntimeSettings, workspace: Mapping[str, int]
) -> int | None:
    """Return what an arena is predicted to hold beside weights; None where nobody can tell."""
    try:
        requests = run_of(model_of(executed, settings), workspace).requests
    except UnknownBytesError:
        return None
    return held_after(requests, ArenaRules.from_settings(settings.arena))


def _foreseen(
    executed: Executed, base: RuntimeSettings, workspace: Mapping[str, int]
) -> _Candidate:
    peaks = [
        (most_in_use(run.requests), settings, run)
        for settings in _variants(executed, base)
        for run in (run_of(model_of(executed, settings), workspace),)
    ]
    lowest = min(peak for peak, _, _ in peaks)
    arenas: dict[Trace, ArenaChoice] = {}
    near: list[_Candidate] = []
    for peak, settings, run in peaks:
        if peak <= _NEAR * lowest:
            trace = Trace.of(run.requests)
            if trace not in arenas:  # several orders often ask for the same in turn
                arenas[trace] = _arena_for(run.requests, executed.provider)
            # Without a memory pattern all runs are alike.
            predicted = Peaks(run.peak, run.peak)
            near.append(_in_arena(base.updated(settings), predicted, arenas[trace]))
    return min(near, key=lambda candidate: candidate.score)


def _with_arena(
    executed: Executed, settings: RuntimeSettings, workspace: Mapping[str, int]
) -> _Candidate:
    requests = run_of(model_of(executed, settings), workspace).requests
    predicted = predict(executed, settings)
    return _in_arena(settings, predicted, _arena_for(requests, executed.provider))


def _arena_for(requests: Sequence[Request], provider: str) -> ArenaChoice:
    # The CUDA arena cannot be told its first region from Python.
    return best_arena(requests) if provider == CPU else ArenaChoice(EXACT_UNSPLIT, 0)


def _in_arena(settings: RuntimeSettings, predicted: Peaks, choice: ArenaChoice) -> _Candidate:
    chosen = dataclasses.replace(
        settings.updated(RuntimeSettings(session_config=_OWN_INITIALIZERS)),
        arena=choice.arena,
    )
    return _Candidate(chosen, predicted, choice)


def _best(
    executed: Executed, base: RuntimeSettings, workspace: Mapping[str, int]
) -> _Candidate:
    found = (
        _with_arena(executed, settings, workspace) for settings in _variants(executed, base)
    )
    return min(found, key=lambda candidate: candidate.score)


def _variants(executed: Executed, base: RuntimeSettings) -> Iterator[RuntimeSettings]:
    """Yield every order and reuse to try; a dump under optimisation keeps its order."""
    fixed = base.session.get("execution_order")
    orders = [str(fixed)] if fixed else ["DEFAULT"] if executed.ordered else list(ORDERS)
    for order in orders:
        for reuse in (False, True):
            yield _plain(base).updated(
                RuntimeSettings(session={"execution_order": order, "enable_mem_reuse": reuse})
            )


def _plain(base: RuntimeSettings) -> RuntimeSettings:
    return base.updated(
        RuntimeSettings(session={"enable_mem_pattern": False, "enable_mem_reuse": False})
    )


def _tuned(base: RuntimeSettings) -> RuntimeSettings:
    return _plain(base).updated(RuntimeSettings(arena=EXACT, session_config=_OWN_INITIALIZERS))


def _confirmed(model: Path, best: _Candidate, trial: Trial, provider: str) -> Recommendation:
    """Measure the choice; where the first region was too small, measure larger ones."""
    predicted = dataclasses.replace(best.predicted, held=best.choice.held)
    if provider != CPU or not best.choice.chunk:
        observed = measure(model, best.settings, trial)
        return Recommendation(best.settings, predicted, observed)
    quick = dataclasses.replace(trial, timing_runs=0, runs=2)
    measured: list[tuple[int, RuntimeSettings]] = []
    for expected, arena in _attempts(best.choice):
        settings = dataclasses.replace(best.settings, arena=arena)
        held = held_without_weights(measure(model, settings, quick))
        measured.append((held, settings))
        if held <= expected:
            break
    _, chosen = min(measured, key=lambda item: item[0])
    return Recommendation(chosen, predicted, measure(model, chosen, trial))


def _attempts(choice: ArenaChoice) -> Iterator[tuple[int, Mapping[str, Setting]]]:
    """Yield arenas to measure and what each holds if it is large enough, the last always."""
    yield choice.held, choice.arena
    for factor in _GROWTH:
        size = rounded(choice.held * factor)
        yield size, one_chunk(size)
    yield _ENDLESS, EXACT


def held_without_weights(peaks: Peaks) -> int:
    """Return what was observed that the arena holds beside weights."""
    return (peaks.held or 0) - (peaks.weights or 0)


def _by_measurement(model: Path, base: RuntimeSettings, trial: Trial) -> Recommendation:
    """Choose between a few settings by running them: sizes depend on data."""
    quick = dataclasses.replace(trial, timing_runs=0, runs=2)
    first = _tuned(base)
    found = [(_score(measure(model, first, quick)), first)]
    peak = found[0][0][1]
    for factor in _ROOM:
        arena = one_chunk(rounded(peak * factor))
        settings = dataclasses.replace(first, arena=arena)
        found.append((_score(measure(model, settings, quick)), settings))
    _, chosen = min(found, key=lambda item: item[0])
    note = "sizes depend on data: chosen among a few settings by measuring each"
    observed = measure(model, chosen, trial)
    return Recommendation(chosen, Peaks(None, None), observed, (note,))


def _score(peaks: Peaks) -> tuple[int, int]:
    return held_without_weights(peaks), peaks.first_run_peak or 0


def better_of(
    options: Sequence[Recommendation], is_slower: Callable[[Peaks], bool]
) -> Recommendation:
    """Return the option with the least memory that is not slower than allowed, else the fastest.

    Raises:
        RuntimeUnavailableError: an option was not measured.
    """
    allowed = [option for option in options if not is_slower(option.measured)]
    if not allowed:
        return min(options, key=lambda option: _milliseconds(option.measured))
    return min(allowed, key=lambda option: total_of(option.measured))


def _milliseconds(peaks: Peaks) -> float:
    return peaks.effort or peaks.milliseconds or math.inf


def total_of(peaks: Peaks) -> int:
    """Return the bytes of tensors and of what the arena holds beside weights, together."""
    return (peaks.first_run_peak or 0) + held_without_weights(peaks)
