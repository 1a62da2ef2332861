"""Greedy choice of values to drop and recompute, by bytes freed per work.

A value can be dropped in a gap between two of its accesses. That frees its bytes at every
place of the gap, and costs a copy of its producer at the end of the gap:

    value   made o----------o read          o read
    gap                      \\............./^ copy

The copy needs the producer's inputs. An input that was dropped too, or has had its last
access, is kept longer if that costs less than the current price of memory, or is recomputed as
well, and so on upwards. Such a chain is one candidate.

A candidate's gain is the number of bytes above the budget that it removes, summed over places.
Gains change as candidates are taken. So a heap holds ratios of gain and work as they were last
computed, and the best one is computed again before it is taken (lazy greedy, Minoux 1978).

Places are those of the base program: a copy is at the place of the op before which it runs.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memplan_cli.analysis.cost import KERNEL_LAUNCH

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memplan_cli.features.recompute.build import RecomputedProgram
    from memplan_cli.features.recompute.values import Values

_DISCOUNT = 20
"""A candidate whose ratio is so many times below the current price is not evaluated further."""

_MAX_CHAIN_STEPS = 440_000
"""Copies in one candidate times ops of the program; bounds the time of a search."""

_MAX_DISCOUNTS = 3
"""How often in a row the price is lowered if no candidate was taken."""


class DropSchedule:
    """Which values are dropped where, and an estimate of the bytes live at each place.

    Attributes:
        values: the values of the base program.
        live: live bytes at each place.
        accesses: the places where each value is needed, reads by copies included.
        recomputed_at: the accesses of each value before which it is computed again.
    """

    def __init__(self, values: Values, live: NDArray[np.int64]) -> None:
        self.values = values
        self.live = live.copy()
        self.accesses = [list(places) for places in values.accesses]
        self.recomputed_at: list[set[int]] = [set() for _ in values.sizes]

    def gap_around(self, value: int, place: int) -> tuple[int, int] | None:
        """Return the accesses before and after a place; None if the value is accessed there.

        The second is -1 after the last access.
        """
        accesses = self.accesses[value]
        index = bisect_left(accesses, place)
        if index < len(accesses) and accesses[index] == place:
            return None
        return accesses[index - 1], accesses[index] if index < len(accesses) else -1

    def gap_before(self, value: int, access: int) -> tuple[int, int] | None:
        """Return the gap that ends at an access; None if there is none or it is dropped."""
        accesses = self.accesses[value]
        index = bisect_left(accesses, access)
        is_access = 0 < index < len(accesses) and accesses[index] == access
        if access in self.recomputed_at[value] or not is_access:
            return None
        return accesses[index - 1], access

    def gaps(self, value: int) -> list[tuple[int, int]]:
        """Return the gaps of at least one place in which a value is kept."""
        return [
            (start, end)
            for start, end in pairwise(self.accesses[value])
            if end - start > 1 and end not in self.recomputed_at[value]
        ]

    def drop_work(self, value: int, start: int) -> int:
        """Return the work of dropping a value in the gap after an access.

        It is 0 after the place where the value is made: the producer just runs later.
        """
        values = self.values
        runs_later = values.is_sole_output[value] and start == values.made_at[value]
        return 0 if runs_later else values.work[value]

    def add_access(self, value: int, place: int) -> None:
        """Add an access of a value, unless it has one there."""
        if self.gap_around(value, place):
            insort(self.accesses[value], place)

    def add_live(self, start: int, end: int, size: int) -> None:
        """Add bytes to the places ``start..end``, half-open."""
        if start < end:
            self.live[start:end] += size

    def set_measured(self, built: RecomputedProgram, live: NDArray[np.int64]) -> None:
        """Replace the estimates by the copies and live bytes of the program that was built."""
        self.live = live.copy()
        count = len(self.accesses)
        self.recomputed_at = [
            set(built.recomputed_at.get(value, ())) for value in range(count)
        ]
        accesses = [
            {*places, *recomputed_at}
            for places, recomputed_at in zip(
                self.values.accesses, self.recomputed_at, strict=True
            )
        ]
        for value, place in built.copy_reads:
            accesses[value].add(place)
        self.accesses = [sorted(places) for places in accesses]

    def keep_again(self, budget: int) -> int:
        """Undo drops whose gap has room for the value, most work first; return how many."""
        values = self.values
        drops = sorted(
            (-values.work[value], value, end)
            for value, ends in enumerate(self.recomputed_at)
            for end in ends
        )
        kept = 0
        for _, value, end in drops:
            accesses = self.accesses[value]
            start = accesses[bisect_left(accesses, end) - 1]
            size = values.sizes[value]
            if not self.drop_work(value, start):
                continue
            if self.live[start + 1 : end].max(initial=0) + size <= budget:
                self.recomputed_at[value].discard(end)
                self.add_live(start + 1, end, size)
                kept += 1
        return kept


class _Kept(NamedTuple):
    """A value that is kept in memory at the places ``start..stop``, half-open."""

    value: int
    start: int
    stop: int


class _Hoisted(NamedTuple):
    """A value whose next copy runs at the candidate's place instead, and is kept until ``copy``."""

    value: int
    copy: int


