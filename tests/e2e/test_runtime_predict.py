"""Predicted equals measured, to the byte, on the CPU provider."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
import onnx.parser
import pytest

from memplan_cli.evidence import RuntimeSettings
from memplan_cli.onnx_io.load import load_model
from memplan_cli.onnx_io.read import read_program
from memplan_cli.runtime.executed import executed_graph
from memplan_cli.runtime.measure import Trial, measure
from memplan_cli.runtime.predict import Executed, predict

if TYPE_CHECKING:
    from pathlib import Path

HEAD = '<ir_version: 10, opset_import: ["" : 21]>\n'
ON_CPU = Trial(provider="cpu", timing_runs=0)

BRANCHES = """g (float[1024] x) => (float[1024] y, float[4096] z)
    <int64[1] four = {4}, int64[1] flat = {4096}>
    { a = Exp(x)  b = Relu(a)  c = Neg(x)  d = Exp(c)  e = Add(b, d)
      f = Tile(e, four)  h = Neg(f)  k = Sigmoid(h)  m = Reshape(k, flat)
      z = Exp(m)  n = Neg(d)  y = Add(n, e)  unread = Exp(n) }"""

IF = """g (float[64] x, bool c) => (float[64] y)
    { a = Exp(x)
      b = If (c) <
        then_branch = t () => (float[64] p) { q = Exp(a)  r = Neg(q)  p = Exp(r) },
        else_branch = e () => (float[64] s) { s = Neg(a) }>
      y = Neg(b) }"""

LOOP = """g (float[64] x) => (float[64] last, float[5,64] all)
    <int64 trips = {5}, bool go = {1}>
    { a = Exp(x)
      last, all = Loop (trips, go, a) <
        body = b (int64 i, bool c, float[64] now) => (bool k, float[64] then, float[64] out)
        { k = Identity(c)  u = Exp(now)  w = Neg(u)  then = Exp(w)  out = Neg(then) }> }"""

SCAN = """g (float[64] x, float[6,64] rows) => (float[64] last, float[6,64] all)
    { a = Exp(x)
      last, all = Scan <num_scan_inputs = 1,
        body = b (float[64] now, float[64] row) => (float[64] then, float[64] out)
        { u = Exp(now)  w = Add(u, row)  then = Exp(w)  out = Neg(w) }> (a, rows) }"""


def settings(order: str, switch: bool) -> RuntimeSettings:  # noqa: FBT001 - a parameter of the test
    return RuntimeSettings(
        session={
            "execution_order": order,
            "graph_optimization_level": "ORT_DISABLE_ALL",
            "enable_mem_pattern": switch,
            "enable_mem_reuse": switch,
            "intra_op_num_threads": 1,
        }
    )


EVERY_WAY = [(order, on) for order in ("DEFAULT", "PRIORITY_BASED") for on in (True, False)]


@pytest.mark.parametrize(("order", "switch"), EVERY_WAY)
@pytest.mark.parametrize(
    "text", [BRANCHES, IF, LOOP, SCAN], ids=["flat", "if", "loop", "scan"]
)
def test_predicted_peaks_are_the_measured_ones(
    tmp_path: Path, text: str, order: str, *, switch: bool
) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(HEAD + text), str(path))
    chosen = settings(order, switch)
    executed = Executed(
        read_program(load_model(path)).program, trips={"Loop#1": 5, "Scan#1": 6}
    )
    predicted, measured = predict(executed, chosen), measure(path, chosen, ON_CPU)
    assert (predicted.first_run_peak, predicted.steady_peak) == (
        measured.first_run_peak,
        measured.steady_peak,
    )


def test_the_graph_after_optimisation_is_predicted_from_its_dump(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(HEAD + BRANCHES), str(path))
    predicted = predict(executed_graph(path, RuntimeSettings(), {}))
    measured = measure(path, RuntimeSettings(), ON_CPU)
    assert (predicted.first_run_peak, predicted.steady_peak) == (
        measured.first_run_peak,
        measured.steady_peak,
    )
    assert not list(tmp_path.glob("*every-output*")), "the twin is gone"


def test_what_depends_on_data_is_not_guessed() -> None:
    model = onnx.parser.parse_model(
        HEAD + "g (float[8] x) => (int64[1,n] y) { y = NonZero(x) }"
    )
    predicted = predict(Executed(read_program(model).program))
    assert (predicted.first_run_peak, predicted.held) == (None, None)
