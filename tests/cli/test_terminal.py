"""What people like in a terminal: no colour unless wanted, pure JSON, completion."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from story import GOOD, memplan, write

if TYPE_CHECKING:
    from pathlib import Path


def test_json_is_all_there_is_on_stdout(tmp_path: Path) -> None:
    write(tmp_path / "a.onnx", GOOD)
    done = memplan("report", tmp_path / "a.onnx", "--format", "json")
    assert json.loads(done.stdout)["schema"] == "memplan.report/1"


def test_a_pipe_gets_no_colours_and_a_hundred_columns(tmp_path: Path) -> None:
    write(tmp_path / "a.onnx", GOOD)
    done = memplan("report", tmp_path / "a.onnx")
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_can_complete(shell: str) -> None:
    if shell == "bash" and shutil.which("bash") is None:
        pytest.skip("click asks bash for its version, and there is none here")
    command = [
        sys.executable,
        "-c",
        "from memplan_cli.cli import main; main(prog_name='memplan')",
    ]
    env = {**os.environ, "_MEMPLAN_COMPLETE": f"{shell}_source"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert "_MEMPLAN_COMPLETE" in done.stdout


def test_completion_knows_the_commands() -> None:
    command = [
        sys.executable,
        "-c",
        "from memplan_cli.cli import main; main(prog_name='memplan')",
    ]
    words = {
        "_MEMPLAN_COMPLETE": "bash_complete",
        "COMP_WORDS": "memplan re",
        "COMP_CWORD": "1",
    }
    done = subprocess.run(
        command, env={**os.environ, **words}, capture_output=True, text=True, check=True
    )
    assert "report" in done.stdout


def test_help_needs_nothing_heavy() -> None:
    code = (
        "import sys; from memplan_cli.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "heavy = {'onnx', 'onnxruntime', 'numpy', 'rich', 'yaml', 'numba'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stderr == "[]\n"
