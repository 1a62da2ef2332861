"""The task of planning one program, and the candidates that planning compares."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memplan_cli.core.results.report import DonationSummary
from memplan_cli.core.results.rewrites import RecomputeSummary

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from memplan_cli.analysis.aliasing import Aliasing
    from memplan_cli.analysis.phase import Phases
    from memplan_cli.core.binding_options import InputShape
    from memplan_cli.core.program import Program, VarId
    from memplan_cli.core.progress import Progress
    from memplan_cli.core.symbolic.sizes import Size
    from memplan_cli.ordering.records import Ordering, PlannedVars
    from memplan_cli.settings.settings import Settings

FILE = "file"
"""The `Candidate.order` of a program in the order of the model file."""


@dataclass(frozen=True, slots=True)
class Source:
    """Facts about the model file of a program.

    Attributes:
        graph_sha256: The digest of the graph without the data of weights.
        warnings: Warnings of reading the file, which the plan's report repeats.
        recorded_phases: The phase of each node for which the file records one.
        constants: Values of small constants; read only if regions may be chunked.
        opset: The version of the standard operators; read only if regions may be chunked.
        block: Channels per block in the runtime's blocked layout; 0: the graph has none.
        inputs: The shapes of inputs whose dims are not all numbers.
        sizes_observed: Whether some sizes depend on data and were observed in a run.
        observed_vars: Vars whose sizes are known from a run only.
    """

    path: str
    sha256: str
    graph_sha256: str
    warnings: tuple[str, ...] = ()
    recorded_phases: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[VarId, tuple[int | float, ...]] = field(default_factory=dict)
    opset: int = 0
    block: int = 0
    inputs: tuple[InputShape, ...] = ()
    sizes_observed: bool = False
    observed_vars: frozenset[VarId] = frozenset()


@dataclass(frozen=True, slots=True)
class Runtime:
    """A runtime that the order is made for, besides the plan.

    Attributes:
        aliasing: The operators that share bytes there.
        order_for_arena: Returns a program in an order that suits the runtime's arena better. Arguments:
            a program in an order of the lowest live peak, and a predicate of allowed programs.
        arena_bytes: Returns the bytes that the runtime's arena holds for a program in its order;
            None if a size is unknown.
    """

    aliasing: Aliasing
    order_for_arena: Callable[[Program, Callable[[Program], bool]], Program]
    arena_bytes: Callable[[Program], int | None]


@dataclass(frozen=True, slots=True)
class PlanningTask:
    """One program to plan, and what its order is made for.

    Attributes:
        program: In the order of the file.
        planned_vars: The vars that are planned, which are pinned, and what may share bytes. They hold in
            every order.
        runtime: The runtime that the order is made for; None: it is made for the plan.
    """

    program: Program
    planned_vars: PlannedVars
    phases: Phases
    settings: Settings
    runtime: Runtime | None = None
    progress: Progress | None = None

    def tell(self, stage: str) -> None:
        """Report the stage that begins."""
        if self.progress is not None:
            self.progress(stage)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A program that may be planned, and what is known from the search for it.

    Attributes:
        program: The ops in the order to be planned, copies included.
        sizes: The vars to plan in it.
        order: The origin of the order: `FILE`, a method of ordering, or a rewrite.
        peaks: The live peak by the method that found an order; empty if sizes are symbolic.
        bound: No order of the program has a lower live peak; None: not computed.
        resident: The live peak with outputs counted, if the order was searched by it; else 0.
    """

    program: Program
    sizes: Mapping[VarId, Size]
    order: str = FILE
    peaks: Mapping[str, int] = field(default_factory=dict)
    bound: int | None = None
    recompute: RecomputeSummary = field(default_factory=RecomputeSummary)
    donated: DonationSummary = field(default_factory=DonationSummary)
    warnings: tuple[str, ...] = ()
    resident: int = 0

    @classmethod
    def ordered(cls, ordering: Ordering, sizes: Mapping[VarId, Size]) -> Candidate:
        """Return the candidate in the order that a search has chosen."""
        return cls(ordering.program, sizes, ordering.chosen, ordering.peaks, ordering.bound)
