"""Searches give the same answer: heights, orders, copies and pieces, and the work.

`pytest tests/golden --update-golden` writes the answers again. A row that changes is no
error of its own, but a plan of somebody's changes with it: the diff says for better or worse.
Rows are what a reader can judge: bytes, bounds, counts, work, and the order by its nodes.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.packing_instances import mosaic, square
from builders import var_sizes
from memplan_cli.analysis.phase import Phases
from memplan_cli.analysis.storage import live_peak
from memplan_cli.core.problem import Buffer, BufferId, LiveRange, Problem, lower_bound
from memplan_cli.packing import ALLOCATORS
from memplan_cli.packing.bottleneck import lowered_by_subsets
from memplan_cli.packing.budget import Budget
from memplan_cli.packing.pieces import reduce
from memplan_cli.packing.reconstruction.series_parallel import Reconstruction
from memplan_cli.packing.repair.ejection_chain import lowered
from memplan_cli.packing.search.exact import Searcher, shrink
from memplan_cli.transforms.chunking.axes.table import RULES, splits
from memplan_cli.transforms.ordering.order import best_order
from memplan_cli.transforms.rematerialization.auto import auto
from packing_problems import heaviest, start_of
from programs import random_program
from transforms.chunk_models import convolutions, transformer, two_readers
from transforms.recompute_programs import terms
from transforms.test_chunk_axes import drawn
from transforms.test_chunk_search import searched
from transforms.test_recompute_properties import some_program

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from memplan_cli.core.program import Op, Program
    from memplan_cli.transforms.chunking.axes.terms import Part, Split

STORED = Path(__file__).parent / "searches.json"


Row = dict[str, object]


def offsets(found: Iterable[int]) -> str:
    """Return how many places are taken, and the sum of them: whatever moves changes one."""
    places = list(found)
    return f"{len(set(places))} offsets, in sum {sum(places)}"


def crowd(count: int, seed: int, *, alignment: int = 1) -> Problem:
    """Return random buffers, short and long ones, that leave some bytes free."""
    draw = random.Random(seed)
    buffers = []
    for at in range(count):
        start = draw.randrange(2 * count)
        length = draw.choice((1, 2, 3, draw.randint(1, count)))
        size = draw.choice((1, 4, 7, draw.randint(1, 60), 64 * draw.randint(1, 9)))
        dtype, shape = draw.choice((("float32", (size,)), ("int8", (2, size))))
        span = LiveRange(start, start + length)
        buffers.append(Buffer(BufferId(f"b{at}"), size, span, dtype, shape))
    return Problem(tuple(buffers), alignment)


PROBLEMS: dict[str, Problem] = {
    **{f"crowd-{count}-{seed}": crowd(count, seed) for count, seed in
       ((5, 1), (8, 2), (12, 3), (20, 4), (40, 5), (90, 6), (90, 7), (250, 8))},
    "crowd-aligned": crowd(30, 9, alignment=64),
    "square": square(80, 0),
    "square-large": square(300, 1),
    "mosaic": mosaic(60, 0),
    "mosaic-large": mosaic(200, 1),
}  # fmt: skip


def placed(name: str) -> Row:
    """Return the height that each allocator reaches, and where it puts things in sum."""
    problem = PROBLEMS[name]
    rows: Row = {"lower bound": lower_bound(problem)}
    for kind, allocate in ALLOCATORS.items():
        found = allocate(problem)
        rows[kind] = f"height {found.height}, {offsets(found.offsets.values())}"
    return rows


def parts_of(name: str) -> Row:
    """Return what each way to lower a placement finds by itself, and its work."""
    piece = heaviest(PROBLEMS[name])
    start = start_of(piece)
    rows: Row = {}
    for kind, lower in (
        ("ejection chain", lowered),
        ("subsets", lowered_by_subsets),
        ("search", lambda p, best, budget: shrink(Searcher(p), best, budget)),
    ):
        budget = Budget(20_000_000)
        found = lower(piece, start, budget)
        places = found.placement
        rows[kind] = (
            f"height {found.height}, bound {found.bound}, work {budget.spent}, "
            + offsets(places.values() if isinstance(places, dict) else places)
        )
    budget = Budget(100_000_000)
    again = Reconstruction(piece)
    again.run(budget)
    rows["reconstruction"] = f"{len(again.blocks.roots)} roots, work {budget.spent}"
    reduced = reduce(PROBLEMS[name])
    rows["pieces"] = [
        f"{len(each.ids)} buffers, load {each.load} of {reduced.unit}, {len(each.loads)} sections"
        for each in reduced.pieces
    ]
    return rows


def every(ops: Iterable[Op]) -> Iterator[Op]:
    """Yield ops, each before those of its subgraphs."""
    for op in ops:
        yield op
        for body in op.bodies:
            yield from every(body.ops)


def places(program: Program, found: Program) -> str:
    """Return an order by the places that its ops have in another program, copies with a mark."""
    at = {op.outputs: str(index) for index, op in enumerate(every(program.body.ops))}
    return " ".join(at.get(op.outputs, f"{op.type}'") for op in every(found.body.ops))


def ordered(seed: int) -> Row:
    """Return the order of a random program, its bound and what was tried."""
    made = random_program(seed)
    sizes = var_sizes(made)
    found = best_order(made, sizes, work=2_000_000)
    return {
        "peak": live_peak(found.program, sizes),
        "bound": found.bound,
        "proved": found.proved,
        "chosen": found.chosen,
        "tried": dict(found.candidates),
        "order": places(made, found.program),
    }


def recomputed(seed: int) -> Row:
    """Return the copies for some budgets of a random program."""
    made = some_program(seed, 30)
    plan = terms(made)
    peak = live_peak(made, plan.sizes)
    rows: Row = {"peak": peak}
    for share in (None, 0.9, 0.7, 0.5):
        found = auto(made, plan, Phases(), None if share is None else int(peak * share))
        rows["the knee" if share is None else f"{share} of it"] = {
            "met": found.met,
            "peak": found.chosen.peak,
            "copies": len(found.copies),
            "points of the curve": len(found.curve),
            "order": places(made, found.program),
        }
    return rows


def cut(make: Callable[[], Any], shares: Iterable[float]) -> Row:
    """Return the regions that are computed in pieces."""
    rows: Row = {}
    for share in shares:
        found = searched(make(), share)
        rows[f"{share} of the peak"] = {
            "peak": f"{found.before} -> {found.peak}, bound {found.bound.bytes}",
            "regions": [
                f"ops {min(each.region.splits)} to {max(each.region.splits)} of"
                f" {len(each.region.splits)}, {len(each.region.copied)} copied,"
                f" in {each.count} pieces"
                for each in found.choices
            ],
            "work added": f"{found.extra:.9f}",
            "ops": len(found.chunked.program.body.ops),
        }
    return rows


def split(kind: str) -> list[object]:
    """Return the axes along which an operator may be cut, for some shapes and attributes."""
    rows: list[object] = []
    for seed in range(4):
        _, node = drawn(kind, seed)
        rows.append([_cut_of(each) for each in splits(node)])
    return rows


def _cut_of(split: Split) -> str:
    reads, makes = (
        " ".join("-" if part is None else _axis(part) for part in each)
        for each in (split.inputs, split.outputs)
    )
    return f"{split.extent} {split.role.value}: {reads} -> {makes}"


def _axis(part: Part) -> str:
    """Return an axis, with how a range of it is scaled and how far it reaches, if it does."""
    reach = f"*{part.scale}-{part.before}+{part.after}"
    return f"{part.axis}" if reach == "*1-0+0" else f"{part.axis}{reach}"


SEARCHES: dict[str, Callable[[], object]] = {
    **{f"placed {name}": lambda name=name: placed(name) for name in PROBLEMS},  # type: ignore[misc]
    **{f"parts {name}": lambda name=name: parts_of(name) for name in PROBLEMS},  # type: ignore[misc]
    **{f"ordered {seed}": lambda seed=seed: ordered(seed) for seed in range(12)},  # type: ignore[misc]
    **{f"recomputed {seed}": lambda seed=seed: recomputed(seed) for seed in range(8)},  # type: ignore[misc]
    **{f"splits {kind}": lambda kind=kind: split(kind) for kind in sorted(RULES)},  # type: ignore[misc]
    "cut transformer": lambda: cut(lambda: transformer(layers=2), (0.9, 0.6, 0.3)),
    "cut convolutions": lambda: cut(convolutions, (0.9, 0.5, 0.3)),
    "cut two readers": lambda: cut(two_readers, (0.8, 0.5)),
}


@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_gives_the_answer_in_the_repository(
    name: str, *, update_golden: bool
) -> None:
    found = json.loads(json.dumps(SEARCHES[name]()))
    stored = json.loads(STORED.read_text()) if STORED.exists() else {}
    if update_golden:
        stored[name] = found
        rows = {key: stored[key] for key in SEARCHES if key in stored}
        STORED.write_text(json.dumps(rows, indent=1) + "\n")
    assert found == stored[name], "pytest tests/golden --update-golden"
