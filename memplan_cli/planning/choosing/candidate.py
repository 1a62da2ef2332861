"""One program that may be planned, and the task that it answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memplan_cli.analysis.storage import live_peak
from memplan_cli.core.results.report import Donated
from memplan_cli.core.results.rewrites import Recompute

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from memplan_cli.analysis.aliasing import Aliasing
    from memplan_cli.analysis.phase import Phases
    from memplan_cli.analysis.storage import Measured
    from memplan_cli.core.program import Program, VarId
    from memplan_cli.core.progress import Progress
    from memplan_cli.core.symbolic.sizes import Size
    from memplan_cli.ordering.terms import Ordering, Terms
    from memplan_cli.settings.settings import Settings

FILE = "file"
"""The provenance of the order that the model is stored in."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A program that may be planned, and what was found out on the way to it.

    Attributes:
        program: The ops in the order to be planned, copies included.
        sizes: The vars to plan in it.
        order: Where the order came from: `FILE`, a method of ordering, a transform.
        peaks: The live peak by the method that found an order; empty where sizes are symbolic.
        bound: No order of the program has a lower live peak; None where not computed.
        measured: What is live in this order, where a search has measured it.
        resident: The live peak with outputs counted, where an order was searched by it; else 0.
    """

    program: Program
    sizes: Mapping[VarId, Size]
    order: str = FILE
    peaks: Mapping[str, int] = field(default_factory=dict)
    bound: int | None = None
    recompute: Recompute = field(default_factory=Recompute)
    donated: Donated = field(default_factory=Donated)
    warnings: tuple[str, ...] = ()
    measured: Measured | None = field(default=None, repr=False, compare=False)
    resident: int = 0

    @classmethod
    def ordered(cls, found: Ordering, sizes: Mapping[VarId, Size]) -> Candidate:
        """Return what a search for an order has found."""
        return cls(
            found.program,
            sizes,
            found.chosen,
            found.candidates,
            found.bound,
            measured=found.measured,
        )


@dataclass(frozen=True, slots=True)
class PlanningTask:
    """What the candidates are for.

    Attributes:
        program: In the order of the file.
        terms: What is planned, what is pinned, what may share bytes.
        phases: The program's parts.
        settings: What is asked for.
        runtime: The runtime that the order is made for; None makes it for the plan.
        progress: Told what is being done.
    """

    program: Program
    terms: Terms
    phases: Phases
    settings: Settings
    runtime: Runtime | None = None
    progress: Progress | None = None

    def tell(self, stage: str) -> None:
        """Say which stage begins."""
        if self.progress is not None:
            self.progress(stage)

    def live_peak(self, program: Program) -> int:
        """Return the live peak of the program in another order."""
        terms = self.terms
        return live_peak(program, terms.sizes, terms.pinned, terms.aliasing)

    def resident(self, program: Program) -> int:
        """Return the live peak of the program in another order, outputs counted."""
        terms = self.terms.resident
        return live_peak(program, terms.sizes, terms.pinned, terms.aliasing)


@dataclass(frozen=True, slots=True)
class Runtime:
    """What an order is made for, besides the plan.

    Attributes:
        aliasing: which operators share bytes there.
        settle: takes a program in an order of the lowest peak to one that suits its
            arena better, by steps that each are allowed.
    """

    aliasing: Aliasing
    settle: Callable[[Program, Callable[[Program], bool]], Program]
