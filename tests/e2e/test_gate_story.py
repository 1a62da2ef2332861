"""Baseline, regression, the gate names the tensor in each format, fix, green, ratchet."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from memplan_cli.cli.commands.gate import FORMATS
from story import GOOD, LONGER, SMALLER, memplan, write

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def in_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_team_is_told_which_change_made_the_model_need_more_memory(tmp_path: Path) -> None:
    model = write(tmp_path / "models" / "net.onnx", GOOD)
    baseline = tmp_path / "memplan.baseline.json"

    # Before there is anything to compare with, the gate says what to do.
    first = memplan("gate", "models/net.onnx")
    assert first.exit_code == 2
    assert "--update-baseline" in first.stderr

    # The baseline is recorded, and green against itself.
    assert memplan("gate", "models/net.onnx", "--update-baseline").exit_code == 0
    recorded = baseline.read_text()
    assert memplan("gate", "models/net.onnx").exit_code == 0

    # Somebody reads an early tensor at the end: red, in every format, with its name.
    write(model, LONGER)
    assert_early_is_blamed("models/net.onnx")

    # A gate never changes the baseline by itself, and a ratchet does not turn back.
    assert baseline.read_text() == recorded
    turned = memplan("gate", "models/net.onnx", "--ratchet", "--update-baseline")
    assert turned.exit_code == 1
    assert baseline.read_text() == recorded

    # An increase that is allowed is allowed.
    assert memplan("gate", "models/net.onnx", "--max-increase", "64KiB").exit_code == 0
    assert memplan("gate", "models/net.onnx", "--max-increase", "1%").exit_code == 1

    # The fix: green again.
    write(model, GOOD)
    assert memplan("gate", "models/net.onnx").exit_code == 0

    # A gain: the plain gate is content, the ratchet wants it recorded, and records it.
    write(model, SMALLER)
    assert memplan("gate", "models/net.onnx").exit_code == 0
    asked = memplan("gate", "models/net.onnx", "--ratchet")
    assert asked.exit_code == 1
    assert "record it with --update-baseline" in asked.stdout
    assert memplan("gate", "models/net.onnx", "--ratchet", "--update-baseline").exit_code == 0
    assert baseline.read_text() != recorded
    assert memplan("gate", "models/net.onnx", "--ratchet").exit_code == 0

    # What was good enough before the gain no longer is.
    write(model, GOOD)
    assert memplan("gate", "models/net.onnx").exit_code == 1


def assert_early_is_blamed(model: str) -> None:
    for form in FORMATS:
        red = memplan("gate", model, "--format", form)
        assert red.exit_code == 1, form
        assert "early" in red.stdout, form
        assert "last_node" in red.stdout, form
    told = json.loads(memplan("gate", model, "--format", "json").stdout)
    changes = told["models"][0]["difference"]["changes"]
    assert (changes[0]["tensor"], changes[0]["kind"]) == ("early", "lives longer")
    assert changes[0]["effect"] == 64 * 256 * 4
    xml = memplan("gate", model, "--format", "junit").stdout
    assert ET.fromstring(xml).get("failures") == "1"  # noqa: S314 - our own


def test_the_same_commands_leave_the_same_bytes(tmp_path: Path) -> None:
    write(tmp_path / "net.onnx", GOOD)
    written = []
    for name in ("one.json", "two.json"):
        memplan("gate", "net.onnx", "--update-baseline", "--baseline", name)
        written.append((tmp_path / name).read_bytes())
    assert written[0] == written[1]


def test_diff_and_why_tell_the_same_story(tmp_path: Path) -> None:
    write(tmp_path / "good.onnx", GOOD)
    write(tmp_path / "longer.onnx", LONGER)
    told = memplan("diff", "good.onnx", "longer.onnx")
    assert told.exit_code == 0
    assert "+64.00 KiB  early   lives longer  lives until last_node" in told.stdout
    peak = memplan("why", "longer.onnx")
    assert "early" in peak.stdout
    one = memplan("why", "longer.onnx", "--tensor", "early")
    assert "kept alive by last_node, which reads it last" in one.stdout
