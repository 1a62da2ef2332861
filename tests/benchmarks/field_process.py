"""A command in a process of its own, forked from one that has imported everything."""

from __future__ import annotations

import io
import os
import re
import signal
import sys
import tempfile
import time
import traceback
from contextlib import redirect_stderr, redirect_stdout, suppress
from typing import TYPE_CHECKING, NoReturn

from memplan_cli.cli import main as entry

from .field_hints import Said, Words
from .models import ROOT, SAMPLES

if TYPE_CHECKING:
    from pathlib import Path

SECONDS = 150
"""Until a command must have ended."""
STOPPED = -1000
"""In place of an exit code: stopped at the time limit."""


def warm_up() -> None:
    """Import what commands import late, once for all."""
    sample = str(SAMPLES / "branchy_cnn.onnx")
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        for command in ("report", "why", "diff"):
            words = (command, *(sample,) * (1 + (command == "diff")))
            with suppress(SystemExit):
                entry.main(list(words), prog_name="memplan")


def memplan(words: Words, folder: Path, model: Path) -> Said:
    """Run a command in a process of its own, and say how it ended.

    A fork of this program, which has imported what all commands need: a model gets some
    fifteen of them, and importing would take most of the time.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = os.fork()
        if process == 0:
            _become(words, folder, out.fileno(), err.fileno())
        code = _waited(process)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode("utf-8", "replace"))
    if code == STOPPED:
        return Said(code, "", f"Error: still running after {SECONDS} s")
    return Said(code, texts[0], neutral(texts[1], folder, model))


def _become(words: Words, folder: Path, out: int, err: int) -> NoReturn:
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.chdir(folder)
    code = 70
    try:
        entry.main(list(words), prog_name="memplan")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - the parent reads the traceback
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _waited(process: int) -> int:
    ends = time.monotonic() + SECONDS
    while time.monotonic() < ends:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.killpg(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return STOPPED


def neutral(text: str, folder: Path, model: Path) -> str:
    """Take the places of this machine out of a text."""
    for path in (model, folder, ROOT):
        for form in (str(path), os.path.relpath(path, folder)):
            if form not in (".", ""):
                text = text.replace(form, path.name if path == model else "FOLDER")
    return re.sub(r"(?<![\w.])/(?:tmp|usr|opt|home|root|work)/[^\s:'\"]*", "PATH", text)
