"""What an arena holds after a run: `bfc.Arena`, as one loop over plain numbers.

A search for the best arena simulates some hundred of them on the same requests, and most
hold too much long before the run is over: such a simulation ends at once.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from memplan_cli.runtime.simulation.bfc import CHUNK, ArenaRules

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ENDLESS = sys.maxsize
"""Bytes that no arena holds."""

After = Literal["keep", "shrink"]
"""What becomes of an arena's empty regions when a run is over."""

KEEP: After = "keep"
SHRINK: After = "shrink"

Places = tuple[int, ...]
"""Where the system puts the first regions, by rank; those behind them lie above all others."""

IN_TURN: Places = ()

_BITS = 40
"""Of a free chunk's key for its place; the size stands before it, both in chunks."""

_TALLEST = 1 << 50
"""Bytes of a region that stands for one without an end."""

_PLACE = (1 << _BITS) - 1

_FAR = 36
"""Bits of the chunks that a region has at most, where regions have places: 16 TiB."""


@dataclass(frozen=True, slots=True)
class Request:
    """``size`` bytes for ticket ``ticket``; a size of -1 gives the ticket back."""

    ticket: int
    size: int


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests of one run, those of no bytes left out.

    Attributes:
        steps: ``(chunks, slot)``; no chunks give the slot's back.
        slots: how many there are.
    """

    steps: tuple[tuple[int, int], ...]
    slots: int

    @classmethod
    def of(cls, requests: Sequence[Request]) -> Trace:
        """Return the trace of a run's requests."""
        given: dict[int, int] = {}
        steps: list[tuple[int, int]] = []
        slots = 0
        for request in requests:
            if request.size > 0:
                given[request.ticket] = slots
                steps.append((-(-request.size // CHUNK), slots))
                slots += 1
            elif request.size < 0 and request.ticket in given:
                steps.append((0, given.pop(request.ticket)))
        return cls(tuple(steps), slots)


def held_by(trace: Trace, rules: ArenaRules, runs: int = 2, most: int = ENDLESS) -> int:
    """Return what an arena holds after some runs; anything above ``most`` ends the search."""
    return tried(trace, rules, runs, most)[0]


def tried(
    trace: Trace,
    rules: ArenaRules,
    runs: int = 2,
    most: int = ENDLESS,
    places: Places = IN_TURN,
) -> tuple[int, int]:
    """Return the same, and how many requests were looked at, about.

    Of free chunks of one size the one at the lowest address is taken, so it matters where
    regions lie.
    """
    arena, work = _Regions(rules, most // CHUNK, places), 0
    for _ in range(runs):
        done = arena.run(trace)
        work += len(trace.steps) if done else 2 * arena.failed
        if not done or arena.is_settled():
            break
    return arena.held * CHUNK, work


def held_over(traces: Iterable[Trace], rules: ArenaRules, *, after: After = KEEP) -> int:
    """Return the most that an arena holds while it serves runs of different requests.

    Args:
        traces: the requests of each run in turn.
        rules: of the arena.
        after: what it gives back after each run.
    """
    arena, most = _Regions(rules, ENDLESS), 0
    for trace in traces:
        arena.run(trace)
        most = max(most, arena.held)
        if after == SHRINK:
            arena.shrink()
    return most * CHUNK


def held_in_turn(traces: Iterable[Trace], rules: ArenaRules, most: int) -> int:
    """Return what an arena holds after different runs; anything above ``most`` ends them."""
    arena = _Regions(rules, most // CHUNK)
    for trace in traces:
        if not arena.run(trace):
            break
    return arena.held * CHUNK


def height_of(trace: Trace) -> int:
    """Return how high one region gets that has no end, each chunk split where it can be."""
    arena = _Regions(ArenaRules(initial=_TALLEST, max_dead_bytes=1), ENDLESS)
    arena.run(trace)
    return arena.high * CHUNK


class _Regions:
    """The arena between runs; all numbers are chunks of 256 bytes."""

    __slots__ = (
        "after",
        "before",
        "dead",
        "exact",
        "failed",
        "free",
        "growth",
        "held",
        "high",
        "idle",
        "limits",
        "places",
        "sizes",
        "top",
    )

    def __init__(self, rules: ArenaRules, most: int, places: Places = IN_TURN) -> None:
        self.dead = -(-rules.max_dead_bytes // CHUNK)
        self.growth = -(-rules.initial // CHUNK)
        self.limits = most, 0 if rules.exact else max(-(-rules.most // CHUNK), 1)
        self.held = self.top = self.high = self.failed = 0
        self.places = list(places)
        self.free: list[int] = []
        self.idle: set[int] = set()
        self.exact = rules.exact
        self.sizes: dict[int, int] = {}
        self.before: dict[int, int] = {}
        self.after: dict[int, int] = {}

    def is_settled(self) -> bool:
        """Whether another run of the same requests would find what this one found.

        One region that has everything back is what it was when it was taken.
        """
        return len(self.sizes) == len(self.free) == 1

    def run(self, trace: Trace) -> bool:  # noqa: C901 - the innermost loop
        """Run the requests once; return whether the arena holds no more than it may."""
        free, idle, sizes = self.free, self.idle, self.sizes
        before, after, dead = self.before, self.after, self.dead
        given, high = [0] * trace.slots, self.high
        for wanted, slot in trace.steps:
            if wanted:
                index = bisect_left(free, wanted << _BITS)
                if index == len(free):
                    if not self._extend(wanted):
                        self.failed = slot
                        return False
                    index = bisect_left(free, wanted << _BITS)
                key = free.pop(index)
                start, size = key & _PLACE, key >> _BITS
                idle.remove(start)
                rest = size - wanted
                if rest >= dead or size >= 2 * wanted:
                    other, behind = start + wanted, after[start]
                    if behind >= 0:
                        before[behind] = other
                    before[other], after[other], after[start] = start, behind, other
                    sizes[start], sizes[other] = wanted, rest
                    idle.add(other)
                    insort(free, rest << _BITS | other)
                    high = max(high, other)
                given[slot] = start
            else:
                start = given[slot]
                size = sizes[start]
                behind, ahead = after[start], before[start]
                if behind in idle:
                    idle.remove(behind)
                    more = sizes.pop(behind)
                    del free[bisect_left(free, more << _BITS | behind)]
                    size += more
                    behind = after.pop(behind)
                    after[start] = behind
                    if behind >= 0:
                        before[behind] = start
                if ahead in idle:
                    more = sizes.pop(start)
                    size = sizes[ahead] + size
                    del free[bisect_left(free, sizes[ahead] << _BITS | ahead)]
                    after[ahead] = behind
                    if behind >= 0:
                        before[behind] = ahead
                    start = ahead
                else:
                    idle.add(start)
                sizes[start] = size
                insort(free, size << _BITS | start)
        self.high = high
        return True

    def shrink(self) -> None:
        """Give empty regions back; the first of an arena that doubles stays (1.31.1)."""
        for start in sorted(self.idle):
            whole = self.before[start] < 0 and self.after[start] < 0
            if whole and (self.exact or start):
                size = self.sizes.pop(start)
                self.idle.remove(start)
                del self.before[start], self.after[start]
                del self.free[bisect_left(self.free, size << _BITS | start)]
                self.held -= size

    def _extend(self, wanted: int) -> bool:
        most, cap = self.limits
        size = self._power_of_two(wanted, cap) if cap else wanted
        # Chunks of two regions are never neighbours, wherever these begin.
        if self.places:
            start = self.places.pop(0) << _FAR
            self.top = max(self.top, start + size)
        else:
            start = self.top
            self.top += size
        self.held += size
        if self.held > most:
            return False
        self.sizes[start], self.before[start], self.after[start] = size, -1, -1
        self.idle.add(start)
        insort(self.free, size << _BITS | start)
        return True

    def _power_of_two(self, wanted: int, cap: int) -> int:
        grown = wanted > self.growth
        while wanted > self.growth:
            self.growth *= 2
        size = self.growth
        # The cap holds where a region was large enough; what a larger request made it stays.
        if not grown:
            self.growth = min(2 * size, cap)
        return size
