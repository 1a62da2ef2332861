"""Values given decide shapes and branches in a plan, and the written model still runs on others."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from click.testing import CliRunner

from memplan_cli.cli import main

if TYPE_CHECKING:
    from pathlib import Path

BRANCHES = """<ir_version: 8, opset_import: ["": 17]>
    net (float[4, 8] x, int64 rate, int64[2] to) => (float[4, c] y, float[d, e] z) <int64 limit = {10000}> {
        fast = Greater (rate, limit)
        y = If (fast) <
            then_branch = t () => (float[4, c] a) { p = Neg (x) q = Exp (p) a = Abs (q) },
            else_branch = e () => (float[4, c] b) {
                r = Concat <axis = 1> (x, x) s = Exp (r) b = Neg (s)
            }>
        w = Reshape (x, to)
        k = Exp (w)
        z = Neg (k)
    }"""


def written(folder: Path) -> Path:
    path = folder / "m.onnx"
    onnx.save(onnx.parser.parse_model(BRANCHES), path)
    return path


def report_of(*words: str) -> dict[str, Any]:
    result = CliRunner().invoke(main, [*words, "--format", "json"])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


GIVEN = ("--input", "rate=16000", "--input", "to=2,-1")


def test_a_plan_knows_all_sizes_without_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from memplan_cli.runtime.run import size_probe

    monkeypatch.setattr(size_probe, "first_that_runs", lambda *_: pytest.fail("a run"))
    report = report_of("report", str(written(tmp_path)), *GIVEN)
    assert report["coverage"] == 1.0
    assert report["certainty"]["planned"] == "observed", "it holds for these values"
    # fast (a byte), p, q, a, w, k: nothing of the other branch.
    assert report["memory"]["naive"] == 1 + 5 * 128


def test_a_written_model_runs_on_other_values_too(tmp_path: Path) -> None:
    source, target = written(tmp_path), tmp_path / "out.onnx"
    report_of("optimize", str(source), "-o", str(target), *GIVEN)
    onnx.checker.check_model(onnx.load(target))
    x = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)
    feeds = {"x": x, "rate": np.array(16000), "to": np.array([4, -1])}
    for path in (source, target):
        session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
        y, z = session.run(None, feeds)
        np.testing.assert_allclose(y, np.exp(-x), rtol=1e-6)
        assert z.shape == (4, 8)


def test_a_written_branch_that_is_not_taken_has_no_types_of_ours(tmp_path: Path) -> None:
    target = tmp_path / "out.onnx"
    report_of("optimize", str(written(tmp_path)), "-o", str(target), *GIVEN)
    (branching,) = [node for node in onnx.load(target).graph.node if node.op_type == "If"]
    bodies = {a.name: a.g for a in branching.attribute}
    assert {value.name for value in bodies["then_branch"].value_info} == {"p", "q"}
    assert not bodies["else_branch"].value_info
