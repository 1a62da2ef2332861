"""The main job, end to end: real models planned, rewritten, run and compared."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from memplan_cli import Check, Settings, optimize
from memplan_cli.onnx_io.load import load_model
from memplan_cli.onnx_io.writing.verify import graph_differences
from runs import compared
from story import memplan

ROOT = Path(__file__).parents[2]
SAMPLES = sorted(path.stem for path in (ROOT / "sample_models").glob("*.onnx"))
SHARED = ROOT.parent / "shared" / "models"
LIGHT = ("light_squeezenet", "light_shufflenet")
FREE = {
    "resnet50_dynbatch", "bert_base_dyn", "llama_1b_dyn", "loop_greedy_gru", "moe_sparse",
    "t5_small_decoder", "mobilenetv2_ts", "bert_base_dyn_ts",
}  # fmt: skip
"""Shared models whose dims are not all numbers."""


def checked(original: Path, written: Path) -> None:
    """The same graph with the same names, clean for the checker."""
    assert graph_differences(load_model(original), load_model(written)) == ()
    onnx.checker.check_model(onnx.load(written, load_external_data=False))


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_model_gives_the_same_bits(name: str, tmp_path: Path) -> None:
    source = ROOT / "sample_models" / f"{name}.onnx"
    done = optimize(source, out=tmp_path / f"{name}.memplan.onnx", check=None)
    assert done.model is not None
    checked(source, done.model)
    proved = compared(source, done.model, Check("cpu", runs=1))
    assert (proved.status, proved.bit_identical) == ("passed", True)


@pytest.mark.parametrize("name", LIGHT)
def test_a_real_network_gives_the_same_bits(
    name: str, light_models: Path, tmp_path: Path
) -> None:
    source = light_models / f"{name}.onnx"
    done = optimize(source, out=tmp_path / "m.onnx", check=None)
    assert done.model is not None
    checked(source, done.model)
    proved = compared(source, done.model, Check("cpu", runs=1))
    assert (proved.status, proved.bit_identical) == ("passed", True)
    report = done.plan.report
    assert report.coverage == 1.0
    assert report.memory.planned is not None
    assert report.memory.naive is not None
    assert report.memory.planned < report.memory.naive / 2


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLES)
def test_optimize_proves_and_measures_what_it_writes(name: str, tmp_path: Path) -> None:
    source = ROOT / "sample_models" / f"{name}.onnx"
    done = optimize(source, out=tmp_path / f"{name}.memplan.onnx", check=Check(provider="cpu"))
    assert done.passed
    report = done.plan.report
    assert report.validation is not None
    assert report.validation.bit_identical
    assert report.runtime is not None
    assert report.runtime.provider == "CPUExecutionProvider"


def test_the_commands_agree_with_one_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = tmp_path / "net.onnx"
    source.write_bytes((ROOT / "sample_models" / "train_mlp.onnx").read_bytes())
    done = memplan("optimize", source, "--no-validate", "--format", "json", "--quiet")
    assert (done.exit_code, done.stderr) == (0, "")
    printed = json.loads(done.stdout)
    shown = memplan("report", "--format", "json")
    assert json.loads(shown.stdout) == printed
    proved = memplan("validate", "net.memplan.onnx", "--provider", "cpu", "--runs", "1", "--format",
                     "json")  # fmt: skip
    assert proved.exit_code == 0, proved.stderr
    assert "passed" in proved.stdout
    json.loads(proved.stdout)


def test_a_model_that_gives_other_outputs_fails_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = tmp_path / "net.onnx"
    source.write_bytes((ROOT / "sample_models" / "train_mlp.onnx").read_bytes())
    done = memplan("optimize", source, "--no-validate")
    assert done.exit_code == 0
    model = onnx.load(tmp_path / "net.memplan.onnx")
    weight = next(t for t in model.graph.initializer if t.name == "lr")
    weight.CopyFrom(onnx.helper.make_tensor("lr", 1, [], [0.2]))
    onnx.save(model, tmp_path / "net.memplan.onnx")
    proved = memplan("validate", "net.memplan.onnx", "--provider", "cpu", "--runs", "1")
    assert proved.exit_code == 1, proved.output
    assert "new.fc" in proved.stdout


def test_nothing_is_written_when_the_outputs_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Break the rewritten model between writing and proving it."""
    from memplan_cli.onnx_io.writing import write

    source = tmp_path / "net.onnx"
    source.write_bytes((ROOT / "sample_models" / "train_mlp.onnx").read_bytes())
    honest = write.written_model

    def broken(*words: object) -> bytes:
        model = onnx.load_from_string(b"".join(honest(*words)))  # type: ignore[arg-type]
        weight = next(t for t in model.graph.initializer if t.name == "lr")
        weight.CopyFrom(onnx.helper.make_tensor("lr", 1, [], [0.2]))
        data: bytes = model.SerializeToString()
        return data

    monkeypatch.setattr(write, "written_model", broken)
    done = optimize(source, check=Check(provider="cpu", runs=1))
    assert not done.passed
    assert (done.model, done.plan_file) == (None, None)
    assert [path.name for path in tmp_path.iterdir()] == ["net.onnx"]


def shared() -> list[str]:
    return sorted(path.stem for path in SHARED.glob("*.onnx"))


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared models are not here")
@pytest.mark.parametrize("name", shared())
def test_a_shared_model_is_planned_at_every_level(name: str, tmp_path: Path) -> None:
    source = SHARED / f"{name}.onnx"
    for level in (0, 1, 2):
        done = optimize(
            source,
            Settings(level=level),
            out=tmp_path / f"{level}.onnx",
            check=None,
        )
        report, memory = done.plan.report, done.plan.report.memory
        if name in FREE:
            continue
        assert report.coverage == 1.0
        assert memory.live_peak is not None
        assert memory.planned is not None
        assert memory.naive is not None
        levels = [report.levels[each] for each in "210"]
        numbers = [each for each in levels if each is not None]
        assert numbers == sorted(numbers)
        assert numbers[-1] <= memory.naive
        assert report.original_planned is not None
        assert memory.planned <= report.original_planned
        if level == 2:
            assert memory.planned <= 1.02 * memory.live_peak


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared models are not here")
def test_nearly_14000_nodes_are_planned_in_seconds(tmp_path: Path) -> None:
    source = SHARED / "train_lstm_unrolled_128x2.onnx"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    words = ("optimize", source, "--no-validate", "-o", tmp_path / "m.onnx", "--quiet")
    subprocess.run([sys.executable, "-m", "memplan_cli", *words], check=True, timeout=600)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime - before.ru_utime < 15, "of processor time; 5 s on a quiet machine"
