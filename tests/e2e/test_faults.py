"""Whatever stops memplan, the old file is there or the whole new one, and nothing else."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
from functools import cache
from typing import TYPE_CHECKING

import pytest

from benchmarks.fault_place import Ending, judged
from benchmarks.faults import FAULTS, LARGE, run

if TYPE_CHECKING:
    from pathlib import Path

LONG = ("SIGKILL at", "the runtime", "the folder for temporary", "Ctrl-C while the runtime")
MOUNTS = ("the disk", "the folder")


def _mounts() -> bool:
    words = ["unshare", "--mount", "--map-root-user", "true"]
    return bool(shutil.which("unshare")) and not subprocess.run(words, check=False).returncode


@cache
def ending_of(name: str) -> Ending:
    """Make a fault happen, once for all that is asserted about its ending."""
    return run(FAULTS[name])


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name.startswith(LONG) else name
        for name in FAULTS
    ],
)
def test_fault_is_survived(name: str) -> None:
    if name.startswith(MOUNTS) and not _mounts():
        pytest.skip("this system does not let a process mount a file system of its own")
    ending = ending_of(name)
    assert ending.wrong == (), ending


def test_interrupt_ends_within_a_second() -> None:
    ending = ending_of("Ctrl-C while a plan is made")
    assert ending.worked < 1, "of processor time: a busy machine may take longer"


def test_file_that_may_not_grow_is_said_and_leaves_nothing(tmp_path: Path) -> None:
    words = ["optimize", str(LARGE), "-o", str(tmp_path / "out.onnx"), "--no-validate", "-q"]
    done = subprocess.run(
        [sys.executable, "-m", "memplan_cli", *words],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000)),
    )
    assert done.returncode == 2
    assert "cannot be written" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("ending", "wrong"),
    [
        (Ending("exit 0", "Error: no room"), "exit 2 was expected"),
        (Ending("exit 2", "Error: something"), "'no room' is not said"),
        (
            Ending("exit 2", "Error: memplan failed: OSError: no room"),
            "an exception that is none of memplan's",
        ),
    ],
)
def test_table_of_faults_can_say_no(ending: Ending, wrong: str) -> None:
    assert judged(ending, 2, "no room", []).wrong == (wrong,)
    assert judged(ending, 2, "no room", ["left x"]).wrong[0] == "left x"
