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
    from memplan_cli.features.recompute.values import Place, ValueNumber, Values

_FLOOR_DIVISOR = 20
"""Candidates with a ratio below the price divided by this are not evaluated further, which saves most of
the time."""

_MAX_COPY_STEPS = 440_000
"""Copies in one candidate times ops of the program; bounds the time of a search."""

_MAX_PRICE_CUTS = 3
"""How often in a row the price is lowered if no candidate was taken."""

_NEVER = -1
"""The end of a gap after the last access."""


class Gap(NamedTuple):
    """The places between two successive accesses of a value.

    Attributes:
        start: the place of the access before the gap.
        end: the place of the access after it, or `_NEVER`.
    """

    start: Place
    end: Place


class DropSchedule:
    """Which values are dropped where, and an estimate of the bytes live at each place.

    A value is a var with all its views, and a place is the index of an op (see `Values`).

    Attributes:
        values: the values of the base program.
        live: live bytes at each place.
        accesses: for each value the ascending places where it is needed, reads by copies
        included.
        recomputed_at: for each value the accesses before which it is computed again; it is
        dropped in the gap before each of them.
    """

    def __init__(self, values: Values, live: NDArray[np.int64]) -> None:
        """Begin with the base program, which drops nothing; ``live`` are its live bytes at each place."""
        self.values = values
        self.live = live.copy()
        self.accesses = [list(places) for places in values.accesses]
        self.recomputed_at: list[set[Place]] = [set() for _ in values.sizes]

    def gap_around(self, value: ValueNumber, place: Place) -> Gap | None:
        """Return the gap of a value that includes a place; None if it is accessed there.

        The value may be kept or dropped in the gap. ``place`` is after the first access.
        """
        accesses = self.accesses[value]
        index = bisect_left(accesses, place)
        if index < len(accesses) and accesses[index] == place:
            return None
        return Gap(accesses[index - 1], accesses[index] if index < len(accesses) else _NEVER)

    def kept_gap_before(self, value: ValueNumber, access: Place) -> Gap | None:
        """Return the gap that ends at an access, if the value is kept in it.

        None if the value is recomputed for the access, or if ``access`` is its first access or no access.
        """
        accesses = self.accesses[value]
        index = bisect_left(accesses, access)
        is_later_access = 0 < index < len(accesses) and accesses[index] == access
        if access in self.recomputed_at[value] or not is_later_access:
            return None
        return Gap(accesses[index - 1], access)

    def kept_gaps(self, value: ValueNumber) -> list[Gap]:
        """Return the gaps of at least one place in which a value is kept."""
        return [
            Gap(start, end)
            for start, end in pairwise(self.accesses[value])
            if end - start > 1 and end not in self.recomputed_at[value]
        ]

    def add_access(self, value: ValueNumber, place: Place) -> None:
        """Add an access of a value at a place after its first one, unless it has one there."""
        if self.gap_around(value, place):
            insort(self.accesses[value], place)

    def add_live(self, start: Place, end: Place, size: int) -> None:
        """Add bytes to the places ``start..end``, half-open."""
        if start < end:
            self.live[start:end] += size

    def set_measured(self, built: RecomputedProgram, live: NDArray[np.int64]) -> None:
        """Set `recomputed_at`, `accesses` and `live`, estimates so far, to those of a written program.

        Args:
            built: the program, with the places of its copies and what they read.
            live: the most bytes live at each place in that program.
        """
        self.live = live.copy()
        self.recomputed_at = [
            set(built.recomputed_at.get(value, ())) for value in range(len(self.accesses))
        ]
        # A value is needed where the base program reads it, where copies of it run, and where copies read it.
        accesses = [set(places) for places in self.values.accesses]
        for value, places in enumerate(self.recomputed_at):
            accesses[value] |= places
        for read in built.reads_by_copies:
            accesses[read.value].add(read.place)
        self.accesses = [sorted(places) for places in accesses]

    def keep_again(self, budget: int) -> int:
        """Undo recomputations where the budget has room: the value stays in memory between two accesses.

        Changes `recomputed_at` and `live`. `accesses` may then have reads that no longer happen, until the
        next `set_measured`.

        Returns:
            The number of recomputations that were undone.
        """
        values = self.values
        # Most work first. Each computes a value again right before its access ``end``.
        recomputations = sorted(
            (-values.work[value], value, end)
            for value, ends in enumerate(self.recomputed_at)
            for end in ends
        )
        undone = 0
        for _, value, end in recomputations:
            accesses, size = self.accesses[value], values.sizes[value]
            start = accesses[bisect_left(accesses, end) - 1]  # the access before ``end``
            if self.live[start + 1 : end].max(initial=0) + size <= budget:
                self.recomputed_at[value].discard(end)
                self.add_live(start + 1, end, size)
                undone += 1
        return undone


