"""Give every command every test model of the onnx package: an answer or a clear refusal.

    python -m tests.benchmarks.commands [--only TEXT] [--every N] [--command NAME,..] [-o FILE]

Each command must end with exit code 0, 1 or 2, and never in an exception that is none of
memplan's own. Each model is given as it is and with its inputs' dims made free, so that
sizes are symbols. The runtime's jobs run in this program's own worker processes, which
saves an hour; a crash there costs one case.

Guards the claim of docs/measurements/robustness.md: every command ends with an answer or a clear refusal
on every model of the suite.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
from click.testing import CliRunner

from memplan_cli.cli import main as memplan

from .in_process import keep_jobs_here
from .pages import write_check
from .suite_cases import cases, names

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

ROOT = Path(__file__).parents[2]
BATCH = 60
SLOW = 20.0
"""Seconds; no model of the suite is large."""

FAULT = "FAULT"

Words = tuple[str, ...]

COMMANDS: Mapping[str, tuple[Words, ...]] = {
    "report": (("report", "MODEL", "--allow-partial", "--print-log"),),
    "page": (("report", "MODEL", "--allow-partial", "--format", "html", "-o", "p.html"),),
    "why": (("why", "MODEL", "--allow-partial"),),
    "fit": (("fit", "MODEL", "--memory", "1MiB", "--dim", "free0=?"),),
    "gate": (("gate", "MODEL", "--max-memory", "1KiB", "--format", "junit"),),
    "optimize": (("optimize", "MODEL", "-o", "o.onnx", "--no-validate", "--allow-partial"),),
    "recompute": (
        ("optimize", "MODEL", "-o", "r.onnx", "--no-validate", "--allow-partial",
         "--recompute", "auto", "--budget", "60%"),
    ),
    "diff": (("diff", "MODEL", "o.onnx"),),
    "pack": (
        ("report", "MODEL", "--allow-partial", "--format", "minimalloc", "-o", "p.csv"),
        ("pack", "p.csv"),
    ),
    "simulate": (("simulate", "MODEL"),),
    "settings": (("settings", "MODEL"),),
    "train-step": (
        ("train-step", "MODEL", "-o", "t.onnx", "--loss-fn", "mse", "--train", "*",
         "--optimizer", "adam"),
    ),
    "train-own": (
        ("train-step", "MODEL", "-o", "g.onnx", "--loss-fn", "softmax-cross-entropy",
         "--gradients"),
    ),
}  # fmt: skip
"""What is run, in this order in one folder; a command that reads what is missing refuses."""


@dataclass(frozen=True)
class Ending:
    """How a command ended on a model; ``message`` is what it said where it did not work."""

    case: str
    command: str
    code: int
    message: str
    seconds: float

    @property
    def fault(self) -> str:
        """Return what is wrong with it, or nothing."""
        if self.code not in (0, 1, 2):
            return f"exit code {self.code}"
        if "memplan failed" in self.message or "Traceback" in self.message:
            return "an exception that is none of memplan's"
        if self.code == 2 and not self.message:
            return "no message"
        return "slow" if self.seconds > SLOW else ""


def freed(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model whose inputs have free dims, and whose other shapes nobody gives."""
    free = type(model)()
    free.CopyFrom(model)
    count = 0
    for value in free.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            dim.dim_param = f"free{count}"
            count += 1
    del free.graph.value_info[:]
    for value in free.graph.output:
        value.type.tensor_type.ClearField("shape")
    return free


VARIANTS: Mapping[str, Callable[[onnx.ModelProto], onnx.ModelProto]] = {
    "": lambda model: model,
    " (free dims)": freed,
}


def endings(name: str, model: onnx.ModelProto, wanted: Sequence[str]) -> list[Ending]:
    """Run commands on a model in an empty folder."""
    found = []
    for label, change in VARIANTS.items():
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            Path("model.onnx").write_bytes(change(model).SerializeToString())
            found += [_ended(f"{name}{label}", command) for command in wanted]
            os.chdir(ROOT)
    return found


def _ended(case: str, command: str) -> Ending:
    started = time.process_time()
    code, message = 0, ""
    for words in COMMANDS[command]:
        given = ["model.onnx" if word == "MODEL" else word for word in words]
        result = CliRunner().invoke(memplan, [*given, "--quiet"], prog_name="memplan")
        code, message = result.exit_code, result.stderr.strip()
        if result.exception and not isinstance(result.exception, SystemExit):
            message = f"memplan failed: {result.exception!r}"
        if code:
            break
    seconds = time.process_time() - started
    return Ending(case, command, code, message if code else "", seconds)


