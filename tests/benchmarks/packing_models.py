"""Every arena of every real model, in the order of its file and in the one that is found.

    python -m tests.benchmarks.packing_models [--only TEXT]

Models are those of `zoo`: the samples, the onnx package's `light_*` and those of
../shared/models. Each is planned at level 2 with `--order keep` and `auto`, as `memplan
optimize --no-validate` does it, and every arena that is packed on the way is noted: also that
of the file's own order, which `auto` reports beside its own. Prints a table; exit code 1 if
an arena is above its bound.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

from memplan_cli.allocators import portfolio
from memplan_cli.cli import main as memplan
from memplan_cli.problem import Layout, Problem, lower_bound, violations

from .zoo import LIGHT, ROOT, SHARED, bindings

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class Arena:
    """One arena: buffers, bytes, whether the height is proved, processor seconds."""

    buffers: int
    bound: int
    height: int
    proved: bool
    seconds: float


def models() -> list[Path]:
    folders = (ROOT / "sample_models", LIGHT, SHARED)
    return [path for folder in folders for path in sorted(folder.glob("*.onnx"))]


def arenas(model: Path, order: str) -> list[Arena]:
    """Plan a model; return the arenas that were packed for it."""
    packed: list[Arena] = []

    def noting(problem: Problem, *, time_limit: float | None = None, pools: bool) -> Layout:
        started = time.process_time()
        layout = portfolio(problem, time_limit=time_limit, pools=pools)
        seconds = time.process_time() - started
        assert violations(problem, layout) == ()
        bound = lower_bound(problem)
        packed.append(
            Arena(len(problem.buffers), bound, layout.height, layout.proved, seconds)
        )
        return layout

    dims = [word for dim in bindings(model) for word in ("--dim", dim)]
    with (
        tempfile.TemporaryDirectory() as folder,
        patch("memplan_cli.placing.portfolio", noting),
        redirect_stdout(StringIO()),
    ):
        options = ["--no-validate", "--quiet", "--order", order, *dims]
        out = str(Path(folder) / model.name)
        memplan(["optimize", str(model), "-o", out, *options], standalone_mode=False)
    return packed


def row(model: Path, order: str) -> tuple[str, bool]:
    """Return a line of the table, and whether all arenas are at their bound."""
    found = arenas(model, order)
    worst = max(found, key=lambda a: a.height / max(1, a.bound))
    at_bound = all(arena.height == arena.bound for arena in found)
    proved = "yes" if all(arena.proved for arena in found) else "no"
    ratio = f"{worst.height / max(1, worst.bound):.7f}".rstrip("0")
    ratio = f"{ratio:0<6}"
    buffers = max(arena.buffers for arena in found)
    seconds = sum(arena.seconds for arena in found)
    cells = (model.stem, order, len(found), buffers, ratio, proved, f"{seconds:.3f}")
    return "| " + " | ".join(map(str, cells)) + " |", at_bound


def table(only: str = "") -> Iterator[tuple[str, bool]]:
    """Yield the lines of the table, each with whether what it says is at the bound."""
    head = (
        "model",
        "order",
        "arenas packed",
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
