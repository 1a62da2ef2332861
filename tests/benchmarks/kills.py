"""Kill a command at twenty moments by each signal: no process and no file is left.

    python -m tests.benchmarks.kills [--only TEXT] [--no-table]

Moments are spread over the time that the whole command takes, the first while Python
starts. What SIGKILL leaves is gone after the next run of the same command.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from .cases import asked, publish, side_by_side
from .fault_place import ROOT, Place
from .faults import with_weights

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

TABLE = ROOT / "docs" / "measurements" / "kills.md"
MOMENTS = 20
SIGNALS = ("SIGTERM", "SIGHUP", "SIGINT", "SIGKILL")

MARK = "MEMPLAN_KILLED"
"""A variable by which every process that a command started is known."""

_SETTLE = 2.0
"""Seconds after which a process is called left; a killed one's children hear of it at once."""


@dataclass(frozen=True)
class Command:
    """What is killed, what it writes, what has to be there before, and what the next run is."""

    words: tuple[str, ...]
    writes: tuple[str, ...]
    ready: Callable[[Place], tuple[str, ...]]
    again: tuple[str, ...]


@dataclass
class Killed:
    """What became of a command that was killed at several moments."""

    ended: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    left: int = 0
    seconds: float = 0.0


def _heavy(place: Place) -> tuple[str, ...]:
    """Have a model with weights in a file of their own, and a folder to write into."""
    with_weights(place.folder)
    (place.folder / "out").mkdir()
    return ("heavy.onnx", "heavy.bin", "out")


def _optimized(place: Place) -> tuple[str, ...]:
    place.end("optimize", "model.onnx", "-o", "o.onnx", "--no-validate", "-q")
    return ("o.onnx", "o.json")


def _problem(place: Place) -> tuple[str, ...]:
    """Have a problem of six hundred buffers that takes the search a while."""
    rows = [
        f"{at},{(at * 37) % 211},{(at * 37) % 211 + 5 + (at * 13) % 29},{16 + (at * 71) % 97}"
        for at in range(600)
    ]
    (place.folder / "p.csv").write_text("\n".join(["id,lower,upper,size", *rows]) + "\n")
    return ("p.csv",)


COMMANDS: Mapping[str, Command] = {
    "optimize": Command(
        ("optimize", "model.onnx", "-o", "out.onnx"), ("out.onnx", "out.json"), lambda _: (),
        ("optimize", "model.onnx", "-o", "out.onnx", "--no-validate"),
    ),
    "optimize, weights": Command(
        ("optimize", "heavy.onnx", "-o", "out/out.onnx"),
        ("out.onnx", "out.json", "heavy.bin"), _heavy,
        ("optimize", "heavy.onnx", "-o", "out/out.onnx", "--no-validate"),
    ),
    "validate": Command(
        ("validate", "o.onnx", "--original", "model.onnx", "--replay"), (), _optimized,
        ("report", "model.onnx"),
    ),
    "pack": Command(
        ("pack", "p.csv", "-o", "out.csv", "--time-limit", "2"), ("out.csv",), _problem,
        ("pack", "p.csv", "-o", "out.csv", "--time-limit", "2"),
    ),
}  # fmt: skip

CASES = {f"{name}: {sent}": (command, sent) for name, command in COMMANDS.items()
         for sent in SIGNALS}  # fmt: skip


