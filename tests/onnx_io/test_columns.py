"""Large constant operands in columns: the same numbers, each piece once, nothing left over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from memplan_cli import Check, Settings, api
from memplan_cli.onnx_io.load import load_model
from memplan_cli.onnx_io.weights.prepacked import packed_blobs
from memplan_cli.onnx_io.writing import columns
from memplan_cli.onnx_io.writing.columns import cut_columns, reads_large_inside

if TYPE_CHECKING:
    from pathlib import Path

ROWS, SUMMED = 3, 16


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let operands of a few kibibytes be large."""
    monkeypatch.setattr(columns, "PIECE", 4096)
    monkeypatch.setattr(columns, "NODE", 16)


def product(
    kind: str, wide: int, *, bias: int | None = None, **attributes: int
) -> onnx.ModelProto:
    """Return one product with a constant operand of so many columns."""
    shape = (wide, SUMMED) if attributes.get("transB") else (SUMMED, wide)
    drawn = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    weights = [numpy_helper.from_array(drawn, "w")]
    inputs = ["x", "w"]
    if bias is not None:
        numbers = np.arange(bias, dtype=np.float32)
        weights.append(numpy_helper.from_array(numbers, "b"))
        inputs.append("b")
    node = helper.make_node(kind, inputs, ["y"], "product", **attributes)
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node], "g", [value("x", 1, [ROWS, SUMMED])], [value("y", 1, [ROWS, wide])], weights
    )
    opset = [helper.make_opsetid("", 21)]
    return helper.make_model(graph, ir_version=10, opset_imports=opset)


def cut(model: onnx.ModelProto, folder: Path) -> int:
    """Cut a model; return of how many products."""
    pieces = cut_columns(model, folder / "pieces.data", {})
    return len({whole for whole, _ in pieces.values()})


def result(model: onnx.ModelProto, folder: Path) -> Any:  # noqa: ANN401 - an array
    onnx.save(model, folder / "m.onnx")
    whole = onnx.load(folder / "m.onnx")
    feed = {"x": np.random.default_rng(1).standard_normal((ROWS, SUMMED)).astype(np.float32)}
    return ReferenceEvaluator(whole).run(None, feed)[0]


@given(
    wide=st.integers(300, 900),
    kind=st.sampled_from(["MatMul", "Gemm"]),
    turned=st.integers(0, 1),
)
@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_pieces_give_the_same_numbers(
    tmp_path: Path, wide: int, kind: str, turned: int
) -> None:
    extra: dict[str, int] = {"transB": 1} if kind == "Gemm" and turned else {}
    model = product(kind, wide, bias=wide if kind == "Gemm" else None, **extra)
    before = result(model, tmp_path)
    assert cut(model, tmp_path) == 1
    assert len(model.graph.node) > 2
    names = {tensor.name for tensor in model.graph.initializer}
    assert not names & {"w", "b"}
    assert np.allclose(result(model, tmp_path), before, rtol=1e-5, atol=1e-5)
    onnx.checker.check_model(tmp_path / "m.onnx")


def test_the_joined_node_keeps_name_and_output(tmp_path: Path) -> None:
    model = product("MatMul", 700)
    cut(model, tmp_path)
    *pieces, join = model.graph.node
    assert (join.op_type, join.name, list(join.output)) == ("Concat", "product", ["y"])
    assert len({piece.name for piece in pieces}) == len(pieces)
    sizes = [tensor.dims[1] for tensor in model.graph.initializer]
    assert sum(sizes) == 700
    assert all(size % 64 == 0 for size in sizes[:-1])


def test_a_cut_operand_with_another_reader_is_kept(tmp_path: Path) -> None:
    model = product("MatMul", 700)
    model.graph.node.append(helper.make_node("Identity", ["w"], ["again"]))
    assert cut(model, tmp_path) == 1
    assert "w" in {tensor.name for tensor in model.graph.initializer}


def test_two_readers_share_the_pieces(tmp_path: Path) -> None:
    model = product("MatMul", 700)
    model.graph.node.append(helper.make_node("MatMul", ["x", "w"], ["other"], "second"))
    assert cut(model, tmp_path) == 2
    pieces = [t.name for t in model.graph.initializer]
    assert len(pieces) == len(set(pieces)) == (len(model.graph.node) - 2) // 2


