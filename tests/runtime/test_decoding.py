"""Decode loops: the original's growing caches against buffers, bit for bit."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from cache_models import WORDS, Shape, decoder
from memplan_cli.errors import ModelError, SettingsError
from memplan_cli.features.kv_cache.find import find_caches
from memplan_cli.features.kv_cache.grouped import without_repeated_heads
from memplan_cli.features.kv_cache.rewrite import with_cache_buffers, with_tensor_scatter
from memplan_cli.runtime.decoding import Decoder

if TYPE_CHECKING:
    import onnx

    from memplan_cli.core.results.rewrites import CacheSummary

ort.set_default_logger_severity(4)


def session(model: onnx.ModelProto) -> Any:  # noqa: ANN401 - ONNX Runtime has no types
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def rewritten(model: onnx.ModelProto, capacity: int) -> tuple[onnx.ModelProto, CacheSummary]:
    model = with_tensor_scatter(model)
    found, caches = with_cache_buffers(model, find_caches(model), capacity)
    return without_repeated_heads(found), caches


class Original:
    """The loop that a user of the original writes."""

    def __init__(
        self, model: onnx.ModelProto, caches: CacheSummary, feed: dict[str, Any]
    ) -> None:
        self.session, self.caches = session(model), caches
        self.state = {}
        for value in self.session.get_inputs():
            growing = {b.input: b.axis for b in caches.growing}
            if value.name in growing:
                shape = [d if isinstance(d, int) else len(feed["ids"]) for d in value.shape]
                shape[growing[value.name]] = 0
                half = value.type == "tensor(float16)"
                self.state[value.name] = np.zeros(shape, np.float16 if half else np.float32)

    def step(self, feed: dict[str, Any]) -> Any:  # noqa: ANN401
        names = [value.name for value in self.session.get_outputs()]
        values = dict(zip(names, self.session.run(None, {**feed, **self.state}), strict=True))
        self.state = {b.input: values[b.output] for b in self.caches.buffers}
        return values["logits"]


def feed_of(
    like: Shape, new: int, past: int, rng: np.random.Generator, batch: int
) -> dict[str, Any]:
    feed: dict[str, Any] = {"ids": rng.integers(0, WORDS, (batch, new))}
    if like.mask == "input" and like.means in ("concat", "cast"):
        feed["mask"] = rng.standard_normal((batch, 1, new, past + new), dtype=np.float32)
    elif like.mask == "input":
        feed["mask"] = np.zeros((batch, 1, new, past + new), np.float32)
    return feed


def assert_equal_loops(
    like: Shape, lengths: list[int], batch: int = 1, spare: int = 0
) -> None:
    model = decoder(like)
    found, caches = rewritten(model, sum(lengths) + spare)
    assert len(caches.growing) == 2 * like.layers
    rng = np.random.default_rng(3)
    constant = {}
    for value in model.graph.input:
        if value.name[0] in "cd" and value.name.endswith("_past"):
            many = like.heads * like.groups
            constant[value.name] = rng.standard_normal(
                (batch, many, 5, like.size), dtype=np.float32
            )
    decoding = Decoder(session(found), caches)
    original = None
    past = 0
    for new in lengths:
        feed = feed_of(like, new, past, rng, batch)
        first = constant if original is None else {}
        original = original or Original(model, caches, feed)
        wanted = original.step({**feed, **first})
        got = decoding.step({**feed, **first})["logits"]
        assert got.tobytes() == wanted.tobytes()
        past += new
        assert decoding.position == past
    assert original is not None
    for each in caches.growing:
        assert decoding.valid(each.input).tobytes() == original.state[each.input].tobytes()


shapes = st.builds(
    Shape,
    layers=st.integers(1, 2),
    heads=st.integers(1, 3),
    groups=st.integers(1, 3),
    size=st.sampled_from([2, 4]),
    layout=st.sampled_from(["heads", "rows", "moved", "columns"]),
    means=st.sampled_from(["concat", "cast"]),
    mask=st.sampled_from(["none", "input", "past"]),
    opset=st.sampled_from([17, 20, 24]),
    crossed=st.booleans(),
    identity=st.booleans(),
)


@settings(max_examples=24)
@given(
    like=shapes,
    lengths=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    batch=st.integers(1, 2),
    spare=st.integers(0, 3),
)
def test_every_step_gives_the_bits_of_a_loop_with_growing_caches(
    like: Shape, lengths: list[int], batch: int, spare: int
) -> None:
    assert_equal_loops(like, lengths, batch, spare)


@pytest.mark.parametrize("means", ["attention", "multihead", "grouped"])
@pytest.mark.parametrize("batch", [1, 2])
def test_operators_with_a_past_of_their_own_give_the_same(means: Any, batch: int) -> None:  # noqa: ANN401
    groups = 1 if means == "multihead" else 2
    like = Shape(2, 2, groups, 8, means=means, mask="none", opset=23)
    assert_equal_loops(like, [3, 1, 1, 1], batch, spare=2)


def test_heads_whose_repetition_an_input_decides_are_kept() -> None:
    model = with_tensor_scatter(decoder(Shape(groups=2)))
    found, _ = with_cache_buffers(model, find_caches(model), 8)
    assert without_repeated_heads(found) is not found
    graph = found.graph
    graph.input.append(helper.make_tensor_value_info("flag", TensorProto.BOOL, [1]))
    graph.initializer.append(helper.make_tensor("ones", TensorProto.INT64, [5], [1] * 5))
    for node in graph.node:
        if node.op_type == "Expand" and node.input[0].startswith("unsqueeze"):
            shape = node.input[1]
            node.input[1] = f"{shape}.chosen"
            graph.node.append(
                helper.make_node("Where", ["flag", "ones", shape], [node.input[1]])
            )
    assert without_repeated_heads(found) is found


def started(capacity: int = 6) -> tuple[Decoder, dict[str, Any]]:
    found, caches = rewritten(decoder(), capacity)
    return Decoder(session(found), caches), {"ids": np.array([[1, 2, 3, 4]])}


def test_what_goes_beyond_the_capacity_is_refused_and_nothing_is_lost() -> None:
    decoding, feed = started()
    first = decoding.prefill(feed)
    before = decoding.valid("a0_past")
    with pytest.raises(SettingsError, match="hold 6 entries: 4 are valid"):
        decoding.step(feed)
    assert decoding.position == 4
    assert decoding.valid("a0_past").tobytes() == before.tobytes()
    after = decoding.step({"ids": np.array([[5]])})["logits"]
    again = decoding.prefill(feed)["logits"]
    assert again.tobytes() == first["logits"].tobytes()
    assert decoding.step({"ids": np.array([[5]])})["logits"].tobytes() == after.tobytes()


def test_a_step_that_fails_keeps_the_constant_caches() -> None:
    like = Shape(crossed=True)
    found, caches = rewritten(decoder(like), 6)
    names = [buffer.input for buffer in caches.buffers if buffer.form == "constant"]
    values = {name: np.ones((1, 2, 5, like.size), np.float32) for name in names}
    decoding = Decoder(session(found), caches)
    decoding.prefill({"ids": np.array([[1, 2]]), **values})
    other = {name: 2 * value for name, value in values.items()}
    with pytest.raises(Exception, match="indices element out of data bounds"):
        decoding.step({"ids": np.array([[WORDS + 1]]), **other})
    assert names
    for name in names:
        assert decoding.valid(name).tobytes() == values[name].tobytes()


def test_a_reset_decoder_begins_anew() -> None:
    decoding, feed = started()
    wanted = decoding.prefill(feed)["logits"]
    decoding.reset()
    assert decoding.position == 0
    assert decoding.step(feed)["logits"].tobytes() == wanted.tobytes()


def test_inputs_that_are_missing_or_unknown_are_named() -> None:
    decoding, feed = started()
    with pytest.raises(SettingsError, match="'ids' is missing"):
        decoding.step({})
    for name in ("a0_past", "memplan_position", "other"):
        with pytest.raises(SettingsError, match=f"'{name}' is not an input of a step"):
            decoding.step({**feed, name: np.zeros(1)})


def test_another_batch_in_the_middle_of_a_sequence_is_refused() -> None:
    decoding, feed = started()
    decoding.prefill(feed)
    with pytest.raises(SettingsError, match="this step needs"):
        decoding.step({"ids": np.array([[1], [2]])})
    assert decoding.prefill({"ids": np.array([[1], [2]])})["logits"].shape == (2, 1, WORDS)


def test_entries_computed_elsewhere_are_gone_on_from() -> None:
    one, feed = started()
    one.prefill(feed)
    other, _ = started()
    other.load({name: one.valid(name) for name in ("a0_past", "b0_past")})
    last = {"ids": np.array([[6]])}
    assert other.step(last)["logits"].tobytes() == one.step(last)["logits"].tobytes()
    with pytest.raises(SettingsError, match="lengths"):
        other.load(
            {n: one.valid(n)[:, :, :at] for at, n in enumerate(("a0_past", "b0_past"), 1)}
        )


def test_entries_computed_elsewhere_are_those_of_all_growing_caches() -> None:
    one, feed = started()
    one.prefill(feed)
    for names in (("a0_past",), ("a0_past", "b0_past", "c0_past")):
        with pytest.raises(SettingsError, match="is missing, or is no growing cache"):
            one.load({name: one.valid("a0_past") for name in names})


def test_a_model_without_caches_in_place_has_no_decoder() -> None:
    with pytest.raises(ModelError, match="no caches in place"):
        Decoder(session(decoder()), None)


def test_metadata_about_caches_that_are_not_there_are_refused() -> None:
    _, caches = rewritten(decoder(), 4)
    with pytest.raises(ModelError, match="that the model does not have"):
        Decoder(session(decoder()), caches)


def test_caches_are_in_host_memory_for_any_provider_but_cuda() -> None:
    model, caches = rewritten(decoder(), 4)
    openvino = session(model)
    openvino.get_providers = lambda: ["OpenVINOExecutionProvider", "CPUExecutionProvider"]
    feed = {"ids": np.array([[1, 2]])}
    assert Decoder(openvino, caches).prefill(feed).keys() == {"logits"}


def test_a_buffer_is_written_where_it_lies() -> None:
    decoding, feed = started()
    decoding.prefill(feed)
    places = [decoding._buffers[n].data_ptr() for n in ("a0_past", "b0_past")]
    decoding.step({"ids": np.array([[1]])})
    again = [decoding._buffers[n].data_ptr() for n in ("a0_past", "b0_past")]
    assert places == again
    assert len(set(itertools.chain(places))) == 2


def test_a_concat_without_its_axis_extends_no_cache() -> None:
    past, new, present = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [length, 4])
        for name, length in (("past", "past_length"), ("new", 1), ("present", "length"))
    )
    concat = helper.make_node(
        "Concat", ["past", "new"], ["present"]
    )  # invalid: ONNX requires it
    found = find_caches(
        helper.make_model(helper.make_graph([concat], "g", [past, new], [present]))
    )
    assert (found.matches, found.kept) == ((), ())


@pytest.mark.parametrize("kind", ["Concat", "Transpose", "Gather"])
def test_a_node_without_inputs_extends_no_cache(kind: str) -> None:
    value = helper.make_tensor_value_info("now", TensorProto.FLOAT, [1, 2, "t", 4])
    node = helper.make_node(kind, [], ["now"], axis=2)
    graph = helper.make_graph([node], "invalid", [], [value])
    assert not find_caches(helper.make_model(graph)).matches
