"""The search for regions: budgets met, bounds, patterns of layers, bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from builders import block, op, program
from features.chunk_models import (
    Maker,
    convolutions,
    segmentation,
    transformer,
    two_readers,
)
from features.test_chunk_rewrite import graph_of, run, sizes_of
from memplan_cli.analysis.aliasing import SHARE_NOTHING, SHARE_SAFELY
from memplan_cli.analysis.storage import live_peak, result_sizes
from memplan_cli.core.program import VarId
from memplan_cli.features.chunking.anytime import SearchResult, search
from memplan_cli.features.chunking.bound import Need, lower_bound
from memplan_cli.features.chunking.ranges import fewest_chunks
from memplan_cli.features.chunking.region import regions_from
from memplan_cli.features.chunking.rewrite import ChunkedProgram, rewrite_in_chunks
from memplan_cli.features.chunking.search import Limit, Search, State, _op_peaks
from memplan_cli.onnx_io.shapes.reading import read_program
from memplan_cli.onnx_io.writing.chunked import chunked_model
from memplan_cli.ordering.records import PlannedVars

if TYPE_CHECKING:
    from collections.abc import Callable

    import onnx


def searched(model: onnx.ModelProto, share: float | None) -> SearchResult:
    graph = graph_of(model)
    terms = PlannedVars(sizes_of(graph.program))
    before = live_peak(graph.program, terms.sizes)
    return search(graph, terms, None if share is None else int(before * share))


@pytest.mark.parametrize("share", [0.6, 0.45])
def test_a_budget_is_met_on_attention_and_the_bits_stay(share: float) -> None:
    model = transformer(layers=3)
    result = searched(model, share)
    best = result.best
    assert best.peak <= share * result.before
    assert best.peak == live_peak(best.chunked.program, best.state.sizes)
    written, _ = chunked_model(model, best.chunked.program, best.chunked.constants)
    assert [x.tobytes() for x in run(written)] == [x.tobytes() for x in run(model)]


def test_a_budget_is_met_on_convolutions() -> None:
    model = convolutions(size=96, layers=5)
    result = searched(model, 0.5)
    best = result.best
    assert best.peak <= 0.5 * result.before
    written, _ = chunked_model(model, best.chunked.program, best.chunked.constants)
    assert [x.tobytes() for x in run(written)] == [x.tobytes() for x in run(model)]


def test_a_model_within_its_budget_is_not_chunked() -> None:
    result = searched(transformer(layers=1), 1.0)
    assert not result.best.choices
    assert result.best.added_work == 0.0


@pytest.mark.parametrize("make", [transformer, convolutions, segmentation])
def test_no_choice_gets_below_the_bound(
    make: Callable[[], onnx.ModelProto], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memplan_cli.features.chunking.anytime._MIN_OPS", 4_000)
    monkeypatch.setattr("memplan_cli.features.chunking.anytime._OPS_PER_OP", 1)
    result = searched(make(), 0.05)
    assert result.bound.bytes <= min(plan.peak for plan in result.curve) < result.before


def waves(length: int = 2048) -> onnx.ModelProto:
    """Return a wave that is normalized over time, between convolutions that mix its channels."""
    make = Maker()
    x = make.node("Conv", "x", make.weight(16, 1, 3), pads=(1, 1))
    x = make.node("InstanceNormalization", x, make.weight(16), make.weight(16))
    x = make.node("Conv", make.node("Tanh", x), make.weight(1, 16, 3), pads=(1, 1))
    return make.model({"x": (1, 1, length)}, x)


def test_a_tensor_that_is_made_and_read_in_slices_of_other_axes_lives_twice() -> None:
    result = searched(waves(), 0.1)
    # Three tensors could be joined where slices by channels become slices by time: all as large.
    assert result.bound.bytes == 2 * 16 * 2048 * 4 == result.best.peak
    assert result.bound.op


def test_an_op_that_mixes_every_axis_is_the_bound() -> None:
    make = Maker()
    x = make.node("Conv", "x", make.weight(8, 3, 3, 3), pads=(1, 1, 1, 1))
    mixed = make.node("LayerNormalization", x, make.weight(8, 32, 32), axis=1)
    x = make.node("Conv", mixed, make.weight(3, 8, 3, 3), pads=(1, 1, 1, 1))
    result = searched(make.model({"x": (1, 3, 32, 32)}, x), 0.1)
    assert result.bound.op == f"n_{mixed}"
    assert result.bound.bytes == 2 * 8 * 32 * 32 * 4 <= result.best.peak


def mixed_thrice(make: Maker) -> list[str]:
    """Add three tensors that are made only whole."""
    found = []
    for _ in range(3):
        x = make.node("Conv", "x", make.weight(8, 3, 3, 3), pads=(1, 1, 1, 1))
        found.append(make.node("LayerNormalization", x, make.weight(8, 32, 32), axis=1))
    return found


def test_what_is_made_only_whole_is_whole_for_an_op_in_pieces() -> None:
    make = Maker()
    most = make.node("Max", *mixed_thrice(make))
    x = make.node("Conv", most, make.weight(3, 8, 3, 3), pads=(1, 1, 1, 1))
    graph = graph_of(make.model({"x": (1, 3, 32, 32)}, x))
    bound = lower_bound(graph, sizes_of(graph.program), SHARE_SAFELY)
    assert bound.op == f"n_{most}"
    assert bound.bytes == 3 * 8 * 32 * 32 * 4
    assert len(bound.tensors) == 3


def bound_with_outputs(model: onnx.ModelProto) -> Need:
    graph = graph_of(model)
    terms = PlannedVars(sizes_of(graph.program), results=result_sizes(graph.program)).resident
    return lower_bound(graph, terms.sizes, SHARE_SAFELY)


def test_graph_outputs_set_a_lower_bound() -> None:
    make = Maker()
    output = make.node("Conv", "x", make.weight(3, 3, 1, 1))
    bound = bound_with_outputs(make.model({"x": (1, 3, 32, 32)}, output))
    assert bound.op == ""
    assert bound.tensors == {output: 3 * 32 * 32 * 4}


def test_a_graph_output_made_in_chunks_lives_twice_when_it_is_joined() -> None:
    # Whole, its producer reads 16 channels, which are more bytes.
    bound = bound_with_outputs(two_readers())
    assert bound.bytes == 2 * 3 * 32 * 32 * 4
    assert [*bound.tensors.values()] == [3 * 32 * 32 * 4] * 2


def test_normalization_by_groups_is_cut_as_exporters_write_it() -> None:
    make = Maker()
    x = make.node("Conv", "x", make.weight(8, 3, 3, 3), pads=(1, 1, 1, 1))
    groups = make.node("Reshape", x, make.constant(np.array((1, 4, -1), np.int64)))
    mixed = make.node("InstanceNormalization", groups, make.weight(4), make.weight(4))
    x = make.node("Reshape", mixed, make.constant(np.array((1, 8, 32, 32), np.int64)))
    x = make.node("Conv", make.node("Sigmoid", x), make.weight(3, 8, 3, 3), pads=(1, 1, 1, 1))
    model = make.model({"x": (1, 3, 32, 32)}, x)
    graph = graph_of(model)
    region = list(regions_from(graph, VarId(mixed), 1))[-1]
    chunked = rewrite_in_chunks(graph, [(region, 4)])
    assert chunked is not None
    written, _ = chunked_model(model, chunked.program, chunked.constants)
    assert [x.tobytes() for x in run(written)] == [x.tobytes() for x in run(model)]


def test_a_normalization_is_computed_again_where_that_needs_less() -> None:
    model = transformer(length=128, layers=2)
    graph = graph_of(model)
    mixed = [op.outputs[0] for op in graph.ops if op.type == "Softmax"][-1]
    copied = [region for region in regions_from(graph, mixed, 2) if region.duplicated]
    assert copied
    region = copied[-1]
    assert {graph.ops[at].type for at in region.duplicated} == {"LayerNormalization"}
    chunked = rewrite_in_chunks(graph, [(region, 8)])
    assert chunked is not None
    written, program = chunked_model(model, chunked.program, chunked.constants)
    assert read_program(written).program.body == program.body
    assert [x.tobytes() for x in run(written)] == [x.tobytes() for x in run(model)]


def test_a_budget_in_vain_is_given_up_after_some_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memplan_cli.features.chunking.anytime._MIN_OPS", 2_000)
    monkeypatch.setattr("memplan_cli.features.chunking.anytime._OPS_PER_OP", 1)
    result = searched(transformer(length=128, layers=2), 0.05)
    assert result.bound.bytes <= result.best.peak < result.before
    assert result.ended_early


def test_without_a_budget_the_least_memory_of_a_fast_run_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("memplan_cli.features.chunking.anytime._BYTES_PER_OP", 0)
    result = searched(transformer(layers=3), None)
    fast = [plan for plan in result.curve if plan.time <= 1.05]
    assert result.best is fast[-1]
    assert result.best.peak < result.before
    assert result.budget is None


def test_chunks_that_save_less_than_a_session_holds_for_their_ops_are_not_taken() -> None:
    model = transformer(length=48, layers=1)
    assert searched(model, 0.7).best.choices
    assert not searched(model, None).best.choices


def test_the_curve_has_less_memory_for_more_time() -> None:
    result = searched(transformer(length=256, layers=2), None)
    peaks = [plan.peak for plan in result.curve]
    times = [plan.time for plan in result.curve]
    assert peaks == sorted(set(peaks), reverse=True)
    assert times == sorted(set(times))
    assert (peaks[0], times[0]) == (result.before, 1.0)


def test_less_budget_takes_no_less_time() -> None:
    shares = (0.8, 0.6, 0.45, 0.3)
    bests = [searched(transformer(length=32, layers=1), share).best for share in shares]
    assert [best.time for best in bests] == sorted(best.time for best in bests)


def test_a_search_that_may_write_nothing_returns_the_program_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("memplan_cli.features.chunking.anytime._MIN_OPS", 1)
    monkeypatch.setattr("memplan_cli.features.chunking.anytime._OPS_PER_OP", 0)
    result = searched(transformer(layers=1), 0.3)
    assert result.best.peak == result.before
    assert not result.best.choices
    assert result.ended_early


def test_a_search_ends_at_its_time() -> None:
    graph = graph_of(transformer(length=128, layers=2))
    terms = PlannedVars(sizes_of(graph.program))
    result = search(graph, terms, 0.01, seconds=1e-9)
    assert result.ended_early
    assert result.best.peak == result.before


def test_tensors_that_nothing_reads_are_not_computed_in_chunks() -> None:
    make = Maker()
    x = make.node("Tanh", "x")
    result = make.node("ReduceMax", x)
    unread = make.node("Neg", make.node("Concat", x, x, x, axis=1))
    model = make.model({"x": (64, 64)}, result)
    best = searched(model, 0.5).best
    assert best.peak == 2 * 64 * 64 * 4  # the chunks of the tensor, and their Concat
    assert unread not in best.chunked.program.vars
    written, _ = chunked_model(model, best.chunked.program, best.chunked.constants)
    assert [x.tobytes() for x in run(written)] == [x.tobytes() for x in run(model)]


def test_growing_regions_uses_up_the_limit_of_a_search() -> None:
    graph = graph_of(transformer(length=128, layers=2))
    largest = max(graph.dataflow.producer, key=graph.bytes)
    unlimited, limit = Limit(1_000_000), Limit(10)
    assert list(regions_from(graph, largest, 2, unlimited.may_grow))
    list(regions_from(graph, largest, 2, limit.may_grow))
    assert limit.is_reached
    assert limit.written_ops < 20 < unlimited.written_ops


def test_a_search_ends_where_no_region_lowers_the_peak() -> None:
    make = Maker()
    rows, columns = (make.constant(np.array([axis], np.int64)) for axis in (1, 2))
    x = make.node("Softmax", make.node("Sigmoid", "x"), axis=2)
    for _ in range(2):  # the first maximum can be in chunks, but another op is as high
        before, x = x, make.node("Sub", x, make.node("ReduceMax", x, rows))
    summed = make.node("Sum", x, make.node("Add", x, before))
    result = searched(
        make.model({"x": (1, 8, 32)}, make.node("ReduceMax", summed, columns)), 0.3
    )
    assert result.best.peak < result.before
    assert not result.ended_early


def test_the_input_of_the_graph_does_not_count_where_regions_grow() -> None:
    make = Maker()
    narrow = make.node("Conv", "x", make.weight(2, 3, 3, 3), pads=(1, 1, 1, 1))
    wide = make.node("Conv", narrow, make.weight(64, 2, 1, 1))
    x = make.node("Conv", wide, make.weight(2, 64, 4, 4), strides=(4, 4))
    graph = graph_of(make.model({"x": (1, 3, 64, 64)}, x))
    # The input has more bytes than the narrow tensor, but is no tensor of the plan.
    *_, last = regions_from(graph, VarId(wide), 2)
    assert {*last.splits} == {0, 1, 2}
    assert not last.inputs


@pytest.mark.parametrize(("count", "fewest"), [(2, 2), (4, 4), (8, 6), (16, 9), (32, 18)])
def test_no_more_chunks_are_tried_than_their_length_needs(count: int, fewest: int) -> None:
    make = Maker()
    graph = graph_of(make.model({"x": (1, 18, 64)}, make.node("Tanh", make.node("Abs", "x"))))
    region = list(regions_from(graph, graph.ops[0].outputs[0], 1))[-1]
    assert fewest_chunks(graph, region, count) == fewest


def test_layers_that_are_alike_are_cut_alike() -> None:
    graph = graph_of(transformer(layers=4))
    steps = Search(graph, PlannedVars(sizes_of(graph.program)), Limit(1_000_000))
    whole = steps.write_state(())
    assert whole is not None
    state = steps.lower(whole, int(0.6 * whole.peak))
    assert len({choice.count for choice in state.choices}) == 1
    assert len(state.choices) >= 4


def test_regions_that_save_little_are_taken_however_far_the_budget_is() -> None:
    make, branches = Maker(), range(16)
    wide = [make.node("Add", "x", make.weight(1, 64)) for _ in branches]
    last = make.constant(np.array([1], np.int64))
    narrow = [make.node("ReduceMax", each, last) for each in wide]
    result = searched(make.model({"x": (64, 1)}, make.node("Sum", *narrow)), 0.5)
    assert {choice.count for choice in result.best.choices} == {2}
    # Of 16 tensors that are live at once, each with a row beside it, more than half are never whole.
    assert result.best.peak <= 0.5 * result.before


def test_a_view_takes_bytes_of_its_own_where_no_vars_share_bytes() -> None:
    make = Maker()
    x = make.node("Conv", "x", make.weight(7, 3, 3, 3), pads=(1, 1, 1, 1))
    mixed = make.node("LayerNormalization", x, make.weight(7, 9, 5), axis=1)
    view = make.node("Reshape", mixed, make.constant(np.array((5, 63), np.int64)))
    y = make.node("LayerNormalization", view, make.weight(5, 63), axis=0)
    graph = graph_of(make.model({"x": (1, 3, 9, 5)}, y))
    sizes = {
        var: size for var, size in sizes_of(graph.program).items() if var in (mixed, view)
    }
    whole = 7 * 9 * 5 * 4
    assert lower_bound(graph, sizes, SHARE_NOTHING).bytes == 2 * whole
    assert lower_bound(graph, sizes, SHARE_SAFELY).bytes == whole


@pytest.mark.parametrize(
    ("peak_index", "runs"), [(0, False), (1, True), (2, True), (3, False)]
)
def test_a_region_runs_at_the_peak_from_its_first_op_to_its_last(
    peak_index: int, *, runs: bool
) -> None:
    ops = tuple(op(f"{name} <- x") for name in "abcd")
    chunked = ChunkedProgram(program(block("x", "d", *ops)), region_ranges=((1, 3),))
    state = State(
        choices=(),
        chunked=chunked,
        sizes={},
        op_peaks=tuple(2 if index == peak_index else 1 for index in range(4)),
        peak_op=ops[peak_index],
        peak_vars=(),
    )
    assert state.runs_at_peak(0) == runs


def test_the_live_bytes_of_an_op_are_the_most_from_its_first_tick_to_the_next_op() -> None:
    pressure = [(0, 5), (1, 3), (3, 9), (4, 2), (8, 7)]
    assert _op_peaks(pressure, [1, 2, 6, 7]) == (3, 9, 2, 7)
