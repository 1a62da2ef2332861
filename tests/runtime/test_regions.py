"""The search for regions of the arena, on requests small enough to follow by hand."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from allocation_traces import trace_of, trace_of_pairs
from memplan_cli.runtime.simulate.arena import ArenaSettings, held_after_runs
from memplan_cli.runtime.simulate.regions import best_arena, one_region

EXACT = ArenaSettings(exact=True)


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


def test_one_region_may_be_as_large_as_its_setting() -> None:
    largest = (2**31 - 1) // 256  # units; the setting is a C int
    for units, is_one_region in ((largest, True), (largest + 1, False)):
        choice = best_arena(trace_of(1024, -1, units, -2, unit=256))
        assert ("initial_chunk_size_bytes" in choice.settings) == is_one_region
        assert choice.held == 256 * (units if is_one_region else units + 1024)


@settings(deadline=None, max_examples=20)
@given(st.lists(st.tuples(st.integers(1, 64), st.integers(0, 9)), min_size=1, max_size=40))
@example([(4, 0), (3, 1), (1, 0), (4, 0)])
def test_the_choice_is_never_worse_than_exact_growth_nor_below_what_is_live(
    pairs: list[tuple[int, int]],
) -> None:
    trace = trace_of_pairs(pairs, 1 << 8)
    choice = best_arena(trace)
    assert trace.rounded_peak <= choice.held
    assert choice.held <= held_after_runs(trace, EXACT)
    assert choice.held == held_after_runs(trace, ArenaSettings.from_settings(choice.settings))
