"""Without ONNX Runtime, models are planned, and what needs it names the extras to install."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from story import COMMANDS

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


class Ending(NamedTuple):
    """How a command ended."""

    code: int
    stdout: str
    stderr: str


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


PLANNING = (
    "why train_mlp.onnx",
    "diff train_mlp.onnx dynamic_batch.onnx",
    "gate train_mlp.onnx --max-memory 1GiB --metric planned",
    "sweep train_mlp.onnx dynamic_batch.onnx",
    "fit dynamic_batch.onnx --dim batch=? --memory 1GiB",
    "train-step dynamic_batch.onnx -o step.onnx --loss-fn mse --gradients",
)
PREDICTED = ("report train_mlp.onnx", "optimize train_mlp.onnx --no-validate")
RUN = (
    "optimize train_mlp.onnx",
    "optimize train_mlp.onnx --target cpu --no-validate",
    "settings train_mlp.onnx",
    "why train_mlp.onnx --process",
    "soak dynamic_batch.onnx --bounds batch=1..4",
    "fit dynamic_batch.onnx --dim batch=? --memory 64MiB --of process",
)
LIMIT, DOCTOR = "gate train_mlp.onnx --max-memory 1GiB", "doctor"


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory, samples: Path) -> Bare:
    return Bare(tmp_path_factory.mktemp("bare"), samples)


@pytest.fixture(scope="module")
def endings(bare: Bare) -> dict[str, Ending]:
    """How each command ended: one process runs them all."""
    lines = [*PLANNING, *PREDICTED, *RUN, LIMIT, DOCTOR]
    done = bare.run("-c", COMMANDS, *lines)
    assert done.returncode == 0, done.stderr
    found = (Ending(*ending) for ending in json.loads(done.stdout))
    return dict(zip(lines, found, strict=True))


@pytest.mark.parametrize("line", PLANNING)
def test_planning_needs_no_runtime(endings: dict[str, Ending], line: str) -> None:
    assert endings[line].code == 0, endings[line]


@pytest.mark.parametrize("line", PREDICTED)
def test_the_missing_prediction_is_said_with_what_to_install(
    endings: dict[str, Ending], line: str
) -> None:
    done = endings[line]
    assert done.code == 0, done
    said = " ".join(done.stdout.split())
    assert said.count(f"not predicted: ONNX Runtime is not installed: {INSTALL}") == 1


@pytest.mark.parametrize("line", RUN)
def test_what_needs_a_runtime_says_what_to_install(
    endings: dict[str, Ending], line: str
) -> None:
    done = endings[line]
    assert done.code == 2, done
    (message,) = (said for said in done.stderr.splitlines() if said.startswith("Error: "))
    assert (
        message == f"Error: memplan {line.split(maxsplit=1)[0]} needs ONNX Runtime: {INSTALL}"
    )


def test_a_limit_of_the_process_says_what_to_install(endings: dict[str, Ending]) -> None:
    done = endings[LIMIT]
    assert done.code == 2, done
    assert INSTALL in done.stderr


def test_doctor_says_what_to_install(endings: dict[str, Ending]) -> None:
    done = endings[DOCTOR]
    assert done.code == 1, done
    assert f"{INSTALL}; planning works without it" in " ".join(done.stdout.split())


def test_load_says_what_to_install(bare: Bare) -> None:
    done = bare.run("-c", "import memplan; memplan.load('train_mlp.onnx')")
    assert done.stderr.endswith(f"ONNX Runtime is not installed: {INSTALL}\n")
