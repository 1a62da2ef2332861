"""Regions as loops: for every size of a request they give the bits of the whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from memplan_cli.core.program import Program, VarId, blocks, walk
from memplan_cli.core.symbolic.dims import as_dim, bind_dim
from memplan_cli.onnx_io.weights.small import small_constants, standard_opset
from memplan_cli.onnx_io.writing.chunked import chunked_model
from memplan_cli.shapes.reading import read_program
from memplan_cli.transforms.chunking.axes.terms import Facts
from memplan_cli.transforms.chunking.loops.counts import Count, numbers, resolved
from memplan_cli.transforms.chunking.loops.measure import Task
from memplan_cli.transforms.chunking.loops.search import Loops, search_loops
from transforms.loop_models import BOUNDS, encoder, exact, pictures

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]

BUDGET = 400_000
"""Bytes: more than what a loop's stack and result take together."""

SIZES = st.tuples(st.integers(*BOUNDS["batch"]), st.integers(*BOUNDS["seq"]))


def task_of(model: onnx.ModelProto) -> Task:
    facts = Facts(small_constants(model), standard_opset(model))
    return Task(read_program(model).program, facts, frozenset(), BOUNDS)


def in_loops(model: onnx.ModelProto, budget: float) -> tuple[Loops, onnx.ModelProto]:
    found = search_loops(task_of(model), budget)
    assert found.chunked is not None
    made, _ = chunked_model(model, found.chunked.program, found.chunked.constants)
    onnx.checker.check_model(made, full_check=True)
    return found, made


def session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def drawn(size: tuple[int, int]) -> dict[str, Array]:
    rng = np.random.default_rng(size)
    return {"x": rng.standard_normal((*size, 16)).astype(np.float32)}


Pair = tuple[onnxruntime.InferenceSession, onnxruntime.InferenceSession]


@pytest.fixture(scope="module")
def encoders() -> Pair:
    model = encoder(2)
    found, made = in_loops(model, BUDGET)
    assert found.chunked is not None
    assert found.peak <= BUDGET < found.before
    # A loop over samples, and in it one over query rows for each layer.
    assert [body.path.count(".body") for body in blocks(found.chunked.program.body)] == [
        0, 1, 2, 2,
    ]  # fmt: skip
    return session(model), session(made)


