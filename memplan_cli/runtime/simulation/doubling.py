"""Regions that double, from a first one that is made so that large tensors fill them.

A request that the next region has no room for doubles that region until it fits. Where the
first region times a power of two is the size of the largest tensor, each of these gets a
region of its own, and the smaller tensors share the small regions: neither leaves holes in
the other's memory.

    one region     |--a--| b |     |--c--|      what is small holds up what is large
    doubling       | b | |--a--| |--c--|        small ones, and a region for each large one
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise, product
from typing import TYPE_CHECKING

from memplan_cli.runtime.simulation.bfc import CHUNK, ArenaRules
from memplan_cli.runtime.simulation.region import ArenaChoice, regions, rounded
from memplan_cli.runtime.simulation.trace import Trace, held_by, held_in_any_turn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

_LARGEST_SIZES = 6
"""Of the distinct sizes asked for, how many a region is made for."""

_HALVINGS = 6
"""How often the first region doubles, at most, until a large tensor fills one."""

_MARGINS = (1.0, 1.005, 1.02, 1.06)
"""Of a region, above the tensor that it is made for: small ones share it when it is idle."""

_DEAD = (1, 4 << 20)
"""Bytes left of a chunk from which it is split."""

_CAPS = 4
"""Of the largest sizes, how many the regions stop doubling at."""

_WORK = 3_000_000
"""Requests simulated to compare candidates at one size: some seconds."""

_ROUNDS = 12
"""Candidates whose bound is looked for."""

_LARGEST = 2**31 - CHUNK
"""``initial_chunk_size_bytes`` is a C int."""


def doubling_for_all(
    traces: Callable[[], Iterable[Trace]], live: int, most: int
) -> ArenaChoice | None:
    """Return regions that double and hold least, whatever the sequence of runs.

    Candidates are compared by the runs that were worst so far. The best of them is held
    against all runs in every state of the arena, and the run that breaks it joins those.

    Args:
        traces: gives the requests of each run, the largest first.
        live: the most bytes that a run has in use at once.
        most: bytes that are too many.
    """
    largest = next(iter(traces()))
    field = _Field.of(largest, live, most)
    found = None
    field.judge(largest)
    for _ in range(_ROUNDS):
        choice = field.best()
        if choice is None:
            break
        held, worst = held_in_any_turn(traces, _rules(choice), field.most)
        field.drop(choice)
        if worst is not None:
            field.judge(worst)
        elif held <= field.most:
            found = ArenaChoice(choice.arena, held)
            field.lower(held)
    return found


@dataclass(slots=True)
class _Field:
    """Candidates, each with the most that the runs looked at make it hold."""

    candidates: list[ArenaChoice]
    most: int
    """What is no better is out."""

    @classmethod
    def of(cls, largest: Trace, live: int, most: int) -> _Field:
        count = max(_WORK // max(len(largest.steps), 1), 1)
        arenas = list(_arenas(largest, live))[:count]
        return cls([ArenaChoice(arena, live) for arena in arenas], most - CHUNK)

    def judge(self, trace: Trace) -> None:
        """Drop what a run makes hold too much."""
        heights = [(one, held_by(trace, _rules(one), 1, self.most)) for one in self.candidates]
        self.candidates = [
            ArenaChoice(one.arena, max(one.held, height))
            for one, height in heights
            if height <= self.most
        ]

    def lower(self, held: int) -> None:
        """Take no candidate that is not a hundredth better than what was found."""
        self.most = held - max(held // 100, CHUNK)
        self.candidates = [one for one in self.candidates if one.held <= self.most]

    def best(self) -> ArenaChoice | None:
        """Return the lowest candidate; the first of several."""
        return min(self.candidates, key=lambda one: one.held, default=None)

    def drop(self, choice: ArenaChoice) -> None:
        self.candidates.remove(choice)


def _rules(choice: ArenaChoice) -> ArenaRules:
    return ArenaRules.from_settings(choice.arena)


def _arenas(largest: Trace, live: int) -> Iterator[dict[str, int | str | bool]]:
    """Yield settings of arenas, each once, those without margins first."""
    sizes = sorted({chunks * CHUNK for chunks, _ in largest.steps if chunks}, reverse=True)
    large = sizes[:_LARGEST_SIZES]
    firsts = _firsts(large, live)
    caps = (2 * live, *large[:_CAPS])
    seen: set[tuple[int, int, int]] = set()
    for margin, halvings in product(_MARGINS, range(_HALVINGS)):
        for whole, cap, dead in product(firsts, caps, _DEAD):
            first, later = rounded(whole * margin / 2**halvings), rounded(cap * margin)
            key = first, later, dead
            if key not in seen and CHUNK < first <= min(live, _LARGEST):
                seen.add(key)
                yield dict(regions(first, min(later, _LARGEST), dead))


def _firsts(large: Sequence[int], live: int) -> list[int]:
    """Return sizes that large tensors fill, or two, or what they leave of all."""
    pairs = (one + other for one, other in pairwise(large))
    rest = (live - size for size in large)
    found = dict.fromkeys((*large, *(2 * size for size in large), *pairs, *rest))
    return [size for size in found if size > CHUNK]
