"""Where does each tensor lie, at each level? Arenas by unit, checked before anyone sees them.

A pool is an arena whose slots are handed on whole, so the three levels share one type. A
level is never worse than the one below it: where padding or bad luck makes level 2's arena
taller than level 1's pool, the pool is the answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from memplan_cli.allocators import portfolio
from memplan_cli.allocators.naive import naive
from memplan_cli.allocators.pool import pool_levels
from memplan_cli.analysis.aliasing import SHARE_NOTHING, SHARE_SAFELY
from memplan_cli.analysis.liveness import Timeline
from memplan_cli.analysis.storage import Storage, storage_of
from memplan_cli.errors import InvalidLayoutError
from memplan_cli.problem import (
    Buffer,
    BufferId,
    Layout,
    Problem,
    lower_bound,
    violations,
)
from memplan_cli.settings import DEFAULT_ALIGNMENT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.allocators.pool import Matching
    from memplan_cli.analysis.aliasing import Aliasing
    from memplan_cli.ir import Program, VarId
    from memplan_cli.problem import LiveRange
    from memplan_cli.sizes import Size


@dataclass(frozen=True)
class Needs:
    """What has to be placed, and how.

    Attributes:
        program: The ops in the order in which they will run.
        sizes: The vars to place.
        pinned: Those of them that keep storage of their own for the whole run.
        alignment: Bytes, or None for the default, which tiny models may go below.
        time_limit: Seconds that may cut the search for a layout short.
    """

    program: Program
    sizes: Mapping[VarId, Size]
    pinned: Mapping[VarId, str] = field(default_factory=dict)
    alignment: int | None = None
    time_limit: float | None = None

    # Facts of the program in this order, each worked out once however many ask.

    @cached_property
    def timeline(self) -> Timeline:
        """The program on the clock."""
        return Timeline(self.program)

    @property
    def live(self) -> Mapping[VarId, LiveRange]:
        """The live range of every var."""
        return self.timeline.live

    @cached_property
    def apart(self) -> Storage:
        """Levels 0 and 1: every var has storage of its own."""
        return self._storage(SHARE_NOTHING)

    @cached_property
    def shared(self) -> Storage:
        """Level 2: views and safe in-place results share."""
        return self._storage(SHARE_SAFELY)

    def storage(self, level: int) -> Storage:
        """Return the buffer of each var, and the buffers by unit, at a level."""
        return self.shared if level == 2 else self.apart

    def _storage(self, aliasing: Aliasing) -> Storage:
        return storage_of(self.program, self.sizes, self.pinned, aliasing, self.timeline)


@dataclass(frozen=True, slots=True)
class PlacedArena:
    """One unit's buffers and where they lie. ``slots`` is empty at level 2."""

    unit: str
    problem: Problem
    layout: Layout
    bound: int
    slots: Mapping[BufferId, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Placed:
    """The answer of one level: the buffer of each var, and the arenas by unit."""

    home: Mapping[VarId, BufferId]
    arenas: tuple[PlacedArena, ...]

    @property
    def heights(self) -> dict[str, int]:
        """Return the height of each arena by unit."""
        return {arena.unit: arena.layout.height for arena in self.arenas}


def place_levels(needs: Needs) -> tuple[Placed, Placed, Placed]:
    """Place everything at levels 0, 1 and 2.

    Raises:
        InvalidLayoutError: an allocator gave a layout that is not safe.
    """
    level0, level1 = _pooled(needs)
    return level0, level1, _in_arenas(needs, level1)


def pool_heights(needs: Needs, level: int) -> dict[str, int]:
    """Return the bytes that all slots take at level 0 or 1, by unit."""
    return _pooled(needs)[level].heights


def place_apart(needs: Needs) -> Placed:
    """Give each var memory of its own: the model left as it is."""
    home, units = needs.apart
    arenas = []
    for unit, buffers in sorted(units.items()):
        problem = Problem(buffers)
        slots = {buffer.id: number for number, buffer in enumerate(buffers)}
        arenas.append(_checked(PlacedArena(unit, problem, naive(problem), 0, slots)))
    return Placed(home, tuple(arenas))


def _pooled(needs: Needs) -> tuple[Placed, Placed]:
    """Return the answers of levels 0 and 1, which place the same buffers."""
    home, units = needs.apart
    arenas: tuple[list[PlacedArena], list[PlacedArena]] = ([], [])
    for unit, buffers in sorted(units.items()):
        problem = Problem(buffers)
        bound = lower_bound(problem)
        twins, own = pool_levels(problem)
        level0 = _slotted(unit, problem, bound, twins)
        arenas[0].append(level0)
        arenas[1].append(level0 if own is twins else _slotted(unit, problem, bound, own))
    return Placed(home, tuple(arenas[0])), Placed(home, tuple(arenas[1]))


def _slotted(unit: str, problem: Problem, bound: int, matching: Matching) -> PlacedArena:
    slots = {
        buffer.id: slot for buffer, slot in zip(matching.births, matching.slots, strict=True)
    }
    layout = matching.layout(problem.alignment)
    return _checked(PlacedArena(unit, problem, layout, bound, slots))


def _in_arenas(needs: Needs, pooled: Placed) -> Placed:
    home, units = needs.shared
    pools = {arena.unit: arena for arena in pooled.arenas}
    arenas, fallen_back = [], set()
    for unit, buffers in sorted(units.items()):
        arena = _arena(unit, buffers, needs, pools[unit].layout.height)
        if arena.layout.height > pools[unit].layout.height:
            arena = pools[unit]
            fallen_back.add(unit)
        arenas.append(arena)
    apart = {
        var: pooled.home[var] for var, size in needs.sizes.items() if size.unit in fallen_back
    }
    return Placed({**home, **apart}, tuple(arenas))


def _arena(unit: str, buffers: tuple[Buffer, ...], needs: Needs, goal: int) -> PlacedArena:
    """Pack one arena; with no alignment asked for, a coarse one must not cost memory.

    Padding every tensor of a model of a few small ones can take more than reuse saves:
    there the alignment is halved until the arena is no taller than ``goal``.
    """
    alignment = needs.alignment or DEFAULT_ALIGNMENT
    while True:
        problem = Problem(buffers, alignment)
        bound = lower_bound(problem)
        # A bound above the goal cannot be packed below it: do not try.
        if bound <= goal or alignment == 1 or needs.alignment:
            layout = portfolio(problem, time_limit=needs.time_limit)
            if layout.height <= goal or alignment == 1 or needs.alignment:
                return _checked(PlacedArena(unit, problem, layout, bound))
        alignment //= 2


def _checked(arena: PlacedArena) -> PlacedArena:
    found = violations(arena.problem, arena.layout)
    if found:
        names = ", ".join(found[0].buffers[:4])
        raise InvalidLayoutError(
            f"an allocator's layout is not safe: {found[0].reason}: {names}"
        )
    return arena
