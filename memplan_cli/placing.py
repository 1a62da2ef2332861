"""Where does each tensor lie, at each level? Arenas by unit, checked before anyone sees them.

A pool is an arena whose slots are handed on whole, so the three levels share one type. A
level is never worse than the one below it: where padding or bad luck makes level 2's arena
taller than level 1's pool, the pool is the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.allocators import portfolio
from memplan_cli.allocators.naive import naive
from memplan_cli.allocators.pool import KINDS, pool_levels
from memplan_cli.allocators.portfolio import DEFAULT_WORK
from memplan_cli.allocators.slot_bound import slot_bound
from memplan_cli.analysis.aliasing import SHARE_NOTHING, SHARE_SAFELY
from memplan_cli.analysis.liveness import Timeline
from memplan_cli.analysis.storage import Measured, Storage, storage_of
from memplan_cli.errors import InvalidLayoutError
from memplan_cli.heap import give_back
from memplan_cli.problem import (
    Buffer,
    BufferId,
    Layout,
    Problem,
    lower_bound,
    pressure,
    slot_violations,
    violations,
)
from memplan_cli.settings import DEFAULT_ALIGNMENT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memplan_cli.allocators.pool import Kind, Matching
    from memplan_cli.ir import Program, VarId
    from memplan_cli.problem import LiveRange, Violation
    from memplan_cli.sizes import Size


Heights = Mapping[str, int]
"""The height of each arena by unit."""

Curve = tuple[tuple[int, int], ...]
"""Ticks, and the bytes that are live from each of them on."""


@dataclass(frozen=True)
class Needs:
    """What has to be placed, and how.

    Attributes:
        program: The ops in the order in which they will run.
        sizes: The vars to place.
        pinned: Those of them that keep storage of their own for the whole run.
        alignment: Bytes, or None for the default, which tiny models may go below.
        time_limit: Seconds that may cut the search for a layout short.
        measured: What was measured before, of this program or another.
    """

    program: Program
    sizes: Mapping[VarId, Size]
    pinned: Mapping[VarId, str] = field(default_factory=dict)
    alignment: int | None = None
    time_limit: float | None = None
    measured: Measured | None = field(default=None, repr=False, compare=False)

    @cached_property
    def timeline(self) -> Timeline:
        """The program on the clock, put there once however many ask."""
        return Timeline(self.program) if self._known is None else self._known.timeline

    @cached_property
    def _known(self) -> Measured | None:
        """What was measured, if that is of what has to be placed."""
        known, wanted = self.measured, (self.program, self.sizes, self.pinned)
        return known if known is not None and known.is_of(*wanted) else None

    @property
    def live(self) -> Mapping[VarId, LiveRange]:
        """The live range of every var."""
        return self.timeline.live

    def storage(self, level: int) -> Storage:
        """Return the buffer of each var, and the buffers by unit, at a level.

        Views and safe in-place results share at level 2; below, every var has its own.
        """
        aliasing = SHARE_SAFELY if level == 2 else SHARE_NOTHING
        if self._known is not None and self._known.aliasing is aliasing:
            return self._known.storage
        return storage_of(self.program, self.sizes, self.pinned, aliasing, self.timeline)


@dataclass(frozen=True, slots=True)
class PlacedArena:
    """One unit's buffers and where they lie. ``slots`` is empty at level 2."""

    unit: str
    problem: Problem
    layout: Layout
    bound: int
    slots: Mapping[BufferId, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Placed:
    """The answer of one level.

    Attributes:
        storage: What is live, and when, as `Needs.storage` says of this level.
        home: The buffer of each var; not that of ``storage`` where level 2 fell back.
        heights: The height of each arena by unit.
        lay_out: Makes the arenas, in the order of their units: a plan has those of one
            level, and of the others no more than the heights.
    """

    storage: Storage = field(repr=False)
    home: Mapping[VarId, BufferId]
    heights: Mapping[str, int]
    lay_out: Callable[[], Sequence[PlacedArena]] = field(repr=False, compare=False)

    @cached_property
    def curve(self) -> Curve:
        """The bytes live in buffers of fixed size, by the ticks at which they change."""
        _, units = self.storage
        return tuple(pressure(Problem(units.get("1", ()))))

    @property
    def live_peak(self) -> int:
        """Return the most bytes live at one tick."""
        return max((live for _, live in self.curve), default=0)

    @cached_property
    def arenas(self) -> tuple[PlacedArena, ...]:
        """The arenas by unit.

        Raises:
            InvalidLayoutError: an allocator gave a layout that is not safe.
        """
        return tuple(self.lay_out())


class Levels(NamedTuple):
    """What each level comes to, and the answer of the one that was asked for."""

    placed: Placed
    heights: tuple[Heights, Heights, Heights]
    """The height of each arena by unit, at levels 0, 1 and 2."""


def place_levels(needs: Needs, level: int) -> Levels:
    """Place everything at levels 0, 1 and 2, and keep the answer of one of them.

    Args:
        needs: What has to be placed, and how.
        level: Whose answer is kept; of the others the heights are.

    Raises:
        InvalidLayoutError: an allocator gave a layout that is not safe.
    """
    pooled = _pooled(needs)
    low, middle = (placed.heights for placed in pooled)
    if level < 2:
        placed, top = (
            pooled[level],
            _in_arenas(needs, _Goal(needs, middle), DEFAULT_WORK).heights,
        )
    else:
        del pooled  # made again where level 2 falls back on one of them
        give_back(len(needs.sizes))
        placed = _in_arenas(needs, _Goal(needs, middle), DEFAULT_WORK)
        top = placed.heights
    return Levels(placed, (low, middle, top))


def beside_pools(needs: Needs, placed: Placed) -> Levels:
    """Return what each level comes to, where level 2 has its answer.

    Raises:
        InvalidLayoutError: an allocator gave a layout that is not safe.
    """
    low, middle = (pooled.heights for pooled in _pooled(needs))
    return Levels(placed, (low, middle, placed.heights))


def place_level(needs: Needs, level: int, work: int = DEFAULT_WORK) -> Placed:
    """Place everything at one level.

    Args:
        needs: What has to be placed, and how.
        level: 0, 1 or 2.
        work: How much may be searched for each arena; nothing that takes long with 0.

    Raises:
        InvalidLayoutError: an allocator gave a layout that is not safe.
    """
    if level < 2:
        return _pooled(needs)[level]
    return _in_arenas(needs, _Goal(needs), work)


def place_apart(needs: Needs) -> Placed:
    """Give each var memory of its own: the model left as it is."""
    storage = home, units = needs.storage(0)
    arenas = []
    for unit, buffers in sorted(units.items()):
        problem = Problem(buffers)
        slots = {buffer.id: number for number, buffer in enumerate(buffers)}
        arenas.append(_checked(PlacedArena(unit, problem, naive(problem), 0, slots)))
    return _placed(storage, home, arenas)


def _placed(
    storage: Storage, home: Mapping[VarId, BufferId], arenas: Sequence[PlacedArena]
) -> Placed:
    heights = {arena.unit: arena.layout.height for arena in arenas}
    return Placed(storage, home, heights, lambda: arenas)


_Pool = tuple[str, Problem, "Matching"]
"""A unit, its buffers, and who takes over whose slot."""


def _pooled(needs: Needs) -> tuple[Placed, Placed]:
    """Return the answers of levels 0 and 1, which place the same buffers."""
    storage = _, units = needs.storage(0)
    levels: tuple[list[_Pool], list[_Pool]] = ([], [])
    for unit, buffers in sorted(units.items()):
        problem = Problem(buffers)
        for pools, matching in zip(levels, pool_levels(problem), strict=True):
            pools.append((unit, problem, matching))
    low, middle = (
        _handed_on(storage, pools, KINDS[level]) for level, pools in enumerate(levels)
    )
    return low, middle


def _handed_on(storage: Storage, pools: Sequence[_Pool], kind: Kind) -> Placed:
    """Return the answer of a level whose slots are handed on: checked before they are laid."""
    heights = {}
    for unit, problem, matching in pools:
        heights[unit] = matching.height(problem.alignment)
        _refuse(slot_violations(problem, matching.births, matching.slots, heights[unit]))
    home, _ = storage
    return Placed(storage, home, heights, partial(_slotted, pools, kind))


def _slotted(pools: Sequence[_Pool], kind: Kind) -> Sequence[PlacedArena]:
    arenas = []
    for unit, problem, matching in pools:
        ids = [buffer.id for buffer in matching.births]
        slots = dict(zip(ids, matching.slots, strict=True))
        layout = matching.layout(problem.alignment)
        bound = slot_bound(problem, kind)
        arenas.append(_checked(PlacedArena(unit, problem, layout, bound, slots)))
    return arenas


@dataclass(frozen=True)
class _Goal:
    """What an arena may not be taller than: level 1, matched only where it is in doubt."""

    needs: Needs
    known: Heights | None = None
    """The heights of level 1, where it was matched already."""

    @cached_property
    def pooled(self) -> Placed:
        """The answer of level 1."""
        return _pooled(self.needs)[1]

    @cached_property
    def _least(self) -> Mapping[str, int]:
        """The most bytes live at one tick with nothing shared, by unit: no pool takes less."""
        units: dict[str, list[Buffer]] = {}
        for var, size in self.needs.sizes.items():
            buffer = Buffer(BufferId(var), size.coefficient, self.needs.live[var])
            units.setdefault(size.unit if size.symbols else "1", []).append(buffer)
        return {unit: lower_bound(Problem(tuple(buffers))) for unit, buffers in units.items()}

    def allows(self, unit: str, height: int) -> bool:
        """Whether level 1 takes as much for a unit, or more."""
        if self.known is not None:
            return height <= self.known[unit]
        return height <= self._least[unit] or height <= self.pooled.heights[unit]


def _in_arenas(needs: Needs, goal: _Goal, work: int) -> Placed:
    storage = home, units = needs.storage(2)
    arenas, fallen_back = [], set()
    for unit, buffers in sorted(units.items()):
        arena = _arena(unit, buffers, needs, goal, work)
        if not goal.allows(unit, arena.layout.height):
            (pool,) = (pool for pool in goal.pooled.arenas if pool.unit == unit)
            arena = replace(pool, bound=lower_bound(pool.problem))  # offsets may go lower
            fallen_back.add(unit)
        arenas.append(arena)
    if fallen_back:
        apart = {
            var: goal.pooled.home[var]
            for var, size in needs.sizes.items()
            if size.unit in fallen_back
        }
        home = {**home, **apart}
    return _placed(storage, home, arenas)


def _arena(
    unit: str, buffers: tuple[Buffer, ...], needs: Needs, goal: _Goal, work: int
) -> PlacedArena:
    """Pack one arena; with no alignment asked for, a coarse one must not cost memory.

    Padding every tensor of a model of a few small ones can take more than reuse saves:
    there the alignment is halved until the arena is no taller than the goal.
    """
    alignment = needs.alignment or DEFAULT_ALIGNMENT
    while True:
        problem = Problem(buffers, alignment)
        bound = lower_bound(problem)
        # A bound above the goal cannot be packed below it: do not try.
        if alignment == 1 or needs.alignment or goal.allows(unit, bound):
            limit = needs.time_limit
            layout = portfolio(problem, work=work, time_limit=limit, pools=False)
            if alignment == 1 or needs.alignment or goal.allows(unit, layout.height):
                return _checked(PlacedArena(unit, problem, layout, bound))
        alignment //= 2


def _checked(arena: PlacedArena) -> PlacedArena:
    _refuse(violations(arena.problem, arena.layout))
    return arena


def _refuse(found: Sequence[Violation]) -> None:
    if found:
        names = ", ".join(found[0].buffers[:4])
        raise InvalidLayoutError(
            f"an allocator's layout is not safe: {found[0].reason}: {names}"
        )
