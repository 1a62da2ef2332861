"""Greedy choice of values to recompute: the gap that frees most for its work, repeatedly.

A candidate is a value and a gap between two of its accesses. Dropping the value there frees
its bytes at every place of the gap, and costs a copy of its producer at the end of the gap.
What that producer reads must be there too: a value that is not is either kept longer, if
that costs less than the bytes are worth by the going price, or computed again itself, and so
on up. Such chains, taken as one candidate, are what cheap ops first would never find.

The gain of a candidate is the bytes above the budget that it removes, summed over places.
Gains and prices change as others are taken, so a heap holds last known ratios and the best
one is computed afresh before it is taken (Minoux's lazy greedy, 1978).

What is copied on the way to several candidates at one place is copied for one after the
other, so the most that one of them takes counts there, and not their sum.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

import numpy as np

from memplan_cli.analysis.cost import KERNEL_LAUNCH

if TYPE_CHECKING:
    from memplan_cli.features.recompute.state import State

DISCOUNT = 20
"""How far below the going price a candidate is not even looked at to its end."""

CHAIN_STEPS = 440_000
"""Copies in one candidate x ops of the program: what bounds the time of a search."""

MOST_DISCOUNTS = 3
"""How often the price falls by that when nothing is left to take."""


@dataclass(slots=True)
class Candidate:
    """One value dropped in one gap, and what has to happen for it."""

    value: int
    start: int
    end: int
    gain: int = 0
    work: int = 0
    keep: list[tuple[int, int, int]] = field(default_factory=list)
    """Values kept behind their last access: ``(value, from, to)``."""
    hoist: list[tuple[int, int]] = field(default_factory=list)
    """Values whose next copy runs here and is kept: ``(value, place of that copy)``."""
    again: list[int] = field(default_factory=list)
    """Values made again beside this one, for its sake."""
    passing: int = 0
    """Bytes of what is copied on the way, which is gone again behind the place."""
    reads: list[int] = field(default_factory=list)
    """Values that are there anyway, and are read once more."""

    @property
    def ratio(self) -> float:
        """Bytes x places of gain per unit of work."""
        return self.gain / (self.work + KERNEL_LAUNCH)


class Chooser:
    """Takes candidates until nothing is above the budget, or nothing helps."""

    def __init__(self, state: State, budget: int) -> None:
        self.state = state
        self.budget = budget
        self.price = 0.0
        """The ratio at which candidates are being taken: bytes x places per work."""
        self._passing = [0] * len(state.live)
        """At each place, the most that a candidate takes on the way."""
        self._longest = max(CHAIN_STEPS // max(len(state.live), 1), 32)
        self._heap: list[tuple[float, int, int]] = []

    def run(self) -> int:
        """Take candidates; return how many."""
        taken, discounts = 0, 0
        while self._is_over() and discounts <= MOST_DISCOUNTS:
            before = taken
            self._fill()
            # What brings less was not looked at to its end: it may not be in the heap at
            # all, and taking what is would pass over chains that cost far less.
            floor = self.price / DISCOUNT
            while self._heap and -self._heap[0][0] >= floor and self._is_over():
                taken += self._step()
            self.price = min(self.price, floor)
            discounts = 0 if taken > before else discounts + 1
        return taken

    def _is_over(self) -> bool:
        return bool(self.state.live.max(initial=0) > self.budget)

    def _fill(self) -> None:
        """Make a heap of every gap that reaches over the budget somewhere."""
        values = self.state.values
        over = np.concatenate(([0], np.cumsum(self.state.live > self.budget)))
        gaps = [
            (value, start, end)
            for value, size in enumerate(values.size)
            if size and values.work[value] >= 0
            for start, end in self.state.gaps(value)
            if over[end] > over[start + 1]
        ]
        if not self.price:
            self.price = self._first_price(gaps)
        self._heap = []
        for value, start, end in gaps:
            found = self.evaluate(value, start, end)
            if found:
                self._heap.append((-found.ratio, value, end))
        heapify(self._heap)

    def _first_price(self, gaps: list[tuple[int, int, int]]) -> float:
        """Guess the price at which enough would be taken if nothing got in the way."""
        values = self.state.values
        above = np.maximum(self.state.live - self.budget, 0)
        left = int(above.sum())
        ratios = sorted(
            (
                (
                    (gain := int(np.minimum(above[start + 1 : end], values.size[value]).sum()))
                    / (self.state.price_of(value, start) + KERNEL_LAUNCH),
                    gain,
                )
                for value, start, end in gaps
            ),
            reverse=True,
        )
        for ratio, gain in ratios:
            left -= gain
            if left <= 0:
                return ratio
        return ratios[-1][0] if ratios else 0.0

    def _step(self) -> int:
        """Take the best candidate, if it still is; return how many were taken."""
        known, value, end = heappop(self._heap)
        gap = self.state.gap_ending(value, end)
        found = gap and self.evaluate(value, *gap)
        if not found:
            return 0
        if self._heap and found.ratio < -self._heap[0][0] and found.ratio < -known:
            heappush(self._heap, (-found.ratio, value, end))
            return 0
        self.price = min(self.price, found.ratio)
        self._take(found)
        return 1

    def evaluate(self, value: int, start: int, end: int) -> Candidate | None:
        """Return what dropping a value in a gap brings and takes; None if nothing."""
        live, values = self.state.live, self.state.values
        above = live[start + 1 : end] - self.budget
        gain = int(np.minimum(np.maximum(above, 0), values.size[value]).sum())
        if gain <= 0:
            return None
        found = Candidate(value, start, end, gain, self.state.price_of(value, start))
        transient = values.beside[value]
        stack, seen = list(values.needs[value]), {value}
        while stack:
            needed = stack.pop()
            if needed in seen:
                continue
            seen.add(needed)
            if self._supply(found, needed):
                stack.extend(values.needs[needed])
                transient += values.size[needed] + values.beside[needed]
            too_long = len(found.again) > self._longest
            if too_long or found.gain * DISCOUNT < found.work * self.price:
                return None
        found.passing = transient
        found.gain -= self._penalty(end, end + 1, max(transient - self._passing[end], 0))
        return found if found.gain > 0 else None

    def _supply(self, found: Candidate, needed: int) -> bool:
        """Decide how an input of a copy gets there; True if it is computed here."""
        state, values, time = self.state, self.state.values, found.end
        gap = state.gap_around(needed, time)
        if gap is None or (gap[1] >= 0 and gap[1] not in state.copies[needed]):
            found.reads.append(needed)
            return False
        # Behind its last access it is kept from there; in a gap, from now to the copy's place.
        kept = (gap[0] + 1, time + 1) if gap[1] < 0 else (time, gap[1])
        penalty = self._penalty(*kept, values.size[needed])
        again = values.work[needed]
        if gap[1] >= 0 and penalty <= again * self.price:
            found.gain -= penalty
            found.hoist.append((needed, gap[1]))
            return True
        if again < 0 or penalty <= again * self.price:
            found.gain -= penalty
            found.keep.append((needed, *kept))
            return False
        found.work += again
        found.again.append(needed)
        return True

    def _penalty(self, start: int, end: int, size: int) -> int:
        """Return the bytes x places above the budget that ``size`` more bytes cause."""
        if not size:
            return 0
        above = self.state.live[start:end] + (size - self.budget)
        return int(np.minimum(np.maximum(above, 0), size).sum())

    def _take(self, found: Candidate) -> None:
        state, values, end = self.state, self.state.values, found.end
        state.copies[found.value].add(end)
        state.change(found.start + 1, end, -values.size[found.value])
        for value in found.reads:
            state.touch(value, end)
        for value, start, stop in found.keep:
            state.change(start, stop, values.size[value])
            state.touch(value, end)
        for value, stop in found.hoist:
            state.change(end, stop, values.size[value])
            state.touch(value, end)
            state.copies[value].discard(stop)
            state.copies[value].add(end)
        state.change(end, end + 1, max(found.passing - self._passing[end], 0))
        self._passing[end] = max(self._passing[end], found.passing)
        for value in found.again:
            state.touch(value, end)
            state.copies[value].add(end)
        changed = (*found.reads, *(v for v, *_ in found.keep), *(v for v, _ in found.hoist))
        for value in (found.value, *changed):
            self._push_gaps(value, end)

    def _push_gaps(self, value: int, time: int) -> None:
        """Offer the gaps of a value on both sides of a time."""
        if not self.state.values.size[value] or self.state.values.work[value] < 0:
            return
        times = self.state.times[value]
        at = bisect_left(times, time)
        for end in times[at : at + 2]:
            gap = self.state.gap_ending(value, end)
            found = gap and self.evaluate(value, *gap)
            if found:
                heappush(self._heap, (-found.ratio, value, end))
