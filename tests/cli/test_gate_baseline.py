"""`memplan gate`: the process that users pay for, and a baseline that compares like with like."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from memplan_cli.errors import UnknownSizeError
from memplan_cli.runtime.settings_search import model_prediction
from story import GOOD, LONGER, memplan, write

if TYPE_CHECKING:
    from pathlib import Path

OPEN = GOOD.replace("[64,256]", "[64,n]")

DEBUGGED = GOOD.replace(
    "(float[64,256] y)",
    "(float[64,256] y, float[256,64] early, float[64,64] scores, float[64,64] weights, "
    "float[64,256] mixed, float[1024,64] tall)",
).replace("[64,64] tall", "[1024,64] tall")
"""Five intermediates are outputs too."""

BASELINE = "memplan.baseline.json"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.onnx", GOOD)
    return tmp_path


def entry(folder: Path) -> dict[str, Any]:
    """Return the entry of ``a.onnx`` in the baseline."""
    models: dict[str, dict[str, Any]] = json.loads((folder / BASELINE).read_text())["models"]
    return models["a.onnx"]


def gate_rows(text: str) -> dict[str, str]:
    """Return ok or failed of each metric in the table of a gate's text."""
    rows = re.findall(
        r"^\[(ok|failed)\](?:, recorded)? +\S+ +(\S+(?: \S+)*)  ", text, re.MULTILINE
    )
    return {metric: verdict for verdict, metric in rows}


def test_a_memory_limit_is_for_the_whole_process_and_not_for_its_intermediates() -> None:
    failed = memplan("gate", "a.onnx", "--max-memory", "16MiB")
    assert failed.exit_code == 1
    assert re.search(
        r"\[failed\] whole process: .* MiB, of it .* the interpreter", failed.stdout
    )
    assert gate_rows(failed.stdout) == {"whole process": "failed"}
    planned = memplan("gate", "a.onnx", "--max-memory", "16MiB", "--metric", "planned")
    assert planned.exit_code == 0
    assert memplan("gate", "a.onnx", "--max-memory", "1GiB").exit_code == 0


def test_a_limit_of_the_intermediates_needs_no_prediction_of_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise UnknownSizeError("a session")

    monkeypatch.setattr(model_prediction, "predict_process", refuse)
    limited = ("gate", "a.onnx", "--max-memory", "1GiB")
    assert "a session" in memplan(*limited).stderr
    monkeypatch.setattr(model_prediction, "predict_process", lambda *_: pytest.fail("called"))
    assert memplan(*limited, "--metric", "planned").exit_code == 0


def test_a_baseline_keeps_the_metrics_that_were_asked_for_until_others_are(
    folder: Path,
) -> None:
    asked = ("--metric", "process.run", "--metric", "planned")
    assert memplan("gate", "a.onnx", "--update-baseline", *asked).exit_code == 0
    checked = memplan("gate", "a.onnx")
    assert gate_rows(checked.stdout) == {"process.run": "ok", "as planned": "ok"}
    write(folder / "a.onnx", LONGER)
    assert memplan("gate", "a.onnx", "--update-baseline").exit_code == 0
    assert entry(folder)["checked"] == ["process.run", "planned"]
    assert "process.run" in entry(folder)["metrics"]
    again = memplan("gate", "a.onnx")
    assert gate_rows(again.stdout) == {"process.run": "ok", "as planned": "ok"}
    assert memplan("gate", "a.onnx", "--update-baseline", "--metric", "total").exit_code == 0
    assert entry(folder)["checked"] == ["total"]


@pytest.mark.parametrize("is_kept", [False, True])
def test_an_unknown_metric_is_not_recorded_as_checked(folder: Path, *, is_kept: bool) -> None:
    memplan("gate", "a.onnx", "--update-baseline")
    path, asked = folder / BASELINE, () if is_kept else ("--metric", "observed.held")
    if is_kept:
        data = json.loads(path.read_text())
        data["models"]["a.onnx"]["checked"] = ["observed.held"]
        path.write_text(json.dumps(data))
    before = path.read_bytes()
    refused = memplan("gate", "a.onnx", "--update-baseline", *asked)
    assert refused.exit_code == 2
    assert "observed.held of a.onnx is unknown" in refused.stderr
    assert path.read_bytes() == before