@dataclass(slots=True)
class _Candidate:
    """A value to drop in a gap, with what its copy needs.

    Attributes:
        value: the value.
        start: the access before the gap.
        end: the access after the gap, where the copy runs.
        gain: bytes above the budget that it removes, summed over places.
        work: the work of all copies.
        kept: inputs that are kept longer.
        hoisted: inputs that are recomputed later anyway, and now at ``end``.
        recomputed: inputs that are recomputed at ``end`` too.
        available: inputs that are in memory anyway.
        transient_bytes: bytes of recomputed inputs and of outputs that copies make besides.
    """

    value: int
    start: int
    end: int
    gain: int
    work: int
    kept: list[_Kept] = field(default_factory=list)
    hoisted: list[_Hoisted] = field(default_factory=list)
    recomputed: list[int] = field(default_factory=list)
    available: list[int] = field(default_factory=list)
    transient_bytes: int = 0

    @property
    def ratio(self) -> float:
        """Gain per unit of work."""
        return self.gain / (self.work + KERNEL_LAUNCH)


class GreedyChooser:
    """Drops values of a schedule until it fits a budget, or no drop helps.

    Attributes:
        schedule: the schedule, which is changed.
        budget: bytes.
        price: the ratio of gain and work at which candidates are being taken.
    """

    def __init__(self, schedule: DropSchedule, budget: int) -> None:
        self.schedule = schedule
        self.budget = budget
        self.price = 0.0
        places = len(schedule.live)
        # Copies at one place run one after the other, so only the most transient bytes count.
        self._transient_bytes = [0] * places
        self._max_chain = max(_MAX_CHAIN_STEPS // max(places, 1), 32)
        self._heap: list[tuple[float, int, int]] = []
        """``(-ratio, value, end of the gap)``."""

    def run(self) -> int:
        """Take candidates; return how many."""
        taken, discounts = 0, 0
        while self._is_over_budget() and discounts <= _MAX_DISCOUNTS:
            before = taken
            self._fill_heap()
            # Candidates below the floor were not evaluated fully and may be missing from the
            # heap: go on with a lower price rather than pass over cheaper chains.
            floor = self.price / _DISCOUNT
            while self._heap and -self._heap[0][0] >= floor and self._is_over_budget():
                taken += self._take_best()
            self.price = min(self.price, floor)
            discounts = 0 if taken > before else discounts + 1
        return taken

    def _is_over_budget(self) -> bool:
        return bool(self.schedule.live.max(initial=0) > self.budget)

    def _fill_heap(self) -> None:
        """Put every gap on the heap that includes a place above the budget."""
        schedule, values = self.schedule, self.schedule.values
        places_over = np.concatenate(([0], np.cumsum(schedule.live > self.budget)))
        gaps = [
            (value, start, end)
            for value, size in enumerate(values.sizes)
            if size and values.work[value] >= 0
            for start, end in schedule.gaps(value)
            if places_over[end] > places_over[start + 1]
        ]
        if not self.price:
            self.price = self._initial_price(gaps)
        self._heap = []
        for value, start, end in gaps:
            candidate = self._evaluate(value, start, end)
            if candidate:
                self._heap.append((-candidate.ratio, value, end))
        heapify(self._heap)

    def _initial_price(self, gaps: list[tuple[int, int, int]]) -> float:
        """Return the ratio down to which gaps would be taken if gains were independent."""
        schedule, values = self.schedule, self.schedule.values
        excess = np.maximum(schedule.live - self.budget, 0)
        remaining = int(excess.sum())
        ratios = []
        for value, start, end in gaps:
            gain = int(np.minimum(excess[start + 1 : end], values.sizes[value]).sum())
            work = schedule.drop_work(value, start) + KERNEL_LAUNCH
            ratios.append((gain / work, gain))
        ratios.sort(reverse=True)
        for ratio, gain in ratios:
            remaining -= gain
            if remaining <= 0:
                return ratio
        return ratios[-1][0] if ratios else 0.0

    def _take_best(self) -> int:
        """Take the best candidate if its ratio still holds, else put it back; return 1 or 0."""
        negative_ratio, value, end = heappop(self._heap)
        gap = self.schedule.gap_before(value, end)
        candidate = gap and self._evaluate(value, *gap)
        if not candidate:
            return 0
        is_stale = candidate.ratio < -negative_ratio
        if self._heap and is_stale and candidate.ratio < -self._heap[0][0]:
            heappush(self._heap, (-candidate.ratio, value, end))
            return 0
        self.price = min(self.price, candidate.ratio)
        self._take(candidate)
        return 1

    def _evaluate(self, value: int, start: int, end: int) -> _Candidate | None:
        """Return the gain and the work of dropping a value in a gap; None if it gains nothing."""
        schedule, values = self.schedule, self.schedule.values
        excess = np.maximum(schedule.live[start + 1 : end] - self.budget, 0)
        gain = int(np.minimum(excess, values.sizes[value]).sum())
        if gain <= 0:
            return None
        candidate = _Candidate(value, start, end, gain, schedule.drop_work(value, start))
        transient_bytes = values.sibling_bytes[value]
        stack, visited = list(values.inputs[value]), {value}
        while stack:
            needed = stack.pop()
            if needed in visited:
                continue
            visited.add(needed)
            if self._supply(candidate, needed):
                stack.extend(values.inputs[needed])
                transient_bytes += values.sizes[needed] + values.sibling_bytes[needed]
            is_too_long = len(candidate.recomputed) > self._max_chain
            if is_too_long or candidate.gain * _DISCOUNT < candidate.work * self.price:
                return None
        candidate.transient_bytes = transient_bytes
        added_bytes = max(transient_bytes - self._transient_bytes[end], 0)
        candidate.gain -= self._loss(end, end + 1, added_bytes)
        return candidate if candidate.gain > 0 else None

    def _supply(self, candidate: _Candidate, needed: int) -> bool:
        """Decide how an input of a copy gets into memory, and add that to the candidate.

        Returns:
            Whether it is computed at the candidate's place, so that its own inputs are needed.
        """
        schedule, values, place = self.schedule, self.schedule.values, candidate.end
        gap = schedule.gap_around(needed, place)
        is_dropped_here = gap is not None and gap[1] in schedule.recomputed_at[needed]
        if gap is None or (gap[1] >= 0 and not is_dropped_here):
            candidate.available.append(needed)
            return False
        last_access, next_access = gap
        is_last = next_access < 0
        # After its last access a value is kept from there on; in a gap, from here to its copy.
        kept = (last_access + 1, place + 1) if is_last else (place, next_access)
        loss = self._loss(*kept, values.sizes[needed])
        work = values.work[needed]
        if not is_last and loss <= work * self.price:
            candidate.gain -= loss
            candidate.hoisted.append(_Hoisted(needed, next_access))
            return True
        if work < 0 or loss <= work * self.price:
            candidate.gain -= loss
            candidate.kept.append(_Kept(needed, *kept))
            return False
        candidate.work += work
        candidate.recomputed.append(needed)
        return True

    def _loss(self, start: int, end: int, size: int) -> int:
        """Return by how much ``size`` more bytes raise the excess over ``start..end``."""
        if not size:
            return 0
        excess_with = np.maximum(self.schedule.live[start:end] + (size - self.budget), 0)
        return int(np.minimum(excess_with, size).sum())

    def _take(self, candidate: _Candidate) -> None:
        """Apply a candidate to the schedule, and push the gaps that it changes to the heap."""
        schedule, values, end = self.schedule, self.schedule.values, candidate.end
        schedule.recomputed_at[candidate.value].add(end)
        schedule.add_live(candidate.start + 1, end, -values.sizes[candidate.value])
        for value in candidate.available:
            schedule.add_access(value, end)
        for value, start, stop in candidate.kept:
            schedule.add_live(start, stop, values.sizes[value])
            schedule.add_access(value, end)
        for value, copy in candidate.hoisted:
            schedule.add_live(end, copy, values.sizes[value])
            schedule.add_access(value, end)
            schedule.recomputed_at[value].discard(copy)
            schedule.recomputed_at[value].add(end)
        transient_bytes = max(candidate.transient_bytes, self._transient_bytes[end])
        schedule.add_live(end, end + 1, transient_bytes - self._transient_bytes[end])
        self._transient_bytes[end] = transient_bytes
        for value in candidate.recomputed:
            schedule.add_access(value, end)
            schedule.recomputed_at[value].add(end)
        changed = (
            candidate.value,
            *candidate.available,
            *(kept.value for kept in candidate.kept),
            *(hoisted.value for hoisted in candidate.hoisted),
        )
        for value in changed:
            self._push_gaps_around(value, end)

    def _push_gaps_around(self, value: int, place: int) -> None:
        """Push the gaps of a value before and after a place to the heap."""
        schedule = self.schedule
        if not schedule.values.sizes[value] or schedule.values.work[value] < 0:
            return
        accesses = schedule.accesses[value]
        index = bisect_left(accesses, place)
        for end in accesses[index : index + 2]:
            gap = schedule.gap_before(value, end)
            candidate = gap and self._evaluate(value, *gap)
            if candidate:
                heappush(self._heap, (-candidate.ratio, value, end))
