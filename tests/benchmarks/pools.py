"""Slots of level 1 on every model: two heuristics, the portfolio and the lower bound.

    python -m tests.benchmarks.pools [--only TEXT] [--no-table]

Models are the samples and those of ../shared/models, in the order of their file; nothing is
run. Every tensor that a plan of level 0 places is a buffer. Baselines are written here, apart
from the package:

- matching by first use: each buffer takes the tightest slot that is free and no smaller; or
  level 0's slots, if they take less (level 1 of memplan until 2026-11);
- largest first: the largest buffer opens each slot, others join the first that is free;
- best fit by lifetime: the longest-lived first, each into the free slot nearest in size.

Large problems are random: buffers as many as ticks, of lifetimes up to a limit.
"""

from __future__ import annotations

import math
import random
import time
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan_cli import plan
from memplan_cli.core.problem import Buffer, BufferId, LiveRange, Problem, slot_violations
from memplan_cli.packing.pools.bound import slot_bound
from memplan_cli.packing.pools.pool import KINDS, pool_levels
from memplan_cli.settings.settings import Settings

from .cases import asked, publish, run_all
from .models import ROOT, SHARED, bindings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

PAGE = ROOT / "docs" / "measurements" / "levels.md"

LARGE = {
    "65,000 buffers, 20 sizes, up to 50 ticks": (65_000, 20, 50),
    "65,000 buffers, all sizes, up to 2,000 ticks": (65_000, 1 << 20, 2_000),
    "100,000 buffers, 20 sizes, up to 50 ticks": (100_000, 20, 50),
    "100,000 buffers, all sizes, up to 50 ticks": (100_000, 1 << 20, 50),
    "100,000 buffers, all sizes, up to 2,000 ticks": (100_000, 1 << 20, 2_000),
    "100,000 buffers, all sizes, up to 100,000 ticks": (100_000, 1 << 20, 100_000),
}
"""Buffers, different sizes, and the longest lifetime."""


@dataclass(frozen=True)
class Row:
    """Bytes of one model's slots, and processor seconds of the portfolio."""

    buffers: int
    level0: int
    matching: int
    largest_first: int
    by_lifetime: int
    portfolio: int
    bound: int
    seconds: float

    def fault(self) -> str:
        """Say what this row breaks, if anything."""
        others = self.level0, self.matching, self.largest_first, self.by_lifetime
        if self.portfolio > min(others):
            return "worse than a baseline"
        return "below the bound" if self.portfolio < self.bound else ""


def problems(model: Path) -> list[Problem]:
    """Return the buffers of a model by unit, in the order of its file."""
    dims = dict(word.split("=") for word in bindings(model))
    numbers = {name: int(value) for name, value in dims.items()}
    made = plan(model, Settings(level=0, order="keep", time_limit=0.01, dims=numbers))
    units: dict[int, list[Buffer]] = {}
    for tensor in made.tensors:
        live = LiveRange(tensor.first, tensor.last)
        buffer = Buffer(BufferId(tensor.id), tensor.bytes, live, tensor.dtype, tensor.shape)
        units.setdefault(tensor.arena, []).append(buffer)
    return [Problem(tuple(buffers)) for buffers in units.values()]


def measure(found: list[Problem]) -> Row:
    """Assign the slots of a model's problems by every method."""
    total = [0] * 7
    seconds = 0.0
    for problem in found:
        started = time.process_time()
        low, middle = pool_levels(problem)
        seconds += time.process_time() - started
        height = middle.height(1)
        assert slot_violations(problem, middle.births, middle.slots, height) == ()
        first_use = tightest_by_first_use(problem)
        simple = [largest_first(problem), best_fit_by_lifetime(problem)]
        row = [
            len(problem.buffers),
            low.height(1),
            min(first_use, low.height(1)),
            *simple,
            height,
            slot_bound(problem, KINDS[1]),
        ]
        total = [a + b for a, b in zip(total, row, strict=True)]
    return Row(*total, seconds=seconds)  # type: ignore[misc]


def tightest_by_first_use(problem: Problem) -> int:
    """Return the bytes of a matching in order of first use."""
    slots: list[tuple[Buffer, int]] = []
    for buffer in sorted(problem.buffers, key=lambda b: (b.live.start, b.id)):
        free = [
            (first.size, at)
            for at, (first, end) in enumerate(slots)
            if end <= buffer.live.start
            and first.dtype == buffer.dtype
            and first.size >= buffer.size
        ]
        if free:
            at = min(free)[1]
            slots[at] = slots[at][0], buffer.live.end
        else:
            slots.append((buffer, buffer.live.end))
    return sum(first.size for first, _ in slots)


class Slot:
    """One slot: its dtype, its size, and when it is taken."""

    def __init__(self, buffer: Buffer) -> None:
        self.dtype, self.size = buffer.dtype, buffer.size
        self.starts, self.ends = [buffer.live.start], [buffer.live.end]

    def is_free(self, buffer: Buffer) -> bool:
        at = bisect_left(self.ends, buffer.live.start + 1)
        later = at == len(self.starts) or self.starts[at] >= buffer.live.end
        return later and self.dtype == buffer.dtype

    def take(self, buffer: Buffer) -> None:
        at = bisect_left(self.starts, buffer.live.start)
        self.starts.insert(at, buffer.live.start)
        self.ends.insert(at, buffer.live.end)
        self.size = max(self.size, buffer.size)