def test_a_baseline_has_every_number_of_the_model_and_how_it_was_made(folder: Path) -> None:
    (folder / "memplan.yaml").write_text("level: 1\n")
    recorded = memplan("gate", "a.onnx", "--update-baseline")
    assert "a.onnx: settings of memplan.yaml" in recorded.stdout
    found = entry(folder)
    assert found["checked"] == ["process.total", "planned"]
    numbers = {"planned", "total", "weights", "inputs", "outputs"}
    assert numbers | {"process.total", "process.run"} <= found["metrics"].keys()
    assert (found["level"], found["phase"], found["target"]) == (1, "test", "portable")
    assert found["settings_files"] == ["memplan.yaml"]
    assert found["runtime"].startswith("onnxruntime ")
    assert found["process_source"] == "predicted"
    assert found["interface"] == {
        "x": {"kind": "input", "bytes": 65536},
        "y": {"kind": "output", "bytes": 65536},
    }


def test_the_first_baseline_says_first_which_sizes_were_assumed(folder: Path) -> None:
    write(folder / "a.onnx", OPEN)
    recorded = memplan("gate", "a.onnx", "--update-baseline")
    assert recorded.exit_code == 0
    first = recorded.stdout.splitlines()[2]
    assert first.strip() == "a.onnx: Sizes are guessed: n=1; set them with --dim n=N"
    bound = memplan("gate", "a.onnx", "--update-baseline", "--dim", "n=8")
    assert "assumed" not in bound.stdout


def test_a_baseline_made_at_another_level_is_refused_with_both() -> None:
    memplan("gate", "a.onnx", "--update-baseline")
    other = memplan("gate", "a.onnx", "--level", "0")
    assert other.exit_code == 2
    assert "the baseline was made with level 2, this check with 0" in other.stderr
    assert "give the same options" in other.stderr


def test_a_baseline_of_another_runtime_is_refused_until_that_is_allowed(folder: Path) -> None:
    memplan("gate", "a.onnx", "--update-baseline")
    path = folder / BASELINE
    path.write_text(path.read_text().replace("onnxruntime 1.", "onnxruntime 0.\\u001b[31m"))
    refused = memplan("gate", "a.onnx")
    assert refused.exit_code == 2
    assert "\x1b" not in refused.stderr
    assert "this check with onnxruntime 1." in refused.stderr
    assert "--allow-version-change" in refused.stderr
    assert memplan("gate", "a.onnx", "--allow-version-change").exit_code == 0
    (folder / "memplan.yaml").write_text("gate: {allow_version_change: true}\n")
    assert memplan("gate", "a.onnx").exit_code == 0
    (folder / "memplan.yaml").unlink()
    assert memplan("gate", "a.onnx", "--update-baseline").exit_code == 0
    assert memplan("gate", "a.onnx").exit_code == 0


def test_outputs_left_in_a_model_are_named_as_what_grew(folder: Path) -> None:
    asked = ("--metric", "total", "--metric", "outputs")
    memplan("gate", "a.onnx", "--update-baseline", *asked)
    write(folder / "a.onnx", DEBUGGED)
    failed = memplan("gate", "a.onnx")
    assert failed.exit_code == 1
    assert gate_rows(failed.stdout) == {"total": "failed", "outputs": "failed"}
    for name in ("early", "scores", "weights", "mixed", "tall"):
        assert re.search(rf"\+\S+ KiB +{name} +new +new output", failed.stdout), name
    between = memplan("gate", "a.onnx", "--metric", "outputs", "--format", "github")
    assert "tall: new output" in between.stdout


def test_a_recorded_baseline_is_named_and_a_passed_check_says_so_on_github() -> None:
    recorded = memplan("gate", "a.onnx", "--update-baseline")
    assert f"Recorded in {BASELINE}." in recorded.stdout
    passed = memplan("gate", "a.onnx", "--format", "github")
    assert passed.stdout == "Memory gate: 1 model, 0 failed, 1 passed\n"


