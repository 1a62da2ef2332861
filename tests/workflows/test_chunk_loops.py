"""``--chunk auto`` with ``--bounds``: one file for every size, from the model to the proof."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnxruntime
import pytest

import memplan_cli as memplan_api
from memplan_cli import workflows
from memplan_cli.errors import SettingsError
from memplan_cli.planning import chunking
from memplan_cli.settings.settings import Settings
from story import memplan
from transforms.chunk_models import transformer
from transforms.loop_models import BOUNDS, encoder

if TYPE_CHECKING:
    from pathlib import Path

BUDGET = 400_000

LOOPS = Settings(chunk="auto", budget=BUDGET, bounds=BOUNDS)

OPTIONS = (
    "--chunk", "auto", "--budget", str(BUDGET), "--bounds", "batch=1..16", "--bounds", "seq=4..128",
)  # fmt: skip


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("loops")
    path, out = folder / "net.onnx", folder / "loops.onnx"
    onnx.save(encoder(2), path)
    found = workflows.optimize(path, LOOPS, out=out)
    assert found.passed
    report = found.plan.report
    assert report.validation is not None
    assert report.validation.bit_identical
    assert any("every loop has several pieces" in note for note in report.warnings)
    assert report.chunked.met
    assert report.memory.resident is not None
    assert report.memory.resident <= BUDGET
    assert all(region.trips and region.pieces > 1 for region in report.chunked.regions)
    return path, out


def test_the_file_validates_and_replays_at_a_size_of_its_own(
    written: tuple[Path, Path],
) -> None:
    path, out = written
    again = memplan("validate", out, "--original", path, "--replay")
    assert again.exit_code == 0, again.output
    assert "replay in one poisoned arena: passed" in again.output


@pytest.mark.filterwarnings("ignore:this process has its arena already")
@pytest.mark.parametrize("size", [(1, 4), (16, 128), (5, 101), (16, 7), (2, 128)])
def test_one_file_gives_the_bits_of_the_original_at_every_size(
    written: tuple[Path, Path], size: tuple[int, int]
) -> None:
    path, out = written
    x = np.random.default_rng(size).standard_normal((*size, 16)).astype(np.float32)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    whole = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    first = np.asarray(whole.run(None, {"x": x})[0])
    second = np.asarray(memplan_api.load(out).run(None, {"x": x})[0])
    assert first.tobytes() == second.tobytes()


def test_the_arena_holds_no_more_than_the_budget_for_many_sizes(
    written: tuple[Path, Path],
) -> None:
    _, out = written
    bounds = "--bounds", "batch=1..16", "--bounds", "seq=4..128"
    soaked = memplan("soak", out, *bounds, "--requests", "60", "--format", "json")
    assert soaked.exit_code == 0, soaked.output
    found = json.loads(soaked.stdout)
    assert found["passed"]


def test_loops_are_told_by_every_form_of_the_report(written: tuple[Path, Path]) -> None:
    path, _ = written
    report = json.loads(memplan("report", path, *OPTIONS, "--format", "json").stdout)
    region = report["chunked"]["regions"][0]
    assert "batch" in region["trips"]
    assert region["pieces"] == 16
    for command, form in (("why", "text"), ("report", "html"), ("report", "markdown")):
        text = memplan(command, path, *OPTIONS, "--format", form).stdout
        assert "loops" in text
        assert region["tensor"] in text
    gone = memplan("why", path, *OPTIONS, "--tensor", region["tensor"])
    assert gone.exit_code == 2
    assert "loop1.body/" in gone.output.replace("\n", "")


def test_a_dim_without_bounds_is_refused_with_the_option_that_helps(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(encoder(), path)
    found = memplan(
        "report", path, "--chunk", "auto", "--budget", "1MiB", "--bounds", "seq=4..128"
    )
    assert found.exit_code == 2
    assert "--bounds batch=A..B" in found.output


def test_an_old_opset_is_refused(tmp_path: Path) -> None:
    model = encoder()
    model.opset_import[0].version = 11
    for node in model.graph.node:
        if node.op_type == "LayerNormalization":
            node.op_type = "Relu"
            del node.input[1:], node.attribute[:]
    path = tmp_path / "net.onnx"
    onnx.save(model, path)
    with pytest.raises(SettingsError, match="opset 12"):
        workflows.plan(path, LOOPS)


def test_a_budget_below_the_bound_writes_nothing(tmp_path: Path) -> None:
    path, out = tmp_path / "net.onnx", tmp_path / "out.onnx"
    onnx.save(encoder(), path)
    tight = "--chunk", "auto", "--budget", "1KiB", *OPTIONS[4:]
    found = memplan("optimize", path, "-o", out, *tight)
    assert found.exit_code == 1
    assert "cannot be met" in found.output
    assert not out.exists()


def test_sizes_that_are_numbers_are_loops_where_unrolled_pieces_are_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunking, "_MANY_NODES", 100)
    path, out = tmp_path / "net.onnx", tmp_path / "out.onnx"
    onnx.save(transformer(length=512, layers=1), path)
    found = workflows.optimize(path, Settings(chunk="auto", budget=0.1), out=out)
    assert found.passed
    report = found.plan.report
    assert report.validation is not None
    assert report.validation.bit_identical
    assert any(region.trips.isdigit() for region in report.chunked.regions)
    again = memplan("validate", out, "--original", path, "--replay")
    assert again.exit_code == 0, again.output
