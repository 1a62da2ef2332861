"""No command needs the network: each runs where an attempt to reach it is an error."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from story import COMMANDS

ROOT = Path(__file__).parents[2]

GUARD = """
import os, socket, sys

def _refuse(event, arguments):
    if event in ("socket.connect", "socket.sendto", "socket.bind"):
        if arguments[0].family == socket.AF_UNIX:
            return
    elif event not in ("socket.getaddrinfo", "socket.gethostbyname"):
        return
    with open(os.environ["NETWORK_LOG"], "a") as log:
        log.write(f"{event} {arguments[1:]}\\n")
    raise OSError("this test has no network")

sys.addaudithook(_refuse)
open(os.environ["NETWORK_LOG"] + f".{os.getpid()}", "w").close()
"""
"""Run by Python when it starts, in every child too; leaves a file for each process."""


class Offline:
    """A folder, and an environment whose Pythons cannot reach the network."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.folder = folder
        self.log = folder / "network.log"
        (folder / "guard").mkdir()
        (folder / "guard" / "sitecustomize.py").write_text(GUARD)
        shutil.copy(model, folder / "model.onnx")

    def run(
        self, *words: str, before: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess[str]:
        paths = [str(self.folder / "guard"), os.environ.get("PYTHONPATH", ""), str(ROOT)]
        return subprocess.run(
            [*before, sys.executable, *words],
            cwd=self.folder,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(filter(None, paths)),
                "NETWORK_LOG": str(self.log),
            },
            capture_output=True,
            text=True,
            check=False,
        )

    def memplan(self, *lines: str, before: tuple[str, ...] = ()) -> None:
        """Run commands, one after the other in one process."""
        done = self.run("-c", COMMANDS, *lines, before=before)
        assert done.returncode == 0, done.stderr
        endings = json.loads(done.stdout)
        assert [code for code, _, _ in endings] == [0] * len(lines), endings
        assert not self.log.exists(), self.log.read_text()

    @property
    def processes(self) -> int:
        return len(list(self.folder.glob("network.log.*")))


@pytest.fixture
def offline(tmp_path: Path, samples: Path) -> Offline:
    return Offline(tmp_path, samples / "train_mlp.onnx")


def test_guard_itself_sees_an_attempt_and_stops_it(offline: Offline) -> None:
    done = offline.run("-c", "import socket; socket.create_connection(('127.0.0.1', 9), 1)")
    assert "this test has no network" in done.stderr
    assert offline.log.exists()


def test_model_is_optimized_and_run_without_the_network(offline: Offline) -> None:
    offline.memplan("optimize model.onnx -o out.onnx")
    assert offline.processes > 1, "the runtime's processes are guarded too"


def test_commands_work_without_the_network(offline: Offline) -> None:
    offline.memplan(
        "optimize model.onnx -o out.onnx --no-validate",
        "validate out.onnx --original model.onnx --replay",
        "report model.onnx --format html -o page.html",
        "gate model.onnx --max-memory 1GiB",
        "simulate model.onnx",
        "sweep model.onnx --jobs 2",
        "doctor",
    )


def test_runtime_works_where_the_system_has_no_network_at_all(offline: Offline) -> None:
    alone = ("unshare", "--net", "--map-root-user")
    if not shutil.which("unshare") or subprocess.run([*alone, "true"], check=False).returncode:
        pytest.skip("this system does not let a process have a network of its own")
    offline.memplan("simulate model.onnx", before=alone)