def test_a_model_above_its_limit_is_not_recorded(folder: Path) -> None:
    failed = memplan("gate", "a.onnx", "--update-baseline", "--max-memory", "1KiB")
    assert failed.exit_code == 1
    assert "recorded" not in failed.stdout
    assert "a.onnx fails: it was not recorded in the baseline" in failed.stderr
    assert not (folder / BASELINE).exists()
    memplan("gate", "a.onnx", "--update-baseline")
    before = (folder / BASELINE).read_bytes()
    write(folder / "a.onnx", LONGER)
    memplan("gate", "a.onnx", "--update-baseline", "--max-memory", "1KiB")
    assert (folder / BASELINE).read_bytes() == before


def test_a_metric_that_fails_leaves_the_others_passed(folder: Path) -> None:
    asked = ("--metric", "planned", "--metric", "weights", "--metric", "inputs")
    memplan("gate", "a.onnx", "--update-baseline", *asked)
    write(folder / "a.onnx", LONGER)
    failed = memplan("gate", "a.onnx")
    assert failed.exit_code == 1
    expected = {"as planned": "failed", "weights": "ok", "inputs": "ok"}
    assert gate_rows(failed.stdout) == expected
    xml = memplan("gate", "a.onnx", "--format", "junit").stdout
    assert '<testcase classname="a.onnx" name="weights"/>' in xml
    assert 'tests="3" failures="1"' in xml


@pytest.mark.parametrize(
    ("words", "said", "hint"),
    [
        (("--max-memory", "256"), "--max-memory: '256' has no unit", "256MiB, or 256B"),
        (("--max-increase", "2"), "--max-increase: '2' has no unit", "write 2%, or 2MiB"),
        (("--max-increase", "2.5"), "'2.5' has no unit", "write 2.5%, or 2.5MiB"),
    ],
)
def test_a_size_without_a_unit_is_refused_with_the_likely_spellings(
    words: tuple[str, ...], said: str, hint: str
) -> None:
    memplan("gate", "a.onnx", "--update-baseline")
    done = memplan("gate", "a.onnx", *words)
    assert done.exit_code == 2
    assert said in done.stderr
    assert hint in done.stderr


def test_report_why_and_gate_print_one_number_for_one_process(samples: Path) -> None:
    convolutions = samples / "branchy_cnn.onnx"
    written = memplan(
        "optimize", convolutions, "--target", "cpu", "--no-validate", "-o", "b.onnx"
    )
    assert written.exit_code == 0
    assert memplan("optimize", convolutions, "-o", "c.onnx").exit_code == 0
    for name in ("a.onnx", "b.onnx", "c.onnx"):
        why = json.loads(memplan("why", name, "--process", "--format", "json").stdout)
        gate = memplan(
            *("gate", name, "--format", "json", "--max-memory", "1GiB"),
            *("--metric", "process.run", "--metric", "process.private"),
        )
        (found,) = json.loads(gate.stdout)["models"]
        expected = {f"process.{key}": why["process"][key] for key in ("run", "private")}
        assert found["metrics"] == expected, name
        report = json.loads(memplan("report", name, "--format", "json").stdout)
        assert report["runtime"]["predicted"]["original"]["process"] == why["process"], name
        total = re.compile(r"(?:about|whole process) +([0-9.]+ MiB)")
        texts = (memplan("report", name).stdout, memplan("why", name, "--process").stdout)
        assert len({total.search(text).group(1) for text in texts}) == 1, name  # type: ignore[union-attr]


@pytest.mark.parametrize("text", [GOOD, LONGER])
def test_a_baseline_of_an_older_version_is_checked_for_what_is_planned(
    text: str, folder: Path
) -> None:
    memplan("gate", "a.onnx", "--update-baseline")
    path = folder / BASELINE
    data = json.loads(path.read_text())
    new_keys = ("checked", "interface", "settings_files", "target", "process_source", "dims")
    old = data["models"]["a.onnx"]
    for key in new_keys:
        old.pop(key, None)
    old["metrics"] = {name: old["metrics"][name] for name in ("planned", "live_peak")}
    path.write_text(json.dumps(data))
    write(folder / "a.onnx", text)
    found = memplan("gate", "a.onnx")
    assert found.exit_code == (0 if text == GOOD else 1)
    assert gate_rows(found.stdout) == {"as planned": "ok" if text == GOOD else "failed"}
