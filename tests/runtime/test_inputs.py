from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx.parser
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collection_inputs import specs_from_json
from memplan_cli.core.bindings import FeedSpec
from memplan_cli.errors import ModelError
from memplan_cli.onnx_io.interface import free_dims
from memplan_cli.onnx_io.runs.prepared_models import random_ops, write_seeded
from memplan_cli.onnx_io.runs.random_inputs import feed_specs
from memplan_cli.runtime.workers.inputs import PreparedInputs, draw, draw_all

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

HEAD = '<ir_version: 10, opset_import: ["" : 21]>\n'


def spec_of(text: str, name: str, dims: Mapping[str, int] | None = None) -> FeedSpec:
    specs = feed_specs(onnx.parser.parse_model(HEAD + text), dims or {})
    return next(spec for spec in specs if spec.name == name)


def test_an_index_stays_inside_the_axis_that_is_gathered() -> None:
    spec = spec_of(
        """g (int64[2,3] ids) => (float[2,3,4] y)
           <float[7,4] table = {}> { y = Gather<axis = 0>(table, ids) }""".replace(
            "{}", "{" + ",".join(["0.5"] * 28) + "}"
        ),
        "ids",
    )
    assert (spec.kind, spec.low, spec.high) == ("integers", 0, 7)
    drawn = draw(spec)
    assert isinstance(drawn, np.ndarray)
    assert drawn.shape == (2, 3)
    assert drawn.max() > 1, "the whole axis is used, not only its start"


def test_an_index_is_followed_through_casts_and_reshapes() -> None:
    text = """g (int32[2,3] ids, float[9,4] x) => (float[6,4] y)
        <int64[1] flat = {-1}>
        { a = Cast<to = 7>(ids)  b = Reshape(a, flat)  y = Gather<axis = 0>(x, b) }"""
    assert spec_of(text, "ids").high == 9


def test_the_smallest_of_several_axes_bounds_an_index() -> None:
    text = """g (int64[3] ids, float[9,4] x, float[5,4] z) => (float[3,4] y, float[3,4] w)
        { y = Gather<axis = 0>(x, ids)  w = Gather<axis = 0>(z, ids) }"""
    assert spec_of(text, "ids").high == 5


def test_an_index_of_gathernd_is_bounded_by_the_axes_after_the_batch() -> None:
    text = """g (int64[2,3,1] ids, float[2,9,4] x) => (float[2,3,4] y)
        { y = GatherND<batch_dims = 1>(x, ids) }"""
    assert spec_of(text, "ids").high == 9


def test_an_index_into_an_axis_of_unknown_length_is_zero() -> None:
    text = """g (int64[3] ids, float[] x) => (y)
        { s = Shape(x)  z = ConstantOfShape(s)  y = Gather<axis = 0>(z, ids) }"""
    assert spec_of(text, "ids").high == 1


def test_an_input_may_have_no_elements_at_all() -> None:
    text = """g (float[1,0,8] past, float[1,steps,8] more, bool[2,0] mask) => (float[1,t,8] y)
        { y = Concat<axis = 1>(past, more) }"""
    assert spec_of(text, "past").shape == (1, 0, 8)
    assert spec_of(text, "more", {"steps": 0}).shape == (1, 0, 8)
    mask = draw(spec_of(text, "mask"))
    assert isinstance(mask, np.ndarray)
    assert mask.shape == (2, 0)


def test_a_label_stays_below_the_number_of_classes() -> None:
    text = """g (float[4,10] scores, int64[4] labels) => (float loss)
        { loss = SoftmaxCrossEntropyLoss<reduction = "mean">(scores, labels) }"""
    assert spec_of(text, "labels").high == 10


def test_what_a_square_root_takes_is_positive_also_through_sums() -> None:
    text = """g (float[64] v, float[64] gradient) => (float[64] y)
        <float beta = {0.9}>
        { a = Mul(v, beta)  g2 = Mul(gradient, gradient)  b = Add(a, g2)  y = Sqrt(b) }"""
    spec = spec_of(text, "v")
    assert spec.kind == "positive"
    drawn = draw(spec)
    assert isinstance(drawn, np.ndarray)
    assert drawn.min() > 0


def test_an_index_used_only_in_a_body_is_found_there() -> None:
    text = """g (int64[3] ids, float[6,4] x, bool c) => (float[3,4] y)
        { y = If (c) <
            then_branch = t () => (float[3,4] p) { p = Gather<axis = 0>(x, ids) },
            else_branch = e () => (float[3,4] q) { q = Gather<axis = 0>(x, ids) }> }"""
    assert spec_of(text, "ids").high == 6


