"""What the arena of a written model does between runs: it is released, or kept for shorter runs."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING

import onnx
import pytest

from builders import parse
from memplan_cli import Check, api
from memplan_cli.core.bindings import Binding
from memplan_cli.core.results.observations import CPU, RuntimeSettings, TimeRatio
from memplan_cli.core.serialization import to_json
from memplan_cli.loading.metadata import scanned_metadata
from memplan_cli.onnx_io.settings_metadata import recorded_settings
from memplan_cli.runtime.run import run_model
from memplan_cli.runtime.simulate.regions import RELEASE_AFTER_RUN
from memplan_cli.runtime.verification import confirm, verify
from memplan_cli.runtime.workers import release_times
from memplan_cli.runtime.workers.spec import RunConditions, SessionSpec
from story import memplan

if TYPE_CHECKING:
    from pathlib import Path

    from onnxruntime import RunOptions

    from memplan_cli.core.check import Idle
    from memplan_cli.core.results.report import RuntimeSummary
    from memplan_cli.runtime.run.run_model import RunRecord
    from memplan_cli.runtime.workers.spec import RunSpec
    from memplan_cli.runtime.workers.worker import Outcome

# Two tensors of 4 MiB are live at once. The output of 4 bytes lies in the region of one, which stays.
WIDE = """g (float[1024, 1024] x) => (float[1, 1] y) {
    a = Exp(x) b = Transpose(a) c = Add(a, b) y = ReduceSum(c) }"""

MIB = 1 << 20


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "wide.onnx"
    onnx.save(parse(WIDE), path)
    return path


@pytest.fixture(autouse=True)
def _as_fast_as_the_original(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine delays runs of the written model, which would then be timed against the original."""
    monkeypatch.setattr(confirm, "seems_slower", lambda *_: False)


def took(monkeypatch: pytest.MonkeyPatch, ratio: float) -> None:
    """Let each run that releases the arena take this many times as long as one that keeps it."""
    measured = TimeRatio(ratio, ratio, ratio, 2)
    monkeypatch.setattr(confirm, "release_time_ratio", lambda *_: measured)


def optimized(model: Path, idle: Idle | None = None) -> RuntimeSummary:
    """Return the runtime's part of the report of ``wide.memplan.onnx``."""
    runtime = api.optimize(model, check=Check("cpu", idle=idle)).plan.report.runtime
    assert runtime is not None
    return runtime


def file_settings(model: Path) -> RuntimeSettings:
    """Return the settings in the metadata of the file that was written from a model."""
    recorded = recorded_settings(scanned_metadata(model.with_suffix(".memplan.onnx")))
    assert recorded is not None
    return recorded.settings


@pytest.mark.parametrize(
    ("idle", "ratio", "after_run"),
    [
        pytest.param(None, 1.04, "release", id="by default, if it costs little time"),
        pytest.param(None, 1.06, "keep", id="not by default, if it costs more"),
        pytest.param("release", 2.0, "release", id="whatever it costs, if asked for"),
    ],
)
def test_the_arena_is_released_if_a_run_gets_at_most_5_percent_longer(
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    idle: Idle | None,
    ratio: float,
    after_run: str,
) -> None:
    took(monkeypatch, ratio)
    runtime = optimized(model, idle)
    assert runtime.idle is not None
    assert runtime.settings is not None
    assert runtime.idle.after_run == after_run
    # One region of 4 MiB is released; other pages of a process differ by some 0.1 MiB from run to run.
    assert runtime.idle.release.private < runtime.idle.keep.private - 3.5 * MIB
    assert runtime.settings.run_config == (RELEASE_AFTER_RUN if after_run == "release" else {})
    assert file_settings(model) == runtime.settings
    report = " ".join(memplan("report", model.with_suffix(".memplan.json")).stdout.split())
    assert f"a run takes {ratio:.2f} times as long" in report
    observed, predicted = runtime.observed["optimized"], runtime.predicted["optimized"]
    assert observed.process == getattr(runtime.idle, after_run)
    assert predicted.process is not None
    assert observed.process is not None
    assert abs(predicted.process.private - observed.process.private) < MIB
    assert abs(predicted.process.run - observed.process.run) < 2 * MIB


def test_a_kept_arena_that_was_asked_for_is_not_compared(model: Path) -> None:
    steps: list[str] = []
    done = api.optimize(model, check=Check("cpu", idle="keep"), progress=steps.append)
    assert done.plan.report.runtime is not None
    assert done.plan.report.runtime.idle is None
    assert not file_settings(model).run_config
    assert not [step for step in steps if "arena" in step]


def test_a_small_arena_is_kept_without_a_further_run(
    tmp_path: Path, started_jobs: list[str]
) -> None:
    small = tmp_path / "small.onnx"
    onnx.save(parse(WIDE.replace("1024", "32")), small)
    assert optimized(small).idle is None
    assert started_jobs == ["measured run", "measured run"]


def test_the_time_is_that_of_runs_in_turn_in_one_session(
    tmp_path: Path, started_jobs: list[str]
) -> None:
    quick = tmp_path / "quick.onnx"
    onnx.save(parse(WIDE.replace("1024", "512")), quick)
    runtime = optimized(quick)
    assert runtime.idle is not None
    assert runtime.idle.time is not None
    assert runtime.idle.time.rounds >= 2
    assert started_jobs == [*["measured run"] * 3, "run"]


