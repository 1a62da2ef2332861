"""Each way in which a GPU fails is one message and an exit code, and leaves nothing behind."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import onnx
import pytest

from builders import parse
from memplan_cli.core.results.observations import CPU, CUDA, RuntimeSettings
from memplan_cli.onnx_io.settings_metadata import RecordedSettings, settings_entry
from memplan_cli.runtime.simulate.regions import one_region
from memplan_cli.runtime.workers.device_failures import device_failure
from memplan_cli.runtime.workers.worker import run_job
from story import memplan

if TYPE_CHECKING:
    from pathlib import Path

    from simulated_device import SimulatedDevice

NET = """g (float[1,1,32,32] x) => (float[1,1,32,32] y) <float[1,1,3,3] w = {1,2,3,4,5,6,7,8,9}>
    { a = Conv<pads = [1,1,1,1]>(x, w)  b = Sigmoid(a)  c = Neg(x)  y = Mul(b, c) }"""

TOO_FULL = (
    "out of device memory: no room for a buffer of 1.00 MiB, at node 'stage/conv' (Conv)"
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    path = folder / "net.onnx"
    onnx.save(parse(NET), path)
    return path


@pytest.mark.parametrize(
    ("mode", "exit_code", "said"),
    [
        ("no driver", 2, "there is no NVIDIA driver"),
        ("old driver", 2, "the NVIDIA driver is too old for the CUDA version"),
        ("no libraries", 2, "CUDA libraries are missing (libcublasLt.so.13, libcudart.so.13)"),
        ("unusable", 2, "ONNX Runtime lists the provider, but cannot start it"),
        ("full after 1", 2, f"does not run at its dims: {TOO_FULL}"),
        ("full if written", 1, f"the rewritten model does not run (error): {TOO_FULL}"),
    ],
)
def test_optimize_says_what_failed_and_writes_nothing(
    cuda_device: SimulatedDevice,
    model: Path,
    tmp_path: Path,
    mode: str,
    exit_code: int,
    said: str,
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    cuda_device.behave(mode)
    cuda_device.put_temporary_files(temporary)
    done = memplan("optimize", model, "--provider", "cuda")
    assert done.exit_code == exit_code, done.stderr
    message = " ".join(done.stderr.split())
    assert message.count(said) == 1
    assert "onnxruntime_src" not in message
    assert "drawn" not in message, "the inputs are not at fault"
    assert [path.name for path in model.parent.iterdir()] == ["net.onnx"]
    assert list(temporary.iterdir()) == []


def test_auto_takes_the_cpu_and_says_so(cuda_device: SimulatedDevice, model: Path) -> None:
    cuda_device.behave("unusable")
    done = memplan("settings", model, "--measure", "--format", "json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["provider"] == CPU


def test_the_doctor_says_why_cuda_does_not_work(cuda_device: SimulatedDevice) -> None:
    cuda_device.behave("no libraries")
    done = memplan("doctor")
    assert done.exit_code == 0
    text = " ".join(done.stdout.split())
    assert f"{CUDA} does not work: CUDA libraries are missing (libcublasLt.so.13" in text


def loaded(model: Path, *providers: str, arena: bool) -> str:
    """Return the provider of a file that was planned for CUDA and is loaded in a new process, or the error."""
    settings = RuntimeSettings(arena=one_region(1 << 20) if arena else {})
    planned = model.with_name("planned.onnx")
    entry = settings_entry(RecordedSettings(CUDA, settings))
    planned.write_bytes(model.read_bytes() + entry)
    arguments = {"providers": providers} if providers else {}
    job = {"model": str(planned), "arguments": arguments, "needs": CUDA}
    return str(run_job("simulated_device:load", job).require("load")["printed"])


@pytest.mark.parametrize(
    ("mode", "arena", "said"),
    [
        ("works", "an arena", CUDA),
        ("works", "", CUDA),
        ("no libraries", "an arena", "CUDA libraries are missing (libcublasLt.so.13"),
        ("unusable", "", "ONNX Runtime cannot start it"),
        ("old driver", "", "driver version is insufficient"),
    ],
)
def test_a_file_for_cuda_is_loaded_on_cuda_or_not_at_all(
    cuda_device: SimulatedDevice, model: Path, mode: str, arena: str, said: str
) -> None:
    cuda_device.behave(mode)
    printed = loaded(model, arena=bool(arena))
    assert said in printed
    assert printed.count("\n") == printed.count("\nHint: "), "one message, and its hint"
    if mode != "works":
        assert f"planned for {CUDA}, which does not work here" in printed


def test_a_file_for_cuda_is_loaded_on_the_cpu_if_asked_for(
    cuda_device: SimulatedDevice, model: Path
) -> None:
    cuda_device.behave("unusable")
    assert loaded(model, CPU, arena=False) == CPU


def test_messages_that_are_not_of_a_device_stay_as_they_are() -> None:
    for message in ("", "InvalidGraph: no such operator", "no answer within 3 s"):
        assert device_failure(message) == message


def test_the_limit_of_the_arena_is_a_full_device_too() -> None:
    text = (
        "bfc_arena.cc:376 Available memory of 1024 is smaller than requested bytes of 2097152"
    )
    assert device_failure(text) == ("out of device memory: no room for a buffer of 2.00 MiB")
