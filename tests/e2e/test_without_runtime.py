"""Without ONNX Runtime, models are planned, and what needs it names the extras to install."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INSTALL = "pip install 'memplan[cpu]' (or 'memplan[gpu]')"

WITHOUT_EXTRAS = """
import importlib.metadata as metadata, sys

sys.modules["onnxruntime"] = sys.modules["numba"] = None
distribution = metadata.distribution

def base_only(name):
    if name.startswith(("onnxruntime", "numba")):
        raise metadata.PackageNotFoundError(name)
    return distribution(name)

metadata.distribution = base_only
metadata.packages_distributions = dict
"""
"""Run by Python when it starts, in every child too: hides the packages of the extras."""


class Bare:
    """A folder with models, and a Python that has the packages of the base installation only."""

    def __init__(self, folder: Path, samples: Path) -> None:
        self.folder = folder
        (folder / "site").mkdir()
        (folder / "site" / "sitecustomize.py").write_text(WITHOUT_EXTRAS)
        for name in ("train_mlp.onnx", "dynamic_batch.onnx"):
            shutil.copy(samples / name, folder)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        paths = [str(self.folder / "site"), str(ROOT)]
        return subprocess.run(
            [sys.executable, *words],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            capture_output=True,
            text=True,
            check=False,
        )

    def memplan(self, line: str, expected_code: int = 0) -> subprocess.CompletedProcess[str]:
        done = self.run("-m", "memplan_cli", *line.split())
        assert done.returncode == expected_code, done.stdout + done.stderr
        return done


@pytest.fixture
def bare(tmp_path: Path, samples: Path) -> Bare:
    return Bare(tmp_path, samples)


@pytest.mark.parametrize(
    "line",
    [
        "why train_mlp.onnx",
        "diff train_mlp.onnx dynamic_batch.onnx",
        "gate train_mlp.onnx --max-memory 1GiB --metric planned",
        "sweep train_mlp.onnx dynamic_batch.onnx",
        "fit dynamic_batch.onnx --dim batch=? --memory 1GiB",
        "train-step dynamic_batch.onnx -o step.onnx --loss-fn mse --gradients",
    ],
)
def test_planning_needs_no_runtime(bare: Bare, line: str) -> None:
    bare.memplan(line)


@pytest.mark.parametrize(
    "line", ["report train_mlp.onnx", "optimize train_mlp.onnx --no-validate"]
)
def test_the_missing_prediction_is_said_with_what_to_install(bare: Bare, line: str) -> None:
    said = " ".join(bare.memplan(line).stdout.split())
    assert said.count(f"not predicted: ONNX Runtime is not installed: {INSTALL}") == 1


@pytest.mark.parametrize(
    "line",
    [
        "optimize train_mlp.onnx",
        "optimize train_mlp.onnx --target cpu --no-validate",
        "settings train_mlp.onnx",
        "why train_mlp.onnx --process",
        "soak dynamic_batch.onnx --bounds batch=1..4",
        "fit dynamic_batch.onnx --dim batch=? --memory 64MiB --of process",
    ],
)
def test_what_needs_a_runtime_says_what_to_install(bare: Bare, line: str) -> None:
    done = bare.memplan(line, expected_code=2)
    (message,) = (said for said in done.stderr.splitlines() if said.startswith("Error: "))
    assert (
        message == f"Error: memplan {line.split(maxsplit=1)[0]} needs ONNX Runtime: {INSTALL}"
    )


def test_a_limit_of_the_process_says_what_to_install(bare: Bare) -> None:
    done = bare.memplan("gate train_mlp.onnx --max-memory 1GiB", expected_code=2)
    assert INSTALL in done.stderr


def test_doctor_says_what_to_install(bare: Bare) -> None:
    done = bare.memplan("doctor", expected_code=1)
    assert f"{INSTALL}; planning works without it" in " ".join(done.stdout.split())


def test_load_says_what_to_install(bare: Bare) -> None:
    done = bare.run("-c", "import memplan; memplan.load('train_mlp.onnx')")
    assert done.stderr.endswith(f"ONNX Runtime is not installed: {INSTALL}\n")
