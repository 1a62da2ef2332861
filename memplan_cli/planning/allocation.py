"""What has to be allocated in one order, and its allocation at levels 0, 1 and 2.

The arenas of levels 0 and 1 are *pools*, whose slots are reused whole; in those of level 2 buffers lie
at any offsets. Level 2 is never taller than level 1, and level 1 never taller than level 0: if
padding or the search makes an arena of level 2 taller than the unit's pool of level 1, the pool is
used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.analysis.aliasing import SHARE_NOTHING, SHARE_SAFELY, Aliasing
from memplan_cli.analysis.liveness import Timeline
from memplan_cli.analysis.storage import Storage, storage_of
from memplan_cli.core.problem import (
    BufferId,
    Layout,
    Problem,
    lower_bound,
    slot_violations,
    violations,
)
from memplan_cli.core.progress import silent
from memplan_cli.errors import InvalidLayoutError
from memplan_cli.packing import portfolio
from memplan_cli.packing.pools import KINDS, SlotAssignment, element_bytes, naive, pool_levels
from memplan_cli.packing.portfolio import DEFAULT_WORK
from memplan_cli.packing.slots import slot_bound
from memplan_cli.settings.choices import DEFAULT_ALIGNMENT

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from memplan_cli.core.problem import Allocator, LiveRange, Violation
    from memplan_cli.core.program import Program, VarId
    from memplan_cli.core.progress import Progress
    from memplan_cli.core.symbolic.sizes import Size
    from memplan_cli.packing.pools import Kind

Heights = Mapping[str, int]
"""The height of each arena by unit, in multiples of the unit.

A *unit* is a product of symbolic dims, such as ``batch*seq``; ``"1"`` is the unit of sizes in bytes.
The buffers of each unit have an arena of their own.
"""


def aliasing_of(level: int) -> Aliasing:
    """Return which operators share bytes at a level."""
    return SHARE_SAFELY if level == 2 else SHARE_NOTHING


@dataclass(frozen=True)
class Needs:
    """What has to be allocated for a program in one order, and how.

    Attributes:
        program: The ops in the order in which they will run.
        sizes: The vars to allocate.
        pinned: Those of them that keep storage of their own for the whole run, with the reason.
        alignment: Bytes, or None for the default, which tiny models may go below.
        time_limit: Seconds after which the search for a layout stops; None: no limit.
        allocator: Packs the arenas of level 2; None searches with the portfolio.
        progress: Called with what the search for a layout reports.
    """

    program: Program
    sizes: Mapping[VarId, Size]
    pinned: Mapping[VarId, str] = field(default_factory=dict)
    alignment: int | None = None
    time_limit: float | None = None
    allocator: Allocator | None = None
    progress: Progress = field(default=silent, repr=False, compare=False)

    @cached_property
    def timeline(self) -> Timeline:
        """The ticks of the program's ops."""
        return Timeline(self.program)

    @property
    def live(self) -> Mapping[VarId, LiveRange]:
        """The live range of every var."""
        return self.timeline.live

    @property
    def unpinned(self) -> Collection[VarId]:
        """The vars that do not keep storage of their own for the whole run."""
        return self.sizes.keys() - self.pinned.keys() if self.pinned else self.sizes.keys()

    def storage(self, level: int) -> Storage:
        """Return the buffer of each var, and the buffers by unit, at a level.

        Views and safe in-place results share buffers at level 2; below, every var has its own.
        """
        aliasing = aliasing_of(level)
        return storage_of(self.program, self.sizes, self.pinned, aliasing, self.timeline)

    @cached_property
    def pool_heights(self) -> tuple[Heights, Heights]:
        """The heights at levels 0 and 1."""
        level0, level1 = _allocate_pools(self)
        return level0.heights, level1.heights

    def is_no_higher_than_pool(self, unit: str, height: int) -> bool:
        """Whether a height is at most that of the unit's pool of level 1."""
        return height <= self.pool_heights[1][unit]


@dataclass(frozen=True, slots=True)
class Arena:
    """The buffers of one unit and their offsets.

    Attributes:
        bound: No layout of the buffers is lower.
        slots: The slot of each buffer; empty if buffers lie at offsets of their own (level 2).
        timed_out: Whether the time limit ended the search for a layout.
    """

    unit: str
    problem: Problem
    layout: Layout
    bound: int
    slots: Mapping[BufferId, int] = field(default_factory=dict)
    timed_out: bool = False


