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
from enum import Enum
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memplan_cli.analysis.cost import KERNEL_LAUNCH

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from memplan_cli.features.recompute.build import RecomputedProgram
    from memplan_cli.features.recompute.values import Place, ValueNumber, Values

_FLOOR_DIVISOR = 20
"""The price divided by this is the floor: candidates with a smaller ratio are not evaluated
further, which saves most of the time."""

_MAX_COPY_STEPS = 440_000
"""Copies in one candidate times ops of the program; bounds the time of a search."""

_MAX_PRICE_CUTS = 3
"""How often in a row the price is lowered to the floor if no candidate was taken."""

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
        """Replace the drops, accesses and live bytes by those of a program that was written.

        Args:
            built: the program, with the places of its copies and what they read.
            live: its most live bytes at each place.
        """
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
        for read in built.reads_by_copies:
            accesses[read.value].add(read.place)
        self.accesses = [sorted(places) for places in accesses]

    def keep_again(self, budget: int) -> int:
        """Undo drops whose gap has room for the value within a budget, most work first.

        Accesses stay, also those that an undone copy made to its inputs. The next `set_measured` corrects
        them.

        Returns:
            The number of drops that were undone.
        """
        values = self.values
        drops = sorted(
            (-values.work[value], value, end)
            for value, ends in enumerate(self.recomputed_at)
            for end in ends
        )
        undone_drops = 0
        for _, value, end in drops:
            accesses = self.accesses[value]
            start = accesses[bisect_left(accesses, end) - 1]
            size = values.sizes[value]
            if self.live[start + 1 : end].max(initial=0) + size <= budget:
                self.recomputed_at[value].discard(end)
                self.add_live(start + 1, end, size)
                undone_drops += 1
        return undone_drops


class _Source(Enum):
    """How an input of a copy gets into memory at the place of the copy."""

    AVAILABLE = "available"
    """The input is in memory there anyway."""
    KEPT = "kept"
    """The input stays in memory for longer."""
    HOISTED = "hoisted"
    """The next copy of the input runs there instead of later, and is kept from there on."""
    RECOMPUTED = "recomputed"
    """One more copy of the input runs there, and is used there only."""