def test_an_index_carried_by_a_loop_is_found_in_its_body() -> None:
    text = """g (int64[3] ids, float[6,4] x) => (int64[3] last)
        <int64 trips = {2}, bool go = {1}>
        { last = Loop (trips, go, ids) <
            body = b (int64 i, bool c, int64[3] now) => (bool k, int64[3] then)
            { k = Identity(c)  r = Gather<axis = 0>(x, now)  then = Identity(now) }> }"""
    assert spec_of(text, "ids").high == 6


def test_integers_that_nothing_indexes_with_are_a_mask() -> None:
    text = """g (int64[4,8] mask) => (float[4,8] y) { y = Cast<to = 1>(mask) }"""
    drawn = draw(spec_of(text, "mask"))
    assert isinstance(drawn, np.ndarray)
    assert set(np.unique(drawn)) == {0, 1}
    assert drawn[:, 0].all(), "no row is masked out whole"


def test_a_target_shape_is_the_shape_the_model_declares() -> None:
    text = """g (float[2,6] x, int64[2] shape) => (float[3,4] y) { y = Reshape(x, shape) }"""
    assert spec_of(text, "shape").values == (3, 4)


def test_a_range_whose_ends_are_fed_counts_from_zero_to_seven() -> None:
    text = "g (int64 start, int64 limit, int64 step) => (y) { y = Range(start, limit, step) }"
    (start,), (limit,), (step,) = (
        spec_of(text, name).values for name in ("start", "limit", "step")
    )
    assert list(range(start, limit, step)) == list(range(8))


def test_a_constant_without_elements_hinders_no_input() -> None:
    text = "g (float[1] x) => (float y) <int64[0] none = {}> { y = Reshape(x, none) }"
    assert spec_of(text, "x").shape == (1,)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("g (float[1,3,h,w] x, int64[4] n) => (y) { y = Resize(x, , , n) }", (1, 3, 5, 7)),
        (
            "g (float[h,w] x, int64[3] n) => (a, b, c) { a, b, c = Split <axis = 1> (x, n) }",
            (2, 2, 3),
        ),
        ("g (float[0,w] x, int64[2] n) => (a, b) { a, b = Split(x, n) }", (0, 0)),
        ("g (float[h,w] x, int64[2] n) => (y) { y = Reshape(x, n) }", (1, 1)),
    ],
    ids=["Resize", "Split", "Split of nothing", "Reshape"],
)
def test_sizes_of_a_result_of_which_nothing_is_known_fit_what_is_read(
    text: str, wanted: tuple[int, ...]
) -> None:
    specs = feed_specs(onnx.parser.parse_model(HEAD + text), {"h": 5, "w": 7})
    assert tuple(np.asarray(draw(specs[1]))) == wanted


def test_free_dims_are_one_and_bound_ones_the_values_given() -> None:
    text = """g (float[batch,seq] x) => (float[batch,seq] y) { y = Relu(x) }"""
    assert free_dims(onnx.parser.parse_model(HEAD + text)) == {"batch": True, "seq": False}
    assert spec_of(text, "x", {"seq": 5}).shape == (1, 5)


def test_a_product_of_dims_is_worked_out() -> None:
    model = onnx.parser.parse_model(
        HEAD + "g (float[b] x, float[n] z) => (float[n] y) { y = Relu(z) }"
    )
    model.graph.input[1].type.tensor_type.shape.dim[0].dim_param = "2*b + 1"
    assert [spec.shape for spec in feed_specs(model, {"b": 4})] == [(4,), (9,)]


def test_initializers_that_are_inputs_too_are_not_fed() -> None:
    model = onnx.parser.parse_model(
        HEAD + "g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }"
    )
    model.graph.input.append(
        onnx.helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [2])
    )
    assert [spec.name for spec in feed_specs(model, {})] == ["x"]


def test_an_output_that_is_no_tensor_hinders_no_input() -> None:
    model = onnx.parser.parse_model(
        HEAD + "g (float[2,3] x) => (y) { y = ai.onnx.ml.ZipMap(x) }"
    )
    kind = onnx.helper.make_map_type_proto(
        onnx.TensorProto.INT64, onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [])
    )
    model.graph.output[0].type.CopyFrom(onnx.helper.make_sequence_type_proto(kind))
    assert [spec.shape for spec in feed_specs(model, {})] == [(2, 3)]
    model.graph.input[0].type.CopyFrom(onnx.helper.make_sequence_type_proto(kind))
    with pytest.raises(ModelError, match=r"'x' is a sequence\(map\): it cannot be fed"):
        feed_specs(model, {})


