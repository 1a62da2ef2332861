"""Validation on CUDA, with a simulated device: options, repeated runs, device memory, replay."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
import pytest

from builders import parse
from memplan_cli.core.results.observations import CUDA, RuntimeSettings
from memplan_cli.runtime.workers.spec import SessionSpec
from simulated_device import python

if TYPE_CHECKING:
    from subprocess import CompletedProcess

NET = """g (float[1,1,64,64] x) => (float[1,1,64,64] y) <float[1,1,3,3] w = {1,2,3,4,5,6,7,8,9}>
    { a = Conv<pads = [1,1,1,1]>(x, w)  b = Sigmoid(a)  c = Neg(x)  d = Mul(b, c)  y = Tanh(d) }"""

MIB = 1 << 20


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cuda") / "net.onnx"
    onnx.save(parse(NET), path)
    return path


def memplan(mode: str, *words: object) -> CompletedProcess[str]:
    done = python(mode, "-m", "memplan_cli", *words, "--provider", "cuda")
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    return done


@pytest.fixture(scope="module")
def written(model: Path) -> Path:
    """The model, written and validated on the device that works."""
    memplan("works", "optimize", model)
    return model.with_suffix(".memplan.onnx")


def test_runs_that_are_compared_have_deterministic_options() -> None:
    asked = RuntimeSettings(provider={"use_tf32": 1, "cudnn_conv_use_max_workspace": "0"})
    settings = SessionSpec(Path("m.onnx"), CUDA, asked).deterministic().settings
    assert settings.session == {
        "intra_op_num_threads": 1,
        "inter_op_num_threads": 1,
        "use_deterministic_compute": True,
    }
    assert settings.provider == {
        "use_tf32": 0,
        "cudnn_conv_algo_search": "HEURISTIC",
        "cudnn_conv_use_max_workspace": "0",
    }


def test_bytes_of_the_device_are_a_line_of_their_own(written: Path) -> None:
    report = json.loads(written.with_suffix(".json").read_text())["report"]
    process = report["runtime"]["observed"]["optimized"]["process"]
    assert process["device"] == 3 * MIB
    text = memplan("works", "optimize", written.with_name("net.onnx")).stdout
    (line,) = re.findall(r"^ *on the CUDA device .*$", text, re.MULTILINE)
    assert line.split()[-4:] == ["3.00", "MiB", "3.00", "MiB"]
    (whole,) = re.findall(r"^whole process +[\d.]+ MiB +([\d.]+) MiB", text, re.MULTILINE)
    parts = re.findall(
        r"^  (?:interp|inputs|model, while running).* ([\d.]+) ([KM])iB", text, re.MULTILINE
    )
    total = sum(float(size) / (1024 if unit == "K" else 1) for size, unit in parts)
    assert float(whole) == pytest.approx(total, abs=0.6), (
        "the device is no part of the process"
    )


def test_equal_outputs_need_no_tolerance(written: Path) -> None:
    text = memplan("works", "validate", written).stdout
    assert f"Validation passed on {CUDA}" in text
    assert "bit-identical" in text
    assert "tolerance" not in text


def test_a_provider_that_is_not_deterministic_has_its_tolerance_printed(written: Path) -> None:
    text = memplan("noisy", "validate", written).stdout
    assert "two runs of the original differ in 1 outputs" in text
    (tolerance,) = re.findall(r"tolerance rtol=0.0 atol=(\S+)", text)
    assert 3e-5 < float(tolerance) < 6e-5, "four times the distance of two runs"
    assert "0 of them beyond the tolerance" in text


def test_a_plan_is_replayed_in_device_memory(written: Path) -> None:
    text = " ".join(memplan("works", "validate", written, "--replay").stdout.split())
    assert "[ok] Replay of the plan in one arena filled with NaN: passed" in text


REPLAY = """
import json, sys
from pathlib import Path
from memplan_cli.core.results.observations import CUDA
from memplan_cli.planning.plan_file import plan_from_json
from memplan_cli.runtime.replay.replay import replay_unchecked
from memplan_cli.runtime.workers.spec import RunConditions
model = Path(sys.argv[1])
plan = plan_from_json(json.loads(model.with_suffix(".json").read_text()))
if sys.argv[2:]:
    data = json.loads(model.with_suffix(".json").read_text())
    for tensor in data["tensors"]:
        if "offset" in tensor:
            tensor["offset"] = 0
    plan = plan_from_json(data)
result = replay_unchecked(model, plan, RunConditions(CUDA))
print(result.status, bool(result.differences))
"""


@pytest.mark.parametrize(
    ("words", "status"), [((), "passed"), (("all at offset 0",), "failed")]
)
def test_a_replay_on_the_device_fails_if_tensors_overlap(
    written: Path, words: tuple[str, ...], status: str
) -> None:
    done = python("works", "-c", REPLAY, written, *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [status, str(status == "failed")]