def test_a_bias_of_two_products_is_cut_where_each_is(tmp_path: Path) -> None:
    model = product("Gemm", 700, bias=700)
    deeper = np.ones((2 * SUMMED, 700), np.float32)
    model.graph.initializer.append(numpy_helper.from_array(deeper, "deeper"))
    twice = helper.make_node("Concat", ["x", "x"], ["xx"], "twice", axis=1)
    second = helper.make_node("Gemm", ["xx", "deeper", "b"], ["z"], "second")
    model.graph.node.extend([twice, second])
    before = result(model, tmp_path)
    assert cut(model, tmp_path) == 2
    assert np.allclose(result(model, tmp_path), before, rtol=1e-5, atol=1e-5)


def in_branches(wide: int) -> onnx.ModelProto:
    """Return a product at the top, and the same and another in the branches of an If."""
    model = product("MatMul", wide)
    model.graph.initializer.append(numpy_helper.from_array(np.zeros((), np.bool_), "no"))
    model.graph.initializer.append(
        numpy_helper.from_array(np.ones((SUMMED, wide), np.float32), "v")
    )
    value = helper.make_tensor_value_info
    branches = {
        side: helper.make_graph(
            [helper.make_node("MatMul", ["x", weight], [f"in_{side}"], side)],
            side,
            [],
            [value(f"in_{side}", 1, [ROWS, wide])],
        )
        for side, weight in (("then_branch", "w"), ("else_branch", "v"))
    }
    model.graph.node.append(helper.make_node("If", ["no"], ["chosen"], "if", **branches))
    model.graph.node.append(helper.make_node("Add", ["y", "chosen"], ["sum"], "sum"))
    model.graph.output[0].name = "sum"
    return model


def test_products_in_subgraphs_are_cut_where_their_results_are_known(tmp_path: Path) -> None:
    model = in_branches(700)
    before = result(model, tmp_path)
    results = {"in_then_branch": 4 * ROWS * 700, "in_else_branch": 4 * ROWS * 700}
    made = {"y": 4 * ROWS * 700, "sum": 100_000, **results}
    pieces = cut_columns(model, tmp_path / "pieces.data", made)
    assert {whole for whole, _ in pieces.values()} == {"y", *results}
    assert not {"w", "v"} & {tensor.name for tensor in model.graph.initializer}
    sides = [a.g for node in model.graph.node for a in node.attribute if a.HasField("g")]
    assert all([n.op_type for n in side.node][-1] == "Concat" for side in sides)
    assert np.allclose(result(model, tmp_path), before, rtol=1e-5, atol=1e-5)
    onnx.checker.check_model(tmp_path / "m.onnx")


def test_a_weight_of_a_subgraph_is_not_the_one_of_the_main_graph(tmp_path: Path) -> None:
    model = in_branches(700)
    (branch,) = (a.g for node in model.graph.node for a in node.attribute if a.name[0] == "e")
    zeros = np.zeros((SUMMED, 700), np.float32)
    branch.initializer.append(numpy_helper.from_array(zeros, "v"))
    before = result(model, tmp_path)
    sizes = dict.fromkeys(("y", "in_then_branch", "in_else_branch"), 4 * ROWS * 700)
    pieces = cut_columns(model, tmp_path / "pieces.data", {**sizes, "sum": 100_000})
    assert {whole for whole, _ in pieces.values()} == {"y", "in_then_branch"}
    assert np.allclose(result(model, tmp_path), before, rtol=1e-5, atol=1e-5)


def test_a_product_in_a_subgraph_whose_result_nobody_knows_stays_whole(tmp_path: Path) -> None:
    model = in_branches(700)
    assert reads_large_inside(model)
    assert cut(model, tmp_path) == 0, "an operand that stays whole leaves the others whole"
    assert not reads_large_inside(product("MatMul", 700))


