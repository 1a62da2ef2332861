"""Search budgets in units of work, and the best placement found so far."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memplan_cli.packing.pieces import Placement


@dataclass(slots=True)
class Budget:
    """The work that a search may do, and the work that it has done.

    A unit of work is about one buffer or section looked at; some 150 to 400 million take a
    second.

    Attributes:
        work: Units that may be spent.
        deadline: Monotonic time after which the search stops, whatever work remains.
        spent: Units spent so far.
        enough: Height in units at which the search may stop.
    """

    work: int
    deadline: float | None = None
    spent: int = 0
    enough: int = 0

    def is_over(self) -> bool:
        """Whether the work is spent or the deadline has passed."""
        late = self.deadline is not None and time.monotonic() >= self.deadline
        return late or self.spent >= self.work

    def is_enough(self, best: BestPlacement) -> bool:
        """Whether the search may stop: the placement is low enough, or the budget is over."""
        return best.height <= max(best.bound, self.enough) or self.is_over()

    def share(self, part: float) -> Budget:
        """Return a budget of a part of the remaining work. Its work has to be charged here."""
        return Budget(int((self.work - self.spent) * part), self.deadline, enough=self.enough)

    def charge(self, work: int) -> None:
        """Add work to the work spent."""
        self.spent += work


FULL_WORK_GAP = 0.002
"""Gap between height and bound, as a share of the bound, that deserves all of the work."""


@dataclass(frozen=True, slots=True)
class BestPlacement:
    """The lowest placement of a piece found so far, its height, and a lower bound of heights.

    The bound starts at the height that is aimed at, and rises when heights are ruled out.
    """

    placement: Placement
    height: int
    bound: int

    @property
    def deserved_share(self) -> float:
        """The share of the work that the remaining gap deserves: 1.0 from `FULL_WORK_GAP` on."""
        return min(1.0, (self.height - self.bound) / (FULL_WORK_GAP * self.bound))
