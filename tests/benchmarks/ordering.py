"""Order every model, prove what can be proved, and write the tables.

    python -m tests.benchmarks.ordering [--only TEXT] [--no-table]

Every row is one `best_order` in a process of its own. Seconds are processor time, so that
what else the machine does is not in them; *process* counts imports and loading too. Peaks are bytes of intermediates: graph inputs and outputs are
not counted. Needs the models beside the repository and skips where they are not.

Guards the claim of docs/measurements/ordering.md: live peaks of the searched orders, and how
many are proved least.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from memplan_cli.analysis.aliasing import SHARE_NOTHING, SHARE_SAFELY
from memplan_cli.core.program import Block, Op, Origin, Program, Var, VarId, intermediates
from memplan_cli.core.symbolic.sizes import Size, size_of

from .pages import MEASUREMENTS, replace_figures, write_full_table

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "models"
TABLE = MEASUREMENTS / "ordering.md"

SHARING = {"nothing": SHARE_NOTHING, "safely": SHARE_SAFELY}

OPTIMA = {
    "wiring_amoeba_cell": (882, 882),
    "wiring_darts_cell": (882, 882),
    "wiring_darts_v2_imagenet": (3822, 3822),
    "wiring_inception_resnet_v2_like": (11250, 8437.5),
    "wiring_nasnet_a_cifar": (1952, 1952),
    "wiring_nasnet_cell": (1078, 1078),
    "wiring_randwire_c78_s0": (3822, 3105.375),
    "wiring_rwcell_n32_s0": (1664, 1664),
    "wiring_unetpp": (81920, 81920),
    "nasnet_a_large": (23002.125, 23002.125),
}
"""KiB at the worst step of the best order, sharing nothing and sharing safely.

