"""A planner's regressions are numbers: each sample model's report, at each level.

`pytest tests/golden --update-golden` writes them again; review the diff.
"""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from features.chunk_models import transformer
from memplan_cli import Settings, plan
from memplan_cli.api.plan_sections import FEATURE_SECTIONS
from memplan_cli.planning.plan_file import plan_from_json
from memplan_cli.reporting.formats import render

REPORTS = Path(__file__).parent / "reports"
ROOT = Path(__file__).parents[2]
MODELS = sorted(path.stem for path in (ROOT / "sample_models").glob("*.onnx"))


@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("form", ["json", "text"])
def test_the_report_of_a_sample_model_is_the_one_in_the_repository(
    model: str, level: int, form: str, *, update_golden: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "100")
    made = plan(Path("sample_models") / f"{model}.onnx", Settings(level=level))  # type: ignore[arg-type]
    told = {"print_log": True, "detail": "details"} if form == "text" else {}
    text = render(made, form, sections=FEATURE_SECTIONS, **told)  # type: ignore[arg-type]
    path = REPORTS / f"{model}.level{level}.{'json' if form == 'json' else 'txt'}"
    if update_golden:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), "pytest tests/golden --update-golden"


@pytest.mark.parametrize("detail", ["answer", "details"])
def test_the_report_of_chunks_shows_memory_against_time(
    detail: str, tmp_path: Path, *, update_golden: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    onnx.save(transformer(length=256, layers=2), "transformer.onnx")
    made = plan(Path("transformer.onnx"), Settings(chunk="auto"))
    text = render(made, "text", sections=FEATURE_SECTIONS, detail=detail)  # type: ignore[arg-type]
    path = REPORTS / f"chunks.{detail}.txt"
    if update_golden:
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), "pytest tests/golden --update-golden"


@pytest.mark.parametrize("model", MODELS)
def test_the_golden_reports_keep_the_contracts_promises(model: str) -> None:
    for level in (0, 1, 2):
        data = json.loads((REPORTS / f"{model}.level{level}.json").read_text())
        assert data["coverage"] == 1.0
        if data["memory"]["naive"] is None:
            assert data["symbolic"]["planned"]
            continue
        levels = [data["levels"][each] for each in "210"]
        assert levels == sorted(levels)
        assert levels[-1] <= data["memory"]["naive"]
        assert data["memory"]["live_peak"] <= data["memory"]["planned"]
        assert data["memory"]["planned"] == data["levels"][str(level)]
        assert data["memory"]["planned"] <= data["original"]["planned"]


@pytest.mark.parametrize("model", MODELS)
def test_a_sample_models_plan_survives_its_file(model: str) -> None:
    made = plan(ROOT / "sample_models" / f"{model}.onnx")
    assert plan_from_json(json.loads(made.dumps())) == made


def test_the_sample_models_are_what_their_script_writes(tmp_path: Path) -> None:
    import importlib.util

    spec = importlib.util.spec_from_file_location("build", ROOT / "sample_models" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    build = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["build"] = build
    try:
        spec.loader.exec_module(build)
        build.main(tmp_path)
    finally:
        del sys.modules["build"]
    for model in MODELS:
        one, other = (
            onnx.load(folder / f"{model}.onnx")
            for folder in (tmp_path, ROOT / "sample_models")
        )
        assert one == other