class _CopyInput(NamedTuple):
    """One input of a copy, with how it gets into memory.

    Attributes:
        value: the input.
        source: how the input gets into memory.
        start: if it is kept or hoisted: the first place at which it is in memory in addition.
        stop: the end of these places, exclusive. That is the place behind the copy that reads a kept
        input, and the place at which the copy of a hoisted input ran so far.
        loss: bytes above the budget that keeping or hoisting adds, summed over places.
        work: the work of the additional copy.
    """

    value: ValueNumber
    source: _Source
    start: Place = 0
    stop: Place = 0
    loss: int = 0
    work: int = 0

    @property
    def is_copied(self) -> bool:
        """Whether a copy of the input runs right before the copy that reads it."""
        return self.source in {_Source.HOISTED, _Source.RECOMPUTED}


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
        price: bytes of gain (`_Candidate.gain`) that are worth one unit of work; it falls to the floor
        after each round (`run`).
        _transient_bytes: for each place the bytes that its copies need while they run. The
        copies at one place run one after the other, so this is their maximum, not their sum.
        _max_copies: most copies of inputs in one candidate.
        _heap: ``(-ratio, value, end of the gap)`` of candidates. Ratios may be out of date.
    """

    def __init__(self, schedule: DropSchedule, budget: int) -> None:
        """Begin without candidates; `run` takes them until ``schedule`` fits ``budget`` bytes."""
        self.schedule = schedule
        self.budget = budget
        self.price = 0.0  # bytes of gain that are worth one unit of work; `run` sets it
        places = len(schedule.live)
        # For each place: the most bytes that are needed only while a copy runs there.
        self._transient_bytes = [0] * places
        # Copies in one candidate times places are limited, which limits the time of a search. In long
        # programs at least 32 copies are allowed.
        self._max_copies = max(_MAX_COPY_STEPS // max(places, 1), 32)
        # ``(-ratio, value, end of the gap)``: the highest ratio comes first, and value and end name the gap.
        self._heap: list[tuple[float, ValueNumber, Place]] = []

    def run(self) -> int:
        """Take candidates until the schedule fits the budget or no candidate helps.

        The price is the gain in bytes that is worth one unit of work. It begins at the highest ratio of
        gain and work. A round takes candidates by falling ratio, down to the *floor*: the price divided by
        `_FLOOR_DIVISOR`. Then the floor becomes the price. The next round, with a new heap, so has
        candidates of a lower ratio, and ones whose inputs are kept rather than recomputed.

        Returns:
            The number of candidates that were taken.
        """
        taken, rounds_without_any = 0, 0
        while self._is_over_budget() and rounds_without_any <= _MAX_PRICE_CUTS:
            taken_before = taken
            gaps = self._gaps_over_budget()
            if not self.price:  # not known yet; it stays 0 if no drop has a gain
                self.price = max((self._ratio_without_inputs(*gap) for gap in gaps), default=0)
            self._fill_heap(gaps)
            floor = self.price / _FLOOR_DIVISOR
            while self._heap and -self._heap[0][0] >= floor and self._is_over_budget():
                taken += self._take_best()
            self.price = floor
            rounds_without_any = 0 if taken > taken_before else rounds_without_any + 1
        return taken

    def _is_over_budget(self) -> bool:
        return bool(self.schedule.live.max(initial=0) > self.budget)

    def _gaps_over_budget(self) -> list[tuple[ValueNumber, Gap]]:
        """Return the gaps in which a value can be dropped, with a place above the budget inside."""
        schedule, values = self.schedule, self.schedule.values
        # How many of the places before each place are above the budget.
        places_over = np.concatenate(([0], np.cumsum(schedule.live > self.budget)))
        return [
            (value, gap)
            for value, size in enumerate(values.sizes)
            if size and values.can_recompute(value)
            for gap in schedule.kept_gaps(value)
            # The places inside are those after ``start`` and before ``end``.
            if places_over[gap.end] > places_over[gap.start + 1]
        ]

    def _fill_heap(self, gaps: Sequence[tuple[ValueNumber, Gap]]) -> None:
        """Replace the heap by the candidates that drop a value in one of its gaps."""
        self._heap = []
        for value, gap in gaps:
            candidate = self._evaluate(value, gap)
            if candidate:
                self._heap.append((-candidate.ratio, value, gap.end))
        heapify(self._heap)

    def _gain(self, value: ValueNumber, gap: Gap) -> int:
        """Return the bytes above the budget that a value takes in a gap, summed over places."""
        schedule = self.schedule
        excess = np.maximum(schedule.live[gap.start + 1 : gap.end] - self.budget, 0)
        return int(np.minimum(excess, schedule.values.sizes[value]).sum())

    def _ratio_without_inputs(self, value: ValueNumber, gap: Gap) -> float:
        """Return gain per work of a drop, if the inputs of its copy cost nothing."""
        return self._gain(value, gap) / (self.schedule.values.work[value] + KERNEL_LAUNCH)

    def _take_best(self) -> int:
        """Take the first candidate of the heap if it is still the best at its present gain per work.

        Otherwise it is put back at its present ratio, or dropped if it has no gain.

        Returns:
            The number of candidates that were taken, 1 or 0.
        """
        _, value, end = heappop(self._heap)
        gap = self.schedule.kept_gap_before(value, end)
        candidate = self._evaluate(value, gap) if gap else None
        if not candidate:
            return 0
        # Candidates taken meanwhile may have lowered the ratio below that of the next one.
        if self._heap and candidate.ratio < -self._heap[0][0]:
            heappush(self._heap, (-candidate.ratio, value, end))
            return 0
        self._take(candidate)
        return 1

    def _evaluate(self, value: ValueNumber, gap: Gap) -> _Candidate | None:
        """Return the candidate that drops a value in a gap, with what its copy needs.

        `_add_inputs` lowers its gain and adds to its work. Then the excess of its *transient bytes* is
        subtracted: bytes that only its copies need, while they run. None if no gain is left, or if
        `_add_inputs` gives the candidate up.
        """
        gain = self._gain(value, gap)
        if gain <= 0:
            return None
        candidate = _Candidate(value, gap, gain, work=self.schedule.values.work[value])
        if not self._add_inputs(candidate):
            return None
        # Only the bytes beyond those of other copies at the place are new (see `_transient_bytes`).
        added_bytes = max(candidate.transient_bytes - self._transient_bytes[gap.end], 0)
        candidate.gain -= self._added_excess(gap.end, gap.end + 1, added_bytes)
        return candidate if candidate.gain > 0 else None

    def _add_inputs(self, candidate: _Candidate) -> bool:
        """Add the inputs of a candidate's copy, and of the copies that make inputs, and so on.

        Their loss lowers the candidate's gain; copies add to its work and transient bytes.

        Returns:
            False if the candidate is given up: too many copies would run, or gain / work is below
            the present price divided by `_FLOOR_DIVISOR`. It is incomplete then.
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
                # The loss of a hoisted input includes its bytes at the place ``end``, so these count twice.
                # In random programs, more results got worse than better if they counted once.
                candidate.transient_bytes += values.sizes[needed]
            # Further inputs only lower the ratio.
            is_below_floor = candidate.gain * _FLOOR_DIVISOR < candidate.work * self.price
            if copies > self._max_copies or is_below_floor:
                return False
        return True

    def _choose_source(self, needed: ValueNumber, place: Place) -> _CopyInput:
        """Return how an input of a copy gets into memory at the place of the copy. Changes nothing.

        Keeping or hoisting the input has a *loss*: the bytes above the budget that it adds, summed over
        places. One more copy of the input has a cost: ``work * price``. The cheaper is chosen.

        Args:
            needed: the input.
            place: where the copy runs.
        """
        schedule, values = self.schedule, self.schedule.values
        size, work = values.sizes[needed], values.work[needed]
        gap = schedule.gap_around(needed, place)
        if gap is None:
            return _CopyInput(needed, _Source.AVAILABLE)
        if gap.end == _NEVER:
            # Its last access is before ``place``: keep it from there to here, or compute it once more.
            start, stop = gap.start + 1, place + 1
            loss = self._added_excess(start, stop, size)
            if loss <= work * self.price or not values.can_recompute(needed):
                return _CopyInput(needed, _Source.KEPT, start, stop, loss=loss)
            return _CopyInput(needed, _Source.RECOMPUTED, work=work)
        if gap.end not in schedule.recomputed_at[needed]:
            return _CopyInput(needed, _Source.AVAILABLE)
        # Dropped until a copy at the end of the gap: let that copy run here, or make one more.
        loss = self._added_excess(place, gap.end, size)
        if loss <= work * self.price:
            return _CopyInput(needed, _Source.HOISTED, place, gap.end, loss=loss)
        return _CopyInput(needed, _Source.RECOMPUTED, work=work)

    def _added_excess(self, start: Place, end: Place, size: int) -> int:
        """Return by how much ``size`` more bytes at places ``start..end`` raise the excess.

        The excess is the bytes above the budget, summed over places.
        """
        if not size:
            return 0
        new_excess = np.maximum(self.schedule.live[start:end] + size - self.budget, 0)
        # Where the budget is exceeded already, all new bytes count, but not the old excess.
        return int(np.minimum(new_excess, size).sum())

    def _take(self, candidate: _Candidate) -> None:
        """Apply a candidate to the schedule, and push the gaps that it changes to the heap.

        All its copies run at the end of the gap, and read their inputs there.
        """
        schedule, values = self.schedule, self.schedule.values
        value, end = candidate.value, candidate.gap.end
        schedule.recomputed_at[value].add(end)
        schedule.add_live(candidate.gap.start + 1, end, -values.sizes[value])
        for copy_input in candidate.inputs:
            input_value = copy_input.value
            schedule.add_access(input_value, end)
            start, stop = copy_input.start, copy_input.stop
            recomputed_at = schedule.recomputed_at[input_value]
            match copy_input.source:
                case _Source.AVAILABLE:
                    pass
                case _Source.KEPT:  # after its last access, until the copies have run
                    schedule.add_live(start, stop, values.sizes[input_value])
                case _Source.HOISTED:  # its copy runs at ``end``, not at ``stop``, and is kept
                    schedule.add_live(start, stop, values.sizes[input_value])
                    recomputed_at.remove(stop)
                    recomputed_at.add(end)
                    # What the moved copy read at ``stop`` stays counted there, as other copies may read
                    # it too, until the program is measured (`DropSchedule.set_measured`).
                case _Source.RECOMPUTED:  # one more copy, used at ``end`` only
                    recomputed_at.add(end)
        # Copies at one place run one after the other, so the most transient bytes of all count.
        transient_bytes = max(candidate.transient_bytes, self._transient_bytes[end])
        schedule.add_live(end, end + 1, transient_bytes - self._transient_bytes[end])
        self._transient_bytes[end] = transient_bytes
        for changed in (value, *(copy_input.value for copy_input in candidate.inputs)):
            self._push_gaps_around(changed, end)

    def _push_gaps_around(self, value: ValueNumber, place: Place) -> None:
        """Push the candidates of the kept gaps before and after an access of a value to the heap."""
        schedule, values = self.schedule, self.schedule.values
        if not values.sizes[value] or not values.can_recompute(value):
            return
        accesses = schedule.accesses[value]
        index = bisect_left(accesses, place)
        for end in accesses[index : index + 2]:
            gap = schedule.kept_gap_before(value, end)
            candidate = self._evaluate(value, gap) if gap else None
            if candidate:
                heappush(self._heap, (-candidate.ratio, value, end))