def worker(wanted: Sequence[str]) -> None:
    """Run the commands on the cases named on stdin, one JSON line a case."""
    keep_jobs_here()
    for case in cases(json.load(sys.stdin)):
        rows = [
            (e.case, e.command, e.code, e.message[:400], e.seconds)
            for e in endings(case.name, case.model, wanted)
        ]
        print(json.dumps([case.name, rows]), flush=True)


def run_batch(batch: Sequence[str], command: str) -> list[Ending]:
    """Run cases in a process of their own; a crash is charged to the case it hit."""
    left, found = list(batch), list[Ending]()
    while left:
        done = subprocess.run(
            [sys.executable, "-m", "tests.benchmarks.commands", "--worker",
             "--command", command],
            input=json.dumps(left), capture_output=True, text=True, check=False, cwd=ROOT,
        )  # fmt: skip
        lines = [line for line in done.stdout.splitlines() if line.startswith('["')]
        ended = dict(map(json.loads, lines))
        found += [Ending(*row) for rows in ended.values() for row in rows]
        rest = [name for name in left if name not in ended]
        if rest:
            reason = done.stderr.strip()[-300:]
            found.append(Ending(rest[0], "some command", done.returncode or -1, reason, 0.0))
            rest = rest[1:]
        left = rest
    return found


def table(found: Sequence[Ending]) -> str:
    """Return the counts and the faults as Markdown."""
    lines = [
        "# Every command on every model of the backend suite",
        "",
        f"Made by `python -m tests.benchmarks.commands` with onnx {onnx.__version__}: models as",
        "they are, and with their inputs' dims made free. A fault is an exit code",
        "other than 0, 1 and 2, an exception that is none of memplan's own, a refusal without",
        f"a message, or more than {SLOW:.0f} seconds of processor time.",
        "",
        "| command | models | runs | exit 0 | exit 1 | exit 2, with a message | faults | slowest, s |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for command in dict.fromkeys(e.command for e in found):
        mine = [e for e in found if e.command == command]
        codes = Counter(FAULT if e.fault else e.code for e in mine)
        slowest = max(e.seconds for e in mine)
        shown = " ".join(COMMANDS[command][-1]) if command in COMMANDS else command
        cells = " | ".join(str(codes[code]) for code in (0, 1, 2, FAULT))
        models = len({e.case.partition(" ")[0] for e in mine})
        lines.append(f"| `{shown}` | {models} | {len(mine)} | {cells} | {slowest:.1f} |")
    faults = sorted((e for e in found if e.fault), key=lambda e: (e.command, e.case))
    lines += ["", f"{len(faults)} faults."]
    lines += [
        f"- `{e.case}`, {e.command}: {e.fault}: {' '.join(e.message.split())[:300]}"
        for e in faults
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--command", default="", help="Commands, with commas between.")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="Each Nth model.")
    parser.add_argument("-o", "--output", type=Path, help="Add what was found, as JSON lines.")
    parser.add_argument("--table", nargs="+", type=Path, help="Write it; later ones win.")
    parser.add_argument("--worker", action="store_true")
    asked = parser.parse_args()
    if asked.worker:
        worker(asked.command.split(",") if asked.command else tuple(COMMANDS))
        return 0
    if asked.table:
        lines = [line for path in asked.table for line in path.read_text().splitlines()]
        last = {(e.command, e.case): e for e in (Ending(*json.loads(at)) for at in lines)}
        endings = list(last.values())
        faults = sum(bool(ending.fault) for ending in endings)
        write_check(
            "make test-commands",
            [table(endings)],
            f"{len(endings):,} commands, {faults} faults",
        )
        return 0
    wanted = [name for name in names() if asked.only in name][:: asked.every]
    batches = [wanted[at : at + BATCH] for at in range(0, len(wanted), BATCH)]
    found: list[Ending] = []
    with ThreadPoolExecutor(2) as pool:
        for part in pool.map(lambda batch: run_batch(batch, asked.command), batches):
            found.extend(part)
            print(f"{len(found)} runs", file=sys.stderr, flush=True)
            if asked.output:
                with asked.output.open("a") as file:
                    file.writelines(f"{json.dumps(astuple(ending))}\n" for ending in part)
    print(table(found))
    return 1 if any(e.fault for e in found) else 0


if __name__ == "__main__":
    raise SystemExit(main())
