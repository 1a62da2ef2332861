"""Plan random models with If, Loop and Scan, and try everything there is to try of each.

PYTHONPATH=tests python -m tests.benchmarks.nested [--only SEED] [--no-table]
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from nested.search import MOST_ORDERS, MOST_STORAGES, searched

from .cases import asked, publish, run_all
from .models import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from nested.search import Found

PAGE = ROOT / "docs" / "measurements" / "nested.md"
MODELS = 1000


def search(seed: int) -> Found:
    """Search one model in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        return searched(seed, Path(folder))


def page(found: Mapping[str, Found], seconds: float) -> Iterator[str]:
    """Yield the page's lines."""
    every = found.values()
    wrong = {seed: each for seed, each in found.items() if each.faults}
    yield "# Nested models by brute force"
    yield ""
    yield "Made by `PYTHONPATH=tests python -m tests.benchmarks.nested`, in"
    yield f"{seconds:.0f} seconds, on a machine that others used too."
    yield ""
    yield f"{len(found)} random models with If, Loop and Scan, subgraphs in subgraphs, planned at three"
    yield "levels. Lifetimes, sharing, places, releases and totals are those that the check of"
    yield "`memplan validate` finds in the model alone; it knows no code of the planner's."
    yield ""
    yield "| what was tried | models or plans | wrong |"
    yield "|---|---:|---:|"
    yield f"| plans held against the written model | {sum(e.plans for e in every)} | {len(wrong)} |"
    yield (
        f"| level 1: every order of every block, up to {MOST_ORDERS}, "
        f"{sum(e.orders for e in every)} in all | {sum(e.orders > 0 for e in every)} | "
        f"{sum('bound ' in f or 'peak ' in f for e in every for f in e.faults)} |"
    )
    yield (
        f"| orders said to be proved, among them | {sum(e.proved for e in every)} | "
        f"{sum(f.startswith('proved') for e in every for f in e.faults)} |"
    )
    yield (
        f"| level 2: every packing of up to {MOST_STORAGES} pieces of memory | "
        f"{sum(e.packed for e in every)} | {sum('arena' in f for e in every for f in e.faults)} |"
    )
    yield ""
    yield (
        f"{sum(e.least for e in every)} of {sum(e.packed for e in every)} arenas are no taller "
        "than the least there is."
    )
    for seed, each in wrong.items():
        yield f"- seed {seed}: {each.faults[0]}"


def main() -> None:
    """Search what is asked for, and write the page if that is all."""
    words = asked(__doc__)
    start = time.perf_counter()
    found = run_all({str(seed): seed for seed in range(MODELS)}, search, words)
    publish(page(found, time.perf_counter() - start), PAGE, words)
    wrong = [seed for seed, each in found.items() if each.faults]
    raise SystemExit(f"faults: {', '.join(wrong)}" if wrong else 0)


if __name__ == "__main__":
    main()
