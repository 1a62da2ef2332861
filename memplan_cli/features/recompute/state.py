"""A schedule with gaps in which values are not kept, and the bytes live at each place.

Time is the base program's schedule: a copy runs at the place of the op that it stands in
front of. So nothing moves when a copy is added, and one number per place says how many
bytes are live there.

    value   made o----------o read          o read
    gap                      \\............./^ copy

A value that is dropped in its first gap is not computed twice but later: its producer
moves, and that costs nothing.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from memplan_cli.features.recompute.build import Copied
    from memplan_cli.features.recompute.values import Values


class State:
    """Accesses and copies of each value, and the bytes live at each place."""

    def __init__(self, values: Values, live: NDArray[np.int64]) -> None:
        self.values = values
        self.live = live.copy()
        self.times = [list(reads) for reads in values.reads]
        """When each value must be there, copies' reads included."""
        self.copies: list[set[int]] = [set() for _ in values.size]
        """When each value is made again."""

    def gap_around(self, value: int, time: int) -> tuple[int, int] | None:
        """Return the accesses around a time; None if the value is accessed at it.

        The second is -1 behind the last access.
        """
        times = self.times[value]
        at = bisect_left(times, time)
        if at < len(times) and times[at] == time:
            return None
        return times[at - 1], times[at] if at < len(times) else -1

    def gap_ending(self, value: int, end: int) -> tuple[int, int] | None:
        """Return the gap before an access; None if there is none, or it is dropped."""
        times = self.times[value]
        at = bisect_left(times, end)
        if end in self.copies[value] or not 0 < at < len(times) or times[at] != end:
            return None
        return times[at - 1], end

    def gaps(self, value: int) -> list[tuple[int, int]]:
        """Return the gaps of a value, of one place or more, in which it is kept."""
        times, copies = self.times[value], self.copies[value]
        return [
            (start, end)
            for start, end in pairwise(times)
            if end - start > 1 and end not in copies
        ]

    def price_of(self, value: int, start: int) -> int:
        """Return the work of dropping a value in the gap behind an access."""
        moves = self.values.alone[value] and start == self.values.made[value]
        return 0 if moves else self.values.work[value]

    def touch(self, value: int, time: int) -> None:
        """Add an access, if there is none."""
        if self.gap_around(value, time):
            insort(self.times[value], time)

    def change(self, start: int, end: int, size: int) -> None:
        """Make ``size`` bytes more live in ``[start, end)``."""
        if start < end:
            self.live[start:end] += size

    def replace_estimates(self, copied: Copied, live: NDArray[np.int64]) -> None:
        """Replace estimates by what a built program really does."""
        self.live = live.copy()
        self.copies = [set(copied.made.get(value, ())) for value in range(len(self.times))]
        times = [
            {*reads, *copied.made.get(value, ())}
            for value, reads in enumerate(self.values.reads)
        ]
        for value, time in copied.reads:
            times[value].add(time)
        self.times = [sorted(each) for each in times]

    def undo(self, budget: int) -> int:
        """Keep values again where that fits, the dearest first; return how often it did."""
        work = self.values.work
        dropped = sorted(
            (-work[value], value, end)
            for value, copies in enumerate(self.copies)
            for end in copies
        )
        undone = 0
        for _, value, end in dropped:
            start = self.times[value][bisect_left(self.times[value], end) - 1]
            size = self.values.size[value]
            if not self.price_of(value, start):
                continue
            if self.live[start + 1 : end].max(initial=0) + size <= budget:
                self.copies[value].discard(end)
                self.change(start + 1, end, size)
                undone += 1
        return undone
