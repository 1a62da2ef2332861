"""Outputs equal those of a run of the original that the user names: a default one, or one without optimization."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from onnx import numpy_helper

import memplan_cli
from memplan_cli import Check, Settings, api
from story import memplan

if TYPE_CHECKING:
    from pathlib import Path

    from memplan_cli.settings.choices import TargetChoice

NETWORK = """<ir_version: 10, opset_import: ["" : 20]>
network (float[1,8,32,32] x) => (float[1,8,32,32] y) {
    a = Conv<pads = [1, 1, 1, 1]>(x, w1)
    b = BatchNormalization(a, scale, shift, mean, variance)
    c = Exp(b)
    d = Conv<pads = [1, 1, 1, 1]>(x, w2)
    e = BatchNormalization(d, scale, shift, mean, variance)
    f = Exp(e)
    y = Add(c, f)
}"""
"""Under its defaults ONNX Runtime folds each BatchNormalization into the weights before it, which changes bits."""

SHAPES = {"w1": (8, 8, 3, 3), "w2": (8, 8, 3, 3), "scale": (8,), "shift": (8,), "mean": (8,)}

UNOPTIMIZED = Check("cpu", reference="unoptimized")


@pytest.fixture
def network(tmp_path: Path) -> Path:
    model, generator = onnx.parser.parse_model(NETWORK), np.random.default_rng(0)
    for name, shape in SHAPES.items():
        data = 0.2 * generator.standard_normal(shape, dtype=np.float32)
        model.graph.initializer.append(numpy_helper.from_array(data, name))
    variance = generator.uniform(0.5, 1.5, 8).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(variance, "variance"))
    onnx.save(model, path := tmp_path / "network.onnx")
    return path


def outputs(session: object) -> np.ndarray:
    x = np.random.default_rng(1).standard_normal((1, 8, 32, 32), dtype=np.float32)
    found: list[np.ndarray] = session.run(None, {"x": x})  # type: ignore[attr-defined]
    return found[0]


def one_thread(*, optimized: bool) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    if not optimized:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


def test_the_two_references_have_other_bits(network: Path) -> None:
    default, unoptimized = (
        outputs(ort.InferenceSession(network, one_thread(optimized=optimized)))
        for optimized in (True, False)
    )
    assert not np.array_equal(default, unoptimized)


@pytest.mark.parametrize("target", ["portable", "cpu"])
def test_a_written_model_has_the_bits_of_a_default_run(
    network: Path, tmp_path: Path, target: TargetChoice
) -> None:
    done = api.optimize(
        network, Settings(target=target), out=tmp_path / "o.onnx", check=Check("cpu")
    )
    assert done.model is not None
    verdict = done.plan.report.validation
    assert verdict is not None
    assert (verdict.bit_identical, verdict.reference) == (True, "defaults")
    default = outputs(ort.InferenceSession(network, one_thread(optimized=True)))
    assert np.array_equal(outputs(memplan_cli.load(done.model)), default)


def test_an_unoptimized_reference_is_stated_with_its_distance_from_a_default_run(
    network: Path, tmp_path: Path
) -> None:
    out = tmp_path / "o.onnx"
    done = memplan("optimize", network, "--reference", "unoptimized", "-o", out)
    assert done.exit_code == 0, done.output
    text = " ".join(done.output.split())
    assert "without graph optimization, which differs from a default run by up to" in text
    default, unoptimized = (
        outputs(ort.InferenceSession(network, one_thread(optimized=optimized)))
        for optimized in (True, False)
    )
    assert np.array_equal(outputs(memplan_cli.load(out)), unoptimized)
    report = json.loads((tmp_path / "o.json").read_text())["report"]["validation"]
    assert report["reference"] == "unoptimized"
    assert 0 < report["diff_from_defaults"] < 1e-3
    assert np.abs(default - unoptimized).max() < 1e-3


@pytest.mark.parametrize("depth", ["outputs", "full"])
def test_validate_compares_with_the_reference_that_the_file_was_written_for(
    network: Path, tmp_path: Path, depth: str
) -> None:
    out = tmp_path / "o.onnx"
    words = ("--reference", "unoptimized", "--validate", depth)
    done = memplan("optimize", network, *words, "-o", out)
    assert done.exit_code == 0, done.output
    found = memplan("validate", out, "--original", network)
    assert found.exit_code == 0, found.output
    assert "without graph optimization" in " ".join(found.output.split())
    (tmp_path / "o.json").unlink()  # the model itself says it too
    found = memplan("validate", out, "--original", network, "--format", "json")
    assert json.loads(found.stdout)["reference"] == "unoptimized"


def test_chunks_that_change_the_bits_of_a_default_run_are_not_written(
    network: Path, tmp_path: Path
) -> None:
    words = (
        "optimize",
        network,
        "--chunk",
        "auto",
        "--budget",
        "70%",
        "-o",
        tmp_path / "o.onnx",
    )
    done = memplan(*words)
    assert done.exit_code == 1, done.output
    assert "differ from those of a default run of the original" in done.output
    assert "--reference unoptimized" in done.output
    assert "--chunk auto" in done.output
    assert "--target cpu" in done.output
    assert not (tmp_path / "o.onnx").exists()
    done = memplan(*words, "--reference", "unoptimized")
    assert done.exit_code == 0, done.output


def test_copies_that_change_the_bits_of_a_default_run_are_left_out_and_said(
    network: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from memplan_cli.api.output.rewriting import Rewriting

    # As if recomputation had found copies that are worth it, which ONNX Runtime must not merge.
    def is_recomputed(rewriting: Rewriting) -> bool:
        return rewriting.settings.recompute != "none"

    monkeypatch.setattr(Rewriting, "unoptimized_only", property(is_recomputed))
    settings = Settings(recompute="auto")
    done = api.optimize(network, settings, out=tmp_path / "o.onnx", check=Check("cpu"))
    assert done.passed
    report = done.plan.report
    assert [each.code for each in report.fallbacks] == ["candidate-differed"]
    assert "other bits" in report.fallbacks[0].why
    done = api.optimize(network, settings, out=tmp_path / "o.onnx", check=UNOPTIMIZED)
    assert not done.plan.report.fallbacks


def test_shapes_in_the_metadata_that_change_fusions_are_left_out_and_said(
    network: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from memplan_cli.api.output.rewriting import Rewriting

    # As if ONNX Runtime fused other nodes of a model with shapes of values: optimized, its bits differ.
    def has_shapes(rewriting: Rewriting) -> bool:
        return rewriting.settings.notes != "plan"

    monkeypatch.setattr(Rewriting, "unoptimized_only", property(has_shapes))
    done = api.optimize(network, out=tmp_path / "o.onnx", check=Check("cpu"))
    assert done.passed
    (fallback,) = done.plan.report.fallbacks
    assert (
        fallback.what == "the graph with another order and the plan as metadata was left out"
    )
    assert not onnx.load(tmp_path / "o.onnx").graph.value_info


def test_a_target_has_optimizations_in_it_and_no_unoptimized_reference(
    network: Path, tmp_path: Path
) -> None:
    words = ("--target", "cpu", "--reference", "unoptimized")
    done = memplan("optimize", network, *words, "-o", tmp_path / "o.onnx")
    assert done.exit_code == 2
    assert "--reference unoptimized needs --target portable" in done.output


def test_a_reference_needs_a_comparison(network: Path, tmp_path: Path) -> None:
    words = ("--no-validate", "--reference", "defaults")
    done = memplan("optimize", network, *words, "-o", tmp_path / "o.onnx")
    assert done.exit_code == 2
    assert "--reference needs the models to be run" in done.output