def test_the_first_run_after_one_of_the_other_kind_is_not_timed(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, kinds = [0.0], [""]

    def run_session(
        _session: object, _names: object, _feed: object, options: RunOptions
    ) -> None:
        try:
            kind = options.get_run_config_entry(*RELEASE_AFTER_RUN)
        except RuntimeError:
            kind = "keep"
        now[0] += (1 if kind == kinds[-1] else 8) * (1 if kind == "keep" else 3) / 1024
        kinds.append(kind)

    monkeypatch.setattr(release_times, "run_session", run_session)
    clock = SimpleNamespace(process_time=lambda: now[0])
    monkeypatch.setattr(release_times, "time", clock)
    session = SessionSpec(model, settings=RuntimeSettings(run_config=RELEASE_AFTER_RUN))
    inputs = RunConditions(CPU, Binding({}, {})).input_set(model)
    result = release_times.run({"session": to_json(session), "inputs": to_json(inputs)})
    assert result == {"ratios": [3.0] * 20}


@pytest.mark.parametrize("idle", [None, "release"])
def test_the_arena_of_another_provider_is_released_if_asked_for(
    model: Path, monkeypatch: pytest.MonkeyPatch, idle: Idle | None
) -> None:
    took(monkeypatch, 2.0)
    monkeypatch.setattr(confirm, "CPU", "another provider")
    runtime = optimized(model, idle)
    assert (runtime.idle is not None) == (idle == "release")
    assert bool(file_settings(model).run_config) == (idle == "release")


@pytest.mark.parametrize("idle", [None, "release"])
def test_an_arena_that_cannot_be_released_is_kept_with_a_warning_if_asked_for(
    model: Path, monkeypatch: pytest.MonkeyPatch, idle: Idle | None
) -> None:
    refused = RuntimeSettings(session={"there is no such option": 1})
    monkeypatch.setattr(
        confirm, "released_between_runs", lambda choice: replace(choice, settings=refused)
    )
    report = api.optimize(model, check=Check("cpu", idle=idle)).plan.report
    assert report.validation is not None
    assert report.validation.passed
    assert report.runtime is not None
    assert report.runtime.idle is None
    assert not file_settings(model).run_config
    warned = any("the arena is kept between runs" in text for text in report.warnings)
    assert warned == (idle == "release")


def test_a_release_that_was_asked_for_needs_no_process_memory(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = run_model.record_of

    def without_process(spec: RunSpec, outcome: Outcome) -> RunRecord:
        record = real(spec, outcome)
        return replace(record, peaks=replace(record.peaks, process=None))

    monkeypatch.setattr(run_model, "record_of", without_process)
    assert optimized(model, "release").idle is None
    assert file_settings(model).run_config == RELEASE_AFTER_RUN


@pytest.mark.parametrize(
    "words", [("--no-validate",), ("--validate", "outputs"), ("--no-run",)]
)
def test_idle_needs_a_run_that_measures(model: Path, words: tuple[str, ...]) -> None:
    done = memplan("optimize", model, "--idle", "release", *words)
    assert done.exit_code == 2, done.output
    assert "--idle" in done.output


def test_validate_measures_a_file_as_it_runs(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    took(monkeypatch, 1.0)
    monkeypatch.setattr(verify, "time_ratio", lambda *_: None)
    optimized(model)
    found = api.validate(model.with_suffix(".memplan.onnx"), extras=["measure"])
    assert found.runtime is not None
    assert found.runtime.settings == file_settings(model)


@pytest.mark.parametrize("check", [None, Check("cpu")])
def test_settings_of_a_file_that_releases_its_arena_release_it(
    model: Path, monkeypatch: pytest.MonkeyPatch, check: Check | None
) -> None:
    took(monkeypatch, 1.0)
    optimized(model)
    # Whatever it costs: it is not timed.
    monkeypatch.setattr(confirm, "release_time_ratio", None)
    found = api.settings(model.with_suffix(".memplan.onnx"), check=check)
    assert found.settings.run_config == RELEASE_AFTER_RUN
    assert api.settings(model, check=check).settings.run_config == {}


RUNS = """
import sys
import numpy as np, onnxruntime as ort
import memplan

def private():
    status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
    return 1024 * int(status["RssAnon"].split()[0])

x = np.ones((1024, 1024), np.float32)
session = memplan.load(sys.argv[1])
before = private()
if sys.argv[2] == "run":
    run = lambda: session.run(None, {"x": x})
elif sys.argv[2] == "own options":
    run = lambda: session.run(None, {"x": x}, ort.RunOptions())
elif sys.argv[2] == "values":
    value = ort.OrtValue.ortvalue_from_numpy(x)
    run = lambda: session.run_with_ort_values(None, {"x": value})
else:
    binding = session.bound({"x": x})
    run = lambda: session.run_with_iobinding(binding)
run(), run()
print(private() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("way", ["run", "own options", "values", "binding"])
def test_every_way_to_run_a_loaded_session_releases_the_arena(
    model: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    took(monkeypatch, 1.0)
    optimized(model)
    written = model.with_suffix(".memplan.onnx")
    done = subprocess.run(
        [sys.executable, "-c", RUNS, str(written), way],
        capture_output=True,
        text=True,
        check=True,
    )
    # Values and bindings have a copy of the input of 4 MiB.
    assert int(done.stdout) < 6 * MIB
