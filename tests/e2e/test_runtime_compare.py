from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx.parser
import pytest

from memplan_cli.core.bindings import Binding
from memplan_cli.core.check import Check
from memplan_cli.core.results.observations import CPU
from memplan_cli.errors import ModelError, RuntimeUnavailableError
from runs import compared

if TYPE_CHECKING:
    from pathlib import Path

HEAD = '<ir_version: 10, opset_import: ["" : 21]>\n'

CHAIN = """g (float[batch,4] x) => (float[batch,4] y, float[batch,4] z)
    { a = Relu(x)  b = Exp(a)  y = Add(a, b)  z = Neg(b) }"""


def save(folder: Path, name: str, text: str) -> Path:
    path = folder / f"{name}.onnx"
    onnx.save(onnx.parser.parse_model(HEAD + text), str(path))
    return path


def test_the_same_graph_in_another_order_is_bit_identical(tmp_path: Path) -> None:
    other = CHAIN.replace("y = Add(a, b)  z = Neg(b)", "z = Neg(b)  y = Add(a, b)")
    got = compared(save(tmp_path, "a", CHAIN), save(tmp_path, "b", other))
    assert (got.status, got.bit_identical, got.max_abs_diff) == ("passed", True, 0.0)
    assert got.provider == CPU


def test_a_wrong_output_is_named_and_measured(tmp_path: Path) -> None:
    other = CHAIN.replace("z = Neg(b)", "z = Neg(a)")
    got = compared(save(tmp_path, "a", CHAIN), save(tmp_path, "b", other))
    assert (got.status, got.bit_identical) == ("failed", False)
    assert [item.output for item in got.differences] == ["z"]
    assert got.max_abs_diff is not None
    assert got.max_abs_diff > 0


def test_a_model_that_is_right_at_one_batch_only_fails_at_the_second(tmp_path: Path) -> None:
    # ReduceSum over the batch divided by 2 is the mean at batch 2 and nowhere else.
    right = """g (float[batch,4] x) => (float[1,4] y)
        <int64[1] axes = {0}> { y = ReduceMean(x, axes) }"""
    wrong = """g (float[batch,4] x) => (float[1,4] y)
        <int64[1] axes = {0}, float half = {0.5}> { s = ReduceSum(x, axes) y = Mul(s, half) }"""
    a, b = save(tmp_path, "a", right), save(tmp_path, "b", wrong)
    near = Check("cpu", atol=1e-6)
    assert compared(a, b, near).status == "failed"
    assert compared(a, b, near, Binding({"batch": 2})).status == "passed"


def test_a_missing_output_is_a_difference(tmp_path: Path) -> None:
    other = CHAIN.replace(", float[batch,4] z", "")
    got = compared(save(tmp_path, "a", CHAIN), save(tmp_path, "b", other))
    assert got.status == "failed"
    assert [(d.output, d.reason) for d in got.differences] == [
        ("z", "there is no such output")
    ]


def test_a_rewritten_model_that_does_not_load_is_a_failed_check(tmp_path: Path) -> None:
    broken = tmp_path / "b.onnx"
    model = onnx.parser.parse_model(HEAD + CHAIN)
    model.graph.node[0].op_type = "NoSuchOp"
    onnx.save(model, str(broken))
    got = compared(save(tmp_path, "a", CHAIN), broken)
    assert got.status == "failed"
    assert any("NoSuchOp" in note for note in got.notes)


def test_an_original_that_does_not_load_is_an_error(tmp_path: Path) -> None:
    broken = tmp_path / "a.onnx"
    model = onnx.parser.parse_model(HEAD + CHAIN)
    model.graph.node[0].op_type = "NoSuchOp"
    onnx.save(model, str(broken))
    with pytest.raises(RuntimeUnavailableError, match="NoSuchOp"):
        compared(broken, broken)


def test_a_missing_weights_file_is_named_with_the_way_round_it(tmp_path: Path) -> None:
    text = "g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }"
    path = save(tmp_path, "a", text)
    model = onnx.load(str(path))
    weights = onnx.numpy_helper.from_array(np.ones(2, np.float32), "w")
    onnx.external_data_helper.set_external_data(weights, "gone.bin")
    weights.ClearField("raw_data")
    model.graph.initializer[0].CopyFrom(weights)
    path.write_bytes(model.SerializeToString())
    with pytest.raises(RuntimeUnavailableError, match=r"gone\.bin") as caught:
        compared(path, path)
    assert "--no-validate" in caught.value.hint


RANDOM = """g (float[64] x) => (float[64] y, float[64] z, float[64] d) <bool yes = {1}, float half = {0.5}> {
    r = RandomNormalLike(x)  q = RandomUniformLike<seed = 7.0>(x)  u = RandomUniformLike(x)
    y = Add(x, r)  z = Sub(q, u)  d = Dropout(x, half, yes) }"""