@pytest.mark.parametrize(
    ("key", "keys"), [("STRING", ["s0", "s1"]), ("INT64", [0, 1])], ids=["text", "numbers"]
)
def test_an_input_that_is_a_map_is_drawn_entry_by_entry(key: str, keys: list[object]) -> None:
    model = onnx.parser.parse_model(HEAD + "g (float x) => (float y) { y = Neg(x) }")
    number = onnx.helper.make_tensor_type_proto(onnx.TensorProto.DOUBLE, [])
    kind = onnx.helper.make_map_type_proto(onnx.TensorProto.DataType.Value(key), number)
    model.graph.input[0].type.CopyFrom(kind)
    drawn = draw_all(feed_specs(model, {}))["x"]
    assert isinstance(drawn, dict)
    assert list(drawn) == keys
    assert all(isinstance(value, float) for value in drawn.values())
    assert free_dims(model) == {}


def test_the_same_seed_and_name_give_the_same_values_whatever_else_is_drawn() -> None:
    a, b = (FeedSpec(name, "float32", (5,), "normal") for name in "ab")
    alone, both = draw_all([a]), draw_all([b, a])
    assert np.array_equal(np.asarray(alone["a"]), np.asarray(both["a"]))
    assert not np.array_equal(np.asarray(both["a"]), np.asarray(both["b"]))
    assert not np.array_equal(np.asarray(draw(a, seed=1)), np.asarray(alone["a"]))


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4)), min_size=1, max_size=4),
    st.sampled_from(
        [
            FeedSpec("x", "float16", (), "normal", scale=0.5),
            FeedSpec("x", "float32", (), "positive"),
            FeedSpec("x", "int64", (), "integers", 0, 1 << 40),
            FeedSpec("x", "uint8", (), "integers", 0, 256),
            FeedSpec("x", "int64", (), "values", values=(3, 4, 5)),
            FeedSpec("x", "bool", (), "mask"),
            FeedSpec("x", "str", (), "strings"),
            FeedSpec("x", "float32", (), "normal", container="sequence"),
        ]
    ),
)
def test_inputs_drawn_ahead_are_those_drawn_for_each_size(
    shapes: list[tuple[int, int]], spec: FeedSpec
) -> None:
    sizes = [[replace(spec, shape=shape)] for shape in shapes]
    prepared = PreparedInputs(sizes)
    for specs in sizes:
        now, then = prepared.feed(specs)["x"], draw_all(specs)["x"]
        assert np.array_equal(np.asarray(now), np.asarray(then))
        assert np.asarray(now).dtype == np.asarray(then).dtype


def test_inputs_drawn_ahead_take_no_memory_of_their_own() -> None:
    small, large = ([FeedSpec("x", "float32", (n, 3), "normal")] for n in (2, 5))
    prepared = PreparedInputs([small, large])
    assert np.shares_memory(
        np.asarray(prepared.feed(small)["x"]), np.asarray(prepared.feed(large)["x"])
    )
    other = [FeedSpec("x", "int64", (2, 3), "integers", 0, 2)]
    assert np.asarray(prepared.feed(other)["x"]).dtype == np.int64


def test_strings_and_sequences_can_be_drawn() -> None:
    words = draw(FeedSpec("s", "str", (2, 2), "strings"))
    assert isinstance(words, np.ndarray)
    assert all(isinstance(word, str) for word in words.flat)
    parts = draw(FeedSpec("q", "float32", (3,), "normal", container="sequence"))
    assert isinstance(parts, list)
    assert [part.shape for part in parts] == [(3,), (3,)]


def test_the_model_collections_input_files_are_read() -> None:
    document = {"inputs": {"x": {"shape": [2, 3], "dtype": "int64", "gen": "randint 5 7"}}}
    (spec,) = specs_from_json(document)
    drawn = draw(spec)
    assert isinstance(drawn, np.ndarray)
    assert set(np.unique(drawn)) <= {5, 6}


@pytest.mark.parametrize(
    ("text", "ops"),
    [
        ("g (float[2] x) => (float[2] y) { y = RandomNormalLike(x) }", ("RandomNormalLike",)),
        ("g (float[2] x) => (float[2] y) { y = Dropout(x) }", ()),
    ],
)
def test_random_ops_are_named(text: str, ops: tuple[str, ...]) -> None:
    assert random_ops(onnx.parser.parse_model(HEAD + text)) == ops


def test_results_of_two_random_ops_are_not_alike_once_they_have_seeds(tmp_path: Path) -> None:
    text = "g (float[9] x) => (y) { a = RandomNormalLike(x) b = RandomNormalLike(x) y = Sub(a, b) }"
    onnx.save(onnx.parser.parse_model(HEAD + text), tmp_path / "a.onnx")
    write_seeded(tmp_path / "a.onnx", tmp_path / "b.onnx")
    a, b, _ = onnx.load(tmp_path / "b.onnx").graph.node
    assert a.attribute[0].name == b.attribute[0].name == "seed"
    assert a.attribute[0].f != b.attribute[0].f
