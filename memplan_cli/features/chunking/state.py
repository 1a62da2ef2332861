"""Regions in pieces as a search has them: each choice, and the live bytes of the program with all."""

from __future__ import annotations

from dataclasses import dataclass
from sys import maxsize
from typing import TYPE_CHECKING

from memplan_cli.core.program import Origin
from memplan_cli.core.symbolic.sizes import size_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.core.program import Op, Program, VarId
    from memplan_cli.core.symbolic.sizes import Size
    from memplan_cli.features.chunking.region import Region
    from memplan_cli.features.chunking.rewrite import Chunked


@dataclass(frozen=True, slots=True)
class Choice:
    """One region in pieces, what it saves at its own steps, and what it costs.

    Attributes:
        region: Its ops, and the tensor that it was grown from.
        count: Its pieces.
        before: The bytes of the fullest step when it was chosen.
        after: Those of the region's own fullest step with it.
        work: What its pieces take more than its ops did.
    """

    region: Region
    count: int
    before: int
    after: int
    work: int


@dataclass(frozen=True, slots=True)
class State:
    """A program with regions in pieces, and what is live when it runs."""

    choices: tuple[Choice, ...]
    made: Chunked
    sizes: Mapping[VarId, Size]
    live: tuple[tuple[int, int], ...]
    """Bytes live from each tick on."""
    ticks: tuple[int, ...]
    """The tick at which each op begins."""
    largest: tuple[VarId, ...]
    """What is live at the fullest tick, the largest first."""
    tick: int
    """The fullest."""
    fullest: Op
    """The op of the top block that runs there."""

    @property
    def peak(self) -> int:
        """The most that is live at some tick."""
        return max((bytes_ for _, bytes_ in self.live), default=0)

    def local(self, number: int) -> int:
        """Return the most that is live while a region runs."""
        first, last = self.made.places[number]
        return self._most(self.ticks[first], self.ticks[last - 1])

    def at(self, op: Op) -> int:
        """Return the most that is live while an op runs; 0 where it is in pieces."""
        spans = zip(self.ticks, (*self.ticks[1:], maxsize), strict=True)
        for each, (start, after) in zip(self.made.program.body.ops, spans, strict=True):
            if each is op:
                return self._most(start, after - 1)
        return 0

    def _most(self, start: int, end: int) -> int:
        found = 0
        for tick, bytes_ in self.live:
            if tick > end:
                break
            found = bytes_ if tick <= start else max(found, bytes_)
        return found


def sizes_with(
    program: Program, before: Program, known: Mapping[VarId, Size]
) -> Mapping[VarId, Size]:
    """Return the vars to plan: those that were, less those in pieces, and the pieces."""
    found = {var: size for var, size in known.items() if var in program.vars}
    for var, facts in program.vars.items():
        if var not in before.vars and facts.origin is Origin.OP:
            size = size_of(facts.shape, facts.dtype)
            if size is not None:
                found[var] = size
    return found
