"""Training BatchNormalizations that read one statistic, which the runtime writes over."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx.parser

from memplan_cli import Settings, optimize
from memplan_cli.core.results.observations import CPU
from memplan_cli.runtime.simulate.predict import RUN_AS_WRITTEN
from memplan_cli.runtime.workers.session import make_session
from runs import compared

if TYPE_CHECKING:
    from pathlib import Path

TWICE = """<ir_version: 10, opset_import: ["" : 18]>
g (float[64,4] x, float[64,4] z) => (float[4] y, float[4] n, float[4] k)
<float[4] s = {1, 1, 1, 1}, float[4] b = {0, 0, 0, 0},
 float[4] mean = {1, 2, 3, 4}, float[4] var = {1, 1, 1, 1}> {
    a, am, av = BatchNormalization <training_mode = 1> (x, s, b, mean, var)
    q, qm, qv = BatchNormalization <training_mode = 1> (z, s, b, mean, var)
    axes = Constant <value = int64[1] {0}> ()
    c = ReduceMax <keepdims = 0> (q, axes)
    d = ReduceMax <keepdims = 0> (a, axes)
    y = Sub (d, c)
    n = Neg (am)
    k = Neg (qm)
}"""


def first_run(model: Path) -> list[bytes]:
    """Return the bits of the first run: later ones begin with what it left behind."""
    generator = np.random.default_rng(0)
    feeds = {name: generator.standard_normal((64, 4), dtype=np.float32) for name in "xz"}
    session = make_session(model, RUN_AS_WRITTEN, CPU)
    return [array.tobytes() for array in session.run(None, feeds)]


def test_statistics_that_two_ops_update_are_what_they_are_in_the_file(tmp_path: Path) -> None:
    model, out = tmp_path / "twice.onnx", tmp_path / "out.onnx"
    onnx.save(onnx.parser.parse_model(TWICE), model)
    done = optimize(model, Settings(), out=out, check=None)
    assert done.plan.order[0].nodes[1] != "#1", "the ops did change places"
    assert first_run(out) == first_run(model)


def test_models_that_change_as_they_run_are_compared_by_their_first_runs(
    tmp_path: Path,
) -> None:
    model, other = tmp_path / "twice.onnx", tmp_path / "other.onnx"
    onnx.save(onnx.parser.parse_model(TWICE), model)
    found = compared(model, model)
    assert (found.status, found.bit_identical) == ("passed", True)
    assert "first runs" in found.notes[-1]
    onnx.save(onnx.parser.parse_model(TWICE.replace("mean = {1, 2", "mean = {1, 2.1")), other)
    assert compared(model, other).status == "failed"
