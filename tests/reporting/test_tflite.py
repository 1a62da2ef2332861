"""TFLite Micro's words count the tensors of the file that it runs."""

from __future__ import annotations

import json
from contextlib import suppress
from random import Random

import numpy as np
import pytest

from builders import plan_of_text
from memplan_cli.errors import MemplanError, ModelError, PlanError
from memplan_cli.reporting.plans.tflite import read_tflite, tflm_of_file
from memplan_cli.settings.settings import Settings
from reporting.tflite_file import EXP, NEG, tflite

TEXT = """g (float[1,64] x) => (float[1,64] y) {
    a = Neg(x) b = Exp(a) c = Neg(b) d = Exp(c) y = Neg(d) }"""
NAMES = ("x", "d", "c", "b", "a", "y")
CHAIN = (
    (NEG, [0], [4]), (EXP, [4], [3]), (NEG, [3], [2]), (EXP, [2], [1]), (NEG, [1], [5]),
)  # fmt: skip
APART = Settings(level=1, order="keep", alignment=16)


def test_each_tensor_of_the_file_has_the_offset_of_its_name() -> None:
    plan = plan_of_text(TEXT, APART)
    data = json.loads(tflm_of_file(plan, tflite(NAMES, CHAIN)))
    assert data["tensors"] == list(NAMES)
    assert data["words"][:3] == [0, 0, 6]
    places = {tensor.name: tensor.offset for tensor in plan.tensors}
    assert data["words"][3:] == [-1, *(places[name] for name in "dcba"), -1]


def test_a_tensor_that_the_plan_does_not_hold_is_left_to_the_runtime() -> None:
    content = tflite(("x", "d", "other", "b", "a", "y"), CHAIN)
    assert json.loads(tflm_of_file(plan_of_text(TEXT, APART), content))["words"][5] == -1


def test_names_that_a_converter_joined_are_found() -> None:
    plan = plan_of_text(TEXT, APART)
    content = tflite(("x", "d:0", "before;c", "b", "a", "y"), CHAIN)
    words = json.loads(tflm_of_file(plan, content))["words"]
    assert words == json.loads(tflm_of_file(plan, tflite(NAMES, CHAIN)))["words"]


def test_bytes_shared_in_place_are_refused() -> None:
    with pytest.raises(PlanError, match="would share bytes") as found:
        tflm_of_file(plan_of_text(TEXT, Settings(order="keep")), tflite(NAMES, CHAIN))
    assert "--level 1" in (found.value.hint or "")


def test_another_order_of_operators_is_refused_where_places_clash() -> None:
    late = (*CHAIN[:4], (NEG, [4, 1], [5]))  # the last one reads `a` again
    with pytest.raises(PlanError, match="run in another order"):
        tflm_of_file(plan_of_text(TEXT, APART), tflite(NAMES, late))


def test_names_of_another_model_are_refused_with_the_nearest() -> None:
    content = tflite(("x", "dd", "cc", "bb", "aa", "y"), CHAIN)
    with pytest.raises(PlanError, match="it has 'dd', the plan 'd'"):
        tflm_of_file(plan_of_text(TEXT, APART), content)


def test_a_tensor_larger_than_its_place_is_refused() -> None:
    plan = plan_of_text(TEXT.replace("1,64", "1,32"), APART)
    with pytest.raises(PlanError, match="takes 256 bytes in the TFLite model and 128"):
        tflm_of_file(plan, tflite(NAMES, CHAIN))


@pytest.mark.parametrize(
    "content", [b"", b"\x08\0\0\0TFL3", b"\xff" * 4 + b"TFL3" + b"\xff" * 64]
)
def test_what_is_no_model_is_refused(content: bytes) -> None:
    with pytest.raises(ModelError, match="TFLite model"):
        read_tflite(content)


def test_damage_is_refused_and_never_a_traceback() -> None:
    good, draw = tflite(NAMES, CHAIN), Random(1)
    plan = plan_of_text(TEXT, APART)
    for _ in range(300):
        bad = bytearray(good[: draw.randrange(8, len(good) + 1)])
        for _ in range(3):
            bad[draw.randrange(8, len(bad)) if len(bad) > 8 else 0] = draw.randrange(256)
        with suppress(MemplanError):
            tflm_of_file(plan, bytes(bad))


def test_tflite_micro_runs_the_model_with_its_plan() -> None:
    runtime = pytest.importorskip(
        "tflite_micro.python.tflite_micro.runtime", reason="tflite-micro is not installed"
    )
    plan = plan_of_text(TEXT, APART)
    words = json.loads(tflm_of_file(plan, tflite(NAMES, CHAIN)))["words"]
    x = np.linspace(-1, 1, 64, dtype=np.float32).reshape(1, 64)
    results = []
    for content in (tflite(NAMES, CHAIN), tflite(NAMES, CHAIN, words)):
        interpreter = runtime.Interpreter.from_bytes(content)
        interpreter.set_input(x, 0)
        interpreter.invoke()
        results.append(interpreter.get_output(0))
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_allclose(results[0], -np.exp(-np.exp(-x)), rtol=1e-6)
