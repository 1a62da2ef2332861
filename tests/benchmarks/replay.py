"""Run plans inside their arenas, poisoned: real models, and random programs with bodies.

    python -m tests.benchmarks.replay [--out FILE] [--programs N] [MODEL...]

Each model with seeded weights, planned and written at levels 0, 1 and 2, then replayed op
by op in the plan's arenas on the CPU provider; its outputs are those of the whole graph, bit
for bit. Without names: every model of the shared collection that runs in time. The random
programs are replayed at every level, and once more each with one tensor put onto another
that is still to be read: each such mistake must be found out.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from corruptions import nested_programs
from memplan_cli import workflows
from memplan_cli.errors import MemplanError
from memplan_cli.runtime.proofs.replay import Replayed, replay
from memplan_cli.settings.settings import Settings
from trials import tried

from .prediction import every_name, fill, trial_of

if TYPE_CHECKING:
    from memplan_cli.runtime.measuring.measure import Trial

Level = Literal[0, 1, 2]
LEVELS: tuple[Level, ...] = (0, 1, 2)

HEAD = """| model | level | replay | bound | not bound | differing | note |
|---|---|---|---|---|---|---|"""


@dataclass(frozen=True)
class Row:
    model: str
    level: int
    result: Replayed

    def line(self) -> str:
        found = self.result
        apart = any(note.startswith("offsets") for note in found.notes)
        note = found.reason or ("aligned alike" if apart else "")
        extent = found.extent
        cells = [self.model, self.level, found.status, extent.placed, len(extent.left_out)]
        return "| " + " | ".join(map(str, [*cells, len(found.differences), note])) + " |"


def row(
    name: str, model: Path, trial: Trial, level: Level, order: Literal["keep", "auto"]
) -> Row:
    out = model.with_name(f"{name}.{level}.onnx")
    settings = replace(Settings(), level=level, dims=trial.dims, order=order)
    done = workflows.optimize(model, settings, out=out, check=None)
    found = Row(name, level, replay(out, done.plan, trial))
    out.unlink()
    return found


def programs(count: int) -> str:
    total: Counter[str] = Counter()
    for seed, made in nested_programs(count):
        one = tried(seed, made)
        total.update(held=one.held, made=one.made, caught=one.caught, never=one.unreached)
    return (
        f"{count} random programs with bodies: {total['held']} layouts held; "
        f"{total['caught']} of {total['made']} corruptions caught "
        f"({total['never']} more were never reached by a run).\n"
    )


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--out", type=Path, help="add the rows to this file, one after another"
    )
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--order", choices=("auto", "keep"), default="auto")
    parser.add_argument("--timeout", type=float, default=1800.0)
    parser.add_argument("models", nargs="*")
    asked = parser.parse_args(arguments)
    print(HEAD, flush=True)
    rows: list[Row] = []
    for name in asked.models or every_name():
        before = sum(os.times()[:4])
        with tempfile.TemporaryDirectory(prefix="memplan-bench-") as folder:
            model = Path(folder) / f"{name}.onnx"
            fill(name, model)
            trial = trial_of(name, model, asked.timeout)
            for level in LEVELS:
                try:
                    rows.append(row(name, model, trial, level, asked.order))
                except MemplanError as error:
                    print(f"{name} {level}: {str(error)[:300]}", file=sys.stderr, flush=True)
                    continue
                print(rows[-1].line(), flush=True)
                if asked.out:
                    with asked.out.open("a", encoding="utf-8") as file:
                        file.write(rows[-1].line() + "\n")
        print(f"{name}: {sum(os.times()[:4]) - before:.0f} s CPU", file=sys.stderr, flush=True)
    passed = sum(row.result.status == "passed" for row in rows)
    print(f"\n{passed} of {len(rows)} replays passed.\n")
    if asked.programs:
        print(programs(asked.programs))


if __name__ == "__main__":
    main(sys.argv[1:])