def largest_first(problem: Problem) -> int:
    """Return the bytes of first fit by falling size."""
    slots: list[Slot] = []
    for buffer in sorted(problem.buffers, key=lambda b: (-b.size, b.live.start, b.id)):
        slot = next((slot for slot in slots if slot.is_free(buffer)), None)
        if slot:
            slot.take(buffer)
        else:
            slots.append(Slot(buffer))
    return sum(slot.size for slot in slots)


def best_fit_by_lifetime(problem: Problem) -> int:
    """Return the bytes of best fit by falling lifetime."""
    slots: list[Slot] = []
    for buffer in sorted(
        problem.buffers, key=lambda b: (b.live.start - b.live.end, -b.size, b.id)
    ):
        size = buffer.size
        free = [slot for slot in slots if slot.is_free(buffer)]
        best = min(
            free, key=lambda s: (max(size - s.size, 0), abs(size - s.size)), default=None
        )
        if best:
            best.take(buffer)
        else:
            slots.append(Slot(buffer))
    return sum(slot.size for slot in slots)


def drawn(count: int, sizes: int, longest: int) -> Problem:
    """Draw a random problem; the same one every time."""
    draw = random.Random(count)
    known = [draw.randrange(1, 1 << 20) for _ in range(min(sizes, count))]
    buffers = []
    for index in range(count):
        start = draw.randrange(count)
        live = LiveRange(start, start + 1 + draw.randrange(longest))
        buffers.append(Buffer(BufferId(f"b{index:06}"), draw.choice(known), live, "int8"))
    return Problem(tuple(buffers))


def large_rows() -> Iterator[str]:
    """Yield the table of large random problems."""
    yield "| problem | live together | portfolio / bound | seconds | of them the bound |"
    yield "| --- | --- | --- | --- | --- |"
    for name, (count, sizes, longest) in LARGE.items():
        problem = drawn(count, sizes, longest)
        times = [time.process_time()]
        bound = slot_bound(problem, KINDS[1])
        times.append(time.process_time())
        height = pool_levels(problem)[1].height(1)
        times.append(time.process_time())
        twins = tuple(buffer._replace(size=1) for buffer in problem.buffers)
        together = slot_bound(Problem(twins), KINDS[1])
        seconds = f"{times[2] - times[1]:.1f} | {times[1] - times[0]:.1f}"
        yield f"| {name} | {together:,} | {height / bound:.4f} | {seconds} |"


COLUMNS: Mapping[str, Callable[[Row], int]] = {
    "matching by first use": lambda row: row.matching,
    "largest first": lambda row: row.largest_first,
    "best fit by lifetime": lambda row: row.by_lifetime,
    "portfolio": lambda row: row.portfolio,
}


def page(rows: Mapping[str, Row]) -> Iterator[str]:
    """Yield the page's lines."""
    yield "# Levels 0 and 1"
    yield ""
    yield "Made by `python -m tests.benchmarks.pools`: bytes of slots, order of the file."
    yield "*Bound* is the lower bound of slots; other columns of level 1 are over it. Level 0"
    yield "is at its own bound on every model. Seconds are processor time of both levels."
    yield ""
    yield "| model | buffers | level 0 | bound of level 1 | " + " | ".join(COLUMNS) + " | s |"
    yield "| --- | --- | --- | --- |" + " --- |" * (len(COLUMNS) + 1)
    for name, row in rows.items():
        cells = [f"{get(row) / row.bound:.4f}" for get in COLUMNS.values()]
        start = f"| {name} | {row.buffers} | {row.level0} | {row.bound} | "
        yield start + " | ".join(cells) + f" | {row.seconds:.2f} |{row.fault()}"
    means = {
        name: math.exp(sum(math.log(get(r) / r.bound) for r in rows.values()) / len(rows))
        for name, get in COLUMNS.items()
    }
    yield "| geometric mean | | | | " + " | ".join(f"{m:.4f}" for m in means.values()) + " | |"
    yield ""
    at_bound = sum(row.portfolio == row.bound for row in rows.values())
    better = sum(row.portfolio < row.matching for row in rows.values())
    yield f"The portfolio is at the bound on {at_bound} of {len(rows)} models, takes less than"
    yield f"the matching by first use on {better} and more than a baseline on none; over the"
    yield f"matching, its geometric mean is {means['portfolio'] / means[next(iter(means))]:.3f}."
    yield ""
    yield "## Large random problems"
    yield ""
    yield from large_rows()


def main() -> None:
    """Measure what is asked for, and write the page if that is all."""
    words = asked(__doc__)
    paths = sorted((ROOT / "sample_models").glob("*.onnx")) + sorted(SHARED.glob("*.onnx"))
    cases = {path.stem: path for path in paths}
    rows = run_all(cases, lambda path: measure(problems(path)), words)
    publish(page(rows), PAGE, words)
    worst = [name for name, row in rows.items() if row.fault()]
    raise SystemExit(f"faults: {', '.join(worst)}" if worst else 0)


if __name__ == "__main__":
    main()
