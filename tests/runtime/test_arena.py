"""The arena, on requests small enough to follow by hand, and held against a plain one."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocation_traces import trace_of, traces, traces_that_keep_some
from memplan_cli.core.program import Op
from memplan_cli.runtime.simulate.arena import (
    ArenaSettings,
    SimulatedArena,
    best_fit_height,
    held_after_runs,
)
from memplan_cli.runtime.simulate.trace import (
    AllocationTrace,
    TraceRecorder,
    with_kept_outputs,
)
from reference_arena import ReferenceArena

EXACT = ArenaSettings(exact=True)

MIB = 1 << 20

SETTINGS = st.builds(
    ArenaSettings,
    initial=st.sampled_from([256, 1000, 1 << 12, 1 << 14, 1 << 20]),
    max_dead_bytes=st.sampled_from([1, 256, 3000, 128 << 20]),
    max_extension=st.sampled_from([1, 1 << 10, 1 << 14, 1 << 30]),
    exact=st.booleans(),
)


def held(*events: int, settings: ArenaSettings = EXACT, unit: int = 1) -> int:
    return held_after_runs(trace_of(*events, unit=unit), settings, runs=1)


def test_sizes_are_rounded_to_256_bytes() -> None:
    assert held(1, 257) == 256 + 512
    assert trace_of(1, 257).rounded_peak == 256 + 512
    assert trace_of(1, 257).live_peak == 258


def test_the_first_region_is_a_mebibyte_and_the_next_one_twice_that() -> None:
    defaults = ArenaSettings()
    assert held(100, settings=defaults) == MIB
    assert held(100, MIB + 1, settings=defaults) == MIB + 2 * MIB


def test_a_large_request_doubles_until_it_fits() -> None:
    defaults = ArenaSettings()
    assert held(5, settings=defaults, unit=MIB) == 8 * MIB
    assert held(5, 8, settings=defaults, unit=MIB) == 16 * MIB


def test_growth_is_capped_but_a_larger_request_is_met() -> None:
    capped = ArenaSettings(initial=MIB, max_extension=MIB)
    assert held(1, 1, settings=capped, unit=MIB) == 2 * MIB
    assert held(1, 1, 3, settings=capped, unit=MIB) == 6 * MIB


def test_exact_growth_takes_what_is_asked_for() -> None:
    assert held(5, unit=MIB) == 5 * MIB


def test_a_chunk_below_twice_the_request_is_given_out_whole() -> None:
    assert held(1000, -1, 600, unit=256) == 1000 * 256
    assert held(1000, -1, 600, 400, unit=256) == 1400 * 256


def test_with_no_dead_bytes_allowed_every_chunk_is_split() -> None:
    split = ArenaSettings(exact=True, max_dead_bytes=1)
    assert held(1000, -1, 600, 400, settings=split, unit=256) == 1000 * 256


def test_the_smallest_chunk_that_fits_is_taken() -> None:
    assert held(8, 1, 3, -1, -3, 3, 8, unit=256) == 12 * 256


def test_free_neighbors_of_one_region_become_one_chunk() -> None:
    settings = ArenaSettings(initial=4096)
    assert held(1, 1, 1, 1, -1, -3, -2, -4, 4, settings=settings, unit=1024) == 4096


def test_regions_are_never_joined() -> None:
    assert held(1, 1, -1, -2, 2, unit=1024) == 4096


def test_what_a_larger_request_made_of_the_growth_stays_for_the_next_region() -> None:
    # The cap is looked at only where no request was larger (bfc_arena.cc).
    settings = ArenaSettings(initial=1024, max_dead_bytes=1, max_extension=1280)
    sizes = (2048, 1792, 256, 1792, 1280)
    grown = [held(*sizes[: n + 1], settings=settings) for n in range(len(sizes))]
    assert grown == [2048, 4096, 4096, 6656, 9216]


def test_outputs_that_the_caller_keeps_are_freed_when_the_next_run_has_ended() -> None:
    recorder = TraceRecorder()
    output = recorder.allocate(4 * 256)
    recorder.free(recorder.allocate(256))
    run = recorder.trace([output, recorder.allocate(0)])
    kept = with_kept_outputs([run, run, run])
    events = [
        kept.sizes[index] // 256 if chunks else -kept.sizes[index] // 256
        for chunks, index in kept.steps
    ]
    assert events == [4, 1, -1, *[4, 1, -1, -4], *[4, 1, -1, -4], -4]
    assert held_after_runs(run, EXACT, runs=3) == 5 * 256
    assert held_after_runs(kept, EXACT, runs=1) == 9 * 256


def test_no_bytes_need_no_memory() -> None:
    recorder = TraceRecorder()
    recorder.free(recorder.allocate(0))
    trace = recorder.trace()
    assert held_after_runs(trace, EXACT) == 0
    assert (len(trace.sizes), trace.steps) == (1, ())


def test_workspace_makes_the_arena_grow_but_is_no_tensor() -> None:
    recorder = TraceRecorder({"conv": (4096,)})
    recorder.allocate(1024)
    recorder.end_kernel(Op("conv", "Conv", (), ()))
    recorder.end_kernel(Op("relu", "Relu", (), ()))
    assert (recorder.peak, recorder.live) == (1024, 1024)
    assert held_after_runs(recorder.trace(), EXACT, runs=1) == 5120


def test_a_kernel_that_spreads_its_inputs_first_allocates_its_output_last() -> None:
    recorder = TraceRecorder({"w": (512, 768)})
    recorder.free(recorder.allocate(1024))
    recorder.allocate(2048)
    recorder.end_kernel(Op("w", "Where", (), ()))
    trace = recorder.trace()
    kernel = [
        trace.sizes[index] if chunks else -trace.sizes[index] for chunks, index in trace.steps
    ]
    assert kernel[2:] == [512, 768, 2048, -768, -512]


@settings(deadline=None, max_examples=80)
@given(traces_that_keep_some(), SETTINGS, st.integers(1, 3), st.integers(256, 4 << 20))
def test_an_arena_holds_what_a_plain_one_holds(
    trace: AllocationTrace, arena: ArenaSettings, runs: int, limit: int
) -> None:
    reference = ReferenceArena(arena)
    for _ in range(runs):
        reference.run(trace)
    assert held_after_runs(trace, arena, runs) == reference.held
    # With a limit, the result is the same, or above the limit.
    limited = held_after_runs(trace, arena, runs, limit)
    assert limited == reference.held if reference.held <= limit else limited > limit


@settings(deadline=None, max_examples=40)
@given(traces_that_keep_some())
def test_an_endless_region_is_as_high_as_a_plain_one(trace: AllocationTrace) -> None:
    reference = ReferenceArena(ArenaSettings(initial=1 << 40, max_dead_bytes=1))
    reference.run(trace)
    assert best_fit_height(trace) == reference.top


@given(traces(), SETTINGS)
def test_live_allocations_never_overlap(
    trace: AllocationTrace, settings: ArenaSettings
) -> None:
    arena = SimulatedArena(settings)
    arena.run(trace)
    live: dict[int, int] = {}
    for chunks, index in trace.steps:
        if chunks:
            live[arena.addresses[index]] = chunks
        else:
            del live[arena.addresses[index]]
        spans = sorted((address, address + size) for address, size in live.items())
        assert all(one[1] <= other[0] for one, other in pairwise(spans))


@given(traces())
def test_an_arena_in_one_region_is_whole_again_after_a_run(trace: AllocationTrace) -> None:
    arena = SimulatedArena(ArenaSettings(initial=1 << 30))
    arena.run(trace)
    assert arena.is_whole()


def test_a_simulation_that_exceeds_its_limit_stops_there() -> None:
    trace = trace_of(1 << 12, 1 << 20, 1 << 30)
    assert held_after_runs(trace, EXACT, limit=1 << 13) < 1 << 30


def test_the_place_of_regions_decides_between_chunks_of_one_size() -> None:
    trace = trace_of(3, 3, 1, -2, 4, -4, -3, -1, unit=MIB)
    two = ArenaSettings(initial=2 * MIB, max_dead_bytes=1, max_extension=2 * MIB)

    def held_with(places: list[int]) -> int:
        arena = SimulatedArena(two, place_region=lambda _: places.pop())
        arena.run(trace)
        arena.run(trace)
        return arena.held // MIB

    far_apart = [region << 30 for region in range(9)]
    assert (held_with(far_apart[::-1]), held_with(far_apart.copy())) == (8, 12)


def test_an_arena_that_doubles_keeps_its_first_region_wherever_it_lies() -> None:
    places = [1 << 20, 1 << 30]
    arena = SimulatedArena(ArenaSettings(), place_region=lambda _: places.pop())
    arena.run(trace_of(1, 2, -1, -2, unit=MIB))
    assert arena.shrink() == [1 << 20], "the region at 1 << 30 was the first"


@pytest.mark.parametrize(("growth", "expected"), [(-1, [7, 7, 7]), (16 * MIB, [7, 17, 17])])
def test_an_arena_that_doubles_grows_anew_after_it_shrank(
    growth: int, expected: list[int]
) -> None:
    """As measured in ONNX Runtime 1.31.1 with `initial_growth_chunk_size_bytes`."""
    settings = ArenaSettings.from_settings({"initial_growth_chunk_size_bytes": growth})
    arena, held = SimulatedArena(settings), []
    for _ in range(3):
        arena.run(trace_of(1, 2, 4, -1, -2, -3, unit=MIB))
        held.append(arena.held // MIB)
        arena.shrink()
    assert held == expected
