"""A budget of work for searches: a count that is the same on every machine, and a deadline."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class WorkBudget:
    """A number of units of work that searches may spend, and optionally a deadline.

    One unit is one examined step of an order, about a microsecond. Without a deadline the same
    problem gets the same answer on every machine. A deadline can only end a search earlier.

    Attributes:
        remaining: units that are not spent yet; negative after the last search overran.
        _end: the deadline on the clock of `time.monotonic`; None without one.
    """

    def __init__(self, work: int, seconds: float | None = None) -> None:
        self.remaining = work
        self._end = None if seconds is None else time.monotonic() + seconds

    @property
    def in_time(self) -> bool:
        """Whether the deadline has not passed."""
        return self._end is None or time.monotonic() < self._end

    def spend(self, work: int) -> None:
        """Reduce the remaining work."""
        self.remaining -= work

    def part(self, work: int) -> WorkBudget:
        """Return a budget of at most ``work`` units; spending them spends from this one too."""
        return _Part(self, min(work, self.remaining))

    def allow(self, work: int) -> Callable[[int], bool]:
        """Return ``keep_going(work_so_far)``, by which a search reports its total work.

        Each call spends the work since the call before from this budget. It returns whether the
        search may continue: False from ``work`` units on, or once the deadline has passed.
        """
        limit = min(work, self.remaining)
        reported = 0

        def keep_going(work_so_far: int) -> bool:
            nonlocal reported
            self.spend(work_so_far - reported)
            reported = work_so_far
            return work_so_far < limit and self.in_time

        return keep_going


class _Part(WorkBudget):
    """A part of another budget: what is spent here is spent there too."""

    def __init__(self, whole: WorkBudget, work: int) -> None:
        super().__init__(work)
        self._whole = whole

    @property
    def in_time(self) -> bool:
        return self._whole.in_time

    def spend(self, work: int) -> None:
        super().spend(work)
        self._whole.spend(work)
