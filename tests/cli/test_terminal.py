"""What people like in a terminal: no color unless wanted, pure JSON, completion."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from story import GOOD, memplan, write


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a plan file: commands show and check it without a session of ONNX Runtime."""
    model = write(tmp_path_factory.mktemp("plan") / "a.onnx", GOOD)
    done = memplan("optimize", model, "--no-validate", "-o", model.with_name("b.onnx"))
    assert done.exit_code == 0, done.output
    return model.with_name("b.json")


def test_json_is_all_there_is_on_stdout(tmp_path: Path) -> None:
    write(tmp_path / "a.onnx", GOOD)
    done = memplan("report", tmp_path / "a.onnx", "--format", "json")
    assert json.loads(done.stdout)["schema"] == "memplan.report/1"


def test_a_pipe_gets_no_colors_and_eighty_columns(tmp_path: Path) -> None:
    write(tmp_path / "a.onnx", GOOD)
    done = memplan("report", tmp_path / "a.onnx")
    assert "\x1b" not in done.stdout
    lines = done.stdout.splitlines()
    # A command to copy is never broken.
    assert max(len(line) for line in lines if "memplan " not in line) <= 80


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


def spawn(words: str, redirect: str, **env: str) -> tuple[int, str]:
    """Run a command in a shell with its output redirected; exit code and what is left."""
    code = "from memplan_cli.__main__ import main; main()"
    # What Python holds back until the end is where things go wrong: let it do so.
    usual = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        [
            "bash",
            "-c",
            f'set -o pipefail; "$0" -c "$1" {words} {redirect}',
            sys.executable,
            code,
        ],
        env={**usual, **env},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
needs_full = pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="needs a device that is full"
)


@needs_bash
@needs_full
@pytest.mark.parametrize(
    "words",
    [
        "--help",
        "report --help",
        "schema plan",
        "gate PLAN --max-memory 1B --metric planned",
        "report PLAN",
    ],
)
@pytest.mark.parametrize("to", [">/dev/full", ">&-"])
def test_a_result_that_cannot_be_printed_is_an_error(
    words: str, to: str, plan_file: Path
) -> None:
    if to == ">&-" and "--help" in words:
        pytest.skip("click prints its help into a closed output without a word")
    code, said = spawn(words.replace("PLAN", str(plan_file)), to)
    assert code == 2, said
    assert re.search("^Error: ", said, re.MULTILINE), "after progress, on a slow machine"
    assert ("No space left on device" if "full" in to else "output is closed") in said
    assert "Traceback" not in said


@needs_bash
@needs_full
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("report PLAN --level 9", 2),
        ("gate PLAN --max-memory 1B --metric planned -o verdict.txt", 1),
        ("gate PLAN --max-memory 1GB --metric planned -o verdict.txt", 0),
    ],
)
@pytest.mark.parametrize("to", ["2>/dev/full", "2>&-"])
def test_a_closed_or_full_stderr_changes_no_exit_code(
    words: str, expected: int, to: str, plan_file: Path, tmp_path: Path
) -> None:
    words = words.replace("PLAN", str(plan_file)).replace("verdict", str(tmp_path / "verdict"))
    assert memplan(*words.split()).stderr, "nothing would be written to the closed stderr"
    assert spawn(words, to)[0] == expected


@pytest.mark.parametrize(
    ("env", "colors"),
    [
        ({}, True),
        ({"NO_COLOR": "1"}, False),
        ({"NO_COLOR": ""}, True),
        ({"TERM": "dumb"}, False),
    ],
)
def test_colors_are_for_terminals_that_want_them(
    env: dict[str, str], *, colors: bool, plan_file: Path
) -> None:
    if shutil.which("script") is None:
        pytest.skip("needs a terminal, which `script` of util-linux makes")
    run = f"'{sys.executable}' -m memplan_cli report '{plan_file}'"
    usual = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    done = subprocess.run(
        ["script", "-qec", run, "/dev/null"],
        env={**usual, "TERM": "xterm", **env},
        capture_output=True,
        text=True,
        check=True,
    )
    assert bool(re.search(r"\x1b\[[0-9;]*m", done.stdout)) == colors


def test_a_time_out_names_the_limit_and_how_to_change_it(tmp_path: Path) -> None:
    text = """g (float[4] x) => (float[4] y) <int64 n = {9223372036854775807}, bool t = {1}> {
        y = Loop (n, t, x) <body = b (int64 i, bool c, float[4] v) => (bool d, float[4] w)
            { d = Identity(c) w = Tanh(v) }> }"""
    model, out = write(tmp_path / "a.onnx", text), tmp_path / "b.onnx"
    assert memplan("optimize", model, "-o", out, "--no-validate").exit_code == 0
    for words in (
        ("optimize", model),
        ("validate", out, "--original", model),
        ("settings", model, "--measure"),
        ("simulate", model),
    ):
        done = memplan(*words, "--timeout", "0.2")
        assert done.exit_code == 2
        assert "no answer within 0.2 s" in done.stderr
        assert "--timeout 6000 allows more time" in done.stderr