Computed and proved by this program; where a published prototype has a figure, it agrees.
"""

MOST_SECONDS = 15.0
"""A proof of one of the optima may take this long, from the start of the process."""

DIMS = {
    "bert_base_dyn": {"batch": 2, "seq": 64},
    "bert_base_dyn_ts": {"batch": 2, "seq": 64},
    "llama_1b_dyn": {"batch": 2, "new": 8, "past": 24, "total": 32},
    "mobilenetv2_ts": {"batch": 2},
    "resnet50_dynbatch": {"batch": 2},
}
"""Bindings for symbolic models, so that every row is a number."""

SCALE = ((1_000, 10.0), (10_000, 5.0), (100_000, 20.0))
"""Ops of a generated graph, and the seconds that `best_order` may take."""


@dataclass(frozen=True)
class Row:
    name: str
    sharing: str
    ops: int
    candidates: dict[str, int]
    chosen: str
    bound: int
    proved: bool
    seconds: float
    process: float = 0.0

    @property
    def peak(self) -> int:
        return self.candidates[self.chosen]

    @property
    def file(self) -> int:
        return self.candidates["file"]

    def fault(self) -> str:
        """Say what this row breaks, if anything."""
        known = OPTIMA.get(self.name)
        if self.peak > self.file:
            return "worse than the file's order"
        if known is None:
            return ""
        if self.peak != known[self.sharing == "safely"] * 1024 or not self.proved:
            return "not the proved optimum"
        return "too slow" if self.process > MOST_SECONDS else ""


def one(name: str, sharing: str) -> Row:
    """Order one model, or one generated graph (its name is its number of ops)."""
    from memplan_cli.ordering.best_order import best_order

    program, sizes = generated(int(name)) if name.isdigit() else model(SHARED / f"{name}.onnx")
    started = time.process_time()
    found = best_order(program, sizes, aliasing=SHARING[sharing])
    seconds = time.process_time() - started
    return Row(
        name,
        sharing,
        len(program.body.ops),
        dict(found.peaks),
        found.chosen,
        found.bound or 0,
        found.proved,
        seconds,
    )


def model(path: Path) -> tuple[Program, dict[VarId, Size]]:
    from memplan_cli.onnx_io.load import load_model
    from memplan_cli.onnx_io.shapes.bindings import Bindings
    from memplan_cli.onnx_io.shapes.reading import read_program

    bindings = Bindings(dims=DIMS.get(path.stem, {}))
    program = read_program(load_model(path), bindings).program
    sizes = {
        v: size_of(program.vars[v].shape, program.vars[v].dtype)
        for v in intermediates(program)
    }
    return program, {
        var: size for var, size in sizes.items() if size is not None and not size.symbols
    }


class Wiring:
    """Cells of randomly wired convolutions, each reading the two cells before it."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.ops: list[Op] = []
        self.sizes: dict[VarId, Size] = {}

    def op(self, kind: str, reads: list[VarId], size: int) -> VarId:
        out = VarId(f"v{len(self.ops)}")
        self.ops.append(Op(f"n{len(self.ops)}", kind, tuple(reads), (out,)))
        self.sizes[out] = Size(size)
        return out

    def cell(self, first: VarId, second: VarId) -> VarId:
        width = self.draw.choice((32, 64, 128))
        made = [self.op("Conv", [first], width), self.op("Conv", [second], width)]
        read: set[VarId] = set()
        for _ in range(self.draw.randint(5, 12)):
            left, right = self.draw.sample(made[-6:], 2)
            read |= {left, right}
            relu = self.op("Relu", [left], width)
            conv = self.op("Conv", [relu], width)
            if self.draw.random() < 0.6:
                right = self.op("Conv", [right], width)
            made.append(self.op("Add", [conv, right], width))
        loose = [var for var in made if var not in read]
        return self.op("Concat", loose, width * len(loose) // 2 + 1)


def generated(count: int) -> tuple[Program, dict[VarId, Size]]:
    """Make a network of about ``count`` ops; the same one every time."""
    wiring = Wiring(count)
    given = VarId("x")
    before = last = wiring.op("Conv", [given], 64)
    while len(wiring.ops) < count:
        before, last = last, wiring.cell(before, last)
    vars_ = {var: Var(var, "uint8", None, Origin.OP) for var in wiring.sizes}
    vars_[given] = Var(given, "uint8", None, Origin.INPUT)
    del wiring.sizes[last]
    body = Block((given,), (last,), tuple(wiring.ops))
    return Program("generated", body, vars_), wiring.sizes


def run(*command: str) -> tuple[str, float]:
    """Run a command; return what it printed and the processor time it took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return done.stdout, seconds


def measured(name: str, sharing: str) -> Row:
    """Run `one` in a process of its own."""
    printed, seconds = run("-m", "tests.benchmarks.ordering", "--one", name, sharing)
    return Row(**{**json.loads(printed), "process": seconds})


SESSION = """
import sys, time
import onnxruntime as ort
options = ort.SessionOptions()
options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
options.log_severity_level = 3
started = time.process_time()
ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
print(time.process_time() - started)
"""


def session_seconds(name: str) -> tuple[float, float]:
    """Return seconds of `memplan optimize` and of making a session, optimization off."""
    with tempfile.TemporaryDirectory() as folder:
        filled = str(Path(folder) / f"{name}.onnx")
        run(str(SHARED / "fill_weights.py"), str(SHARED / f"{name}.onnx"), filled)
        session, _ = run("-c", SESSION, filled)
        _, seconds = run("-m", "memplan_cli", "optimize", filled, "--no-validate")
        return seconds, float(session)


def kib(size: float) -> str:
    return f"{size / 1024:,.3f}".rstrip("0").rstrip(".")


def model_table(rows: list[Row]) -> list[str]:
    columns = "model ops sharing file runtime-default best by of-file bound proved"
    columns += " best/bound seconds process"
    heads = columns.split()
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for row in rows:
        shown = [row.candidates.get(name) for name in ("file", "runtime_default")]
        cells = " | ".join("-" if size is None else kib(size) for size in shown)
        share = f"{row.peak / row.file:.3f}" if row.file else "-"
        gap = f"{row.peak / row.bound:.4f}" if row.bound else "-"
        proved = "yes" if row.proved else "no"
        first = f"| {row.name} | {row.ops} | {row.sharing} | {cells} | {kib(row.peak)} "
        second = f"| {row.chosen} | {share} | {kib(row.bound)} | {proved} | {gap} "
        lines.append(f"{first}{second}| {row.seconds:.2f} | {row.process:.1f} |")
    return lines


def mean(rows: list[Row]) -> float:
    shares = [row.peak / row.file for row in rows if row.file]
    return math.exp(sum(map(math.log, shares)) / len(shares)) if shares else 1.0


def families(rows: list[Row]) -> list[str]:
    lines = ["| family | rows | best / file, geometric mean | proved |", "|---|---|---|---|"]
    for family, start in (("wiring", ("wiring", "nasnet")), ("training", ("train",))):
        mine = [row for row in rows if row.name.startswith(start)]
        lines.append(
            f"| {family} | {len(mine)} | {mean(mine):.3f} | {sum(r.proved for r in mine)} |"
        )
    proved = sum(row.proved for row in rows)
    return [*lines, f"| all | {len(rows)} | {mean(rows):.3f} | {proved} |"]


def document(
    rows: list[Row], scale: list[Row], sessions: dict[str, tuple[float, float]]
) -> str:
    faults = [f"- {r.name}, {r.sharing}: {r.fault()}" for r in rows if r.fault()]
    changed = [row for row in rows if row.peak < row.file or not row.proved]
    return "\n".join(
        [
            *families(rows),
            "",
            f"{len(faults)} faults: worse than the file, or a known optimum missed or not",
            f"proved within {MOST_SECONDS:.0f} s.",
            *faults,
            "",
            f"{len(rows) - len(changed)} rows in which the order of the file is proved optimal are left out.",
            "",
            *model_table(changed),
            "",
            "Randomly wired cells, stacked; generated with a fixed seed:",
            "",
            *model_table(scale),
            "",
            "Seconds of `memplan optimize --no-validate` and of creating a session without optimization:",
            "",
            "| model | optimize | session | ratio |",
            "|---|---|---|---|",
            *(f"| {n} | {a:.1f} | {b:.1f} | {a / b:.2f} |" for n, (a, b) in sessions.items()),
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="models with this text in their name")
    parser.add_argument("--no-table", action="store_true", help="print, do not write")
    parser.add_argument("--one", nargs=2, metavar=("NAME", "SHARING"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(asdict(one(*asked.one))))
        return 0
    if not SHARED.is_dir():
        print(f"skipped: {SHARED} is not there")
        return 0
    names = [path.stem for path in sorted(SHARED.glob("*.onnx")) if asked.only in path.stem]
    rows = [measured(name, sharing) for name in names for sharing in SHARING]
    if asked.only or asked.no_table:
        print("\n".join(model_table(rows)))
    else:
        scale = [measured(str(count), s) for count, _ in SCALE for s in SHARING]
        slow = {n: session_seconds(n) for n in names if "lstm_unrolled" in n}
        replace_figures(TABLE, document(rows, scale, slow))
        write_full_table("ordering", model_table(rows))
    return 1 if any(row.fault() for row in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
