"""Requests of changing size: sequences, one region for all, the verdict of a soak."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from math import prod
from typing import TYPE_CHECKING

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocation_traces import trace_of, traces
from builders import parse, read
from memplan_cli.core.bindings import Binding
from memplan_cli.core.results.observations import RuntimeSettings
from memplan_cli.core.symbolic.bounds import DimRange
from memplan_cli.features.serving.loads import (
    NO_MEMORY_PATTERN,
    SampledSizes,
    Service,
    measure_sizes,
)
from memplan_cli.features.serving.settings import ONE_REGION, SHRUNK, choose_settings
from memplan_cli.features.serving.sizes import SEQUENCES, Extent, request_sizes
from memplan_cli.features.serving.soak import (
    CHOSEN,
    ConfigurationRun,
    Soak,
    enlarged_candidates,
)
from memplan_cli.runtime.simulate.arena import (
    ArenaSettings,
    SimulatedArena,
    held_after_runs,
    simulate_arena,
)
from memplan_cli.runtime.simulate.predict import ExecutedGraph
from memplan_cli.runtime.simulate.regions import EXACT, one_region, shared_region

if TYPE_CHECKING:
    from pathlib import Path

    from memplan_cli.runtime.simulate.trace import AllocationTrace

ATTENTION = """
agraph (float[batch,seq,16] x) => (float[batch,seq,16] y) {
  scores = Einsum<equation="bik,bjk->bij">(x, x)
  weights = Softmax<axis=-1>(scores)
  mixed = MatMul(weights, x)
  wide = Concat<axis=-1>(mixed, mixed, x)
  narrow = ReduceMean<keepdims=1>(wide)
  y = Mul(mixed, narrow)
}
"""


FOUND = """
agraph (float[batch,64] x) => (int64[2,found] y) {
  a = Exp(x)
  n = NonZero(a)
  y = Neg(n)
}
"""


def served(extent: Extent) -> SampledSizes:
    base = ExecutedGraph(read(ATTENTION))
    points = extent.points(24)
    return SampledSizes({point: replace(base, dims=extent.dims(point)) for point in points})


@given(st.lists(traces(), min_size=1, max_size=3))
@settings(max_examples=24)
def test_one_region_for_all_never_grows_whatever_the_sequence(
    each: list[AllocationTrace],
) -> None:
    size = shared_region(each, 0)
    assert size is not None
    arena = ArenaSettings.from_settings(one_region(size))
    for order in permutations([*each, each[0]]):
        assert simulate_arena(order, arena).most_held == size


@given(st.lists(traces(), min_size=1, max_size=4))
def test_an_exact_arena_that_shrinks_holds_what_its_worst_run_alone_holds(
    each: list[AllocationTrace],
) -> None:
    arena = ArenaSettings.from_settings(EXACT)
    alone = max(held_after_runs(trace, arena, 1) for trace in each)
    assert simulate_arena(each, arena, after_run="shrink").most_held == alone


def test_every_run_of_an_arena_that_shrinks_to_its_first_region_is_simulated() -> None:
    trace = trace_of(1, 20, 4, -1, -2, -3, unit=256)
    doubling = ArenaSettings(initial=4096)
    arena, held = SimulatedArena(doubling), []
    for _ in range(3):
        arena.run(trace)
        held.append(arena.held)
        arena.shrink()
    assert len(set(held)) > 1, "regions of later runs are larger"
    assert simulate_arena([trace] * 3, doubling, after_run="shrink").most_held == max(held)


@pytest.mark.parametrize("name", SEQUENCES)
def test_every_sequence_is_seeded_within_bounds_and_has_the_largest_size(name: str) -> None:
    extent = Extent({"seq": DimRange(16, 64), "batch": DimRange(1, 8)})
    found = request_sizes(extent, name, 50, seed=3)
    assert found == request_sizes(extent, name, 50, seed=3)
    assert found != request_sizes(extent, name, 50, seed=4)
    assert extent.largest in found
    assert len(found) == 50
    assert all(1 <= batch <= 8 and 16 <= seq <= 64 for batch, seq in found)


def test_growing_grows_shrinking_shrinks_and_alternating_does_both_in_turn() -> None:
    extent = Extent({"batch": DimRange(1, 100)})
    growing = [prod(point) for point in request_sizes(extent, "growing", 20, 0)]
    assert growing == sorted(growing)
    assert [prod(point) for point in request_sizes(extent, "shrinking", 20, 0)] == growing[
        ::-1
    ]
    alternating = [prod(point) for point in request_sizes(extent, "alternating", 20, 0)]
    assert all(large >= small for large, small in zip(*[iter(alternating)] * 2, strict=True))


def test_few_sizes_are_all_looked_at_and_of_many_the_corners() -> None:
    assert set(Extent({"n": DimRange(0, 5)}).points(6)) == {(n,) for n in range(6)}
    extent = Extent({"batch": DimRange(1, 1000), "seq": DimRange(1, 1000)})
    points = extent.points(24)
    assert len(points) == 24
    assert points[0] == extent.largest
    assert set(extent.corners()) <= set(points)


def test_dims_of_one_number_leave_room_for_the_corners_of_others() -> None:
    bounds = {"a": DimRange(1, 2), **{name: DimRange(3, 3) for name in "bcdefgh"}}
    assert [point[0] for point in Extent(bounds).corners()] == [1, 2]


def test_sizes_that_depend_on_data_are_measured_at_every_size(tmp_path: Path) -> None:
    path = tmp_path / "found.onnx"
    onnx.save(parse(FOUND), path)
    sampled = measure_sizes(Service(path, Extent({"batch": DimRange(1, 3)}), Binding()))
    dims = {size: graph.dims for size, graph in sampled.executed.items()}
    assert dims == {(batch,): {"batch": batch} for batch in (3, 1, 2)}
    traces = sampled.traces(NO_MEMORY_PATTERN)
    peaks = {batch: trace.first.rounded_peak for (batch,), trace in traces.items()}
    # No element is 0, so two int64 indices are found for each, and their negation is beside them.
    assert all(peak >= batch * 64 * 2 * 2 * 8 for batch, peak in peaks.items())


def test_one_region_is_chosen_and_holds_less_than_arenas_that_grow() -> None:
    extent = Extent({"batch": DimRange(1, 8), "seq": DimRange(8, 256)})
    found = choose_settings(served(extent), extent.count)
    heights = {one.name: one.held for one in found.candidates}
    assert found.chosen.name.startswith(ONE_REGION)
    assert found.live_bytes <= (found.chosen.bound or 0) <= heights[SHRUNK]
    assert not found.exhaustive
    own_memory_of_weights = {"session.use_device_allocator_for_initializers": "1"}
    assert found.chosen.settings.session_config == own_memory_of_weights


def test_what_is_bounded_is_confirmed_in_the_order_of_the_bounds() -> None:
    extent = Extent({"batch": DimRange(1, 8), "seq": DimRange(8, 256)})
    predicted = choose_settings(served(extent), extent.count)
    found = enlarged_candidates(predicted)
    bounds = [one.chosen.bound or 0 for one in found]
    assert bounds == sorted(bounds)
    assert len({one.chosen.name for one in found}) > 1
    lowest = {each.name: each.bound or 0 for each in predicted.candidates}
    assert all(one.chosen.held < 4 / 3 * lowest[one.chosen.name] for one in found)
    assert all(one.chosen in one.candidates for one in found)


def course(name: str, held: int | None, digest: str = "a") -> ConfigurationRun:
    return ConfigurationRun(
        name, RuntimeSettings(), 1, (), None, held, 1.0, 1.0, 1.0, {"0": digest}
    )


def test_a_soak_fails_where_the_bound_is_exceeded_or_outputs_differ() -> None:
    extent = Extent({"batch": DimRange(1, 8), "seq": DimRange(8, 16)})
    serving = choose_settings(served(extent), extent.count)
    bound = serving.chosen.bound or 0
    kept = (course("defaults", None), course(CHOSEN, bound))
    found = Soak("model.onnx", extent.bounds, "random", 0, 1, serving, kept)
    assert found.passed
    above = replace(found, runs=(kept[0], course(CHOSEN, bound + 256)))
    assert above.exceeded
    assert not above.passed
    other = replace(found, runs=(kept[0], course(CHOSEN, bound, "b")))
    assert other.differing == (CHOSEN,)
    assert not other.passed
