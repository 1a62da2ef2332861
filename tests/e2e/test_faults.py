"""Whatever stops memplan, the old file is there or the whole new one, and nothing else."""

from __future__ import annotations

import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from memplan_cli.onnx_io.load import load_model
from memplan_cli.plan import read_plan

SAMPLE = Path(__file__).parents[2] / "sample_models" / "branchy_cnn.onnx"


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "memplan_cli", *map(str, words)]


def optimize(out: Path) -> list[str]:
    return command("optimize", SAMPLE, "-o", out, "--no-validate", "--quiet")


def finished(out: Path) -> bytes:
    subprocess.run(optimize(out), check=True, capture_output=True)
    return out.read_bytes()


@pytest.mark.slow
def test_kill_at_any_moment_leaves_the_old_file_or_the_whole_new_one(tmp_path: Path) -> None:
    rng = random.Random(0)
    started = time.perf_counter()
    new = finished(tmp_path / "new.onnx")
    whole = time.perf_counter() - started
    out = tmp_path / "out.onnx"
    seen = set()
    for _ in range(20):
        out.write_bytes(b"old")
        process = subprocess.Popen(optimize(out), stdout=subprocess.DEVNULL)
        time.sleep(rng.uniform(0, 1.2 * whole))
        process.kill()
        process.wait()
        seen.add(out.read_bytes())
    assert seen <= {b"old", new}


def test_disk_that_fills_up_is_said_and_leaves_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    done = subprocess.run(
        optimize(out),
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000)),
    )
    assert done.returncode == 2
    assert "cannot be written" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_folder_that_takes_no_file_is_said() -> None:
    done = subprocess.run(
        optimize(Path("/proc/out.onnx")), capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "cannot be written" in done.stderr


def test_model_is_never_overwritten_by_its_own_output(tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    shutil.copy(SAMPLE, model)
    (tmp_path / "link.onnx").symlink_to(model)
    for out in (model, tmp_path / "link.onnx"):
        done = subprocess.run(
            command("optimize", model, "-o", out), capture_output=True, text=True, check=False
        )
        assert done.returncode == 2
        assert "the model itself" in done.stderr
    assert model.read_bytes() == SAMPLE.read_bytes()


def test_two_runs_on_one_output_leave_one_whole_result(tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    runs = [subprocess.Popen(optimize(out), stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [run.wait() for run in runs] == [0, 0]
    load_model(out)
    read_plan(out.with_suffix(".json"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.json", "out.onnx"]


def long_chain(path: Path, nodes: int) -> Path:
    ops = [helper.make_node("Relu", [f"v{at}"], [f"v{at + 1}"]) for at in range(nodes)]
    given = helper.make_tensor_value_info("v0", TensorProto.FLOAT, [64])
    made = helper.make_tensor_value_info(f"v{nodes}", TensorProto.FLOAT, [64])
    graph = helper.make_graph(ops, "chain", [given], [made])
    onnx.save(helper.make_model(graph, ir_version=10), path)
    return path


def test_interrupt_ends_within_a_second_and_leaves_nothing(tmp_path: Path) -> None:
    model = long_chain(tmp_path / "chain.onnx", 60_000)
    process = subprocess.Popen(
        command("optimize", model, "--no-validate"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    time.sleep(1.5)
    sent = time.perf_counter()
    process.send_signal(signal.SIGINT)
    _, message = process.communicate(timeout=20)
    assert time.perf_counter() - sent < 2, "one second, and one more for a busy machine"
    assert process.returncode == 130
    assert "Traceback" not in message
    assert [p.name for p in tmp_path.iterdir()] == ["chain.onnx"]
