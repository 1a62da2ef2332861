"""A budget of work for searches: a count that is the same on every machine, and a deadline."""

from __future__ import annotations

import time


class WorkBudget:
    """Units of work that searches may spend, and optionally a deadline.

    What a unit is, each search defines. Without a deadline the same problem gets the same answer
    on every machine; a deadline can only end a search earlier.

    Attributes:
        remaining: units that may still be spent; negative after a search overran.
        _deadline: value of `time.monotonic` at which searches stop; None without a deadline.
        _whole: the budget of which this one is a part.
    """

    def __init__(self, work: int, seconds: float | None = None) -> None:
        self.remaining = work
        self._deadline = None if seconds is None else time.monotonic() + seconds
        self._whole: WorkBudget | None = None

    def is_over(self) -> bool:
        """Return whether the work is spent or the deadline has passed."""
        is_late = self._deadline is not None and time.monotonic() >= self._deadline
        return is_late or self.remaining <= 0

    def spend(self, work: int) -> None:
        """Reduce the remaining work, here and in the budget of which this one is a part."""
        self.remaining -= work
        if self._whole is not None:
            self._whole.spend(work)

    def part(self, work: int) -> WorkBudget:
        """Return a budget of at most ``work`` units; spending them spends from this one too."""
        part = WorkBudget(min(work, self.remaining))
        part._deadline, part._whole = self._deadline, self
        return part

    def share(self, share: float) -> WorkBudget:
        """Return a `part` with a share of the remaining work."""
        return self.part(int(self.remaining * share))