def test_the_head_of_a_loop_is_loaded_in_pieces_with_the_same_bits(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["" : 21]>
        g (float[1,64] x) => (float[1,64] h, float[n,1,20000] logits)
          <bool go = {1}, int64 turns = {3}> {
            h, logits = Loop <body = step (int64 at, bool c, float[1,64] s)
              => (bool d, float[1,64] t, float[1,20000] z) {
                d = Identity (c)  z = MatMul (s, w)  t = Tanh (s)
            }> (turns, go, x) }"""
    model = onnx.parser.parse_model(text)
    drawn = np.random.default_rng(0).standard_normal((64, 20_000)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(drawn, "w"))
    onnx.save(model, tmp_path / "m.onnx")
    done = api.optimize(
        tmp_path / "m.onnx", Settings(target="cpu"), check=Check(provider="cpu")
    )
    assert done.model is not None
    assert done.passed
    written = load_model(done.model)
    (body,) = [a.g for node in written.graph.node for a in node.attribute if a.HasField("g")]
    assert sum(node.op_type == "Concat" for node in body.node) == 1
    assert all(
        list(packed_blobs(t)) for t in written.graph.initializer if "/columns_" in t.name
    )


def test_many_products_are_cut_into_fewer_pieces(tmp_path: Path) -> None:
    def pieces_of(first: int) -> int:
        model = product("MatMul", 700)
        for number in range(first - 1):
            other = product("MatMul", 700)
            node, weight = other.graph.node[0], other.graph.initializer[0]
            weight.name = node.input[1] = f"w{number}"
            node.output[0] = node.name = f"y{number}"
            model.graph.node.append(node)
            model.graph.initializer.append(weight)
        assert cut(model, tmp_path) in (0, first)
        return len(model.graph.node) - first

    alone, many, most = pieces_of(1), pieces_of(8), pieces_of(100)
    assert alone == 11
    assert 0 < many <= 21, "a third of a short graph"
    assert most == 0, "two pieces and their join for each would be more than a third"


def test_pieces_whose_nodes_take_more_than_the_operand_are_not_made(tmp_path: Path) -> None:
    def pieces_of(steps: int) -> int:
        model = product("MatMul", 700)
        model.graph.node.extend(
            helper.make_node("MatMul", ["x", "w"], [f"y{step}"], f"step {step}")
            for step in range(1, steps)
        )
        # A graph so long that its pieces are few beside it.
        model.graph.node.extend(
            helper.make_node("Neg", ["x"], [f"z{number}"]) for number in range(60 * steps)
        )
        return cut(model, tmp_path)

    assert pieces_of(20) == 20
    assert pieces_of(1000) == 0, "each step of an unrolled loop would have nodes of its own"


def test_an_operand_that_stays_whole_leaves_smaller_ones_as_they_are(tmp_path: Path) -> None:
    def model_with(bias: int | None) -> onnx.ModelProto:
        model, other = product("Gemm", 700), product("Gemm", 3000, bias=bias)
        node = other.graph.node[0]
        for at, name in enumerate(node.input):
            node.input[at] = "x" if name == "x" else f"other_{name}"
        for tensor in other.graph.initializer:
            tensor.name = f"other_{tensor.name}"
        node.output[0] = node.name = "z"
        model.graph.node.append(node)
        model.graph.initializer.extend(other.graph.initializer)
        return model

    assert cut(model_with(3000), tmp_path) == 2
    assert cut(model_with(1), tmp_path) == 0, (
        "the larger one has no columns of its bias to cut"
    )


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (product("MatMul", 60), "it is small"),
        (product("Gemm", 700, bias=1), "a bias of one element"),
    ],
)
def test_operands_that_cannot_be_cut_stay_whole(
    tmp_path: Path, model: onnx.ModelProto, why: str
) -> None:
    before = model.SerializeToString()
    assert cut(model, tmp_path) == 0, why
    assert model.SerializeToString() == before
    assert not (tmp_path / "pieces.data").exists()


def test_an_operand_without_columns_stays_beside_one_that_is_cut(tmp_path: Path) -> None:
    model = product("MatMul", 700)
    nothing = numpy_helper.from_array(np.zeros((SUMMED, 0), np.float32), "nothing")
    model.graph.initializer.append(nothing)
    model.graph.node.append(helper.make_node("MatMul", ["x", "nothing"], ["z"], "empty"))
    assert cut(model, tmp_path) == 1
    assert "nothing" in {tensor.name for tensor in model.graph.initializer}


def test_an_input_with_a_default_is_no_constant(tmp_path: Path) -> None:
    model = product("MatMul", 700)
    model.graph.input.append(helper.make_tensor_value_info("w", 1, [SUMMED, 700]))
    assert cut(model, tmp_path) == 0


def test_a_result_that_costs_more_to_join_is_left_whole(tmp_path: Path) -> None:
    model = product("MatMul", 700)
    data = tmp_path / "pieces.data"
    assert not cut_columns(model, data, {"y": 1 << 20})
    pieces = cut_columns(model, data, {"y": 1 << 10})
    assert {whole for whole, _ in pieces.values()} == {"y"}
    assert sum(columns for _, columns in pieces.values()) == 700


def test_a_result_that_another_step_is_as_wide_as_is_joined(tmp_path: Path) -> None:
    model = product("MatMul", 700)
    model.graph.node.append(helper.make_node("Relu", ["y"], ["z"], "next"))
    sizes = {"x": 1 << 10, "y": 1 << 20, "z": 1 << 20}
    assert cut_columns(model, tmp_path / "pieces.data", sizes)


def test_pieces_that_take_long_may_be_any_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside what they compute their nodes are nothing."""
    monkeypatch.setattr(columns, "_MAX_ADDED_SHARE", 0.0)
    assert not cut_columns(product("MatMul", 700), tmp_path / "pieces.data", {})
    monkeypatch.setattr(columns, "_FREE_PIECE", 8192)
    pieces = cut_columns(product("MatMul", 700), tmp_path / "pieces.data", {})
    assert 2 <= len(pieces) <= 700 * SUMMED * 4 // 8192 + 1


def test_a_view_that_is_a_result_is_a_copy(tmp_path: Path) -> None:
    """So joining, which has the same bytes twice, makes no step wider."""
    model = product("MatMul", 700)
    model.graph.initializer.append(numpy_helper.from_array(np.array([-1]), "flat"))
    model.graph.node.append(helper.make_node("Reshape", ["y", "flat"], ["z"], "view"))
    sizes = {"x": 1 << 10, "y": 1 << 20, "z": 1 << 20}
    assert not cut_columns(model, tmp_path / "pieces.data", sizes)
    model.graph.output[0].name = "z"
    assert cut_columns(model, tmp_path / "pieces.data", sizes)


def test_a_view_is_no_wider_than_what_it_reads(tmp_path: Path) -> None:
    model = product("MatMul", 700)
    model.graph.node.append(helper.make_node("Identity", ["y"], ["z"], "next"))
    sizes = {"x": 1 << 10, "y": 1 << 20, "z": 1 << 20}
    assert not cut_columns(model, tmp_path / "pieces.data", sizes)


def test_a_file_for_cpu_loads_with_its_head_in_pieces(tmp_path: Path) -> None:
    wide = 140_000
    drawn = np.random.default_rng(0).standard_normal((64, wide), dtype=np.float32)
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], "head")],
        "g",
        [value("x", 1, [2, 64])],
        [value("y", 1, [2, wide])],
        [numpy_helper.from_array(drawn, "w")],
    )
    opset = [helper.make_opsetid("", 21)]
    onnx.save(
        helper.make_model(graph, ir_version=10, opset_imports=opset), tmp_path / "m.onnx"
    )
    done = api.optimize(
        tmp_path / "m.onnx", Settings(target="cpu"), check=Check(provider="cpu")
    )
    assert done.model is not None
    assert done.passed
    written = load_model(done.model)
    assert sum(node.op_type == "MatMul" for node in written.graph.node) == 14
    assert all(list(packed_blobs(t)) for t in written.graph.initializer)
    assert {path.name for path in tmp_path.iterdir()} == {
        "m.onnx",
        "m.memplan.onnx",
        "m.memplan.onnx.data",
        "m.memplan.json",
    }
    runtime = done.plan.report.runtime
    assert runtime is not None
    process = runtime.observed["optimized"].process
    if process is not None:
        assert process.load < 25_000_000


def test_only_a_large_float32_matrix_is_a_large_operand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(columns, "LARGE", 4096)
    model = product("MatMul", 100)
    (operand,) = model.graph.initializer
    for dims, dtype, large in (
        ([SUMMED, 100], np.float32, True),
        ([SUMMED, 64], np.float32, False),  # 4096 bytes
        ([SUMMED * 100], np.float32, False),
        ([SUMMED, 200], np.float16, False),
    ):
        operand.CopyFrom(numpy_helper.from_array(np.zeros(dims, dtype), "w"))
        assert columns.has_large_operand(model) == large
