"""Allocation at levels 0, 1 and 2, each never taller than the one below.

A pool is an arena whose slots are reused whole, so the three levels share one type.
Where padding or bad luck makes level 2's arena taller than level 1's pool, the pool is the
answer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from time import monotonic
from typing import TYPE_CHECKING

from memplan_cli.core.problem import Buffer, BufferId, Problem, lower_bound, slot_violations
from memplan_cli.packing import portfolio
from memplan_cli.packing.pools import KINDS, element_bytes, pool_levels
from memplan_cli.packing.portfolio import DEFAULT_WORK
from memplan_cli.packing.slots import slot_bound
from memplan_cli.planning.choosing.allocation import (
    Allocation,
    Arena,
    allocation_of,
    checked,
    refuse,
)
from memplan_cli.settings.choices import DEFAULT_ALIGNMENT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from memplan_cli.analysis.storage import Storage
    from memplan_cli.core.problem import Layout
    from memplan_cli.packing.pools import Kind, Matching
    from memplan_cli.planning.choosing.allocation import Heights, Needs


def allocate(needs: Needs, level: int, work: int = DEFAULT_WORK) -> Allocation:
    """Allocate everything at one level.

    Args:
        needs: What has to be allocated, and how.
        level: 0, 1 or 2.
        work: How much may be searched for each arena of level 2; nothing that takes long
            with 0.

    Raises:
        InvalidLayoutError: an allocator gave a layout that is not safe.
    """
    return LEVELS[level](needs, work)


def heights_by_level(needs: Needs, known: Allocation, level: int) -> tuple[Heights, ...]:
    """Return the height of each arena by unit at levels 0, 1 and 2, where one is known.

    Raises:
        InvalidLayoutError: an allocator gave a layout that is not safe.
    """
    low, middle = (pool.heights for pool in _pools(needs))
    if level == 2:
        return low, middle, known.heights
    top = _in_arenas(needs, _Limit(needs, middle), DEFAULT_WORK).heights
    return low, middle, top


def _level0(needs: Needs, _: int) -> Allocation:
    return _pools(needs)[0]


def _level1(needs: Needs, _: int) -> Allocation:
    return _pools(needs)[1]


def _level2(needs: Needs, work: int) -> Allocation:
    return _in_arenas(needs, _Limit(needs), work)


LEVELS: Mapping[int, Callable[[Needs, int], Allocation]] = {0: _level0, 1: _level1, 2: _level2}
"""The allocation of each level."""

_Pool = tuple[str, Problem, "Matching"]
"""A unit, its buffers, and the slot of each."""


def _pools(needs: Needs) -> tuple[Allocation, Allocation]:
    """Return the allocations of levels 0 and 1, which allocate the same buffers.

    Each slot is an allocation of its own, padded only to an alignment that was asked for.
    """
    storage = _, units = needs.storage(0)
    levels: tuple[list[_Pool], list[_Pool]] = ([], [])
    for unit, buffers in sorted(units.items()):
        problem = Problem(buffers, needs.alignment or 1)
        for pools, matching in zip(levels, pool_levels(problem), strict=True):
            pools.append((unit, problem, matching))
    low, middle = (_reused(storage, pools, KINDS[level]) for level, pools in enumerate(levels))
    return low, middle


def _reused(storage: Storage, pools: Sequence[_Pool], kind: Kind) -> Allocation:
    """Return the allocation to slots: checked before it is laid out."""
    heights = {}
    for unit, problem, matching in pools:
        heights[unit] = matching.height(problem.alignment)
        refuse(slot_violations(problem, matching.births, matching.slots, heights[unit]))
    buffers, _ = storage
    return Allocation(storage, buffers, heights, partial(_slotted, pools, kind))


def _slotted(pools: Sequence[_Pool], kind: Kind) -> Sequence[Arena]:
    arenas = []
    for unit, problem, matching in pools:
        ids = [buffer.id for buffer in matching.births]
        slots = dict(zip(ids, matching.slots, strict=True))
        layout = matching.layout(problem.alignment)
        bound = slot_bound(problem, kind)
        arenas.append(checked(Arena(unit, problem, layout, bound, slots)))
    return arenas


@dataclass(frozen=True)
class _Limit:
    """What an arena may not be taller than: level 1, matched only where it is in doubt."""

    needs: Needs
    known: Heights | None = None
    """The heights of level 1, where it was matched already."""

    @cached_property
    def pool(self) -> Allocation:
        """The allocation of level 1."""
        return _pools(self.needs)[1]

    @cached_property
    def _least(self) -> Heights:
        """The most bytes live at one tick with nothing shared, by unit: no pool takes less."""
        units: dict[str, list[Buffer]] = {}
        for var, size in self.needs.sizes.items():
            buffer = Buffer(BufferId(var), size.coefficient, self.needs.live[var])
            units.setdefault(size.unit if size.symbols else "1", []).append(buffer)
        padded = self.needs.alignment or 1
        return {
            unit: lower_bound(Problem(tuple(buffers), padded))
            for unit, buffers in units.items()
        }

    def allows(self, unit: str, height: int) -> bool:
        """Whether level 1 takes as much for a unit, or more."""
        if self.known is not None:
            return height <= self.known[unit]
        return height <= self._least[unit] or height <= self.pool.heights[unit]


def _in_arenas(needs: Needs, limit: _Limit, work: int) -> Allocation:
    storage = buffers, units = needs.storage(2)
    arenas, fallen_back = [], set()
    for unit, of_unit in sorted(units.items()):
        arena = _arena(Problem(of_unit), unit, needs, limit, work)
        if not limit.allows(unit, arena.layout.height):
            (pool,) = (pool for pool in limit.pool.arenas if pool.unit == unit)
            arena = replace(pool, bound=lower_bound(pool.problem))  # offsets may go lower
            fallen_back.add(unit)
        arenas.append(arena)
    if fallen_back:
        apart = {
            var: limit.pool.buffers[var]
            for var, size in needs.sizes.items()
            if size.unit in fallen_back
        }
        buffers = {**buffers, **apart}
    return allocation_of(storage, buffers, arenas)


def _arena(unaligned: Problem, unit: str, needs: Needs, limit: _Limit, work: int) -> Arena:
    """Pack one arena; with no alignment asked for, a coarse one must not cost memory.

    Padding every tensor of a model of a few small ones can take more than reuse saves:
    there the alignment is halved until the arena is no taller than the limit, and never
    below the widest element, which could not be read at other addresses everywhere.
    """
    alignment = needs.alignment or DEFAULT_ALIGNMENT
    least = needs.alignment or max(map(element_bytes, unaligned.buffers), default=1)
    while True:
        problem = Problem(unaligned.buffers, alignment)
        bound = lower_bound(problem)
        # A bound above the limit cannot be packed below it: do not try.
        if alignment <= least or limit.allows(unit, bound):
            start = monotonic()
            layout = _packed(problem, bound, needs, work)
            late = needs.time_limit is not None and monotonic() - start >= needs.time_limit
            if alignment <= least or limit.allows(unit, layout.height):
                timed_out = late and not layout.proved
                return checked(Arena(unit, problem, layout, bound, timed_out=timed_out))
        alignment //= 2


def _packed(problem: Problem, bound: int, needs: Needs, work: int) -> Layout:
    """Pack one arena; of an allocator of the caller's, only where things lie is believed.

    A height below the bound leaves out the padding at the top.
    """
    if needs.allocator is None:
        return portfolio(problem, work=work, time_limit=needs.time_limit, pools=False)
    layout = needs.allocator(problem)
    return replace(layout, height=max(layout.height, bound), proved=layout.height <= bound)
