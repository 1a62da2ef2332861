"""Where a fault happens to memplan, and what is wrong with how that ends."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "sample_models" / "train_mlp.onnx"


@dataclass(frozen=True)
class Ending:
    """What a fault came to: how memplan ended, what it said, what is wrong with that."""

    ended: str
    said: str = ""
    wrong: tuple[str, ...] = ()
    seconds: float = 0.0
    worked: float = 0.0
    """Processor seconds after an interrupt, which a busy machine does not stretch."""


def _hear_interrupts() -> None:
    # A shell starts what runs in the background with Ctrl-C ignored, and children inherit it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Place:
    """An empty folder with a model in it, and one for temporary files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "models"
        self.temporary = folder / "temporary"
        self.folder.mkdir()
        self.temporary.mkdir()
        self.model = self.folder / "model.onnx"
        shutil.copy(SAMPLE, self.model)

    def environment(self, **extra: str) -> dict[str, str]:
        return {
            **os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(self.temporary), **extra
        }  # fmt: skip

    def start(self, *words: object, **how: Any) -> subprocess.Popen[str]:  # noqa: ANN401 - Popen's
        how.setdefault("env", self.environment())
        return subprocess.Popen(
            [sys.executable, "-m", "memplan_cli", *map(str, words)],
            stdout=how.pop("stdout", subprocess.PIPE), stderr=subprocess.PIPE, text=True,
            cwd=self.folder, start_new_session=True,
            preexec_fn=_hear_interrupts, **how,  # noqa: PLW1509 - no thread runs here
        )  # fmt: skip

    def end(self, *words: object, **how: Any) -> Ending:  # noqa: ANN401 - Popen's
        started = time.perf_counter()
        process = self.start(*words, **how)
        _, said = process.communicate(timeout=300)
        return Ending(
            f"exit {process.returncode}", said.strip(), seconds=time.perf_counter() - started
        )

    def rubbish(self, *expected: str) -> list[str]:
        """Return what lies about that should not."""
        found = [p.name for p in self.folder.rglob("*") if p.name != "model.onnx"]
        extra = [f"left {name}" for name in found if name not in expected]
        return extra + [f"left {p.name} in TMPDIR" for p in self.temporary.iterdir()]


def judged(ending: Ending, code: int, says: str, wrong: list[str]) -> Ending:
    """Add what is wrong with an ending: another exit code, no message, a traceback."""
    faults = list(wrong)
    if ending.ended != f"exit {code}":
        faults.append(f"exit {code} was expected")
    if says not in ending.said:
        faults.append(f"{says!r} is not said")
    if "Traceback" in ending.said or "memplan failed" in ending.said:
        faults.append("an exception that is none of memplan's")
    lines = [line for line in ending.said.splitlines() if line.startswith("Error")]
    said = lines[-1] if lines else ending.said.splitlines()[-1] if ending.said else ""
    somewhere = re.escape(str(Path(tempfile.gettempdir()) / tempfile.gettempprefix()))
    said = re.sub(rf"{somewhere}\w+", "FOLDER", said)
    return replace(ending, said=said, wrong=tuple(faults))
