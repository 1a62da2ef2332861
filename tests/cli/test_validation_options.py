"""How far a model is proved: options that agree, and those that contradict each other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memplan_cli.api.output import optimized
from memplan_cli.errors import RuntimeUnavailableError
from memplan_cli.onnx_io.load import load_model
from memplan_cli.onnx_io.metadata import metadata_of
from memplan_cli.onnx_io.settings_metadata import recorded_settings
from memplan_cli.runtime.settings_search import model_prediction
from story import GOOD, memplan, write


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("a.onnx"), GOOD)


@pytest.mark.parametrize(
    ("words", "validated", "measured", "started"),
    [
        ((), True, True, ["measured run", "measured run"]),
        (("--validate", "full"), True, True, ["measured run", "measured run"]),
        (("--validate", "outputs"), True, False, ["run", "run"]),
        (("--validate", "none"), False, False, ["write_light_dump"]),
        (("--no-validate",), False, False, ["write_light_dump"]),
        (("--no-validate", "--validate", "none"), False, False, ["write_light_dump"]),
    ],
)
def test_a_model_is_proved_as_far_as_asked(
    words: tuple[str, ...],
    validated: bool,  # noqa: FBT001 - what is expected
    measured: bool,  # noqa: FBT001 - what is expected
    started: list[str],
    started_jobs: list[str],
) -> None:
    done = memplan("optimize", "a.onnx", *words, "--provider", "auto", "--format", "json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    runtime = report["runtime"]
    is_measured = (
        runtime is not None and runtime["observed"]["optimized"]["process"] is not None
    )
    assert (report["validation"] is not None, is_measured) == (validated, measured)
    assert started_jobs == started


@pytest.mark.parametrize("target", ["portable", "cpu"])
@pytest.mark.parametrize("words", [("--no-validate",), ("--validate", "none"), ("--no-run",)])
def test_without_a_run_the_report_has_predictions_and_settings_and_nulls(
    target: str, words: tuple[str, ...]
) -> None:
    first = ("optimize", "a.onnx", "--target", target)
    validated = json.loads(memplan(*first, "--format", "json").stdout)
    done = memplan(*first, *words, "--format", "json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert set(report) == set(validated)
    assert report["validation"] is None
    runtime = report["runtime"]
    assert set(runtime) >= set(validated["runtime"]) - {"time"}
    for side in ("original", "optimized"):
        assert runtime["predicted"][side]["process"]["run"] > 0
        observed = runtime["observed"][side]
        assert set(observed) == set(validated["runtime"]["observed"][side])
        assert set(observed.values()) == {None}
    level = runtime["settings"]["session"].get("graph_optimization_level")
    assert level == ("ORT_DISABLE_ALL" if target == "cpu" else None)
    text = memplan("report", "a.memplan.json", "-v").stdout
    assert "predicted, usually within 10%" in text
    assert "Settings of the written model, predicted and not confirmed by a run" in text


def test_donated_outputs_stay_bound_where_settings_are_predicted() -> None:
    write(Path("d.onnx"), "donated (float[64, 64] w) => (float[64, 64] v) { v = Exp(w) }")
    done = memplan("optimize", "d.onnx", "--donate", "w=v", "--no-validate")
    assert done.exit_code == 0, done.output
    plan = json.loads(Path("d.memplan.json").read_text())
    assert plan["report"]["runtime"]["settings"]["io_binding"] == {"v": "w"}
    recorded = recorded_settings(metadata_of(load_model(Path("d.memplan.onnx"))))
    assert recorded is not None
    assert recorded.settings.io_binding == {"v": "w"}


def test_a_runtime_that_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_installed() -> str:
        raise RuntimeUnavailableError("ONNX Runtime is not installed")

    monkeypatch.setattr(model_prediction, "required_version", not_installed)
    done = memplan("optimize", "a.onnx", "--no-validate")
    assert done.exit_code == 0, done.output
    assert (
        "memory and settings are not predicted: ONNX Runtime is not installed" in done.output
    )
    assert json.loads(Path("a.memplan.json").read_text())["report"]["runtime"] is None


def test_a_large_model_is_not_loaded_for_a_prediction(
    monkeypatch: pytest.MonkeyPatch, started_jobs: list[str]
) -> None:
    monkeypatch.setattr(optimized, "_MAX_NODES", 2)
    done = memplan("optimize", "a.onnx", "--no-validate")
    assert done.exit_code == 0, done.output
    assert "`memplan report` predicts them" in " ".join(done.output.split())
    assert started_jobs == []


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
def test_contradicting_options_are_refused(words: tuple[str, ...], said: str) -> None:
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
