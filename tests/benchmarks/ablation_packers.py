"""Each packer off in turn: what is lost in height, and what is gained or lost in seconds.

A variant is a process of its own, in which a function of the package was replaced before it is
used; compiled loops are replaced before those that call them are imported, and compiled into a
cache of their own.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from memplan_cli.core.problem import lower_bound, violations
from memplan_cli.packing.lowering import cheapest
from memplan_cli.packing.pieces import layout_of

from .ablation_modules import lines, module, put, replace
from .models import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from memplan_cli.core.problem import Problem

    from .ablation_problems import Named

TIMEOUT = 1800

WORK = 300_000_000
"""Units of work for each problem, a fifth of the default: some two seconds."""


def _same(_self: object, best: object, *_rest: object) -> object:
    return best


def _nothing(*_all: object) -> None:
    return None


def _no(*_all: object) -> bool:
    return False


def _without_reconstruction() -> None:
    put("lowering", "_reconstructed", lambda _piece, best, *_rest: best)


def _without_holes() -> None:
    put("series_parallel", "holes", lambda _piece: [])
    put("series_parallel", "matched_anew", lambda given, _chance: list(given))


def _without_wheels() -> None:
    put("series_parallel", "Reconstruction._turn", _nothing)


def _without_reopening() -> None:
    put("series_parallel", "_PATIENCE", 0)


def _without_searched_blocks() -> None:
    put("lowering", "_searched_blocks", lambda piece, goal, *_rest: cheapest(piece, goal))


def _without_ejection_chains() -> None:
    put("lowering", "Lowering._repaired", _same)
    put("bottleneck", "settled", _same)


def _without_repair_around_subsets() -> None:
    put("bottleneck", "_REPAIRED", -1)


def _without_undone_chains() -> None:
    put("ejection_chain", "_PATIENCE", 1 << 60)


def _without_stack() -> None:
    put("ejection_chain", "_stacked", _same)


def _without_interval_index() -> None:
    """Ask every buffer whether it overlaps one, in place of an index by time."""
    home = module("interval_index")
    near_at, work = home.NEAR, home.WORK

    def find_overlaps(intervals, buffer):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        begin, stop = intervals.start[buffer], intervals.end[buffer]
        near = 0
        for other in range(len(intervals.start)):
            floor = intervals.offset[other]
            if intervals.start[other] < stop and intervals.end[other] > begin and floor >= 0:
                intervals.overlaps[near] = other
                intervals.floor[near] = floor
                intervals.top[near] = floor + intervals.size[other]
                near += 1
        intervals.registers[near_at] = near
        intervals.registers[work] -= len(intervals.start)
        return int(near)

    _recompile("find_overlaps", find_overlaps)


def _without_slot_sort() -> None:
    """Sort as numpy does, in place of slots."""
    import numpy as np

    home = module("interval_index")
    near_at, work = home.NEAR, home.WORK

    def sort(intervals, keys, order, capacity):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202, ARG001
        near = intervals.registers[near_at]
        order[:near] = np.argsort(keys[:near])
        intervals.registers[work] -= 3 * near

    _recompile("sort", sort)


def _recompile(name: str, function: Callable[..., object]) -> None:
    """Replace a compiled loop of the index before those that call it are compiled."""
    replace("interval_index", name, module("compiled").compiled(function))


def _without_fill() -> None:
    put("bottleneck", "_ORDERS", ())


def _without_bottleneck_subsets() -> None:
    put("lowering", "Lowering._has_bottleneck", _no)


def _without_search() -> None:
    put("lowering", "Lowering._is_searchable", _no)


def _without_blame() -> None:
    put("exact", "_BLAMING", 1 << 60)


def _without_early_greedy() -> None:
    put("lowering", "QUICK", 0)


def _without_lowering() -> None:
    put(
        "portfolio",
        "_searched",
        lambda reduction, known, *_rest: (layout_of(reduction, known), 0),
    )


@dataclass(frozen=True)
class Variant:
    """What is switched off, how, and the modules that go with it."""

    what: str
    off: Callable[[], None]
    files: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()
    """The sets of problems that it is tried on, where that are not all."""
    compiles: bool = False
    """Whether compiled loops are replaced, which needs a cache of its own."""


FULL = ("instances", "nearly full")

VARIANTS: Mapping[str, Variant] = {
    "all": Variant("nothing", lambda: None),
    "lowering": Variant("`lowering` and all below it", _without_lowering, ("lowering",)),
    "series-parallel": Variant(
        "series-parallel reconstruction", _without_reconstruction,
        ("series_parallel", "composite_blocks"),
    ),
    "holes": Variant("holes guessed from loads", _without_holes, sets=FULL),
    "wheels": Variant("wheels of five blocks", _without_wheels, sets=FULL),
    "reopening": Variant("joints opened again", _without_reopening, sets=FULL),
    "blocks-searched": Variant(
        "search of blocks left over", _without_searched_blocks, sets=FULL
    ),
    "ejection-chains": Variant(
        "ejection chains with repair state and interval index", _without_ejection_chains,
        ("ejection_chain", "repair_state", "interval_index"),
    ),
    "repair-around-subsets": Variant(
        "ejection chains around bottleneck subsets only", _without_repair_around_subsets
    ),
    "undone-chains": Variant("undoing of failed chains", _without_undone_chains),
    "stack": Variant("first fit by size before the chains", _without_stack),
    "interval-index": Variant(
        "interval index", _without_interval_index, ("interval_index",), compiles=True
    ),
    "slot-sort": Variant("slot sort of the index (numpy's)", _without_slot_sort, compiles=True),
    "fill": Variant("first fit around bottleneck subsets", _without_fill),
    "bottleneck-subsets": Variant(
        "bottleneck subsets", _without_bottleneck_subsets, ("bottleneck",)
    ),
    "search": Variant(
        "exact search of whole pieces", _without_search,
        ("board", "valleys", "depth_first", "exact"),
    ),
    "blame": Variant("blame in the exact search", _without_blame),
    "early-greedy": Variant("greedy strategies up to 300 buffers", _without_early_greedy),
}  # fmt: skip
"""By name; the first is what the others are compared with."""


@dataclass(frozen=True)
class Result:
    """One problem packed by one variant."""

    ratio: float
    proved: bool
    seconds: float


def measured(name: str, problems: str | Path) -> None:
    """Print the results of a variant on problems in a file, as JSON; in a process of its own."""
    VARIANTS[name].off()
    sets: Mapping[str, Sequence[Named]] = pickle.loads(Path(problems).read_bytes())  # noqa: S301
    pack = module("portfolio").portfolio
    _load(pack)
    for group in VARIANTS[name].sets or sets:
        named = sets[group]
        for problem_name, problem in named:
            print(json.dumps([group, problem_name, *_packed(pack, problem)]), flush=True)


def _load(pack: Callable[..., Any]) -> None:
    """Load or compile all loops, which is not what is measured."""
    from .packing_instances import crowded, square

    for problem in (square(150, 2), crowded(200, 1)):
        pack(problem, work=30_000_000)


def _packed(pack: Callable[..., Any], problem: Problem) -> tuple[float, bool, float]:
    started = time.process_time()
    layout = pack(problem, work=WORK)
    seconds = time.process_time() - started
    assert violations(problem, layout) == ()
    return layout.height / lower_bound(problem), layout.proved, seconds


Results = dict[tuple[str, str], Result]


def run(name: str, problems: Path) -> Results:
    """Measure a variant in a process of its own."""
    script = (
        "from tests.benchmarks.ablation_packers import *;"
        f"measured({name!r}, {str(problems)!r})"
    )
    with tempfile.TemporaryDirectory() as cache:
        own = {"NUMBA_CACHE_DIR": cache}
        done = subprocess.run(
            [sys.executable, "-c", script],
            cwd=ROOT,
            env={**os.environ, **own} if VARIANTS[name].compiles else None,
            stdout=subprocess.PIPE,
            check=True,
            timeout=TIMEOUT,
        )
    found: Results = {}
    for line in done.stdout.decode().splitlines():
        group, problem, ratio, proved, seconds = json.loads(line)
        found[group, problem] = Result(ratio, proved, seconds)
    return found


HEAD = (
    "off", "lines", "set", "at the bound", "lost from it", "taller", "lower",
    "worst, before and off", "mean height", "seconds, median of ratios", "seconds, sum",
)  # fmt: skip


def rows(name: str, usual: Results, off: Results) -> list[tuple[str, ...]]:
    """Return a row for each set of problems on which a variant differs from what is usual."""
    variant = VARIANTS[name]
    count = str(lines(*variant.files)) if variant.files else "-"
    found = []
    for group in dict.fromkeys(group for group, _ in usual):
        pairs = [(usual[key], off[key]) for key in usual if key[0] == group and key in off]
        if not pairs:
            continue
        found.append((variant.what, count, group, *_cells(pairs)))
    return found


def _cells(pairs: Sequence[tuple[Result, Result]]) -> tuple[str, ...]:
    at_bound = [(before.ratio == 1.0, after.ratio == 1.0) for before, after in pairs]
    rises = [after.ratio / before.ratio for before, after in pairs]
    worst = max(pairs, key=lambda pair: pair[1].ratio / pair[0].ratio)
    seconds = [max(0.001, a.seconds) / max(0.001, b.seconds) for b, a in pairs]
    sums = [sum(side.seconds for side in column) for column in zip(*pairs, strict=True)]
    return (
        f"{sum(a for _, a in at_bound)} of {len(pairs)}",
        str(sum(before and not after for before, after in at_bound)),
        str(sum(rise > 1 for rise in rises)),
        str(sum(rise < 1 for rise in rises)),
        f"{worst[0].ratio:.4f}, {worst[1].ratio:.4f}",
        f"{exp(sum(map(log, rises)) / len(rises)):.5f}",
        f"{median(seconds):.2f}",
        f"{sums[0]:.1f}, {sums[1]:.1f}",
    )
