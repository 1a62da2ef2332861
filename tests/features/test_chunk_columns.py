"""Gradients of logits computed again by columns: the same bits, and in pieces both ways."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from features.chunk_models import Maker, language_model
from features.test_chunk_rewrite import graph_of, run, sizes_of
from memplan_cli.core.program import intermediates
from memplan_cli.features.chunking.anytime import search
from memplan_cli.features.chunking.columns import copy_for_products, stage_with_copies
from memplan_cli.features.chunking.graph import Graph
from memplan_cli.features.chunking.region import regions_from
from memplan_cli.features.chunking.rewrite import rewrite_in_chunks
from memplan_cli.features.chunking.stage import Stage
from memplan_cli.features.training.losses import LossFunction
from memplan_cli.features.training.optimizers import Optimizer
from memplan_cli.features.training.train_step import Recipe, make_train_step
from memplan_cli.onnx_io.writing.chunked import chunked_model
from memplan_cli.ordering.records import PlannedVars

if TYPE_CHECKING:
    from collections.abc import Callable

    from memplan_cli.core.program import Program
    from memplan_cli.features.chunking.columns import CopiedProgram


def step_of(tokens: int = 256, hidden: int = 8, vocabulary: int = 129) -> onnx.ModelProto:
    """Return a training step whose logits are its largest tensors."""
    recipe = Recipe(LossFunction("softmax-cross-entropy"), Optimizer("sgd"))
    made = make_train_step(language_model(tokens, hidden, vocabulary), recipe).model
    return onnx.shape_inference.infer_shapes(made, data_prop=True)


def copied_graph(graph: Graph, copied: CopiedProgram) -> Graph:
    facts = replace(graph.context, constants={**graph.context.constants, **copied.constants})
    return Graph.of(copied.program, facts)


def bits(model: onnx.ModelProto) -> list[bytes]:
    return [each.tobytes() for each in run(model)]


def written(
    model: onnx.ModelProto, program: Program, copied: CopiedProgram
) -> onnx.ModelProto:
    written, _ = chunked_model(model, program, copied.constants)
    onnx.checker.check_model(written, full_check=True)
    return written


@settings(max_examples=12)
@given(tokens=st.integers(2, 70), hidden=st.integers(2, 12), vocabulary=st.integers(30, 300))
def test_copies_give_the_bits_of_what_they_stand_for(
    tokens: int, hidden: int, vocabulary: int
) -> None:
    model = step_of(tokens, hidden, vocabulary)
    graph = graph_of(model)
    copied = copy_for_products(graph, 1)
    assert copied is not None
    assert bits(written(model, copied.program, copied)) == bits(model)


def test_every_region_of_a_step_with_copies_keeps_the_bits() -> None:
    model = step_of(64, 8, 130)
    graph = graph_of(model)
    copied = copy_for_products(graph, 1)
    assert copied is not None
    own, whole = copied_graph(graph, copied), bits(model)
    large = [v for v in intermediates(own.program) if own.bytes(v) >= 4 * 64 * 130]
    regions = {
        region.key: region
        for var in large
        for axis in range(len(own.dims(var)))
        for region in regions_from(own, var, axis)
    }
    made = [rewrite_in_chunks(own, [(region, 2)]) for region in regions.values()]
    assert sum(each is not None for each in made) > 4
    for each in filter(None, made):
        constants = {**copied.constants, **each.constants}
        written, _ = chunked_model(model, each.program, constants)
        assert bits(written) == whole


@pytest.mark.slow
def test_the_search_puts_rows_and_columns_of_logits_in_pieces() -> None:
    model = step_of(512, 8, 200)
    graph = graph_of(model)
    terms = PlannedVars(sizes_of(graph.program)).resident
    budget = 2 * 4 * 512 * 200
    best = search(graph, terms, budget).best
    assert best.peak <= budget
    assert best.added_work > 0
    assert len(best.choices) >= 2
    assert any(name.endswith("__columns") for name in best.stage.graph.program.vars)
    written, _ = chunked_model(model, best.chunked.program, best.chunked.constants)
    onnx.checker.check_model(written, full_check=True)
    assert bits(written) == bits(model)


def test_nothing_is_copied_where_no_product_reads_along_another_axis() -> None:
    graph = graph_of(language_model(64, 8, 128))
    terms = PlannedVars(sizes_of(graph.program)).resident
    assert stage_with_copies(Stage(graph, terms, original_work=1), 1) is None


def test_unused_nodes_are_removed() -> None:
    model = language_model(64, 8, 128)
    recipe = Recipe(LossFunction("softmax-cross-entropy"), Optimizer("sgd"), train=("w2",))
    step = onnx.shape_inference.infer_shapes(make_train_step(model, recipe).model)
    graph = graph_of(step)
    copied = copy_for_products(graph, 1)
    assert copied is not None
    counts = [
        sum(op.type == "Exp" for op in each.body.ops)
        for each in (graph.program, copied.program)
    ]
    assert counts == [1, 1]
    assert bits(written(step, copied.program, copied)) == bits(step)


def crossed(
    kind: str,
    index: int = onnx.TensorProto.INT64,
    *,
    rows: int = 32,
    add: Callable[[Maker, str], str] = lambda _, made: made,
) -> onnx.ModelProto:
    """Return a graph that reads a normalized product by rows and by columns; ``add`` adds nodes to it."""
    make, columns = Maker(), 96
    logits = make.node("MatMul", "x", "head")
    told = {"axis": -1} if kind.endswith("max") else {}
    made = add(make, make.node(kind, logits, **told))
    made = make.node("ScatterElements", made, "at", "more", axis=-1, reduction="add")
    back = make.node("MatMul", made, make.weight(columns, 16))
    across = make.node("Gemm", "x", made, transA=1)
    given: dict[str, tuple[int, ...]] = {"x": (rows, 16), "more": (rows, 1)}
    given["head"] = (16, columns)
    model = make.model(given, across)
    model.graph.input.append(helper.make_tensor_value_info("at", index, (rows, 1)))
    model.graph.output.append(
        helper.make_tensor_value_info(back, onnx.TensorProto.FLOAT, (rows, 16))
    )
    return model


@pytest.mark.parametrize("kind", ["LogSoftmax", "Relu"])
def test_places_count_from_the_end_too(kind: str) -> None:
    model = crossed(kind)
    graph = graph_of(model)
    copied = copy_for_products(graph, 1)
    assert copied is not None
    assert bits(written(model, copied.program, copied)) == bits(model)


def test_a_tensor_that_a_chain_reads_twice_is_copied_if_both_need_the_same_slices() -> None:
    model = crossed(
        "Relu", add=lambda make, made: make.node("Add", made, make.node("Neg", made))
    )
    copied = copy_for_products(graph_of(model), 1)
    assert copied is not None
    assert bits(written(model, copied.program, copied)) == bits(model)
    turned = crossed(
        "Relu",
        rows=96,
        add=lambda make, made: make.node("Add", made, make.node("Transpose", made)),
    )
    assert copy_for_products(graph_of(turned), 1) is None


def test_a_plan_with_copies_needs_no_less_than_its_bound() -> None:
    graph = graph_of(crossed("LogSoftmax", rows=64))
    result = search(graph, PlannedVars(sizes_of(graph.program)), 0.5)
    assert any(name.endswith("__columns") for name in result.best.stage.graph.program.vars)
    assert result.bound.bytes <= result.best.peak


def test_a_copy_runs_before_all_of_its_readers() -> None:
    model = crossed("LogSoftmax")
    made = next(
        node.output[0] for node in model.graph.node if node.op_type == "ScatterElements"
    )
    model.graph.initializer.append(numpy_helper.from_array(np.array([0]), "first"))
    at = len(model.graph.node) - 1
    model.graph.node.insert(
        at, helper.make_node("ReduceSum", [made, "first"], ["sums"], "n_sums")
    )
    model.graph.output.append(
        helper.make_tensor_value_info("sums", onnx.TensorProto.FLOAT, (1, 96))
    )
    model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    copied = copy_for_products(graph_of(model), 1)
    assert copied is not None
    assert bits(written(model, copied.program, copied)) == bits(model)


def test_an_original_that_a_copy_still_reads_is_not_removed() -> None:
    make = Maker()
    first, last = (make.constant(np.array([axis])) for axis in (0, 1))
    x, y = make.node("Relu", "x"), make.node("Relu", "y")
    by_columns = make.node("Sigmoid", x)
    # A copy of this op reads `by_columns`; the original reads its copy, and is removed.
    product = make.node("MatMul", "z", by_columns)
    by_rows = make.node("MatMul", make.node("Add", product, y), "w")
    sums = (make.node("ReduceSum", x, last), make.node("ReduceSum", y, first))
    given: dict[str, tuple[int, ...]]
    given = {"x": (64, 64), "y": (96, 64), "z": (96, 64), "w": (64, 16)}
    model = make.model(given, by_rows)
    model.graph.output.extend(
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in sums
    )
    model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    copied = copy_for_products(graph_of(model), 1)
    assert copied is not None
    assert bits(written(model, copied.program, copied)) == bits(model)


def test_what_mixes_columns_otherwise_is_not_copied() -> None:
    assert copy_for_products(graph_of(crossed("Softmax")), 1) is None
    assert (
        copy_for_products(graph_of(crossed("LogSoftmax", onnx.TensorProto.INT32)), 1) is None
    )


def test_a_tensor_far_below_the_budget_is_not_computed_again() -> None:
    graph = graph_of(crossed("LogSoftmax"))
    assert copy_for_products(graph, 4 * 4 * 32 * 96) is None
    copied = copy_for_products(graph, 4 * 4 * 32 * 96 - 1)
    assert copied is not None
    new = [var for name, var in copied.program.vars.items() if name not in graph.program.vars]
    assert all(var.shape for var in new)


@settings(max_examples=24)
@given(
    seed=st.integers(0, 2**32 - 1),
    columns=st.integers(1, 300),
    scale=st.sampled_from([1e-3, 1.0, 30.0, 1e4]),
)
def test_the_runtime_subtracts_the_maximum_and_then_the_logarithm(
    seed: int, columns: int, scale: float
) -> None:
    values = np.random.default_rng(seed).standard_normal((5, columns)) * scale
    x = values.astype(np.float32)
    node = helper.make_node("LogSoftmax", ["x"], ["y"], axis=-1)
    value = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, x.shape)
    graph = helper.make_graph(
        [node], "logs", [value], [helper.make_empty_tensor_value_info("y")]
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10
    )
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (made,) = session.run(None, {"x": x})
    logs = np.asarray(made)
    told = (x - x.max(-1, keepdims=True)) + logs.max(-1, keepdims=True)
    assert told.tobytes() == logs.tobytes()
