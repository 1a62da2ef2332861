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
from memplan_cli.planning.plan_file import plan_from_json
from memplan_cli.runtime.replay.replay import replay_unchecked
from memplan_cli.runtime.workers.spec import RunConditions, SessionSpec
from simulated_device import device_of
from story import memplan

if TYPE_CHECKING:
    from memplan_cli.runtime.workers.fork_client import Server
    from simulated_device import SimulatedDevice

NET = """g (float[1,1,64,64] x) => (float[1,1,64,64] y) <float[1,1,3,3] w = {1,2,3,4,5,6,7,8,9}>
    { a = Conv<pads = [1,1,1,1]>(x, w)  b = Sigmoid(a)  c = Neg(x)  d = Mul(b, c)  y = Tanh(d) }"""

MIB = 1 << 20


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cuda") / "net.onnx"
    onnx.save(parse(NET), path)
    return path


def done(*words: object) -> str:
    """Return the stdout of a command on CUDA that succeeds."""
    result = memplan(*words, "--provider", "cuda")
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def written(model: Path, _cuda_server: Server) -> Path:
    """The model, written and validated on the device that works."""
    with device_of(_cuda_server):
        done("optimize", model)
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


@pytest.mark.usefixtures("cuda_device")
def test_bytes_of_the_device_are_a_line_of_their_own(written: Path) -> None:
    report = json.loads(written.with_suffix(".json").read_text())["report"]
    process = report["runtime"]["observed"]["optimized"]["process"]
    assert process["device"] == 3 * MIB
    text = done("optimize", written.with_name("net.onnx"))
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


@pytest.mark.usefixtures("cuda_device")
def test_equal_outputs_need_no_tolerance(written: Path) -> None:
    text = done("validate", written)
    assert f"Validation passed on {CUDA}" in text
    assert "bit-identical" in text
    assert "tolerance" not in text


def test_a_provider_that_is_not_deterministic_has_its_tolerance_printed(
    cuda_device: SimulatedDevice, written: Path
) -> None:
    cuda_device.behave("noisy")
    text = done("validate", written)
    assert "two runs of the original differ in 1 outputs" in text
    (tolerance,) = re.findall(r"tolerance rtol=0.0 atol=(\S+)", text)
    assert 3e-5 < float(tolerance) < 6e-5, "four times the distance of two runs"
    assert "0 of them beyond the tolerance" in text


@pytest.mark.usefixtures("cuda_device")
def test_a_plan_is_replayed_in_device_memory(written: Path) -> None:
    text = " ".join(done("validate", written, "--replay").split())
    assert "[ok] Replay of the plan in one arena filled with NaN: passed" in text


@pytest.mark.usefixtures("cuda_device")
@pytest.mark.parametrize(("overlap", "status"), [(False, "passed"), (True, "failed")])
def test_a_replay_on_the_device_fails_if_tensors_overlap(
    written: Path, *, overlap: bool, status: str
) -> None:
    data = json.loads(written.with_suffix(".json").read_text())
    for tensor in data["tensors"] if overlap else ():
        if "offset" in tensor:
            tensor["offset"] = 0
    result = replay_unchecked(written, plan_from_json(data), RunConditions(CUDA))
    assert result.status == status
    assert bool(result.differences) == overlap
