"""Folded constants: the values that ONNX Runtime computes, bit for bit, and where they go."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from onnx import TensorProto, helper, numpy_helper

from builders import parse
from memplan_cli.core.operators import Exactness, names_of
from memplan_cli.core.program import Origin, VarId
from memplan_cli.errors import ModelError
from memplan_cli.features.folding.transform import fold
from memplan_cli.onnx_io.shapes.bindings import Bindings
from memplan_cli.onnx_io.shapes.reading import read_program
from memplan_cli.onnx_io.weights.folding import Evaluator, _declare, folded_model, goes_outside
from memplan_cli.onnx_io.weights.tensor_data import DataFile, read_tensor, store_inside
from onnx_io import constant_graphs
from onnx_io.constant_graphs import constant_models

if TYPE_CHECKING:
    from onnx import ModelProto


def folded(model: ModelProto, folder: Path = Path()) -> ModelProto:
    program = fold(read_program(model, Bindings()).program, {}).program
    return folded_model(model, program, Evaluator(model, folder), store_inside)[0]


def run(model: ModelProto) -> list[Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    found: list[Any] = session.run(None, {})
    return found


@given(model=constant_models())
@settings(max_examples=24)
def test_what_is_folded_is_what_the_runtime_computes(model: ModelProto) -> None:
    import onnxruntime

    try:
        wanted = run(model)
    except onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented:
        return  # no kernel of this type
    got = run(folded(model))
    for one, other, output in zip(wanted, got, model.graph.output, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape), output.name
        assert one.tobytes() == other.tobytes(), output.name


def test_every_operator_that_is_taken_for_exact_is_drawn() -> None:
    drawn = Path(constant_graphs.__file__).read_text("utf-8")
    exact = names_of(lambda each: each.exact is not Exactness.NONE)
    assert [name for name in exact if f'"{name}"' not in drawn] == []


HEAD = "a (float[3,2] x) => (float[3,2] y) <float[2,3] w = {1,2,3,4,5,6}>"


def test_the_expression_goes_and_its_value_comes() -> None:
    model = folded(parse(f"{HEAD} {{ t = Transpose(w) y = Add(x, t) }}"))
    assert [node.op_type for node in model.graph.node] == ["Add"]
    assert [tensor.name for tensor in model.graph.initializer] == ["t"]
    assert numpy_helper.to_array(model.graph.initializer[0]).tolist() == [
        [1, 4],
        [2, 5],
        [3, 6],
    ]


def test_a_weight_that_is_read_elsewhere_stays() -> None:
    text = "{ t = Transpose(w) s = ReduceSum(w) u = Add(x, t) y = Add(u, s) }"
    model = folded(parse(f"{HEAD} {text}"))
    assert [tensor.name for tensor in model.graph.initializer] == ["w", "t"]


def test_types_that_numpy_does_not_know_are_moved_by_their_bits() -> None:
    raw = np.arange(6, dtype=np.uint16) + 0x7F80  # infinity, and what is no number
    tensor = helper.make_tensor("w", TensorProto.BFLOAT16, [2, 3], raw.tobytes(), raw=True)
    node = helper.make_node("Transpose", ["w"], ["t"])
    last = helper.make_node("Add", ["t", "x"], ["y"])
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node, last],
        "b",
        [value("x", TensorProto.BFLOAT16, [3, 2])],
        [value("y", TensorProto.BFLOAT16, [3, 2])],
        [tensor],
    )
    model = folded(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]))
    (found,) = model.graph.initializer
    assert found.data_type == TensorProto.BFLOAT16
    assert found.raw_data == raw.reshape(2, 3).T.tobytes()


def test_a_slice_backwards_from_before_the_first_element_keeps_that() -> None:
    values = "<int64[1] s = {-5}, int64[1] e = {-9}, int64[1] a = {1}, int64[1] b = {-1}>"
    text = f"a () => (float[2,1] y) {values[:-1]}, float[2,3] w = {{1,2,3,4,5,6}}>"
    model = parse(f"{text} {{ t = Slice(w, s, e, a, b) y = Identity(t) }}")
    assert numpy_helper.to_array(folded(model).graph.initializer[0]).tolist() == [[1], [4]]
    assert run(model)[0].tolist() == [[1], [4]]


def test_a_constant_of_a_subgraph_becomes_its_initializer() -> None:
    model = parse(
        "a (bool c, float[3,2] x) => (float[3,2] y) <float[2,3] w = {1,2,3,4,5,6}> {"
        " y = If (c) <then_branch = one () => (float[3,2] p) { t = Transpose(w) p = Add(x, t) },"
        " else_branch = other () => (float[3,2] q) { q = Identity(x) }> }"
    )
    found = folded(model)
    assert not found.graph.initializer, "nobody reads the weight any more"
    branch = next(a.g for a in found.graph.node[0].attribute if a.name == "then_branch")
    assert [tensor.name for tensor in branch.initializer] == ["t"]
    assert [node.op_type for node in branch.node] == ["Add"]


def test_large_values_go_into_the_data_file_a_part_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memplan_cli.onnx_io.weights.tensor_data._CHUNK", 1000)
    weight = np.arange(40 * 30, dtype=np.float32).reshape(40, 30)
    model = parse(f"{HEAD.replace('3,2', '30,40')} {{ t = Transpose(w) y = Add(x, t) }}")
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, "w"))
    program = fold(read_program(model, Bindings()).program, {}).program
    with (tmp_path / "d").open("wb") as file:
        found, _ = folded_model(
            model, program, Evaluator(model, tmp_path), DataFile("d", file).store
        )
    (tensor,) = found.graph.initializer
    assert tensor.data_location == tensor.EXTERNAL
    assert not tensor.raw_data
    assert read_tensor(tensor, tmp_path).tolist() == weight.T.tolist()


def test_an_index_outside_names_the_node_and_the_way_out() -> None:
    text = "<int64[1] i = {7}> { g = Gather(w, i) y = Add(x, g) }"
    model = parse(
        f"a (float[3,2] x) => (float[3,2] y) <float[2,3] w = {{1,2,3,4,5,6}}, {text[1:]}"
    )
    with pytest.raises(ModelError, match=r"'g' cannot be folded: Gather") as error:
        folded(model)
    assert error.value.hint == "leave it as it is: --exclude g"


def test_weights_that_are_not_there_are_said(tmp_path: Path) -> None:
    model = parse(f"{HEAD} {{ t = Transpose(w) y = Add(x, t) }}")
    (tensor,) = model.graph.initializer
    del tensor.float_data[:]
    tensor.data_location = tensor.EXTERNAL
    tensor.external_data.add(key="location", value="gone.bin")
    with pytest.raises(ModelError, match=r"gone.bin cannot be read"):
        folded(model, tmp_path)


def test_the_folded_program_has_the_written_indices() -> None:
    model = parse(f"{HEAD} {{ t = Transpose(w) y = Add(x, t) }}")
    program = fold(read_program(model, Bindings()).program, {}).program
    assert [op.source for op in program.body.ops] == [1]
    _, written = folded_model(model, program, Evaluator(model, Path()), store_inside)
    assert [op.source for op in written.body.ops] == [0]
    assert program.vars["t"].origin is Origin.WEIGHT  # type: ignore[index]


@pytest.mark.parametrize(
    "value",
    [np.zeros((2, 3), np.float64), np.zeros((3, 2), np.float32)],
    ids=["type", "shape"],
)
def test_a_value_of_another_type_or_shape_than_planned_is_not_written(value: Any) -> None:  # noqa: ANN401 - an array
    text = "g (float[2,3] x) => (float[2,3] y) { y = Relu(x) }"
    planned = read_program(parse(text), Bindings()).program.vars[VarId("y")]
    with pytest.raises(ModelError, match="'y' cannot be folded: it is planned as float32"):
        _declare(TensorProto(), planned, value)


def test_new_weights_of_up_to_64_mib_are_part_of_the_model_file() -> None:
    model = parse(f"{HEAD} {{ y = Add(x, w) }}")
    assert [goes_outside(model, (64 << 20) + more) for more in (0, 1)] == [False, True]


def test_an_omitted_operand_of_a_folded_node_is_no_name() -> None:
    model = parse("""g (float[2] x) => (int64[3] y)
        <int64[6] i = {0,1,2,3,4,5}, int64[1] a = {0}, int64[1] z = {6}, int64[1] two = {2}>
        { s = Slice(i, a, z, , two)  y = Add(s, s) }""")
    (made,) = (numpy_helper.to_array(tensor) for tensor in folded(model).graph.initializer)
    assert made.tolist() == [0, 2, 4]
