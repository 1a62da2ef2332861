"""Measure the allocators and write the table.

    python -m tests.benchmarks.packing [--instances DIR] [--models] [--no-table]

Instances are MiniMalloc CSV files; the rest is generated, seeded, by `packing_instances`.
Times are processor seconds of one thread, the search loaded beforehand; in the last table
they are those of whole processes, with the wall time beside them. `--models` adds the arenas of every real
model. What stands in the table's file below the heading `NOTES` is written by hand, and kept.

Guards the claim of docs/measurements/packing.md: arenas reach their lower bound.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.core.problem import Layout, Problem, lower_bound, violations
from memplan_cli.packing import portfolio
from memplan_cli.packing.pieces import layout_of, reduce_problem
from memplan_cli.packing.problem_file import read_problem

from .packing_instances import FAMILIES, square
from .packing_models import table as model_table
from .pages import MEASUREMENTS, replace_figures

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from memplan_cli.packing.pieces import Piece

Allocator = Callable[[Problem], Layout | None]

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "instances"
TABLE = MEASUREMENTS / "packing.md"


SMALL = (50, 100, 200, 350, 500)
HARD = 2
"""The seed of a square that only the search puts together."""
LARGE = (1_000, 10_000, 100_000)
SEEDS = range(4)


@dataclass(frozen=True)
class Run:
    """Height over lower bound (None: no layout) and seconds of processor time."""

    ratio: float | None
    seconds: float


def timed(problem: Problem, allocate: Allocator) -> Run:
    """Run an allocator and check what it says."""
    started = time.process_time()
    layout = allocate(problem)
    seconds = time.process_time() - started
    if layout is None:
        return Run(None, seconds)
    assert violations(problem, layout) == ()
    return Run(layout.height / max(1, lower_bound(problem)), seconds)


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + " --- |" * len(head)
    for row in rows:
        text = "| " + " | ".join(str(cell) for cell in row) + " |"
        print(text, file=sys.stderr, flush=True)
        yield text
    yield ""


def greedy_by_size(problem: Problem) -> Layout:
    """Place buffers by falling size, each in the lowest gap: the planner of TensorFlow Lite."""
    return _placed_in_order(
        problem,
        lambda piece, i: (-piece.size[i], piece.start[i], i),
        lambda gaps: gaps[0][0],
    )


def best_fit_by_start(problem: Problem) -> Layout:
    """Place buffers by start, each in the smallest gap: what the allocator of a runtime does."""
    return _placed_in_order(
        problem,
        lambda piece, i: (piece.start[i], -piece.size[i], i),
        lambda gaps: min(gaps, key=lambda gap: (gap[1] - gap[0], gap[0]))[0],
    )


def _placed_in_order(
    problem: Problem,
    key: Callable[[Piece, int], tuple[int, int, int]],
    choose_gap: Callable[[Sequence[tuple[int, int]]], int],
) -> Layout:
    """Place each buffer once, in one of the (floor, top) gaps that are large enough."""
    reduction = reduce_problem(problem)
    placements = []
    for piece in reduction.pieces:
        offsets = [0] * len(piece.size)
        placed: list[tuple[int, int, int, int]] = []  # offset, top, start, end; sorted
        for index in sorted(range(len(piece.size)), key=partial(key, piece)):
            start, end, size = piece.start[index], piece.end[index], piece.size[index]
            gaps: list[tuple[int, int]] = []
            floor = 0  # top of the placed buffers that were passed
            for other_offset, other_top, other_start, other_end in placed:
                if other_start < end and start < other_end:
                    if other_offset - floor >= size:
                        gaps.append((floor, other_offset))
                    floor = max(floor, other_top)
            offsets[index] = choose_gap(gaps) if gaps else floor
            insort(placed, (offsets[index], offsets[index] + size, start, end))
        placements.append(tuple(offsets))
    return layout_of(reduction, placements)


def instances(folder: Path) -> Iterator[str]:
    compared: dict[str, Allocator] = {
        "greedy by size": greedy_by_size,
        "time-order best fit": best_fit_by_start,
    }
    head = ["instance", "buffers", "capacity / bound", "height / bound", "proved", "seconds"]
    head += [f"{name} (s)" for name in compared]
    yield "The shared instances:\n"
    yield "Height over the lower bound; in brackets the seconds.\n"
    yield from table(
        head, (_instance(path, compared) for path in sorted(folder.glob("*.csv")))
    )


def _instance(path: Path, compared: Mapping[str, Allocator]) -> list[object]:
    problem = read_problem(path)
    bound = lower_bound(problem)
    capacity = path.stem.partition(".")[2]
    started = time.process_time()
    layout = portfolio(problem)
    seconds = time.process_time() - started
    assert violations(problem, layout) == ()
    ratio = f"{int(capacity) / bound:.4f}" if capacity else "-"
    proved = "yes" if layout.proved else "no"
    row: list[object] = [path.stem.partition(".")[0], len(problem.buffers), ratio]
    row += [f"{layout.height / bound:.4f}", proved, f"{seconds:.3f}"]
    for allocate in compared.values():
        run = timed(problem, allocate)
        found = "none" if run.ratio is None else f"{run.ratio:.4f}"
        row.append(f"{found} ({run.seconds:.2f})")
    return row


def small() -> Iterator[str]:
    yield "Generated problems of up to 500 buffers:\n"
    yield (
        "Share at the known optimum (the lower bound), the worst height / bound, the longest "
        "seconds; 4 seeds of each size.\n"
    )
    yield from table(
        ("family", "problems", "at the optimum", "worst", "longest"),
        (_family(name) for name in FAMILIES),
    )


def _family(name: str) -> list[object]:
    problems = [FAMILIES[name](count, seed) for count in SMALL for seed in SEEDS]
    runs = [timed(problem, portfolio) for problem in problems]
    ratios = [run.ratio or 0.0 for run in runs]
    share = sum(ratio == 1.0 for ratio in ratios) / len(ratios)
    longest = max(run.seconds for run in runs)
    return [name, len(runs), f"{share:.0%}", f"{max(ratios):.4f}", f"{longest:.2f}"]


def large() -> Iterator[str]:
    yield "Larger generated problems:\n"
    yield "Height / bound, in brackets the seconds.\n"
    rows = (
        [name, *(_large(FAMILIES[name](count, 1)) for count in LARGE)] for name in FAMILIES
    )
    yield from table(["family", *(f"{count:,}" for count in LARGE)], rows)


def _large(problem: Problem) -> str:
    run = timed(problem, portfolio)
    return f"{run.ratio:.4f} ({run.seconds:.2f})"


def cold() -> Iterator[str]:
    """Time whole processes: an easy problem, a hard one, a hard one on a new machine."""
    code = (
        "from tests.benchmarks.packing_instances import {f};"
        "from memplan_cli.packing import portfolio;"
        "assert portfolio({f}({n}, {seed})).proved"
    )
    yield "Whole processes:\n"
    rows: list[list[object]] = []
    with tempfile.TemporaryDirectory() as cache:
        for what, family, count, env in (
            ("500 buffers, easy", "skips", 500, {}),
            ("150 buffers, hard", "square", 150, {}),
            (
                "150 buffers, hard, nothing compiled yet",
                "square",
                150,
                {"NUMBA_CACHE_DIR": cache},
            ),
        ):
            started, used = time.perf_counter(), _children()
            text = code.format(f=family, n=count, seed=HARD)
            command = [sys.executable, "-c", text]
            subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, **env})
            wall, used = time.perf_counter() - started, _children() - used
            rows.append([what, f"{used:.2f}", f"{wall:.2f}"])
    yield from table(("process", "processor seconds", "wall seconds"), rows)


def _children() -> float:
    times = os.times()
    return times.children_user + times.children_system


def models() -> Iterator[str]:
    """Yield the rows of real models that have an arena above its bound, and how many have none."""
    head, rule, *rows = model_table()
    above = [line for line, at_bound in rows if not at_bound]
    yield f"Real models: {len(rows) - len(above)} of {len(rows)} rows are at their bound.\n"
    yield from (head[0], rule[0], *above) if above else ()
    yield ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instances", type=Path, default=SHARED)
    parser.add_argument("--models", action="store_true")
    parser.add_argument("--no-table", action="store_true")
    options = parser.parse_args()
    portfolio(square(150, HARD))  # loads the search
    lines = [
        *instances(options.instances),
        *small(),
        *large(),
        *cold(),
        *(models() if options.models else ()),
    ]
    text = "\n".join(lines)
    print(text)
    if not options.no_table:
        replace_figures(TABLE, text)


if __name__ == "__main__":
    main()
