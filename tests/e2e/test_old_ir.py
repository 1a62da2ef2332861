"""Models of IR version 3, in which weights are graph inputs too, and are constant all the same."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import parser

from memplan_cli import Check, Settings, api
from memplan_cli.api.train_step import train_step
from memplan_cli.onnx_io.load import load_model

# ONNX Runtime computes the weights v and w when it loads the model, and removes s and t, whose values are equal.
TEXT = """<ir_version: 4, opset_import: ["" : 13]>
g (float[512,64] x) => (float[512,64] y) <int64[2] s = {64, 512}, int64[2] t = {64, 512}, int64[2] u = {512, 64}> {
    v = ConstantOfShape <value = float[1] {0.5}> (s)
    w = ConstantOfShape <value = float[1] {0.5}> (t)
    z = ConstantOfShape <value = float[1] {0.01}> (u)
    a = MatMul(x, v)
    b = Exp(a)
    c = MatMul(x, w)
    d = Mul(b, c)
    e = MatMul(d, z)
    y = Relu(e)
}"""


def written(text: str, path: Path) -> Path:
    """Write a model of IR version 3, whose weights are inputs too."""
    model = parser.parse_model(text)
    model.ir_version = 3
    model.graph.input.extend(
        onnx.helper.make_tensor_value_info(weight.name, weight.data_type, list(weight.dims))
        for weight in model.graph.initializer
    )
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


@pytest.fixture
def old_model(tmp_path: Path) -> Path:
    return written(TEXT, tmp_path / "old.onnx")


REWRITES = {
    "order": Settings(),
    "fold": Settings(fold_constants=True),
    "chunk": Settings(chunk="auto", budget=0.5),
    "recompute": Settings(recompute="auto", budget=1.0),
    "donate": Settings(donate={"x": "y"}),
    "notes": Settings(notes="model"),
    "cpu": Settings(target="cpu"),
    "cpu, chunk": Settings(target="cpu", chunk="auto", budget=0.5),
    "cpu, donate": Settings(target="cpu", donate={"x": "y"}),
    "cpu, notes": Settings(target="cpu", notes="model"),
}


@pytest.mark.parametrize("rewrite", REWRITES)
def test_every_rewritten_model_takes_the_inputs_of_the_original(
    rewrite: str, old_model: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.onnx"
    result = api.optimize(old_model, REWRITES[rewrite], out=out, check=Check(provider="cpu"))
    report = result.plan.report
    assert result.passed
    assert report.fallbacks == ()
    rewritten = load_model(out)
    assert [value.name for value in rewritten.graph.input] == ["x"]
    if "cpu" not in rewrite:
        onnx.checker.check_model(str(out))


def test_training_step_has_no_weight_among_the_old_inputs(tmp_path: Path) -> None:
    text = TEXT.replace("u = {512, 64}>", "u = {512, 64}, float[1] k = {2}>")
    text = text.replace("y = Relu(e)", "f = Mul(e, k) y = Relu(f)")
    old_model = written(text, tmp_path / "old.onnx")
    step = train_step(old_model, loss_fn="mse", out=tmp_path / "step.onnx")
    inputs = {value.name for value in load_model(Path(step.path)).graph.input}
    assert inputs.isdisjoint({"s", "t", "u", "k"})
