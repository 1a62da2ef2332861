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

from .ablation_modules import MODULES, lines, module
from .zoo import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from memplan_cli.problem import Problem

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


def _without_gluing() -> None:
    module("lowering")._glued = lambda _piece, best, *_rest: best


def _without_holes() -> None:
    module("gluing").holes = lambda _piece: []
    module("gluing").matched_anew = lambda given, _chance: list(given)


def _without_wheels() -> None:
    module("gluing").Gluer._turn = _nothing


def _without_reopening() -> None:
    module("gluing")._PATIENCE = 0


def _without_boxes_searched() -> None:
    module("lowering")._searched_boxes = lambda piece, goal, *_rest: module(
        "lowering"
    ).cheapest(piece, goal)


def _without_ejecting() -> None:
    module("lowering").Lowering._ejected = _same
    module("cores").settled = _same


def _without_settling() -> None:
    module("cores")._REPAIRED = -1


def _without_taking_back() -> None:
    module("ejecting")._PATIENCE = 1 << 60


def _without_stacking() -> None:
    module("ejecting")._stacked = _same


def _without_meeting() -> None:
    """Ask every buffer whether it meets one, in place of an index by time."""
    meeting = module("meeting")
    near, work, nowhere = meeting.NEAR, meeting.WORK, meeting.NOWHERE

    def meet(lives, buffer):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        begin, stop = lives.start[buffer], lives.end[buffer]
        found = 0
        for other in range(len(lives.start)):
            floor = lives.offset[other]
            if lives.start[other] < stop and lives.end[other] > begin and floor > nowhere:
                lives.who[found] = other
                lives.floor[found] = floor
                lives.top[found] = floor + lives.size[other]
                found += 1
        lives.registers[near] = found
        lives.registers[work] -= len(lives.start)
        return int(found)

    meeting.meet = module("compiled").compiled(meet)
    _compile_again("meeting", "stack")


def _without_sorting() -> None:
    """Sort as numpy does, in place of slots."""
    import numpy as np

    meeting = module("meeting")
    near, work = meeting.NEAR, meeting.WORK

    def sort(lives, keys, order, capacity):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202, ARG001
        count = lives.registers[near]
        order[:count] = np.argsort(keys[:count])
        lives.registers[work] -= 3 * count

    meeting.sort = module("compiled").compiled(sort)
    _compile_again("meeting", "stack")


def _compile_again(name: str, *functions: str) -> None:
    """Compile functions that call a replaced one; those of other modules bind it later."""
    assert MODULES["ejecting"] not in sys.modules
    home = module(name)
    for function in functions:
        old = getattr(home, function)
        setattr(home, function, module("compiled").compiled(old.py_func))


def _without_filling() -> None:
    module("cores")._ORDERS = ()


def _without_cores() -> None:
    module("lowering").Lowering._has_cores = _no


def _without_search() -> None:
    module("lowering").Lowering._is_searchable = _no


def _without_blame() -> None:
    module("exact")._BLAMING = 1 << 60


def _without_early_greedy() -> None:
    module("lowering").QUICK = 0


def _without_pairs() -> None:
    module("lowering").is_pairwise = _no


def _without_lowering() -> None:
    module("portfolio")._searched = lambda reduction, known, *_rest: (
        module("pieces").layout_of(reduction, known),
        0,
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
    "gluing": Variant(
        "`gluing` with `boxes` and `holes`", _without_gluing, ("gluing", "boxes", "holes")
    ),
    "holes": Variant("`holes`", _without_holes, ("holes",), FULL),
    "wheels": Variant("wheels in `boxes` and `gluing`", _without_wheels, sets=FULL),
    "reopening": Variant("opening joints again in `gluing`", _without_reopening, sets=FULL),
    "boxes-searched": Variant("search of boxes left over", _without_boxes_searched, sets=FULL),
    "ejecting": Variant(
        "`ejecting` with `crowd` and `meeting`",
        _without_ejecting,
        ("ejecting", "crowd", "meeting"),
    ),
    "settling": Variant("`ejecting` around cores only", _without_settling),
    "taking-back": Variant("chains taken back in `crowd`", _without_taking_back),
    "stacking": Variant("first fit by size in `meeting`", _without_stacking),
    "meeting": Variant("index by time of `meeting`", _without_meeting, ("meeting",), compiles=True),
    "sorting": Variant("slot sort of `meeting` (numpy's)", _without_sorting, compiles=True),
    "filling": Variant("`filling`", _without_filling, ("filling",)),
    "cores": Variant("`cores` with `filling`", _without_cores, ("cores", "filling")),
    "search": Variant(
        "exact search of whole pieces", _without_search,
        ("board", "valleys", "search", "exact"),
    ),
    "blame": Variant("blame in the exact search", _without_blame),
    "early-greedy": Variant("greedy strategies up to 300 buffers", _without_early_greedy),
    "pairs": Variant("`pair`", _without_pairs, ("pair",)),
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
    from memplan_cli.problem import lower_bound, violations

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
