"""Inputs and results of transforms, kept apart from the searches themselves.

A run that keeps the order of the file needs these two, and loads no search.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from memplan_cli.analysis.aliasing import SHARE_SAFELY, SHARE_VIEWS, Aliasing

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from memplan_cli.analysis.storage import Measured
    from memplan_cli.core.program import Program, VarId
    from memplan_cli.core.symbolic.sizes import Size


@dataclass(frozen=True, slots=True)
class Terms:
    """Facts about a program's memory that the planner gives to a transform."""

    sizes: Mapping[VarId, Size]
    """Bytes of the planned vars; what depends on a symbol counts nothing."""
    pinned: Collection[VarId] = ()
    aliasing: Aliasing = SHARE_SAFELY
    results: Mapping[VarId, Size] = field(default_factory=dict)
    """Bytes of what ops make for the graph's outputs, without what is donated."""

    @property
    def resident(self) -> Terms:
        """What a runtime holds, outputs too: the live peak under these is ``resident``."""
        sizes = {**self.sizes, **self.results}
        return replace(self, sizes=sizes, aliasing=SHARE_VIEWS, results={})


@dataclass(frozen=True, slots=True)
class Ordering:
    """A program in the order chosen for it, and how that compares.

    Attributes:
        program: The same ops in the chosen order, subgraphs too; the program given itself
            where no order is better.
        candidates: Peak in bytes by the method that found the order; empty where sizes are
            symbolic.
        chosen: The method whose order it is.
        bound: No order of the program has a smaller peak; None where not computed.
        proved: Whether the chosen order meets the bound.
        measured: What is live in the chosen order, where a search has measured it.
        looser: Makes the program in an order that leaves more room beside the fullest steps,
            mostly of no higher peak, and is less like the file's; None where there is none.
    """

    program: Program
    candidates: Mapping[str, int]
    chosen: str
    bound: int | None
    proved: bool
    measured: Measured | None = field(default=None, repr=False, compare=False)
    looser: Callable[[], Program] | None = field(default=None, repr=False, compare=False)
