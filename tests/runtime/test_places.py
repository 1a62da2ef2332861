"""Nodes without names, whose kernels cannot be told apart: the model runs once more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx.parser

from memplan_cli.core.bindings import Binding
from memplan_cli.core.check import Check
from memplan_cli.onnx_io.load import load_model
from memplan_cli.runtime.graph.dumps import observed_graph
from memplan_cli.runtime.run.baseline import DEFAULTS, BaselineRun
from memplan_cli.runtime.settings_search.written_model import read_baseline_graph
from memplan_cli.runtime.workers.spec import RunConditions

if TYPE_CHECKING:
    from pathlib import Path

MODEL = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
g (float[5,4] x, bool c, int64 n, bool go) => (float[5,4] y, float[4] last, float[4] z)
    <float[4] zero = {0,0,0,0}>
    { a = Exp(x)
      b = If (c) < then_branch = t () => (float[5,4] p) { p = Neg(a) },
                   else_branch = e () => (float[5,4] q) { r = Exp(a)  q = Sqrt(r) }>
      last, y = Scan <num_scan_inputs = 1,
        body = s (float[4] state, float[4] row) => (float[4] next, float[4] out)
        { t0 = Neg(row)  t1 = Neg(state)  next = Add(t0, t1)  out = Relu(next) }>(zero, b)
      z = Loop (n, go, last) <
        body = l (int64 i, bool k, float[4] now) => (bool o, float[4] then)
        { o = Identity(k)
          m = If (k) < then_branch = u () => (float[4] v) { v = Exp(now) },
                       else_branch = w () => (float[4] s) { s = Neg(now) }>
          then = Tanh(m) }> }""")


def test_a_run_says_of_nodes_without_names_what_a_run_of_the_dump_says(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(MODEL.SerializeToString())
    assert not any(node.name for node in MODEL.graph.node)
    with BaselineRun(path, load_model(path), Check("cpu"), Binding()) as run:
        found = read_baseline_graph(run.result())
    assert any("again" in warning for warning in found.warnings)
    again = observed_graph(path, DEFAULTS, RunConditions())
    assert found.executed.observed is not None
    assert found.executed.observed == again.observed
