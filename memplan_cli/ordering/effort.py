"""How much may be tried: a count of work, the same on every machine, and maybe a clock."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Effort:
    """A budget that searches draw from, in steps looked at (about a microsecond each).

    Without a deadline the same problem gets the same answer everywhere; a deadline, in
    seconds from now, can only cut a search short.
    """

    def __init__(self, work: int, seconds: float | None = None) -> None:
        self.left = work
        self._end = None if seconds is None else time.monotonic() + seconds

    @property
    def in_time(self) -> bool:
        """Whether the deadline is still ahead."""
        return self._end is None or time.monotonic() < self._end

    def spend(self, work: int) -> None:
        """Take work off the budget."""
        self.left -= work

    def part(self, work: int) -> Effort:
        """Return a budget of at most ``work`` that is drawn from this one as it is spent."""
        return _Part(self, min(work, self.left))

    def allow(self, work: int) -> Callable[[int], bool]:
        """Return a function that says whether a search may go on, given its work so far.

        It draws on this budget, for ``work`` steps at most.
        """
        before = self.left
        limit = min(work, before)

        def keep_going(done: int) -> bool:
            self.spend(done - (before - self.left))
            return done < limit and self.in_time

        return keep_going


class _Part(Effort):
    """A share of another budget."""

    def __init__(self, whole: Effort, work: int) -> None:
        super().__init__(work)
        self._whole = whole

    @property
    def in_time(self) -> bool:
        return self._whole.in_time

    def spend(self, work: int) -> None:
        super().spend(work)
        self._whole.spend(work)
