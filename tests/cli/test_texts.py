"""Texts of the commands: a subject line, figures, checks, and the next step with the user's options."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from shlex import split

import pytest

from story import memplan

SAMPLES = Path(__file__).parents[2] / "sample_models"
STEP = re.compile(r"^(?:# )?(?P<label>[\w\[][^:]*):  memplan (?P<words>.*)$")
"""A line with a command to copy, which is never wrapped."""

TEXTS = {
    "why branchy_cnn.onnx --level 1": "why branchy_cnn.onnx --tensor b2_conv --level 1",
    "why branchy_cnn.onnx --tensor b2_relu --level 1": "why branchy_cnn.onnx --level 1",
    "why dynamic_batch.onnx --process --dim batch=2": "settings dynamic_batch.onnx --dim batch=2",
    "gate branchy_cnn.onnx --max-memory 1MiB": "why branchy_cnn.onnx --process",
    "gate branchy_cnn.onnx --max-memory 1KiB --metric planned --level 0": "why branchy_cnn.onnx --level 0",
    "gate branchy_cnn.onnx --max-memory 1GiB": (
        "gate branchy_cnn.onnx --update-baseline --max-memory 1GiB"
    ),
    "gate branchy_cnn.onnx --update-baseline --level 1": "gate branchy_cnn.onnx --level 1",
    "diff branchy_cnn.onnx dynamic_batch.onnx --level 0": "why dynamic_batch.onnx --level 0",
    "fit dynamic_batch.onnx --memory 128MiB --dim batch=?": (
        "fit dynamic_batch.onnx --confirm --memory 128MiB --dim 'batch=?'"
    ),
    "fit dynamic_batch.onnx --memory 1MiB --dim batch=?": (
        "why dynamic_batch.onnx --process --dim batch=1"
    ),
    "settings dynamic_batch.onnx --dim batch=3": "settings dynamic_batch.onnx --measure --dim batch=3",
    "settings dynamic_batch.onnx --bounds batch=1..4": (
        "settings dynamic_batch.onnx --measure --bounds batch=1..4"
    ),
    "sweep dynamic_batch.onnx branchy_cnn.onnx --dim batch=1,2 --level 1": (
        "report branchy_cnn.onnx --level 1"
    ),
    "simulate dynamic_batch.onnx --dim batch=2": "settings dynamic_batch.onnx --dim batch=2",
    "soak dynamic_batch.onnx --bounds batch=1..2 --requests 3": (
        "settings dynamic_batch.onnx --bounds batch=1..2"
    ),
    "train-step branchy_cnn.onnx -o step.onnx --loss-fn mse --gradients": "optimize step.onnx",
    "pack problem.csv --time-limit 5": "pack problem.csv -o offsets.csv --time-limit 5.0",
    "doctor": "report MODEL.onnx",
}
"""Command -> the first command that its text recommends."""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("branchy_cnn", "dynamic_batch"):
        shutil.copy(SAMPLES / f"{name}.onnx", tmp_path)
    (tmp_path / "problem.csv").write_text("id,lower,upper,size\na,0,2,64\nb,1,3,32\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")


def prose(text: str) -> list[str]:
    """Return the lines of a text without those that are copied."""
    return [line for line in text.splitlines() if not STEP.match(line)]


@pytest.mark.parametrize("words", TEXTS)
def test_text_fits_80_columns_has_one_unit_family_and_ends_with_the_next_step(
    words: str,
) -> None:
    text = memplan(*split(words)).stdout
    assert [line for line in prose(text) if len(line) > 80] == []
    assert not re.search(r"\d [kMG]B\b", text)
    assert not re.search(r"\d\s*\n[#\s]*[KMG]iB", text), "a figure is broken"
    steps = [match["words"] for line in text.splitlines() if (match := STEP.match(line))]
    assert steps[0] == TEXTS[words]
    assert text.splitlines()[-len(steps) :] == [
        line for line in text.splitlines() if STEP.match(line)
    ]


def test_recommended_commands_run() -> None:
    for words in ("gate branchy_cnn.onnx --max-memory 1MiB", "why branchy_cnn.onnx --process"):
        text = memplan(*split(words)).stdout
        for line in text.splitlines():
            if match := STEP.match(line):
                done = memplan(*split(match["words"]))
                assert done.exit_code == 0, done.output


def test_other_formats_have_no_next_step() -> None:
    for words in ("gate branchy_cnn.onnx --max-memory 1GiB", "why branchy_cnn.onnx"):
        for form in ("json", "markdown"):
            assert "memplan gate" not in memplan(*split(words), "--format", form).stdout


def test_validation_states_each_check_and_how_to_run_the_model() -> None:
    assert memplan("optimize", "branchy_cnn.onnx").exit_code == 0
    lines = memplan("validate", "branchy_cnn.memplan.onnx", "--replay").stdout.splitlines()
    assert lines[0] == "Validation passed on CPUExecutionProvider"
    checks = [line for line in lines if line.startswith("[ok] ")]
    assert [check.split()[1] for check in checks] == ["The", "Replay", "The"]
    assert lines[-1] == 'Run it:  session = memplan.load("branchy_cnn.memplan.onnx")'
