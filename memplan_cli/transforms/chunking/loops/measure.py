"""What is looked for, and what is live in a program with loops: at one size, or at most."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product as cartesian
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.analysis.aliasing import SHARE_VIEWS
from memplan_cli.analysis.storage import measured
from memplan_cli.core.problem import Problem, pressure
from memplan_cli.core.program import Origin
from memplan_cli.core.symbolic.dims import bind_dim
from memplan_cli.core.symbolic.sizes import Size, size_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from memplan_cli.core.program import Program, Shape, VarId
    from memplan_cli.core.symbolic.bounds import Bounds
    from memplan_cli.transforms.chunking.axes.terms import Facts


@dataclass(frozen=True, slots=True)
class Task:
    """What is looked for.

    Attributes:
        program: The program as it is, of unknown sizes.
        facts: Of its operators.
        pinned: Vars that stay one tensor, live for the whole run.
        bounds: The least and the greatest value of each symbol.
    """

    program: Program
    facts: Facts
    pinned: Collection[VarId]
    bounds: Bounds

    @property
    def largest(self) -> Mapping[str, int]:
        """The size of the largest request."""
        return {name: high for name, (_, high) in self.bounds.items()}

    @property
    def corners(self) -> Iterator[Mapping[str, int]]:
        """Sizes of which each is the least or the greatest in all its symbols."""
        for values in cartesian(*self.bounds.values()):
            yield dict(zip(self.bounds, values, strict=True))


class Peak(NamedTuple):
    """The most that is live in a program, and how far that is above a budget."""

    bytes: int
    excess: int
    """Bytes above the budget, added up over all steps."""
    live: tuple[VarId, ...] = ()
    """What is live at the fullest step, the largest first."""


def counted(program: Program) -> Iterator[VarId]:
    """Yield what a runtime holds: all that ops make, and what they give to subgraphs."""
    for var, facts in program.vars.items():
        if facts.origin in (Origin.OP, Origin.BODY_INPUT):
            yield var


def peak_of(
    program: Program, sizes: Mapping[VarId, Size], pinned: Collection[VarId], budget: int
) -> Peak:
    """Return the most that is live, where only views share bytes, and how far above a budget."""
    found = measured(program, sizes, pinned, SHARE_VIEWS)
    buffer_of, units = found.storage
    buffers = units.get("1", ())
    curve = tuple(pressure(Problem(buffers)))
    tick, most = max(curve, key=lambda each: (each[1], -each[0]), default=(0, 0))
    ends = [*(start for start, _ in curve[1:]), curve[-1][0] + 1] if curve else []
    excess = sum(
        max(live - budget, 0) * (end - start)
        for (start, live), end in zip(curve, ends, strict=True)
    )
    ids = {each.id for each in buffers if each.live.start <= tick < each.live.end}
    live = [var for var, identity in buffer_of.items() if identity in ids]
    live.sort(key=lambda var: (-sizes[var].coefficient, var))
    return Peak(most, excess, tuple(live))


def sizes_at(program: Program, dims: Mapping[str, int]) -> Mapping[VarId, Size]:
    """Return the bytes of all that is held, numbers put in for the symbols."""
    found = {}
    for var in counted(program):
        facts = program.vars[var]
        if facts.shape is not None and None not in facts.shape:
            found[var] = Size(bytes_at(facts.shape, facts.dtype, dims))
    return found


def bytes_at(shape: Shape | None, dtype: str, dims: Mapping[str, int]) -> int:
    """Return the bytes of a tensor, numbers put in for the symbols; 0 where nobody knows."""
    bound = tuple(bind_dim(dim, dims) for dim in shape or ())
    size = size_of(bound, dtype)
    return 0 if size is None or size.symbols else size.coefficient