class _CopyInput(NamedTuple):
    """One input of a copy, with how it gets into memory. By default it is in memory anyway.

    Attributes:
        value: the input.
        kept_from: the first of the places at which it is in memory in addition.
        kept_until: the end of these places, exclusive.
        loss: bytes above the budget that it adds at these places, summed over them.
        is_copied: whether a copy of the input runs right before the copy that reads it.
        moved_from: the later place at which that copy ran so far; None if it runs in addition.
        work: the work of a copy of the input that runs in addition.
    """

    value: ValueNumber
    kept_from: Place = 0
    kept_until: Place = 0
    loss: int = 0
    is_copied: bool = False
    moved_from: Place | None = None
    work: int = 0


@dataclass(slots=True)
class _Candidate:
    """A value to drop in a gap, with what its copy needs.

    Attributes:
        value: the value.
        gap: the gap; the copy runs at the end of the gap.
        gain: bytes above the budget that the drop removes, summed over places, less those that
        the inputs of copies add.
        work: the work of all copies.
        inputs: the inputs of the copy, and of the copies that make these inputs.
        transient_bytes: bytes that only copies need, at the end of the gap: inputs that are computed
        there.
    """

    value: ValueNumber
    gap: Gap
    gain: int
    work: int
    inputs: list[_CopyInput] = field(default_factory=list)
    transient_bytes: int = 0

    @property
    def ratio(self) -> float:
        """Gain per unit of work."""
        return self.gain / (self.work + KERNEL_LAUNCH)


