"""Values that were given of inputs, which decide shapes without a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx.parser
import pytest
from onnx import TensorProto, numpy_helper

from memplan_cli.core.bindings import Feed
from memplan_cli.core.program import Origin
from memplan_cli.onnx_io.shapes.bindings import Bindings
from memplan_cli.onnx_io.shapes.infer import infer
from memplan_cli.onnx_io.shapes.light_model import small_values
from memplan_cli.onnx_io.shapes.reading import read_checked

if TYPE_CHECKING:
    from pathlib import Path

TEXT = """<ir_version: 9, opset_import: ["": 18]>
    g (float[n,4] x, int64[2] to, float scale) => (y, z) {
        y = Reshape (x, to)
        one = Constant <value_float = 1.0> ()
        zero = Constant <value_float = 0.0> ()
        z = Range (zero, scale, one)
    }"""


def saved(folder: Path, value: object, dtype: str, shape: tuple[int, ...] | None) -> Feed:
    file = folder / f"{dtype}.npy"
    np.save(file, np.array(value, dtype))
    return Feed(shape, (str(file),))


def shapes_of(**values: Any) -> dict[str, Any]:  # noqa: ANN401 - arrays
    given = {name: numpy_helper.from_array(np.array(v)) for name, v in values.items()}
    loaded = read_checked(onnx.parser.parse_model(TEXT), Bindings(values=given))
    return {var.name: var.shape for var in loaded.program.vars.values()}


def test_integers_and_floats_that_are_given_say_shapes() -> None:
    found = shapes_of(to=np.array([2, -1]), scale=np.float32(4.5))
    assert found["y"] == (2, "2*n")
    assert found["z"] == (5,)
    assert shapes_of(to=np.array([2, -1]))["z"] == (None,)


def test_shapes_that_depend_on_given_values_have_a_warning() -> None:
    given = {"to": numpy_helper.from_array(np.array([2, -1]))}
    model = onnx.parser.parse_model(TEXT)
    loaded = read_checked(model, Bindings(values=given))
    assert loaded.observed
    (note,) = loaded.warnings
    assert note == (
        "shapes depend on the given input values, other values may need more memory: y"
    )
    other = {"scale": numpy_helper.from_array(np.array([1.0, 2.0], np.float32))}
    assert not read_checked(model, Bindings(values=other)).observed, "it does not fit"


def test_an_input_whose_value_is_given_is_still_one() -> None:
    given = {"to": numpy_helper.from_array(np.array([2, -1]))}
    model = onnx.parser.parse_model(TEXT)
    program = read_checked(model, Bindings(values=given)).program
    names = [program.vars[var].name for var in program.body.inputs]
    assert names == ["x", "to", "scale"]
    assert program.vars[program.body.inputs[1]].origin is Origin.INPUT
    assert program.vars[program.body.inputs[1]].shape == (2,)
    inferred, _ = infer(model, Bindings(values=given))
    assert not inferred.graph.initializer
    assert {value.name for value in inferred.graph.input} == {"x", "to", "scale"}


@pytest.mark.parametrize(
    "value",
    [np.array([2, -1], "int32"), np.array([2, 2, -1]), np.array([[2, -1]])],
    ids=["another type", "too long", "another rank"],
)
def test_a_value_that_does_not_fit_its_input_says_nothing(value: Any) -> None:  # noqa: ANN401 - an array
    assert shapes_of(to=value)["y"] == (None, None)


def test_small_tensors_of_every_type_are_values_and_large_ones_are_data(
    tmp_path: Path,
) -> None:
    feeds = {
        "whole": saved(tmp_path, 16000, "int64", ()),
        "half": saved(tmp_path, [0.5], "float16", (1,)),
        "text": saved(tmp_path, ["yes", "no"], "str", (2,)),
        "truth": saved(tmp_path, 1, "bool", None),
        "long": saved(tmp_path, np.zeros(2000), "float32", (2000,)),
        "shape only": Feed((2, 3)),
    }
    found = small_values(feeds)
    assert sorted(found) == ["half", "text", "truth", "whole"]
    assert numpy_helper.to_array(found["whole"]) == 16000
    assert found["text"].data_type == TensorProto.STRING
    assert list(found["text"].string_data) == [b"yes", b"no"]


def test_one_value_for_a_shape_that_is_bound_fills_it(tmp_path: Path) -> None:
    text = """<ir_version: 9, opset_import: ["": 18]>
        g (float[n,4] x, int64[k] by) => (y) { y = Tile (x, by) }"""
    values = small_values({"by": saved(tmp_path, 3, "int64", None)})
    found = read_checked(onnx.parser.parse_model(text), Bindings({"k": 2}, values=values))
    assert found.program.vars[found.program.body.outputs[0]].shape == ("3*n", 12)


def test_a_warning_names_three_of_the_shapes_that_depend_on_given_values() -> None:
    nodes = " ".join(f"y{at} = Reshape(x, to)" for at in range(4))
    head = '<ir_version: 9, opset_import: ["" : 18]>'
    given = {"to": numpy_helper.from_array(np.array([2, -1]))}
    for outputs, named in ((3, "y0, y1, y2"), (4, "y0, y1, y2, ...")):
        shown = ", ".join(f"y{at}" for at in range(outputs))
        kept = nodes[: nodes.index("y3")] if outputs == 3 else nodes
        text = f"{head} g (float[n] x, int64[2] to) => ({shown}) {{ {kept} }}"
        (note,) = read_checked(onnx.parser.parse_model(text), Bindings(values=given)).warnings
        assert note.endswith(f"need more memory: {named}")
