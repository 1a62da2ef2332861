"""The same model gives the same files: on another day, from elsewhere, under another name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from memplan_cli import Check, api
from memplan_cli.errors import RuntimeUnavailableError
from memplan_cli.reporting.snapshot import read_baseline
from memplan_cli.runtime.run import compare
from memplan_cli.runtime.settings_search import written_model
from memplan_cli.runtime.verification import confirm
from story import GOOD, memplan, write

if TYPE_CHECKING:
    from typing import NoReturn

    from memplan_cli.core.check import Search
    from memplan_cli.runtime.run.baseline import Baseline
    from memplan_cli.runtime.run.compare import WrittenRun

ROOT = Path(__file__).parents[2]

EQUALLY_FAST = """
from memplan_cli.runtime.verification import confirm
confirm.seems_slower = lambda *_: False
from memplan_cli.__main__ import main
main()
"""
"""The command where no time decides what is written: two runs never take the same."""


def optimized(model: Path, cwd: Path, seed: str, *options: str) -> dict[str, bytes]:
    """Optimize in a process whose hashes have another seed; return the files it wrote."""
    there = os.path.relpath(model, cwd)
    words = [sys.executable, "-c", EQUALLY_FAST, "optimize", there, *options]
    paths = [str(ROOT), str(ROOT / "tests")]
    env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {path.name: without_process(path) for path in model.parent.iterdir()}


def without_process(path: Path) -> bytes:
    """Return a file's bytes; of a plan, without what its runs took of the system's memory."""
    data = path.read_bytes()
    if path.suffix != ".json":
        return data
    plan = json.loads(data)
    for side in plan["report"]["runtime"]["observed"].values():
        assert side.pop("process", None) or sys.platform != "linux"
    return json.dumps(plan, indent=1).encode()


@pytest.mark.parametrize(
    "options",
    [
        pytest.param((), id="portable"),
        pytest.param(("--target", "cpu"), id="cpu"),
        pytest.param(
            ("--recompute", "auto", "--level", "1"), id="recompute", marks=pytest.mark.slow
        ),
    ],
)
def test_two_runs_give_the_same_bytes_wherever_they_are_started(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    one = write(tmp_path / "here" / "a.onnx", GOOD)
    other = write(tmp_path / "there" / "deeper" / "a.onnx", GOOD)
    first = optimized(one, one.parent, "1", *options)
    second = optimized(other, tmp_path, "2", *options)
    assert set(first) >= {"a.memplan.onnx", "a.memplan.json"}
    assert {name for name in first if first[name] != second.get(name)} == set()


def test_no_time_is_in_a_plan_or_in_json(tmp_path: Path) -> None:
    model = write(tmp_path / "a.onnx", GOOD)
    out = tmp_path / "net.onnx"
    printed = memplan("optimize", model, "-o", out, "--format", "json").stdout
    settings = memplan("settings", model, "--measure", "--format", "json").stdout
    proved = ("validate", out, "--original", model, "--measure")
    validated = memplan(*proved, "--format", "json").stdout
    for text in (printed, settings, validated, out.with_suffix(".json").read_text()):
        assert json.loads(text)
        assert "milliseconds" not in text
    assert "Median time of a run: original " in memplan(*proved).stdout


def test_a_plan_names_its_model_from_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("models/a.onnx"), GOOD)
    Path("plans").mkdir()
    words = ("optimize", "models/a.onnx", "--no-validate", "--format", "json")
    report = json.loads(memplan(*words, "--plan", "plans/a.json").stdout)
    assert json.loads(Path("plans/a.json").read_text())["report"] == report
    assert report["model"]["path"] == "../models/a.onnx"
    assert list(read_baseline(Path("plans/a.json"))) == ["../models/a.onnx"]


def test_what_could_not_be_predicted_is_said_without_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(baseline: Baseline) -> NoReturn:
        raise RuntimeUnavailableError(f"{baseline.path} has sizes that nobody knows")

    monkeypatch.setattr(written_model, "read_baseline_graph", fails)
    model = write(tmp_path / "a.onnx", GOOD)
    done = api.optimize(model, out=tmp_path / "net.onnx", check=Check(provider="cpu"))
    said = "the runtime's memory was not measured: a.onnx has sizes that nobody knows"
    assert done.plan.report.warnings == (said,)
    assert str(tmp_path) not in (tmp_path / "net.json").read_text()


@pytest.mark.parametrize("search", ["predicted", "measured"])
def test_what_a_comparison_says_names_models_without_their_folders(
    search: Search, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = compare.run_written

    def run_with_note(baseline: Baseline, path: Path, *how: Any, **more: Any) -> WrittenRun:  # noqa: ANN401
        found = run(baseline, path, *how, **more)
        notes = (f"{baseline.path} and {path}",)
        return replace(found, verdict=replace(found.verdict, notes=notes))

    monkeypatch.setattr(confirm, "run_written", run_with_note)
    model = write(tmp_path / "a.onnx", GOOD)
    check = Check(provider="cpu", search=search)
    done = api.optimize(model, out=tmp_path / "net.onnx", check=check)
    assert done.plan.report.validation is not None
    assert done.plan.report.validation.notes == ("a.onnx and net.onnx",)
    assert "a.onnx and net.onnx" in done.plan.report.warnings
