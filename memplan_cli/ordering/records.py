"""Input and result of the searches for an order.

The records are kept apart from the searches, so that a plan in the file's order loads none.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from memplan_cli.analysis.aliasing import SHARE_SAFELY, SHARE_VIEWS, Aliasing
from memplan_cli.analysis.storage import live_peak

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from memplan_cli.core.program import Program, VarId
    from memplan_cli.core.symbolic.sizes import Size


@dataclass(frozen=True, slots=True)
class PlannedVars:
    """The variables whose bytes count in a program's live peak, and how they share bytes.

    Attributes:
        sizes: Bytes of each planned variable.
        pinned: Planned variables that keep storage of their own for the whole run.
        aliasing: The rules by which variables share bytes.
        results: Bytes of the graph outputs that are not planned, without donated outputs.
    """

    sizes: Mapping[VarId, Size]
    pinned: Collection[VarId] = ()
    aliasing: Aliasing = SHARE_SAFELY
    results: Mapping[VarId, Size] = field(default_factory=dict)

    @property
    def resident(self) -> PlannedVars:
        """The variables that a runtime allocates: graph outputs count, and only views share bytes.

        The live peak of these is the number of *resident* bytes.
        """
        sizes = {**self.sizes, **self.results}
        return replace(self, sizes=sizes, aliasing=SHARE_VIEWS, results={})

    def live_peak(self, program: Program) -> int:
        """Return the live peak of a program with these variables. Sizes must be numbers."""
        return live_peak(program, self.sizes, self.pinned, self.aliasing)


@dataclass(frozen=True, slots=True)
class Ordering:
    """The order chosen for a program, and how it compares.

    Attributes:
        program: The same ops in the chosen order, subgraphs too; the original program if no order
            is better.
        peaks: The live peak in bytes that each method reached; empty if sizes are symbolic.
        chosen: The method that found the order.
        bound: Bytes that no order's live peak is below; None if not computed.
        proved: Whether the live peak of the chosen order is ``bound``.
    """

    program: Program
    peaks: Mapping[str, int]
    chosen: str
    bound: int | None
    proved: bool
