"""The settings chosen by prediction, confirmed by measurement; what is measured wins."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from memplan_cli.core.results.observations import CPU, Peaks, RuntimeSettings
from memplan_cli.runtime.candidates import Candidate, for_sizes
from memplan_cli.runtime.measuring.measure import Trial, measure, record, workspace_of
from memplan_cli.runtime.simulate.regions import EXACT, ArenaChoice, one_region
from memplan_cli.runtime.simulate.trace import UnknownBytesError, rounded_up
from memplan_cli.runtime.steer import (
    GROWTH,
    Recommendation,
    best_predicted,
    held_without_weights,
    plain,
    tuned,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from memplan_cli.core.results.observations import Setting
    from memplan_cli.runtime.simulate.predict import Executed
    from memplan_cli.runtime.workers.profile import Recording

_BY_PRIORITY = RuntimeSettings(session={"execution_order": "PRIORITY_BASED"})

_ROOM = (1.1, 1.25, 1.5)
"""First regions to try where sizes depend on data, as multiples of the peak measured."""

_ENDLESS = 1 << 62
"""Bytes that no arena holds: the last attempt is never one too many."""

MOST_RUNS = 1 + 2 + (1 + len(GROWTH) + 1) + 1
"""Processes of one search: workspace, an order seen twice, arenas, and the choice measured."""


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
    base = for_sizes(base, trial.assumed)
    recorded = False
    try:
        workspace = workspace_of(model, plain(base), trial)
        best = best_predicted(executed, base, workspace)
        if executed.ordered and "execution_order" not in base.session:
            by_priority = base.updated(_BY_PRIORITY)
            seen = _always_so(model, executed, plain(by_priority), trial)
            if seen:
                other = best_predicted(seen, by_priority, workspace)
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


def _confirmed(model: Path, best: Candidate, trial: Trial, provider: str) -> Recommendation:
    """Measure the choice; where the first region was too small, measure larger ones."""
    predicted = dataclasses.replace(best.predicted, held=best.choice.held)
    if provider != CPU or not best.choice.first_region:
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
    for factor in GROWTH:
        size = rounded_up(choice.held * factor)
        yield size, one_region(size)
    yield _ENDLESS, EXACT


def _by_measurement(model: Path, base: RuntimeSettings, trial: Trial) -> Recommendation:
    """Choose between a few settings by running them: sizes depend on data."""
    quick = dataclasses.replace(trial, timing_runs=0, runs=2)
    first = tuned(base)
    found = [(_score(measure(model, first, quick)), first)]
    peak = found[0][0][1]
    for factor in _ROOM:
        arena = one_region(rounded_up(peak * factor))
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
