"""Pieces in pieces along another axis, and ops that are made late."""

from __future__ import annotations

import onnx

from features.chunk_models import Maker, attention_layer, transformer
from features.test_chunk_rewrite import graph_of, run, sizes_of
from memplan_cli.analysis.cost import total_cost
from memplan_cli.analysis.storage import live_peak
from memplan_cli.features.chunking.anytime import SearchResult, search
from memplan_cli.features.chunking.graph import run_at_first_use
from memplan_cli.features.chunking.search import Limit
from memplan_cli.features.chunking.stage import ChunkPlan, Stage, descend
from memplan_cli.onnx_io.shapes.reading import read_program
from memplan_cli.onnx_io.writing.chunked import chunked_model
from memplan_cli.ordering.records import PlannedVars


def of_heads(length: int = 384, heads: int = 6) -> onnx.ModelProto:
    """Return attention of many heads whose keys and values are most of what pieces read."""
    make = Maker()
    return make.model({"x": (1, length, 96)}, attention_layer(make, "x", length, heads, 16))


def found_twice(model: onnx.ModelProto, share: float) -> tuple[ChunkPlan, SearchResult]:
    """Return the last plan along one axis, and the whole search, for a share of the peak."""
    graph = graph_of(model)
    terms = PlannedVars(sizes_of(graph.program))
    budget = int(live_peak(graph.program, terms.sizes) * share)
    stage = Stage(graph, terms, original_work=total_cost(graph.program).work)
    *_, flat = descend(stage, budget, Limit(1_000_000))
    return flat, search(graph, terms, budget)


def test_pieces_of_rows_are_cut_again_by_heads_where_that_is_less_work() -> None:
    model, share = of_heads(), 0.18
    flat, result = found_twice(model, share)
    nested = result.best
    assert nested.added_work < flat.added_work
    assert nested.peak <= max(flat.peak, share * result.before)
    assert nested.peak == live_peak(nested.chunked.program, nested.state.sizes)
    again = [each for each in nested.choices if each.region.seed.endswith("__chunk1")]
    assert any(each.region.axis == 1 for each in again)
    written, program = chunked_model(model, nested.chunked.program, nested.chunked.constants)
    onnx.checker.check_model(written, full_check=True)
    assert read_program(written).program.body == program.body
    assert [x.tobytes() for x in run(written)] == [x.tobytes() for x in run(model)]


def test_one_axis_is_enough_where_it_adds_little_work() -> None:
    flat, result = found_twice(transformer(layers=1), 0.9)
    assert flat.choices
    assert result.best.choices == flat.choices


def test_what_inputs_make_is_made_where_it_is_read() -> None:
    make = Maker()
    early = make.node("Mul", "x", make.weight(1))
    shared = make.node("Sigmoid", "y")
    beside = make.node("Neg", shared)
    x = make.node("Tanh", make.node("Abs", shared))
    both = make.node("Add", make.node("Add", x, early), make.node("Sub", beside, shared))
    program = graph_of(make.model({"x": (1, 64), "y": (1, 64)}, both)).program
    assert [op.type for op in program.body.ops][:4] == ["Mul", "Sigmoid", "Neg", "Abs"]
    late = run_at_first_use(program)
    told = ["Sigmoid", "Abs", "Tanh", "Mul", "Add", "Neg", "Sub", "Add"]
    assert [op.type for op in late.body.ops] == told
    assert live_peak(late, sizes_of(late)) < live_peak(program, sizes_of(program))


def test_a_random_op_is_not_moved() -> None:
    make = Maker()
    drawn = make.node("RandomNormalLike", "x")
    x = make.node("Tanh", make.node("Sigmoid", "x"))
    program = graph_of(make.model({"x": (1, 64)}, make.node("Add", x, drawn))).program
    assert run_at_first_use(program).body == program.body
