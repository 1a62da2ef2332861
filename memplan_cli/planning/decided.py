"""All that was decided of one model, for the plan and for its report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memplan_cli.core.results.rewrites import Chunks, Folded, NewWeight

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.analysis.phase import Phases
    from memplan_cli.core.binding_options import InputShape
    from memplan_cli.core.program import Program, VarId
    from memplan_cli.core.results.rewrites import Fallback
    from memplan_cli.planning.choosing.allocation import Allocation, Needs
    from memplan_cli.planning.choosing.candidate import Candidate
    from memplan_cli.planning.scope import Scope
    from memplan_cli.settings.settings import Settings


@dataclass(frozen=True, slots=True)
class Source:
    """What the planner has to know of the file that a program came from."""

    path: str
    sha256: str
    graph_sha256: str
    warnings: tuple[str, ...] = ()
    recorded_phases: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[VarId, tuple[int | float, ...]] = field(default_factory=dict)
    """Values of small constants, where regions may be put in pieces."""
    opset: int = 0
    """The version of the standard operators."""
    block: int = 0
    """Channels of a block, where the runtime's graph has some in blocks."""
    inputs: tuple[InputShape, ...] = ()
    seen: frozenset[VarId] = frozenset()
    """Vars whose sizes nothing but one run told."""


@dataclass(frozen=True, slots=True)
class Decided:
    """All that was decided; `plan_of` and `account.report_of` only write it down."""

    source: Source
    settings: Settings
    phases: Phases
    original: Program
    scope: Scope
    candidate: Candidate
    needs: Needs
    allocation: Allocation
    """At the level asked for."""
    levels: tuple[Mapping[str, int], ...]
    """The height of each arena by unit, at levels 0, 1 and 2."""
    before: Allocation
    """At the level asked for, in the order of the file."""
    warnings: tuple[str, ...] = ()
    fallbacks: tuple[Fallback, ...] = ()
    folded: Folded = field(default_factory=Folded)
    chunked: Chunks = field(default_factory=Chunks)
    constants: Mapping[VarId, NewWeight] = field(default_factory=dict)
    """Values of the constants that pieces of regions read."""

    @property
    def program(self) -> Program:
        """Return the program in the planned order."""
        return self.candidate.program

    @property
    def is_proved(self) -> bool:
        """Whether no order has a lower live peak than the planned one."""
        bound = self.candidate.bound
        return bound is not None and self.allocation.live_peak <= bound