def marked(mark: str) -> list[int]:
    """Return the processes that a command of this mark started, itself included."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                stat = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                if stat != "Z" and wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def killed(command: Command, sent: str, moments: int = MOMENTS) -> Killed:
    """Kill a command at moments that are spread over the time that it takes."""
    number = signal.Signals[sent]
    found = Killed()
    with tempfile.TemporaryDirectory() as name:
        place = Place(Path(name))
        known = command.ready(place)
        ending = place.end(*command.words)  # compiled loops are kept from now on
        if ending.ended != "exit 0":
            raise RuntimeError(f"{' '.join(command.words)}: {ending.ended}: {ending.said}")
        started = time.perf_counter()
        place.end(*command.words)
        whole = time.perf_counter() - started
        for at in range(moments):
            for path in command.writes:
                for old in place.folder.rglob(path):
                    if old.name not in known or old.parent != place.folder:
                        old.unlink()
            _at(place, command, number, whole * at / moments, known, found)
    return found


def _at(  # noqa: PLR0913, PLR0917 - one moment of `killed`
    place: Place, command: Command, number: signal.Signals, moment: float,
    known: tuple[str, ...], found: Killed,
) -> None:  # fmt: skip
    mark = os.urandom(6).hex()
    process = place.start(*command.words, env=place.environment(**{MARK: mark}))
    time.sleep(moment)
    hears = _hears(process.pid)
    sent = time.perf_counter()
    process.send_signal(number)
    _, said = process.communicate(timeout=120)
    found.seconds = max(found.seconds, time.perf_counter() - sent)
    code = process.returncode
    found.ended[str(code)] += 1
    when = f"at {moment:.2f} s"
    if not (code in _codes(number) or (code in (-number, 1) and not hears)):
        found.wrong.append(f"{when}: exit {code}: {' '.join(said.split())[-160:]}")
    elif "Traceback" in said and hears:
        found.wrong.append(f"{when}: {' '.join(said.split())[-160:]}")
    limit = time.perf_counter() + _SETTLE
    while (alive := marked(mark)) and time.perf_counter() < limit:
        time.sleep(0.02)
    found.wrong += [f"{when}: a process is left"] * bool(alive)
    for survivor in alive:
        os.kill(survivor, signal.SIGKILL)
    # Between the last rename and the end of the process everything is written.
    done = bool(command.writes) and all(
        any(place.folder.rglob(name)) for name in command.writes
    )
    finished = code == 0 or number == signal.SIGKILL or done
    expected = (*known, *command.writes) if finished else known
    rubbish = [left for left in place.rubbish(*expected) if not left.endswith(" model.onnx")]
    if number == signal.SIGKILL and rubbish:
        found.left += 1
        place.end(*command.again)
        rubbish = place.rubbish(*expected)
    found.wrong += [f"{when}: {left}" for left in rubbish]


def _hears(process: int) -> bool:
    """Whether memplan's own handlers are there: Python itself leaves SIGTERM to the system."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False
    caught = int(status.partition("SigCgt:")[2].split()[0], 16)
    return bool(caught >> (signal.SIGTERM - 1) & 1)


def _codes(number: signal.Signals) -> tuple[int, ...]:
    return (-number, 0) if number == signal.SIGKILL else (128 + number, 0)


def _case(name: str) -> Killed:
    return killed(*CASES[name])


def main() -> int:
    words = asked(__doc__)
    endings = side_by_side(CASES, _case, words)
    lines = [
        "# Kills",
        "",
        f"Made by `python -m tests.benchmarks.kills`: each command is killed at {MOMENTS} moments,",
        "spread evenly over the time that it takes when nothing stops it. Exit codes of a signal",
        "are 128 and its number; a negative one is Python's, which had no handler of memplan's yet",
        "(its process said so), or SIGKILL's; 0 is a command that was done before. No process with the",
        "command's own mark in its environment may live two seconds later, and no file may be",
        "there that was not before: of SIGKILL, after the next run (how often one was needed is",
        "said). Seconds are the longest from the signal to the end.",
        "",
        "| command | signal | exit codes, how often | needed the next run | seconds | wrong |",
        "|---|---|---|---:|---:|---|",
    ]
    for name, found in endings.items():
        command, _, sent = name.partition(": ")
        codes = ", ".join(f"{code}: {count}" for code, count in sorted(found.ended.items()))
        wrong = "; ".join(found.wrong) or "nothing"
        needed = str(found.left) if sent == "SIGKILL" else ""
        lines.append(
            f"| `{command}` | {sent} | {codes} | {needed} | {found.seconds:.2f} | {wrong} |"
        )
    faults = sum(len(found.wrong) for found in endings.values())
    runs = sum(sum(found.ended.values()) for found in endings.values())
    lines += ["", f"{runs} kills, {faults} faults."]
    publish(lines, TABLE, words)
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
