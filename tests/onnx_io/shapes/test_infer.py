"""Shapes: the file's word, inference, what the user binds, and what contradicts it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from builders import parse, read
from memplan_cli.core.program import Shape, VarId
from memplan_cli.errors import SettingsError
from memplan_cli.onnx_io.shapes.bindings import Bindings
from memplan_cli.onnx_io.shapes.light_model import bind_graph
from memplan_cli.onnx_io.shapes.reading import read_program

FREE = """g (float[batch,seq] x, float[batch,4] q) => (float[batch,n] z) {
    a = Exp(x) s = Shape(x) k = Constant<value_ints=[-1]>() flat = Reshape(a, k)
    j = Concat<axis=1>(x, q) z = Neg(j) }"""


def shape_of(name: str, text: str = FREE, **bindings: object) -> Shape | None:
    return read(text, **bindings).vars[VarId(name)].shape


def test_free_dims_go_through_as_symbols_and_expressions() -> None:
    assert shape_of("a") == ("batch", "seq")
    assert shape_of("s") == (2,)


def test_a_dim_is_bound_everywhere() -> None:
    made = read(FREE, dims={"batch": 3, "seq": 5})
    assert made.vars[VarId("x")].shape == (3, 5)
    assert made.vars[VarId("a")].shape == (3, 5)
    assert made.vars[VarId("flat")].shape == (15,)
    assert made.vars[VarId("j")].shape == (3, 9)
    assert made.vars[VarId("z")].shape == (3, 9)


def test_a_dim_may_be_bound_alone() -> None:
    assert shape_of("a", dims={"batch": 3}) == (3, "seq")


def test_a_graph_of_which_one_symbol_is_bound_declares_what_remains() -> None:
    graph = parse("g (float[n] x) => (float[n] z) { z = Neg(x) }").graph
    (dim,) = graph.input[0].type.tensor_type.shape.dim
    dim.dim_param = "m + n"
    bind_graph(graph, {"n": 2})
    assert dim.dim_param == "m + 2"


def test_a_shape_binds_the_symbols_of_its_input_everywhere() -> None:
    made = read(FREE, shapes={"x": (3, 5)})
    assert made.vars[VarId("q")].shape == (3, 4)
    assert made.vars[VarId("j")].shape == (3, 9)


def test_an_unnamed_dim_of_an_input_gets_a_name_that_can_be_bound() -> None:
    text = "g (float[?,4] x) => (float[?,4] z) { a = Exp(x) z = Neg(a) }"
    assert shape_of("a", text) == ("x_dim0", 4)
    assert shape_of("a", text, dims={"x_dim0": 7}) == (7, 4)
    assert shape_of("a", text, shapes={"x": (7, 4)}) == (7, 4)


@pytest.mark.parametrize(
    ("bindings", "words"),
    [
        ({"shapes": {"q": (3, 5)}}, "fixed to 4"),
        ({"shapes": {"x": (3,)}}, "2 dims"),
        ({"shapes": {"x": (3, 5), "q": (2, 4)}}, "is 3 in input 'x' and 2 in input 'q'"),
        ({"shapes": {"nothing": (3,)}}, "nothing"),
        ({"dims": {"batch": 2}, "shapes": {"x": (3, 5)}}, "both 2 and 3"),
    ],
)
def test_contradicting_bindings_are_refused(
    bindings: dict[str, dict[str, object]], words: str
) -> None:
    with pytest.raises(SettingsError, match=words):
        read(FREE, **bindings)


def test_a_shape_and_a_dim_that_agree_are_fine() -> None:
    assert shape_of("a", dims={"batch": 3}, shapes={"x": (3, 5)}) == (3, 5)


def test_the_mask_of_a_dropout_has_its_inputs_shape_and_is_bool() -> None:
    made = read("""g (float[2,3] x) => (float[2,3] y) {
        r = Constant<value_float=0.5>() t = Constant<value = bool {1}>()
        y, mask = Dropout(x, r, t) }""")
    assert (made.vars[VarId("mask")].dtype, made.vars[VarId("mask")].shape) == ("bool", (2, 3))


def test_a_mask_that_inference_leaves_out_is_added() -> None:
    head = '<ir_version: 6, opset_import: ["" : 9]>'
    model = parse("g (float[2,3] x) => (float[2,3] y) { y, mask = Dropout(x) }", head)
    made = read_program(model).program
    assert made.vars[VarId("mask")].shape == (2, 3)
    assert made.vars[VarId("mask")].dtype == "float32", "of the data's type below opset 10"


def test_what_follows_a_mask_that_inference_leaves_out_is_inferred() -> None:
    head = '<ir_version: 6, opset_import: ["" : 9]>'
    body = "y, mask = Dropout(x)  z = Exp(mask)  w = Neg(z)"
    model = parse(f"g (float[2,3] x) => (float[2,3] y, w) {{ {body} }}", head)
    assert read_program(model).program.vars[VarId("w")].shape == (2, 3)


def test_inference_that_fails_is_a_warning_and_the_files_shapes_remain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no\nmore lines")

    monkeypatch.setattr("memplan_cli.onnx_io.shapes.infer.infer_shapes", fail)
    loaded = read_program(
        parse("g (float[2,3] x) => (float[2,9] y) { a = Neg(x) y = Neg(a) }")
    )
    assert loaded.warnings == (
        "ONNX shape inference failed, the file's own shapes are used: no",
    )
    assert loaded.program.vars[VarId("y")].shape == (2, 9)
    assert loaded.program.vars[VarId("a")].shape is None


def test_a_small_weight_says_a_shape_and_a_large_one_is_not_read() -> None:
    model = parse("g (float[4,6] x) => (float[n,m] y) { y = Reshape(x, to) }")
    to = numpy_helper.from_array(np.array([8, 3]), "to")
    model.graph.initializer.append(to)
    assert read_program(model).program.vars[VarId("y")].shape == (8, 3)
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    assert read_program(model).program.vars[VarId("y")].shape != (8, 3)


def test_a_shape_of_data_can_be_given() -> None:
    text = "g (float[4] x) => (int64[1,2] z) { k = NonZero(x) z = TopK2(k) }".replace(
        "TopK2", "local.First"
    )
    assert shape_of("k", text) == (1, None)
    assert shape_of("k", text, shapes={"k": (1, 4)}) == (1, 4)


def test_the_same_model_is_read_for_two_bindings() -> None:
    model = parse(FREE)
    before = model.SerializeToString(deterministic=True)
    for batch in (1, 8):
        made = read_program(model, Bindings({"batch": batch})).program
        assert made.vars[VarId("a")].shape == (batch, "seq")
    assert model.SerializeToString(deterministic=True) == before