@dataclass(frozen=True)
class Allocation:
    """The arenas of one level.

    Attributes:
        storage: The buffers with their live ranges, `Needs.storage` of this level.
        buffers: The buffer of each var. Differs from that of ``storage`` in arenas of level 2
            that use the pool of level 1.
        heights: The height of each arena by unit.
        make_arenas: Returns the arenas in the order of their units. It is called only for the
            level that a plan uses: of the other levels a plan has the heights only.
    """

    storage: Storage = field(repr=False)
    buffers: Mapping[VarId, BufferId]
    heights: Heights
    make_arenas: Callable[[], Sequence[Arena]] = field(repr=False, compare=False)

    @cached_property
    def live_peak(self) -> int:
        """The most bytes live at one tick; buffers with symbols in their size are left out."""
        return lower_bound(Problem(self.storage.buffers_by_unit.get("1", ())))

    @cached_property
    def arenas(self) -> tuple[Arena, ...]:
        """The arenas by unit."""
        return tuple(self.make_arenas())

    @property
    def is_minimal(self) -> bool:
        """Whether a search has proved that no arena can be lower in this order."""
        return all(arena.layout.proved for arena in self.arenas)


def allocate(needs: Needs, level: int, work: int = DEFAULT_WORK) -> Allocation:
    """Allocate everything at one level.

    Args:
        needs: What has to be allocated, and how.
        level: 0: slots for tensors of one dtype and shape; 1: slots for tensors of one dtype; 2: an
            arena in which tensors lie at any offset.
        work: The steps that the search for a layout may take in each arena of level 2; with 0
            only fast heuristics run.
    """
    if level == 2:
        return _allocate_offsets(needs, work)
    return _allocate_pools(needs)[level]


def heights_by_level(needs: Needs, allocation: Allocation, level: int) -> tuple[Heights, ...]:
    """Return the arenas' heights at levels 0, 1 and 2, given the allocation at one level.

    Level 2 is packed anew unless the allocation is of that level.
    """
    level2 = allocation if level == 2 else allocate(needs, 2)
    return (*needs.pool_heights, level2.heights)


def allocate_apart(needs: Needs, level: int) -> Allocation:
    """Give each var memory of its own: nothing is reused, only the live peak is that of ``level``."""
    unshared = needs.storage(0)  # at level 0 each var has its own buffer, also a view
    arenas = []
    for unit, unit_buffers in sorted(unshared.buffers_by_unit.items()):
        problem = Problem(unit_buffers)
        slots = {buffer.id: number for number, buffer in enumerate(unit_buffers)}
        # No bound is searched for where nothing is to be reused.
        arena = Arena(unit, problem, naive(problem), bound=0, slots=slots)
        arenas.append(_require_safe(arena))
    storage = needs.storage(level)  # for the live peak only: at level 2 views share bytes
    return _finished_allocation(storage, unshared.buffer_of, arenas)


def _finished_allocation(
    storage: Storage, buffers: Mapping[VarId, BufferId], arenas: Sequence[Arena]
) -> Allocation:
    """Return the allocation to arenas that have their layouts already."""
    heights = {arena.unit: arena.layout.height for arena in arenas}
    return Allocation(storage, buffers, heights, lambda: arenas)


class _MatchedPool(NamedTuple):
    """A pool: the buffers of one unit, and the slot of each."""

    unit: str
    problem: Problem
    assignment: SlotAssignment


def _allocate_pools(needs: Needs) -> tuple[Allocation, Allocation]:
    """Return the allocations to slots that are reused whole: of level 0 and of level 1.

    A slot holds one buffer after the other. At level 0 its buffers have one dtype and shape, at level 1 one
    dtype. Slots are not padded by default, because each is an allocation of its own. An alignment of the
    settings pads them.
    """
    storage = needs.storage(0)  # that of level 1 too: in both, each var has its own buffer
    # Buffers whose size has the same symbols, such as ``batch*seq``, have the same unit and share slots.
    level0_pools: list[_MatchedPool] = []
    level1_pools: list[_MatchedPool] = []
    for unit, buffers in sorted(storage.buffers_by_unit.items()):
        problem = Problem(buffers, needs.alignment or 1)
        by_shape, by_dtype = pool_levels(problem)
        level0_pools.append(_MatchedPool(unit, problem, by_shape))
        level1_pools.append(_MatchedPool(unit, problem, by_dtype))
    return (
        _pool_allocation(storage, level0_pools, KINDS[0]),
        _pool_allocation(storage, level1_pools, KINDS[1]),
    )


def _pool_allocation(
    storage: Storage, pools: Sequence[_MatchedPool], kind: Kind
) -> Allocation:
    """Return the allocation to slots, checked now. The arenas are made when they are first used.

    Raises:
        InvalidLayoutError: two buffers in one slot are live at the same time.
    """
    heights = {}
    for unit, problem, assignment in pools:
        heights[unit] = assignment.height(problem.alignment)
        _refuse(slot_violations(problem, assignment.buffers, assignment.slots, heights[unit]))
    return Allocation(storage, storage.buffer_of, heights, partial(_pool_arenas, pools, kind))


