"""The search for regions of the arena, on requests small enough to follow by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
from hypothesis import given, settings
from hypothesis import strategies as st

from allocation_traces import trace_of, trace_of_pairs
from memplan_cli.core.results.observations import RuntimeSettings
from memplan_cli.runtime.graph.dumps import executed_graph
from memplan_cli.runtime.settings_search import predicted
from memplan_cli.runtime.simulate.arena import (
    ArenaSettings,
    held_after_runs,
)
from memplan_cli.runtime.simulate.regions import (
    ArenaChoice,
    best_arena,
    is_tight,
    one_region,
    refined_arena,
    regions,
)
from memplan_cli.runtime.simulate.trace import AllocationTrace, TraceRecorder, rounded_up

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest


DEFAULTS = RuntimeSettings()

EXACT = ArenaSettings(exact=True)

STEM = (2842, 2766, 5532, 1364, 1705, 3871, 941)
"""Activations of the first convolutions of an Inception-v3, in thousands of bytes."""


def chain(*sizes: int) -> AllocationTrace:
    """Return the trace of ops that follow each other: each result exists before its input is freed."""
    recorder, before = TraceRecorder(), None
    for size in sizes:
        result = recorder.allocate(1000 * size)
        if before is not None:
            recorder.free(before)
        before = result
    if before is not None:
        recorder.free(before)
    return recorder.trace()


def test_exact_growth_is_kept_where_nothing_fragments() -> None:
    choice = best_arena(trace_of(4, -1, 4, -2, unit=1024))
    assert choice.held == 4096
    assert "initial_chunk_size_bytes" not in choice.settings


def test_one_region_wins_where_regions_of_all_sizes_pile_up() -> None:
    # 8, then 12, then 16: exact growth keeps all three, one region of 16 holds each.
    trace = trace_of(8, -1, 12, -2, 16, -3, unit=1024)
    assert held_after_runs(trace, EXACT) == 36 << 10
    choice = best_arena(trace)
    assert choice.held == 16 << 10
    assert choice.settings["initial_chunk_size_bytes"] == 16 << 10


def test_two_regions_win_where_two_large_tensors_take_turns() -> None:
    # One region of 16 has a hole of 4 on either side of the first 8 when the next 8 comes.
    trace = trace_of(4, 8, -1, 8, -2, -3, unit=1024)
    assert held_after_runs(trace, EXACT) == 20 << 10
    assert held_after_runs(trace, ArenaSettings.from_settings(one_region(16 << 10))) > 16 << 10
    choice = best_arena(trace)
    assert choice.held == 16 << 10
    assert choice.settings["initial_chunk_size_bytes"] == 8 << 10
    assert choice.settings["max_power_of_two_extend_bytes"] == 8 << 10


@settings(deadline=None, max_examples=20)
@given(st.lists(st.tuples(st.integers(1, 64), st.integers(0, 9)), min_size=1, max_size=40))
def test_the_choice_is_never_worse_than_exact_growth_nor_below_what_is_live(
    pairs: list[tuple[int, int]],
) -> None:
    trace = trace_of_pairs(pairs, 1 << 8)
    choice = best_arena(trace)
    assert trace.peak <= choice.held
    assert choice.held <= held_after_runs(trace, EXACT)
    assert choice.held == held_after_runs(trace, ArenaSettings.from_settings(choice.settings))


def test_regions_are_found_that_hold_hardly_more_than_is_live() -> None:
    trace = chain(*STEM)
    coarse = best_arena(trace)
    lowest = trace.peak
    assert coarse.held > 1.3 * lowest, "the example has a hole"
    found = refined_arena(trace, coarse)
    # The fifth and sixth result together are a little larger than the third.
    assert found.held < 1.01 * lowest
    assert found.held == held_after_runs(trace, ArenaSettings.from_settings(found.settings))


def test_an_arena_without_holes_stays_as_it_is() -> None:
    trace = chain(1000, 1000, 1000)
    choice = best_arena(trace)
    assert is_tight(choice.held, trace.peak)
    assert refined_arena(trace, choice) is choice


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.integers(1, 64), st.integers(0, 5)), min_size=1, max_size=30))
def test_a_finer_arena_is_never_worse_and_holds_what_it_says(
    pairs: list[tuple[int, int]],
) -> None:
    trace = trace_of_pairs(pairs, 1 << 14)
    coarse = best_arena(trace)
    choice = refined_arena(trace, coarse)
    assert trace.peak <= choice.held <= coarse.held
    assert choice.held == held_after_runs(trace, ArenaSettings.from_settings(choice.settings))
    assert refined_arena(trace, coarse) == choice


def test_regions_that_more_threads_would_add_to_are_not_taken(
    save: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save("""g (float[1,4,640,640] x, float[4,4,3,3] w) => (float[1,4,636,636] y) {
        a = Conv (x, w)  y = Conv (a, w) }""")
    model = onnx.load(str(path))
    for node in model.graph.node:
        node.name = node.output[0]
    onnx.save(model, str(path))
    executed = executed_graph(path, DEFAULTS, {})
    later = "max_power_of_two_extend_bytes"

    def other(trace: AllocationTrace, _: ArenaChoice) -> ArenaChoice:
        size = rounded_up(trace.peak)
        return ArenaChoice(regions(size, 8 << 20), size)

    def growth(threads: int) -> object:
        monkeypatch.setattr(predicted, "refined_arena", other)
        monkeypatch.setattr(predicted, "_MANY_THREADS", threads)
        best = predicted.predict_arena(executed, DEFAULTS, {"a": 64 << 10, "y": 64 << 10})
        assert best is not None
        return best.settings.arena.get(later)

    assert growth(1) == 8 << 20
    # Fifteen more pieces of 64 KiB want room; a region of 8 MiB would be made for them.
    assert growth(16) != 8 << 20
