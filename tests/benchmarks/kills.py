"""Kill a command at twenty moments by each signal: no process and no file is left.

    python -m tests.benchmarks.kills [--only TEXT] [--no-table]

Moments are spread over the time that the whole command takes, the first while Python
starts. What SIGKILL leaves is gone after the next run of the same command. The process from
which jobs are forked, and the fork that runs a model, are killed alone too: there the command
goes on, or says what has failed, and leaves nothing by itself.

Guards the claim of docs/measurements/robustness.md: a killed command leaves no process and no file.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from .cases import asked, publish_check, side_by_side
from .fault_place import Place
from .faults import with_weights

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MOMENTS = 20
SIGNALS = ("SIGTERM", "SIGHUP", "SIGINT", "SIGKILL")

Victim = Literal["command", "server", "job"]
"""The command, the process that forks its jobs, or the newest of these forks."""

_SERVER = b"memplan_cli.runtime.workers.fork_server"
"""In the command line of a server, and of what it forks."""

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
    hits: int = 0
    """Moments at which there was a process to send the signal to."""


@dataclass(frozen=True)
class Shot:
    """A signal, whom it is sent to, and after how many seconds."""

    number: signal.Signals
    victim: Victim
    moment: float


def _heavy(place: Place) -> tuple[str, ...]:
    """Have a model with weights in a file of their own, and a folder to write into."""
    with_weights(place.folder)
    (place.folder / "out").mkdir()
    return ("heavy.onnx", "heavy.bin", "out")


def _baseline(place: Place) -> tuple[str, ...]:
    """Have a baseline of what is observed of the model."""
    place.end(*_GATE, "--update-baseline")
    return ("b.json",)


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


_GATE = ("gate", "model.onnx", "--baseline", "b.json", "--metric", "process.run")
"""What no plan tells without a run."""

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
    "optimize, target": Command(
        ("optimize", "model.onnx", "-o", "out.onnx", "--target", "cpu"),
        ("out.onnx", "out.json"), lambda _: (),
        ("optimize", "model.onnx", "-o", "out.onnx", "--no-validate"),
    ),
    "gate": Command(_GATE, (), _baseline, ("report", "model.onnx")),
    "validate": Command(
        ("validate", "o.onnx", "--original", "model.onnx", "--replay"), (), _optimized,
        ("report", "model.onnx"),
    ),
    "pack": Command(
        ("pack", "p.csv", "-o", "out.csv", "--time-limit", "2"), ("out.csv",), _problem,
        ("pack", "p.csv", "-o", "out.csv", "--time-limit", "2"),
    ),
}  # fmt: skip

FORKING = ("optimize", "optimize, target", "validate")
"""Commands whose server and jobs are killed alone too."""

CASES: Mapping[str, tuple[Command, str, Victim]] = {
    **{f"{name}: {sent}": (command, sent, "command") for name, command in COMMANDS.items()
       for sent in SIGNALS},
    **{f"{name}, its {victim}: SIGKILL": (COMMANDS[name], "SIGKILL", victim)
       for name in FORKING for victim in ("server", "job")},
}  # fmt: skip


def marked(mark: str) -> dict[int, int]:
    """Return the processes that a command of this mark started, itself included.

    By number, each with its parent's. A fork has the environment of what it was forked from.
    """
    wanted = f"{MARK}={mark}".encode()
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                state, parent, *_ = (entry / "stat").read_text().rpartition(")")[2].split()
                if state != "Z" and wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found[int(entry.name)] = int(parent)
            except OSError:
                continue
    return found


def aimed_at(victim: Victim, command: int, mark: str) -> int | None:
    """Return the process that is to be killed; None where there is none now."""
    if victim == "command":
        return command
    forking = {number: parent for number, parent in marked(mark).items() if _is_server(number)}
    servers = [number for number, parent in forking.items() if parent == command]
    if victim == "server":
        return max(servers, default=None)
    return max((n for n, parent in forking.items() if parent in servers), default=None)


def _is_server(process: int) -> bool:
    try:
        return _SERVER in Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return False


def killed(
    command: Command, sent: str, victim: Victim = "command", moments: int = MOMENTS
) -> Killed:
    """Kill a command, or a process of it, at moments spread over the time that it takes."""
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
            shot = Shot(number, victim, whole * at / moments)
            _at(place, command, shot, known, found)
    return found


def _at(
    place: Place, command: Command, shot: Shot, known: tuple[str, ...], found: Killed
) -> None:
    mark, number = os.urandom(6).hex(), shot.number
    process = place.start(*command.words, env=place.environment(**{MARK: mark}))
    time.sleep(shot.moment)
    hears = _hears(process.pid)
    sent = time.perf_counter()
    aim = aimed_at(shot.victim, process.pid, mark)
    with suppress(ProcessLookupError):
        if aim is not None and process.poll() is None:
            os.kill(aim, number)
            found.hits += 1
    _, said = process.communicate(timeout=120)
    found.seconds = max(found.seconds, time.perf_counter() - sent)
    code = process.returncode
    found.ended[str(code)] += 1
    when = f"at {shot.moment:.2f} s"
    alone = shot.victim != "command"
    expected = (0, 1, 2) if alone else _codes(number)
    if not (code in expected or (code in (-number, 1) and not hears)):
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
    gone = number == signal.SIGKILL and not alone
    wanted = (*known, *command.writes) if code == 0 or gone or done else known
    rubbish = [left for left in place.rubbish(*wanted) if not left.endswith(" model.onnx")]
    if gone and rubbish:
        found.left += 1
        place.end(*command.again)
        rubbish = place.rubbish(*wanted)
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
        "said). Seconds are the longest from the signal to the end. `its server` is the process",
        "from which jobs are forked and `its job` the fork that runs a model, killed alone: the",
        "command may then work (0), or say what failed (1, 2), and nothing may be left at once.",
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
    hits = sum(found.hits for found in endings.values())
    sums = f"{runs} commands, {hits} kills, {faults} faults"
    lines += ["", sums]
    publish_check("python -m tests.benchmarks.kills", lines, sums, words)
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