def _pool_arenas(pools: Sequence[_MatchedPool], kind: Kind) -> Sequence[Arena]:
    """Return the arena of each pool, with the slots one after another."""
    arenas = []
    for unit, problem, assignment in pools:
        ids = [buffer.id for buffer in assignment.buffers]
        slots = dict(zip(ids, assignment.slots, strict=True))
        layout = assignment.layout(problem.alignment)
        bound = slot_bound(problem, kind)
        arenas.append(_require_safe(Arena(unit, problem, layout, bound, slots)))
    return arenas


def _allocate_offsets(needs: Needs, work: int) -> Allocation:
    """Return the allocation of level 2: for each unit an arena with offsets, or slots of level 1 if lower.

    A unit is the product of symbols in a size (`Heights`). Its arena can be higher than its slots, because
    offsets are aligned, and because the search for a layout is limited.
    """
    storage = needs.storage(2)
    buffer_of = dict(storage.buffer_of)
    arenas = {
        unit: _pack_arena(Problem(unit_buffers), unit, needs, work)
        for unit, unit_buffers in sorted(storage.buffers_by_unit.items())
    }
    units_with_slots = {
        unit
        for unit, arena in arenas.items()
        if not needs.is_no_higher_than_pool(unit, arena.layout.height)
    }
    if units_with_slots:
        _, level1 = _allocate_pools(needs)
        for pool in level1.arenas:
            if pool.unit in units_with_slots:
                # The bound of a pool is one for slots. Offsets of the same buffers may be lower.
                arenas[pool.unit] = replace(pool, bound=lower_bound(pool.problem))
        for var, size in needs.sizes.items():
            if size.unit in units_with_slots:
                buffer_of[var] = level1.buffers[var]
    # The live peak of the plan is that of ``storage``: of level 2, also for units with slots.
    return _finished_allocation(storage, buffer_of, list(arenas.values()))


def _pack_arena(unaligned: Problem, unit: str, needs: Needs, work: int) -> Arena:
    """Pack the buffers of one unit at the largest alignment at which the layout is no higher than their pool.

    The pool of buffers is their memory at level 1: slots, which are not padded by default. Padding to the
    default alignment can take more than offsets save, in a model of a few small tensors. An alignment of
    the settings is kept.
    """
    alignment = needs.alignment or DEFAULT_ALIGNMENT
    # Some processors cannot read an element at an address that is not a multiple of its size.
    min_alignment = needs.alignment or max(map(element_bytes, unaligned.buffers), default=1)
    while alignment > min_alignment:
        problem = Problem(unaligned.buffers, alignment)
        bound = lower_bound(problem)
        # If the lower bound exceeds the pool, so does every layout: the search is left out.
        if needs.is_no_higher_than_pool(unit, bound):
            arena = _search_layout(unit, problem, bound, needs, work)
            if needs.is_no_higher_than_pool(unit, arena.layout.height):
                return _require_safe(arena)
        alignment //= 2
    problem = Problem(unaligned.buffers, alignment)
    return _require_safe(_search_layout(unit, problem, lower_bound(problem), needs, work))


def _search_layout(unit: str, problem: Problem, bound: int, needs: Needs, work: int) -> Arena:
    """Return the arena of one unit at the alignment of a problem, not checked yet."""
    start = monotonic()
    layout = _pack(problem, bound, needs, work)
    is_late = needs.time_limit is not None and monotonic() - start >= needs.time_limit
    return Arena(unit, problem, layout, bound, timed_out=is_late and not layout.proved)


def _pack(problem: Problem, bound: int, needs: Needs, work: int) -> Layout:
    """Return a layout, by the portfolio or by the caller's allocator, not checked yet.

    ``bound`` is the most bytes live at one tick, with sizes rounded up to the alignment.
    """
    if needs.allocator is None:
        return portfolio(
            problem, work=work, time_limit=needs.time_limit, progress=needs.progress
        )
    layout = needs.allocator(problem)
    # For one buffer of 100 bytes at alignment 64, an allocator may return 100: the bound is 128.
    height = max(layout.height, bound)
    # The allocator's own claim that its layout is proved minimal is not used.
    return replace(layout, height=height, proved=height == bound)


def _require_safe(arena: Arena) -> Arena:
    """Return the arena given.

    Raises:
        InvalidLayoutError: buffers of its layout overlap.
    """
    _refuse(violations(arena.problem, arena.layout))
    return arena


def _refuse(found: Sequence[Violation]) -> None:
    """Refuse a layout with violations."""
    if found:
        names = ", ".join(found[0].buffers[:4])
        raise InvalidLayoutError(
            f"an allocator's layout is not safe: {found[0].reason}: {names}"
        )