class GreedyChooser:
    """Drops values of a schedule until it fits a budget, or no drop helps.

    Attributes:
        schedule: the drops so far and the bytes live at each place; it is changed.
        budget: bytes.
        price: bytes above the budget that one unit of work is worth. An input of a copy is computed
        again if its work times the price is less than the bytes that keeping it adds.
    """

    def __init__(self, schedule: DropSchedule, budget: int) -> None:
        """Begin with nothing to choose from; `run` drops values in ``schedule`` to fit ``budget`` bytes."""
        self.schedule = schedule
        self.budget = budget
        self.price = 0.0  # bytes above the budget that one unit of work is worth; set by `run`
        places = len(schedule.live)
        # A dropped value is computed again by a copy of its op. For each place, the most bytes that one of the
        # copies there needs only while it runs.
        self._transient_bytes = [0] * places
        # How many further copies such a copy may need: fewer in long programs, which limits the time of a
        # search, but at least 32.
        self._max_copies = max(_MAX_COPY_STEPS // max(places, 1), 32)
        # Candidates as ``(-ratio, value, end)``: to drop a value after an access until the next one, at the
        # place ``end``. The ratio is bytes saved per work, and may be out of date. The highest comes first.
        self._heap: list[tuple[float, ValueNumber, Place]] = []

    def run(self) -> int:
        """Take candidates until the schedule fits the budget or no candidate helps; return how many were taken.

        A candidate drops a value between two accesses, and recomputes it before the second one. Its gain is
        the bytes above the budget that this saves, summed over the ops in between. Each round takes candidates
        by falling gain per work, down to a floor. If 100 is the highest, the floors are 5, 0.25, and so on.
        """
        # The gain that justifies one unit of work: an input of a copy is recomputed too if keeping it in memory
        # loses more (`_choose_source`).
        self.price = self._highest_ratio()
        if not self.price:  # no drop has a gain
            return 0
        taken, rounds_without_any = 0, 0
        while self._is_over_budget() and rounds_without_any <= _MAX_PRICE_CUTS:
            taken_before = taken
            self._fill_heap()  # the price has changed, so all candidates are evaluated anew
            floor = self.price / _FLOOR_DIVISOR
            while self._heap and -self._heap[0][0] >= floor and self._is_over_budget():
                taken += self._take_best()
            self.price = floor
            rounds_without_any = 0 if taken > taken_before else rounds_without_any + 1
        return taken

    def _is_over_budget(self) -> bool:
        return bool(self.schedule.live.max(initial=0) > self.budget)

    def _droppable_gaps(self) -> list[tuple[ValueNumber, Gap]]:
        """Return the gaps, between two accesses of a value, in which the value is kept and can be dropped."""
        values = self.schedule.values
        return [
            (value, gap)
            for value, size in enumerate(values.sizes)
            if size and values.can_recompute(value)
            for gap in self.schedule.kept_gaps(value)
        ]

    def _fill_heap(self) -> None:
        """Replace the heap by all candidates that drop a value in a gap and have a gain."""
        self._heap = []
        for value, gap in self._droppable_gaps():
            candidate = self._evaluate(value, gap)
            if candidate:
                self._heap.append((-candidate.ratio, value, gap.end))
        heapify(self._heap)

    def _gain(self, value: ValueNumber, gap: Gap) -> int:
        """Return the bytes above the budget that a value takes in a gap, summed over places."""
        schedule = self.schedule
        excess = np.maximum(schedule.live[gap.start + 1 : gap.end] - self.budget, 0)
        return int(np.minimum(excess, schedule.values.sizes[value]).sum())

    def _highest_ratio(self) -> float:
        """Return an upper bound of the gain per work of dropping any value in a gap; 0 if no drop has a gain.

        A dropped value is computed again by a copy of its op. Inputs of the copy can only lower the ratio, and are
        left out here.
        """
        work = self.schedule.values.work
        ratios = (
            self._gain(value, gap) / (work[value] + KERNEL_LAUNCH)
            for value, gap in self._droppable_gaps()
        )
        return max(ratios, default=0.0)  # no gain is negative; without gaps there is no ratio

    def _take_best(self) -> int:
        """Take the first candidate of the heap if its ratio of gain and work is still the highest.

        A candidate drops a value between an access and the next one, at the place ``end``: this is its gap.
        Candidates that were taken before may have changed its ratio, so the ratio is computed anew. If it is
        below that of the next candidate, the candidate goes back to the heap. Without any gain, or if the
        value was dropped in the gap meanwhile, the candidate is removed.

        Returns:
            The number of candidates that were taken, 1 or 0.
        """
        _, value, end = heappop(self._heap)
        gap = self.schedule.kept_gap_before(value, end)
        candidate = self._evaluate(value, gap) if gap else None
        if not candidate:
            return 0
        if self._heap and candidate.ratio < -self._heap[0][0]:
            heappush(self._heap, (-candidate.ratio, value, end))
            return 0
        self._take(candidate)
        return 1

    def _evaluate(self, value: ValueNumber, gap: Gap) -> _Candidate | None:
        """Return the candidate that drops a value in a gap: between two accesses, with a copy before the second.

        Its gain is the bytes above the budget that the drop saves, less those that the inputs of copies add,
        summed over the ops in the gap. None if no gain is left, or if `_add_inputs` gives the candidate up.
        """
        gain = self._gain(value, gap)
        if gain <= 0:
            return None
        candidate = _Candidate(value, gap, gain, work=self.schedule.values.work[value])
        # `_add_inputs` lowers `candidate.gain` by inputs that are kept for longer, and sets `transient_bytes`.
        if not self._add_inputs(candidate):
            return None
        # The transient bytes are live while the copies run, at the end of the gap. Candidates that were taken have
        # copies there too, which run before or after: only bytes beyond theirs lower the gain.
        place = gap.end
        added_bytes = max(candidate.transient_bytes - self._transient_bytes[place], 0)
        candidate.gain -= self._added_excess(place, place + 1, added_bytes)
        return candidate if candidate.gain > 0 else None

    def _add_inputs(self, candidate: _Candidate) -> bool:
        """Add to a candidate the inputs of its copy, the inputs of those that are copied too, and so on.

        The copy computes the candidate's value again. An input that is kept in memory for it lowers the
        candidate's gain. An input that is copied too adds to the candidate's work, and to its
        `transient_bytes`, which are live only while the copies run.

        Returns:
            False if the candidate is given up, incomplete: there are too many copies, or its gain per work
            is too low for `run`.
        """
        values, end = self.schedule.values, candidate.gap.end
        copies = 0
        stack, visited = list(values.inputs[candidate.value]), {candidate.value}
        while stack:
            needed = stack.pop()
            if needed in visited:
                continue
            visited.add(needed)
            copy_input = self._choose_source(needed, end)
            candidate.inputs.append(copy_input)
            candidate.gain -= copy_input.loss
            candidate.work += copy_input.work
            if copy_input.is_copied:
                copies += 1
                stack.extend(values.inputs[needed])
                # The bytes of an input whose copy moves here from a later place are in the loss too. They count
                # twice on purpose: counting them once made more searches worse than better.
                candidate.transient_bytes += values.sizes[needed]
            # `run` takes no candidate with gain / work < price / divisor. Further inputs only lower gain / work.
            is_below_floor = candidate.gain * _FLOOR_DIVISOR < candidate.work * self.price
            if copies > self._max_copies or is_below_floor:
                return False
        return True

    def _choose_source(self, needed: ValueNumber, place: Place) -> _CopyInput:
        """Return how a copy that runs at ``place`` gets its input ``needed``. Changes nothing.

        An input that is in memory at the place is free. Any other is held in memory for longer (after its last access,
        or before its next one), or computed by one more copy if that is possible and costs less.
        """
        schedule, values = self.schedule, self.schedule.values
        size, work = values.sizes[needed], values.work[needed]
        gap = schedule.gap_around(needed, place)
        if gap is None:  # accessed at the place, and so in memory
            return _CopyInput(needed)
        last_access, next_access = gap  # the accesses before and after the place
        if next_access == _NEVER:  # hold the input after its last access, up to the place
            held = _CopyInput(needed, kept_from=last_access + 1, kept_until=place + 1)
        elif next_access not in schedule.recomputed_at[needed]:  # in memory until that access
            return _CopyInput(needed)
        else:  # run the copy for its next access at the place already (no more work), and hold the input
            held = _CopyInput(
                needed,
                kept_from=place,
                kept_until=next_access,
                is_copied=True,
                moved_from=next_access,
            )
        loss = self._added_excess(held.kept_from, held.kept_until, size)
        cost_of_one_more = work * self.price  # in bytes above the budget, as the loss
        if loss > cost_of_one_more and values.can_recompute(needed):
            return _CopyInput(needed, is_copied=True, work=work)
        return held._replace(loss=loss)

    def _added_excess(self, start: Place, end: Place, size: int) -> int:
        """Return the bytes above the budget, summed over places ``start..end``, that ``size`` more bytes add."""
        if not size:
            return 0
        new_excess = np.maximum(self.schedule.live[start:end] + size - self.budget, 0)
        # Where the budget is exceeded already, all new bytes count, but not the old excess.
        return int(np.minimum(new_excess, size).sum())

    def _take(self, candidate: _Candidate) -> None:
        """Apply a candidate to the schedule: drop its value in a gap, and recompute it at the end of the gap.

        Changes `schedule` and `_transient_bytes`: for each place, the bytes that copies need only while they run.

        ``candidate.inputs`` are all values that copies at the end read. Each of them is kept in memory until then, or
        copied there (``is_copied``), or its copy at a later place, ``moved_from``, is moved there.
        """
        schedule, values = self.schedule, self.schedule.values
        value, end = candidate.value, candidate.gap.end
        schedule.recomputed_at[value].add(end)
        # The value is accessed at the gap's ``start`` and ``end``, and not in memory between these places.
        schedule.add_live(candidate.gap.start + 1, end, -values.sizes[value])
        for copy_input in candidate.inputs:
            input_value = copy_input.value
            schedule.add_access(input_value, end)  # a copy at ``end`` reads the input
            # The input is in memory for longer. An input that is in memory anyway has the empty range from 0 to 0.
            size = values.sizes[input_value]
            schedule.add_live(copy_input.kept_from, copy_input.kept_until, size)
            if copy_input.is_copied:
                schedule.recomputed_at[input_value].add(end)
            if copy_input.moved_from is not None:
                # The accesses of this copy at ``moved_from`` are left: `DropSchedule.set_measured` counts all anew.
                schedule.recomputed_at[input_value].remove(copy_input.moved_from)
        # Copies of several candidates at one place run one after another: the largest need counts, not the sum.
        added_bytes = max(candidate.transient_bytes - self._transient_bytes[end], 0)
        schedule.add_live(end, end + 1, added_bytes)
        self._transient_bytes[end] += added_bytes
