"""How far a model is proved: options that agree, and those that contradict each other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from story import GOOD, memplan, write


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("a.onnx"), GOOD)


@pytest.mark.parametrize(
    ("words", "validated", "measured", "started"),
    [
        ((), True, True, 2),
        (("--validate", "full"), True, True, 2),
        (("--validate", "outputs"), True, False, 2),
        (("--validate", "none"), False, False, 0),
        (("--no-validate",), False, False, 0),
        (("--no-validate", "--validate", "none"), False, False, 0),
    ],
)
def test_a_model_is_proved_as_far_as_asked(
    words: tuple[str, ...],
    validated: bool,  # noqa: FBT001 - what is expected
    measured: bool,  # noqa: FBT001 - what is expected
    started: int,
    started_jobs: list[str],
) -> None:
    done = memplan("optimize", "a.onnx", *words, "--provider", "auto", "--format", "json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert (report["validation"] is not None, report["runtime"] is not None) == (
        validated,
        measured,
    )
    assert started_jobs == ["measured run" if measured else "run"] * started


def test_tuning_says_its_cost_first_and_runs_more(started_jobs: list[str]) -> None:
    done = memplan("optimize", "a.onnx", "--tune", "--provider", "cpu")
    assert done.exit_code == 0, done.output
    assert done.stderr.startswith("memplan: --tune runs the models under many settings")
    assert len(started_jobs) > 5
    started_jobs.clear()
    assert memplan("settings", "a.onnx", "--measure", "--provider", "cpu").exit_code == 0
    assert started_jobs == ["measured run", "measured run"]
    started_jobs.clear()
    assert memplan("settings", "a.onnx", "--tune", "--provider", "cpu").exit_code == 0
    assert len(started_jobs) > 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--no-validate", "--validate", "full"), "contradict each other"),
        (("--no-validate", "--tune"), "--tune measures the memory of both models"),
        (("--validate", "outputs", "--tune"), "--tune measures the memory of both models"),
        (("--validate", "sometimes"), "Invalid value for '--validate'"),
        (("--validate", "outputs", "--settings-out", "s.py"), "--settings-out needs"),
        (("--no-run", "--validate", "full"), "--validate runs the model, and --no-run"),
        (("--no-run", "--validate", "outputs"), "--validate runs the model, and --no-run"),
        (("--no-run", "--tune"), "--tune runs the model, and --no-run"),
    ],
)
def test_what_contradicts_itself_is_refused(words: tuple[str, ...], said: str) -> None:
    done = memplan("optimize", "a.onnx", *words)
    assert done.exit_code == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert "some twenty processes" not in done.stderr
    assert [path.name for path in Path().iterdir()] == ["a.onnx"]


def test_tuning_settings_without_a_run_is_refused_by_its_name() -> None:
    done = memplan("settings", "a.onnx", "--no-run", "--tune")
    assert done.exit_code == 2
    assert done.stderr.startswith("Error: --tune runs the model, and --no-run forbids it")
