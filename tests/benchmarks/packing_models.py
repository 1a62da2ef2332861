"""Every arena of every real model, in the order of its file and in the one that is found.

    python -m tests.benchmarks.packing_models [--only TEXT]

Models are those of `zoo`: the samples, the onnx package's `light_*` and those of
../shared/models. Each is planned at level 2 with `--order keep` and `auto`, as `memplan
optimize --no-validate` does it: heights are those of the plan, seconds those of all tries, also
in the file's order, which `auto` reports beside its own. Prints a table; exit code 1 if an arena is
above its bound.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

from memplan_cli.cli import main as memplan
from memplan_cli.core.problem import Layout, Problem, violations
from memplan_cli.packing import portfolio

from .models import LIGHT, ROOT, SHARED, bindings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memplan_cli.core.progress import Progress


@dataclass(frozen=True)
class Arena:
    """One arena of a plan, in bytes."""

    bound: int
    height: int


@dataclass(frozen=True)
class Packed:
    """A model's plan: its arenas, and buffers and processor seconds of each try to pack one."""

    arenas: tuple[Arena, ...]
    buffers: tuple[int, ...]
    seconds: tuple[float, ...]


def models() -> list[Path]:
    folders = (ROOT / "sample_models", LIGHT, SHARED)
    return [path for folder in folders for path in sorted(folder.glob("*.onnx"))]


def packed(model: Path, order: str) -> Packed:
    """Plan a model; return the arenas of its plan, and what packing took."""
    buffers: list[int] = []
    seconds: list[float] = []

    def noting(
        problem: Problem, *, work: int, time_limit: float | None, progress: Progress
    ) -> Layout:
        started = time.process_time()
        layout = portfolio(problem, work=work, time_limit=time_limit, progress=progress)
        seconds.append(time.process_time() - started)
        buffers.append(len(problem.buffers))
        assert violations(problem, layout) == ()
        return layout

    dims = [word for dim in bindings(model) for word in ("--dim", dim)]
    with (
        tempfile.TemporaryDirectory() as folder,
        patch("memplan_cli.planning.allocation.portfolio", noting),
        redirect_stdout(StringIO()),
    ):
        options = ["--no-validate", "--quiet", "--order", order, *dims]
        out = Path(folder) / model.name
        memplan(["optimize", str(model), "-o", str(out), *options], standalone_mode=False)
        written = json.loads(out.with_suffix(".json").read_text())["arenas"]
    arenas = tuple(Arena(arena["lower_bound"], arena["height"]) for arena in written)
    return Packed(arenas, tuple(buffers), tuple(seconds))


def row(model: Path, order: str) -> tuple[str, bool]:
    """Return a line of the table, and whether all arenas are at their bound."""
    found = packed(model, order)
    worst = max(arena.height / max(1, arena.bound) for arena in found.arenas)
    at_bound = all(arena.height == arena.bound for arena in found.arenas)
    proved = "yes" if at_bound else "no"
    ratio = f"{worst:.7f}".rstrip("0")
    ratio = f"{ratio:0<6}"
    buffers, seconds = max(found.buffers), f"{sum(found.seconds):.3f}"
    cells = (model.stem, order, len(found.seconds), buffers, ratio, proved, seconds)
    return "| " + " | ".join(map(str, cells)) + " |", at_bound


def table(only: str = "") -> Iterator[tuple[str, bool]]:
    """Yield the lines of the table, each with whether what it says is at the bound."""
    head = (
        "model",
        "order",
        "tries",
        "buffers",
        "height / bound",
        "proved",
        "seconds",
    )
    yield "| " + " | ".join(head) + " |", True
    yield "|" + " --- |" * len(head), True
    for model in models():
        if only in model.stem:
            for order in ("keep", "auto"):
                yield row(model, order)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="models with this text in their name")
    above = 0
    for line, at_bound in table(parser.parse_args().only):
        print(line, flush=True)
        above += not at_bound
    print(f"\n{above} rows with an arena above its bound.")
    return 1 if above else 0


if __name__ == "__main__":
    raise SystemExit(main())