def test_random_ops_draw_alike_by_their_names_and_are_compared(tmp_path: Path) -> None:
    lines = RANDOM.replace(
        "r = RandomNormalLike(x)  q = RandomUniformLike<seed = 7.0>(x)  u = RandomUniformLike(x)",
        "u = RandomUniformLike(x)  q = RandomUniformLike<seed = 7.0>(x)  r = RandomNormalLike(x)",
    )
    assert lines != RANDOM
    got = compared(save(tmp_path, "a", RANDOM), save(tmp_path, "b", lines))
    assert (got.status, got.bit_identical, got.max_abs_diff) == ("passed", True, 0.0)
    assert "seeds" in got.notes[-1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.onnx", "b.onnx"]


def test_a_random_result_that_is_taken_for_another_is_caught(tmp_path: Path) -> None:
    other = RANDOM.replace("z = Sub(q, u)", "z = Sub(u, u)")
    got = compared(save(tmp_path, "a", RANDOM), save(tmp_path, "b", other))
    assert (got.status, got.bit_identical) == ("failed", False)
    assert [item.output for item in got.differences] == ["z"]


def test_models_that_draw_for_other_results_cannot_be_compared(tmp_path: Path) -> None:
    other = RANDOM.replace("y = Add(x, r)", "more = RandomNormalLike(x)  y = Add(x, more)")
    got = compared(save(tmp_path, "a", RANDOM), save(tmp_path, "b", other))
    assert (got.status, got.bit_identical, got.passed) == ("nondeterministic", None, False)
    assert "RandomNormalLike" in got.notes[0]


def test_data_beside_a_random_model_goes_along(tmp_path: Path) -> None:
    text = RANDOM.replace("float half = {0.5}", "float half = {0.5}, float w = {1.0}")
    model = onnx.load(save(tmp_path, "a", text.replace("Add(x, r)", "Add(w, r)")))
    weights = onnx.numpy_helper.from_array(np.full(64, 1.5, np.float32), "w")
    model.graph.initializer[-1].CopyFrom(weights)
    onnx.save(model, tmp_path / "a.onnx", save_as_external_data=True, size_threshold=100)
    assert any(path.suffix != ".onnx" for path in tmp_path.iterdir())
    assert compared(tmp_path / "a.onnx", tmp_path / "a.onnx").passed


def test_sequences_and_strings_are_compared_element_by_element(tmp_path: Path) -> None:
    text = """g (float[6] x, string[3] s) => (seq(float[n]) parts, string[3] t)
        <int64 two = {2}> { parts = SplitToSequence<axis = 0>(x, two)  t = Identity(s) }"""
    path = save(tmp_path, "a", text)
    assert compared(path, path).status == "passed"
    other = save(tmp_path, "b", text.replace("two = {2}", "two = {3}"))
    assert compared(path, other).status == "failed"


FOREIGN = """g (bfloat16[2,3] h, float8e5m2[3] e, int4[3,5] q) =>
        (float[2,3] y, bfloat16[2,3] z, float8e5m2[3] f, int4[3,5] p, bfloat16[2,3] h)
    <float s = {0.5}>
    { a = Cast <to = 1> (h)  b = Neg(a)  z = Cast <to = 16> (b)  y = Abs(b)
      c = Cast <to = 1> (e)  d = Neg(c)  f = Cast <to = 19> (d)
      w = DequantizeLinear(q, s)  v = Neg(w)  p = QuantizeLinear <output_dtype = 22> (v, s) }"""


def test_inputs_and_outputs_of_types_that_numpy_does_not_know_are_compared(
    tmp_path: Path,
) -> None:
    path = save(tmp_path, "a", FOREIGN)
    got = compared(path, path)
    assert (got.status, got.bit_identical) == ("passed", True)
    other = save(tmp_path, "b", FOREIGN.replace("v = Neg(w)", "v = Abs(w)"))
    wrong = compared(path, other)
    assert [item.output for item in wrong.differences] == ["p"]
    assert wrong.max_abs_diff is not None
    assert 0 < wrong.max_abs_diff <= 15, "in numbers of four bits, not in bytes"


def test_a_model_with_other_inputs_is_no_original(tmp_path: Path) -> None:
    other = CHAIN.replace("float[batch,4] x", "float[batch,4] left, float[batch,4] right")
    other = other.replace("Relu(x)", "Add(left, right)")
    pair = save(tmp_path, "other", other), save(tmp_path, "mine", CHAIN)
    with pytest.raises(ModelError, match="only the original takes 'left', 'right'; only the"):
        compared(*pair)
    wide = save(tmp_path, "wide", CHAIN.replace("float[batch,4] x", "float[batch,5] x"))
    with pytest.raises(ModelError, match=r"'x' is float32\[batch,5\] in the original and"):
        compared(wide, save(tmp_path, "narrow", CHAIN))


def test_a_model_of_the_same_inputs_that_does_not_run_is_a_failed_check(
    tmp_path: Path,
) -> None:
    broken = CHAIN.replace("z = Neg(b)", "s = Shape(x)  z = Reshape(b, s)")
    broken = broken.replace("{ a", "<int64[1] s = {7}> { a").replace("s = Shape(x)", "")
    got = compared(save(tmp_path, "a", CHAIN), save(tmp_path, "b", broken))
    assert (got.status, got.max_abs_diff) == ("failed", None)
    assert "does not run (error)" in got.notes[0]


def test_a_written_model_that_never_ends_says_how_to_wait_longer(tmp_path: Path) -> None:
    endless = """g (float[4] x) => (float[4] y) <int64 n = {9223372036854775807}, bool t = {1}> {
        y = Loop (n, t, x) <body = b (int64 i, bool c, float[4] v) => (bool d, float[4] w)
            { d = Identity(c) w = Tanh(v) }> }"""
    short = "g (float[4] x) => (float[4] y) { y = Tanh(x) }"
    pair = save(tmp_path, "short", short), save(tmp_path, "endless", endless)
    got = compared(*pair, Check("cpu", timeout=3))
    said = "the rewritten model does not run (timeout): no answer within 3 s, and --timeout"
    assert got.notes[0].startswith(said)
