"""``-`` where a model or a plan is read: standard input, called by no temporary name."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from memplan_cli.cli import main

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result


def run(data: bytes, *words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words], input=data)


@pytest.fixture
def model(samples: Path) -> bytes:
    return (samples / "dynamic_batch.onnx").read_bytes()


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


READERS = (
    "report - --format json",
    "fit - --memory 1GiB --dim batch=? --of tensors --format json",
    "why - --format json",
    "why - --process --format json",
    "diff - {model} --format json",
    "diff {model} - --format json",
    "settings - --format json",
    "simulate - --format json",
    "train-step - -o step.onnx --loss-fn mse --optimizer sgd --format json",
    "optimize - -o out.onnx --no-validate --format json",
)


@pytest.mark.parametrize("line", READERS)
def test_a_model_on_standard_input_is_read_as_a_file_is(
    line: str, model: bytes, tmp_path: Path
) -> None:
    (tmp_path / "stdin.onnx").write_bytes(model)
    words = line.format(model="stdin.onnx").split()
    piped = run(model, *words)
    assert piped.exit_code == 0, piped.output
    assert "memplan-model-" not in piped.output
    named = run(b"", *("stdin.onnx" if word == "-" else word for word in words))
    first, second = (json.loads(found.stdout) for found in (piped, named))
    if "--process" in words:
        assert_processes_of_one_model(first, second)
    else:
        assert first == second


def assert_processes_of_one_model(first: dict[str, Any], second: dict[str, Any]) -> None:
    """Two processes of one model differ by pages, as a gate allows; nothing else differs."""
    one, other = first.pop("process"), second.pop("process")
    for name, found in one.items():
        assert other[name] == pytest.approx(found, rel=0.02, abs=1_000_000), name
    assert {part["name"] for part in first.pop("parts")}
    assert second.pop("parts")
    assert first == second


def test_what_is_written_does_not_say_where_standard_input_was_kept(
    model: bytes, tmp_path: Path
) -> None:
    result = run(model, "optimize", "-", "-o", "out.onnx", "--no-validate")
    assert result.exit_code == 0, result.output
    report = run(model, "report", "-", "-o", "report.html", "--format", "html")
    assert report.exit_code == 0, report.output
    for path in sorted(tmp_path.iterdir()):
        assert b"memplan-model-" not in path.read_bytes(), path
    plan = run((tmp_path / "out.json").read_bytes(), "report", "-")
    assert plan.exit_code == 0
    assert "stdin.onnx" in plan.stdout


@pytest.mark.parametrize(
    ("line", "data", "says"),
    [
        ("report -", b"", "stdin.onnx is empty"),
        ("report -", b"no model", "stdin.onnx is not an ONNX model"),
        ("report -", b"{}", "stdin.json"),
        ("diff - -", b"x", "read only once"),
        ("settings -", b"\x08", "stdin.onnx"),
        ("report ./-", b"", "no file -"),
    ],
)
def test_what_cannot_be_read_is_one_clear_message(line: str, data: bytes, says: str) -> None:
    result = run(data, *line.split())
    assert result.exit_code == 2, result.output
    assert says in result.stderr
    assert "memplan-model-" not in result.stderr
    assert "Traceback" not in result.stderr


def test_nothing_is_written_beside_a_model_without_a_folder(
    model: bytes, tmp_path: Path
) -> None:
    result = run(model, "optimize", "-", "--no-validate")
    assert result.exit_code == 2
    assert "name the file with -o" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "line",
    ["report -", "optimize - -o out.onnx --no-validate", "settings -", "simulate -", "why -"],
)
def test_no_command_is_suggested_for_a_model_without_a_file(line: str, model: bytes) -> None:
    result = run(model, *line.split(), "--dim", "batch=2")
    assert result.exit_code == 0, result.output
    assert "  memplan " not in result.stdout


def test_a_file_called_dash_is_read_by_a_path(samples: Path, tmp_path: Path) -> None:
    shutil.copy(samples / "dynamic_batch.onnx", tmp_path / "-")
    assert run(b"", "report", "./-").exit_code == 0
