"""Ops that stretch dims keep their names, where it is known what becomes of them."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from memplan_cli.onnx_io.shapes.bindings import Bindings
from memplan_cli.onnx_io.shapes.infer import infer
from memplan_cli.onnx_io.shapes.lattice import shape_in
from memplan_cli.onnx_io.shapes.reading import read_program


def shape_of(
    body: str, weights: str = "", opset: int = 19, image: str = "batch,3,h,w", **dims: int
) -> object:
    text = (
        f'<ir_version: 9, opset_import: ["": {opset}]> '
        f"g (float[{image}] x) => (y) <{weights}> {{ {body} }}"
    )
    program = read_program(onnx.parser.parse_model(text), Bindings(dims)).program
    return next(var.shape for var in program.vars.values() if var.name == "r")


RESIZE = 'r = Resize <mode = "nearest"> (x, , scales) y = Neg (r)'
TWICE = "float[4] scales = {1.0, 1.0, 2.0, 2.0}"


def test_scales_keep_multiply_and_floor_the_dims() -> None:
    assert shape_of(RESIZE, TWICE) == ("batch", 3, "2*h", "2*w")
    halves = "float[4] scales = {1.0, 1.0, 0.5, 1.5}"
    assert shape_of(RESIZE, halves) == ("batch", 3, "floor(h/2)", "floor(w/2) + w")
    assert shape_of(RESIZE, halves, h=7, w=7) == ("batch", 3, 3, 10)


def test_sizes_may_be_dims_themselves() -> None:
    body = """bc = Shape <end = 2> (x) hw = Constant <value_ints = [8, 9]> ()
        sizes = Concat <axis = 0> (bc, hw) r = Resize (x, , , sizes) y = Neg (r)"""
    assert shape_of(body) == ("batch", 3, 8, 9)


def test_named_axes_leave_the_others_alone() -> None:
    body = """scales = Constant <value_floats = [2.0]> ()
        r = Resize <axes = [-1]> (x, , scales) y = Neg (r)"""
    assert shape_of(body) == ("batch", 3, "h", "2*w")


@pytest.mark.parametrize(
    ("opset", "body", "weights"),
    [
        (7, "r = Upsample <scales = [1.0, 1.0, 2.0, 2.0]> (x) y = Neg (r)", ""),
        (9, "r = Upsample (x, scales) y = Neg (r)", TWICE),
        (10, "r = Resize (x, scales) y = Neg (r)", TWICE),
        (11, "r = Resize (x, roi, scales) y = Neg (r)", TWICE + ", float[0] roi = {}"),
    ],
)
def test_older_operators_have_their_scales_elsewhere(
    opset: int, body: str, weights: str
) -> None:
    assert shape_of(body, weights, opset) == ("batch", 3, "2*h", "2*w")


@pytest.mark.parametrize(
    ("attributes", "weights"),
    [
        ('coordinate_transformation_mode = "tf_crop_and_resize"', TWICE),
        ('keep_aspect_ratio_policy = "not_larger"', TWICE),
        ('mode = "nearest"', "float[4] scales = {1.0, 1.0, 0.3, 2.0}"),
        ('mode = "nearest"', "float[3] scales = {1.0, 1.0, 2.0}"),
    ],
)
def test_resize_with_uncertain_rounding_has_an_unknown_shape(
    attributes: str, weights: str
) -> None:
    shape = shape_of(f"r = Resize <{attributes}> (x, , scales) y = Neg (r)", weights)
    assert shape is None or None in shape  # type: ignore[operator]


def test_resize_with_written_defaults_has_the_shape_of_one_without() -> None:
    """ONNX Runtime writes every attribute, also those that a model left out."""
    written = (
        'keep_aspect_ratio_policy = "stretch", coordinate_transformation_mode = "half_pixel"'
    )
    body = f"r = Resize <{written}> (x, , scales) y = Neg (r)"
    assert shape_of(body, TWICE) == ("batch", 3, "2*h", "2*w")


def test_a_tile_multiplies_and_a_repeat_of_one_keeps_the_name() -> None:
    assert shape_of("r = Tile (x, n) y = Neg (r)", "int64[4] n = {1, 2, 3, 1}") == (
        "batch",
        6,
        "3*h",
        "w",
    )


def test_a_pad_adds_on_both_sides_of_the_axes_it_names() -> None:
    pads = "int64[8] n = {0, 0, 1, 2, 0, 0, 3, 0}"
    assert shape_of("r = Pad (x, n) y = Neg (r)", pads) == ("batch", 3, "h + 4", "w + 2")
    named = "int64[2] n = {1, 1}, int64[1] axes = {-1}"
    assert shape_of("r = Pad (x, n, , axes) y = Neg (r)", named) == ("batch", 3, "h", "w + 2")


def test_a_concat_adds_up_its_axis_and_takes_the_rest_from_whoever_knows() -> None:
    body = """k = RandomNormal <shape = [1, 3, 5, 7]> ()
        r = Concat <axis = -1> (x, k, x) y = Neg (r)"""
    assert shape_of(body, image="1,3,h,w") == (1, 3, 5, "2*w + 7")


def test_a_concat_along_an_unknown_dim_stays_unknown_there() -> None:
    body = "i = NonZero (x) r = Concat <axis = 1> (i, i) y = Neg (r)"
    assert shape_of(body) == (4, None)


@settings(max_examples=24, deadline=None)
@given(
    dim=st.integers(1, 5000),
    scale=st.sampled_from([0.125, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 7.0]),
)
def test_a_dim_bound_later_is_what_onnx_inference_says_of_the_number(
    dim: int, scale: float
) -> None:
    weights = f"float[4] scales = {{1.0, 1.0, {scale}, 1.0}}"
    known = shape_of(RESIZE, weights, image=f"2,3,{dim},5")
    later = shape_of(RESIZE, weights, image="2,3,h,w", h=dim, w=5)
    from memplan_cli.core.symbolic.dims import bind_dim

    free = shape_of(RESIZE, weights)
    assert known == later
    assert bind_dim(free[2], {"h": dim}) == known[2]  # type: ignore[index]


@pytest.mark.parametrize(
    ("start", "limit", "delta", "steps"),
    [
        (0.1, 2.5, 0.1, 24),
        (0.1, 3.0, 0.1, 29),
        (0.3, 1.5, 0.3, 4),
        (0.0, 1.0, 0.1, 10),
        (1.0, 0.0, -0.25, 4),
    ],
)
@pytest.mark.parametrize("limit_name", ["end", "limit"], ids=["constant", "computed limit"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_range_of_floats_is_as_long_as_the_runtime_makes_it(
    start: float, limit: float, delta: float, steps: int, limit_name: str, dtype: str
) -> None:
    ends = [np.array(end, dtype) for end in (start, limit, delta, 1.0)]
    names = ("start", "end", "delta", "one")
    weights = [
        numpy_helper.from_array(end, name) for end, name in zip(ends, names, strict=True)
    ]
    nodes = [
        helper.make_node("Mul", ["end", "one"], ["limit"]),
        helper.make_node("Range", ["start", limit_name, "delta"], ["made"]),
    ]
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    made = helper.make_tensor_value_info("made", element, None)
    graph = helper.make_graph(nodes, "g", [], [made], weights)
    opset = helper.make_opsetid("", 21)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=10)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    assert session.run(None, {})[0].shape == (steps,)
    inferred, _ = infer(model, Bindings())
    assert shape_in(inferred.graph.output[0].type) == (steps,)
