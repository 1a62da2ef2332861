"""Search budgets in units of work, and the best placement found so far."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memplan_cli.packing.pieces import Placement


@dataclass(slots=True)
class Budget:
    """Work that may still be done, and a moment after which none may.

    A unit of work is about one buffer or section looked at; some 150 to 400 million take a
    second.
    """

    work: int
    deadline: float | None = None
    spent: int = 0
    enough: int = 0
    """Units of height below which the search may stop."""

    def is_over(self) -> bool:
        """Whether to stop."""
        late = self.deadline is not None and time.monotonic() >= self.deadline
        return late or self.spent >= self.work

    def is_enough(self, found: Found) -> bool:
        """Whether nothing lower can be found, or need be, or may be looked for."""
        return found.height <= max(found.bound, self.enough) or self.is_over()

    def share(self, part: float) -> Budget:
        """Return a part of what is left, to be given back with ``charge``."""
        return Budget(int((self.work - self.spent) * part), self.deadline, enough=self.enough)

    def charge(self, work: int) -> None:
        """Note work that was done."""
        self.spent += work


WORTH = 0.002
"""Gap, as a share of the bound, from which on it is worth all the work there is."""


@dataclass(frozen=True, slots=True)
class Found:
    """The best placement so far, its height, and the least height that is worth trying.

    The bound starts at what is aimed at and rises when a height is ruled out.
    """

    placement: Placement
    height: int
    bound: int

    @property
    def worth(self) -> float:
        """The share of the work that the gap deserves: what is tiny is not worth all of it."""
        return min(1.0, (self.height - self.bound) / (WORTH * self.bound))