@settings(max_examples=16, deadline=None)
@given(SIZES)
def test_an_encoder_in_loops_gives_the_bits_of_the_whole(
    encoders: Pair, size: tuple[int, int]
) -> None:
    whole, loops = encoders
    first, second = (each.run(None, drawn(size))[0] for each in (whole, loops))
    assert np.asarray(first).tobytes() == np.asarray(second).tobytes()


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.sampled_from(["scores", "wide", "parted", "flat", "scaled"]), max_size=3),
    st.integers(8, 64),
    SIZES,
)
def test_random_regions_in_loops_are_what_the_reference_says(
    kinds: list[str], share: int, size: tuple[int, int]
) -> None:
    model = exact([*kinds, "scores", "wide"])
    found = search_loops(task_of(model), max(task_peak(model) // share, 30_000))
    if found.chunked is None:
        return
    made, _ = chunked_model(model, found.chunked.program, found.chunked.constants)
    rng = np.random.default_rng(size)
    feeds = {"x": rng.integers(-3, 4, (*size, 16)).astype(np.float32)}
    (wanted,) = ReferenceEvaluator(model).run(None, feeds)
    (reference,) = ReferenceEvaluator(made).run(None, feeds)
    runtime = np.asarray(session(made).run(None, feeds)[0])
    assert reference.tobytes() == wanted.tobytes()
    assert runtime.tobytes() == wanted.tobytes()


def task_peak(model: onnx.ModelProto) -> int:
    return search_loops(task_of(model), 1 << 40).before


@settings(max_examples=24, deadline=None)
@given(
    st.integers(1, 500), st.integers(1, 60), st.sampled_from([1, 4, 8]), st.integers(1, 9999)
)
def test_pieces_cover_all_rows_and_are_never_too_narrow(
    extent: int, unit: int, least: int, target: int
) -> None:
    count = Count("rows", "trips", "n", least, {("m",): unit})
    dims = {"n": extent, "m": 3}
    found = numbers((count,), target, dims)
    assert found["rows"] * found["trips"] >= extent
    assert found["rows"] * (found["trips"] - 1) < extent + found["trips"]
    assert found["rows"] >= min(least, extent)
    assert found["rows"] * 3 * unit <= max(target, count.floor * 3 * unit)
    for name, terms in resolved((count,), target).items():
        assert bind_dim(as_dim(terms), dims) == found[name]


def shapes_seen(made: onnx.ModelProto, program: Program, size: tuple[int, int]) -> int:
    """Compare the shapes of what the top graph makes with those that the program says."""
    copy = onnx.ModelProto()
    copy.CopyFrom(made)
    top = {var.name: var for var in program.vars.values() if not var.block}
    names = [out for node in made.graph.node for out in node.output]
    del copy.graph.output[:]
    copy.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in names)
    dims = dict(zip(("batch", "seq"), size, strict=True))
    seen = session(copy).run(None, drawn(size))
    for name, value in zip(names, seen, strict=True):
        told = tuple(bind_dim(dim, dims) for dim in top[name].shape or ())
        assert np.asarray(value).shape == told, name
    return len(names)


@pytest.mark.parametrize("size", [(1, 4), (16, 128), (3, 77), (7, 128), (16, 5)])
def test_shapes_are_those_that_the_plan_says(size: tuple[int, int]) -> None:
    found, made = in_loops(encoder(), BUDGET)
    assert found.chunked is not None
    assert shapes_seen(made, found.chunked.program, size) > 20


def test_names_of_all_that_remains_stay_and_no_value_hides_another() -> None:
    model = encoder()
    found, made = in_loops(model, BUDGET)
    assert found.chunked is not None
    program = found.chunked.program
    names = [var.name for var in program.vars.values()]
    assert len(names) == len(set(names))
    assert [value.name for value in made.graph.output] == [
        value.name for value in model.graph.output
    ]
    made_there = {VarId(out) for _, op in walk(program.body) for out in op.outputs if out}
    assert made_there <= program.vars.keys()


def test_samples_of_convolutions_of_any_size_give_the_bits_of_the_whole() -> None:
    model = pictures()
    facts = Facts(small_constants(model), standard_opset(model))
    bounds = {"batch": (1, 12), "side": (4, 24)}
    found = search_loops(Task(read_program(model).program, facts, frozenset(), bounds), 0.5)
    assert found.chunked is not None
    assert found.peak <= found.before / 2
    made, _ = chunked_model(model, found.chunked.program, found.chunked.constants)
    inside = [op.type for block, op in walk(found.chunked.program.body) if block.path]
    assert inside.count("Conv") == 3
    assert "Resize" in inside
    whole, loops = session(model), session(made)
    for batch, side in ((1, 4), (12, 24), (7, 19), (11, 5)):
        rng = np.random.default_rng(batch)
        x = rng.standard_normal((batch, 16, side, side)).astype(np.float32)
        one, other = (np.asarray(each.run(None, {"x": x})[0]) for each in (whole, loops))
        assert one.tobytes() == other.tobytes()


def test_shapes_that_cannot_be_together_are_no_endless_search() -> None:
    model = encoder()
    task = task_of(model)
    body = task.program.body
    reshape = next(op for op in body.ops if op.type == "Reshape")
    facts = task.program.vars[reshape.outputs[0]]
    wrong = {**task.program.vars, facts.id: facts._replace(shape=("batch", "seq", 3, 7))}
    program = Program(task.program.name, body, wrong)
    found = search_loops(Task(program, task.facts, frozenset(), BOUNDS), BUDGET)
    assert found.peak <= found.before


def test_a_budget_that_is_met_anyway_changes_nothing() -> None:
    found = search_loops(task_of(encoder()), 1 << 30)
    assert found.chunked is None
    assert found.peak == found.before


def test_nothing_that_draws_numbers_is_computed_piece_by_piece() -> None:
    model = encoder()
    for node in model.graph.node:
        if node.op_type == "Softmax":
            node.op_type = "RandomNormalLike"
            del node.attribute[:]
    model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    found = search_loops(task_of(model), BUDGET)
    if found.chunked is not None:
        inside = [op for block, op in walk(found.chunked.program.body) if block.path]
        assert all(op.type != "RandomNormalLike" for op in inside)
