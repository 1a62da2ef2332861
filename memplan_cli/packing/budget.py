"""Search budgets in units of work, and the best placement that a search has found."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memplan_cli.packing.pieces import Placement


@dataclass(slots=True)
class Budget:
    """The work that a search may do, and the work that it has done.

    A unit of work is about one buffer or one section examined; 150 to 400 million take a second.
    Work, unlike time, gives the same result on every machine.

    Attributes:
        work: Units that may be spent.
        deadline: Value of `time.monotonic` after which the search stops in any case.
        spent: Units spent so far.
        target_height: Height in units at which the search may stop; 0 to go as low as possible.
        whole: The budget of which this one is a part; work is charged to both.
    """

    work: int
    deadline: float | None = None
    spent: int = 0
    target_height: int = 0
    whole: Budget | None = None

    def is_over(self) -> bool:
        """Return whether the work is spent or the deadline has passed."""
        is_late = self.deadline is not None and time.monotonic() >= self.deadline
        return is_late or self.spent >= self.work

    def is_enough(self, best: BestPlacement) -> bool:
        """Return whether the search may stop: the placement is low enough, or the budget over."""
        return best.height <= max(best.bound, self.target_height) or self.is_over()

    @property
    def remaining(self) -> int:
        """Units that may still be spent."""
        return self.work - self.spent

    def share(self, share: float) -> Budget:
        """Return a `part` with a share of the remaining work."""
        return self.part(int(self.remaining * share))

    def part(self, work: int) -> Budget:
        """Return a budget of at most ``work`` units; what it spends is spent here too."""
        work = min(work, self.remaining)
        return Budget(work, self.deadline, target_height=self.target_height, whole=self)

    def charge(self, work: int) -> None:
        """Add units of work to those spent."""
        self.spent += work
        if self.whole is not None:
            self.whole.charge(work)


FULL_WORK_GAP = 0.002
"""Gap between height and bound, as a share of the bound, that is worth all of the work."""


@dataclass(frozen=True, slots=True)
class BestPlacement:
    """The lowest placement of a piece found so far.

    Attributes:
        placement: The offsets of the buffers.
        height: Height of the placement, in units.
        bound: Height that is aimed at, in units. It is raised when heights are ruled out.
    """

    placement: Placement
    height: int
    bound: int

    @property
    def worthwhile_share(self) -> float:
        """The share of a search's work that the gap between height and bound is worth.

        It is proportional to the gap, and 1.0 from `FULL_WORK_GAP` on.
        """
        return min(1.0, (self.height - self.bound) / (FULL_WORK_GAP * self.bound))
