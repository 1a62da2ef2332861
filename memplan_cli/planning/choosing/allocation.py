"""What has to be allocated in one order, and the arenas that it was allocated to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from memplan_cli.analysis.aliasing import SHARE_NOTHING, SHARE_SAFELY, Aliasing
from memplan_cli.analysis.liveness import Timeline
from memplan_cli.analysis.storage import Measured, Storage, storage_of
from memplan_cli.core.problem import (
    BufferId,
    Layout,
    Problem,
    pressure,
    violations,
)
from memplan_cli.errors import InvalidLayoutError
from memplan_cli.packing.greedy import naive

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from memplan_cli.core.problem import Allocator, LiveRange, Violation
    from memplan_cli.core.program import Program, VarId
    from memplan_cli.core.symbolic.sizes import Size

Heights = Mapping[str, int]
"""The height of each arena by unit."""

Curve = tuple[tuple[int, int], ...]
"""Ticks, and the bytes that are live from each of them on."""


def aliasing_of(level: int) -> Aliasing:
    """Return which operators share bytes at a level."""
    return SHARE_SAFELY if level == 2 else SHARE_NOTHING


@dataclass(frozen=True)
class Needs:
    """What has to be allocated, and how.

    Attributes:
        program: The ops in the order in which they will run.
        sizes: The vars to allocate.
        pinned: Those of them that keep storage of their own for the whole run.
        alignment: Bytes, or None for the default, which tiny models may go below.
        time_limit: Seconds that may cut the search for a layout short.
        allocator: Packs the arenas of level 2; None searches with the portfolio.
        measured: The storage of this program and these sizes, where a search has found it.
    """

    program: Program
    sizes: Mapping[VarId, Size]
    pinned: Mapping[VarId, str] = field(default_factory=dict)
    alignment: int | None = None
    time_limit: float | None = None
    allocator: Allocator | None = None
    measured: Measured | None = field(default=None, repr=False, compare=False)

    @cached_property
    def timeline(self) -> Timeline:
        """The program on the clock, put there once however many ask."""
        return Timeline(self.program) if self.measured is None else self.measured.timeline

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

        Views and safe in-place results share at level 2; below, every var has its own.
        """
        aliasing = aliasing_of(level)
        if self.measured is not None and self.measured.aliasing is aliasing:
            return self.measured.storage
        return storage_of(self.program, self.sizes, self.pinned, aliasing, self.timeline)


@dataclass(frozen=True, slots=True)
class Arena:
    """One unit's buffers and their offsets. ``slots`` is empty at level 2."""

    unit: str
    problem: Problem
    layout: Layout
    bound: int
    slots: Mapping[BufferId, int] = field(default_factory=dict)
    timed_out: bool = False
    """Whether seconds ended the search before it was done."""


@dataclass(frozen=True)
class Allocation:
    """Where everything lies at one level.

    Attributes:
        storage: What is live, and when, as `Needs.storage` says of this level.
        buffers: The buffer of each var; not that of ``storage`` where level 2 fell back.
        heights: The height of each arena by unit.
        lay_out: Makes the arenas, in the order of their units: a plan has those of one
            level, and of the others no more than the heights.
    """

    storage: Storage = field(repr=False)
    buffers: Mapping[VarId, BufferId]
    heights: Heights
    lay_out: Callable[[], Sequence[Arena]] = field(repr=False, compare=False)

    @cached_property
    def curve(self) -> Curve:
        """The bytes live in buffers of fixed size, by the ticks at which they change."""
        _, units = self.storage
        return tuple(pressure(Problem(units.get("1", ()))))

    @property
    def live_peak(self) -> int:
        """The most bytes live at one tick."""
        return max((live for _, live in self.curve), default=0)

    @cached_property
    def arenas(self) -> tuple[Arena, ...]:
        """The arenas by unit.

        Raises:
            InvalidLayoutError: an allocator gave a layout that is not safe.
        """
        return tuple(self.lay_out())

    @property
    def is_minimal(self) -> bool:
        """Whether no arena can be lower in this order, as a search has shown."""
        return all(arena.layout.proved for arena in self.arenas)


def allocation_of(
    storage: Storage, buffers: Mapping[VarId, BufferId], arenas: Sequence[Arena]
) -> Allocation:
    """Return the allocation to arenas that are laid out already."""
    heights = {arena.unit: arena.layout.height for arena in arenas}
    return Allocation(storage, buffers, heights, lambda: arenas)


def allocate_apart(needs: Needs, level: int) -> Allocation:
    """Give each var memory of its own: the model left as it is.

    What is live counts shared bytes once at level 2, although nothing shares here.
    """
    buffers, units = needs.storage(0)
    arenas = []
    for unit, of_unit in sorted(units.items()):
        problem = Problem(of_unit)
        slots = {buffer.id: number for number, buffer in enumerate(of_unit)}
        arenas.append(checked(Arena(unit, problem, naive(problem), 0, slots)))
    return allocation_of(needs.storage(level), buffers, arenas)


def checked(arena: Arena) -> Arena:
    """Return an arena whose layout is safe.

    Raises:
        InvalidLayoutError: it is not.
    """
    refuse(violations(arena.problem, arena.layout))
    return arena


def refuse(found: Sequence[Violation]) -> None:
    """Refuse a layout with violations.

    Raises:
        InvalidLayoutError: naming the first one.
    """
    if found:
        names = ", ".join(found[0].buffers[:4])
        raise InvalidLayoutError(
            f"an allocator's layout is not safe: {found[0].reason}: {names}"
        )
