"""What weights in the model file cost at load: measured, and said by the report."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from memplan_cli import Check, workflows
from memplan_cli.onnx_io.load import load_model
from memplan_cli.onnx_io.weights.inline import inline_bytes, with_external_data
from memplan_cli.runtime.measuring import measure as measuring
from memplan_cli.runtime.measuring.measure import load_cost
from memplan_cli.runtime.proofs.compare import Comparison, compare

if TYPE_CHECKING:
    from pathlib import Path
    from typing import NoReturn

SIDE = 2048
WEIGHTS = 4 * SIDE * SIDE

linux = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux says the high-water mark"
)


def heavy(path: Path) -> Path:
    """Write a model of one large weight, which no kernel packs, and a small one."""
    drawn = np.random.default_rng(0).standard_normal((SIDE, SIDE), dtype=np.float32)
    typed = helper.make_tensor("s", onnx.TensorProto.FLOAT, [400], [0.5] * 400)
    nodes = [
        helper.make_node("Add", ["x", "w"], ["a"]),
        helper.make_node("ReduceSum", ["s"], ["t"], keepdims=0),
        helper.make_node("Add", ["a", "t"], ["y"]),
    ]
    value = [helper.make_tensor_value_info(n, 1, [SIDE, SIDE]) for n in "xy"]
    weights = [numpy_helper.from_array(drawn, "w"), typed]
    graph = helper.make_graph(nodes, "g", value[:1], value[1:], weights)
    opset = [helper.make_opsetid("", 21)]
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=opset), path)
    return path


def test_weights_outside_give_the_same_outputs(tmp_path: Path) -> None:
    inside, outside = heavy(tmp_path / "in.onnx"), tmp_path / "out.onnx"
    model = load_model(inside)
    assert inline_bytes(model) == WEIGHTS + 1600
    with_external_data(model, outside)
    assert outside.stat().st_size < 2000
    assert inline_bytes(load_model(outside)) == 0
    assert compare(inside, outside, Comparison(provider="cpu")).bit_identical


@linux
def test_inline_weights_cost_more_at_load_than_external_ones(tmp_path: Path) -> None:
    found = load_cost(heavy(tmp_path / "in.onnx"))
    assert found is not None
    assert found.weights == WEIGHTS + 1600
    assert found.inline > found.external + WEIGHTS // 2
    assert found.inline >= WEIGHTS


def test_a_model_with_its_weights_outside_costs_nothing_to_say(tmp_path: Path) -> None:
    outside = tmp_path / "out.onnx"
    with_external_data(load_model(heavy(tmp_path / "in.onnx")), outside)
    assert load_cost(outside) is None


def test_where_a_copy_of_the_weights_has_no_room_nothing_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> NoReturn:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(measuring, "with_external_data", full)
    assert load_cost(heavy(tmp_path / "in.onnx")) is None


@linux
def test_the_report_says_what_inline_weights_cost(tmp_path: Path) -> None:
    check = Check(provider="cpu", search="measured")
    done = workflows.optimize(heavy(tmp_path / "in.onnx"), check=check)
    (said,) = [w for w in done.plan.report.warnings if "lie in the model file" in w]
    assert str(WEIGHTS + 1600) in said
