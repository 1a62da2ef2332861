"""ONNX Runtime's arena: best fit with coalescing (BFC), region by region.

Requests are rounded up to chunks of 256 bytes. The smallest free chunk that fits is allocated,
of several the one at the lowest address. It is split if it has at least twice the requested
size or at least ``max_dead_bytes`` more. A freed chunk is merged with its free neighbours in the
same region. If no chunk fits, the arena reserves another region from the system.

Searches for the best arena simulate thousands of arenas on the same requests, most of which soon
exceed a limit. For speed, `SimulatedArena.run` is one loop over plain numbers, and stops at the limit.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from memplan_cli.runtime.profile.record import PROFILE
from memplan_cli.runtime.simulate.trace import CHUNK

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.core.results.observations import Setting
    from memplan_cli.runtime.simulate.trace import AllocationTrace

UNLIMITED = sys.maxsize
"""A number of bytes that no arena holds."""

AfterRun = Literal["keep", "shrink"]
"""What happens to empty regions after each run: they are kept, or given back to the system."""

PlaceRegion = Callable[[int], int]
"""Return the address of a new region, given its size; both in chunks.

Addresses decide between free chunks of equal size. Chunks of two regions are never merged,
wherever the regions lie."""

_ADDRESS_BITS = 40
"""Bits of an address in the key of a free chunk. The size is in the bits above."""

_ADDRESS = (1 << _ADDRESS_BITS) - 1

_ENDLESS = 1 << 50
"""Bytes of a region that no run fills."""


@dataclass(frozen=True, slots=True)
class ArenaSettings:
    """The settings of an arena (``OrtArenaCfg``), in bytes.

    Attributes:
        initial: size of the first region, where regions grow by powers of two.
        max_dead_bytes: a chunk is split if this much or more would be left.
        max_extension: no region that doubles the last one is larger.
        exact: regions are as large as the request (``kSameAsRequested``), instead of growing by
            powers of two.
    """

    initial: int = PROFILE.arena_initial
    max_dead_bytes: int = PROFILE.arena_max_dead
    max_extension: int = PROFILE.arena_max_extension
    exact: bool = False

    @classmethod
    def from_settings(cls, arena: Mapping[str, Setting]) -> ArenaSettings:
        """Read the keys of ``OrtArenaCfg``. Missing keys and -1 mean the default.

        The value 1 of ``arena_extend_strategy`` is ``kSameAsRequested``.
        """

        def read_bytes(key: str, default: int) -> int:
            value = int(arena.get(key, -1))
            return default if value < 0 else value

        return cls(
            read_bytes("initial_chunk_size_bytes", PROFILE.arena_initial),
            read_bytes("max_dead_bytes_per_chunk", PROFILE.arena_max_dead),
            read_bytes("max_power_of_two_extend_bytes", PROFILE.arena_max_extension),
            str(arena.get("arena_extend_strategy", "")) in ("kSameAsRequested", "1"),
        )


@dataclass(frozen=True, slots=True)
class ArenaUse:
    """The result of a simulation: the memory that an arena held while it served some runs.

    Attributes:
        held: bytes reserved from the system after the last run. More than the limit if the
            simulation stopped there.
        most_held: the most bytes reserved after any of the runs, before it shrank.
    """

    held: int
    most_held: int


def simulate_arena(
    traces: Iterable[AllocationTrace],
    settings: ArenaSettings,
    *,
    limit: int = UNLIMITED,
    after_run: AfterRun = "keep",
) -> ArenaUse:
    """Simulate an arena that serves runs one after the other.

    Args:
        traces: what each run allocates and frees.
        settings: of the arena.
        limit: the simulation stops when the arena holds more bytes than this.
        after_run: what happens to empty regions after each run.
    """
    arena = SimulatedArena(settings, limit)
    most_held = 0
    last: AllocationTrace | None = None
    for trace in traces:
        if trace is last and arena.is_whole():
            continue  # the same requests find the arena as the last run found it
        is_complete = arena.run(trace)
        most_held = max(most_held, arena.held)
        if not is_complete:
            break
        if after_run == "shrink":
            arena.shrink()
        last = trace
    return ArenaUse(arena.held, most_held)


def held_after_runs(
    trace: AllocationTrace, settings: ArenaSettings, runs: int = 2, limit: int = UNLIMITED
) -> int:
    """Return the bytes that an arena holds after identical runs, or more than ``limit``."""
    return simulate_arena((trace,) * runs, settings, limit=limit).held


def best_fit_height(trace: AllocationTrace) -> int:
    """Return the bytes that best fit needs in one region without end, with every chunk split."""
    arena = SimulatedArena(ArenaSettings(initial=_ENDLESS, max_dead_bytes=1))
    arena.run(trace)
    ends = (
        address + -(-size // CHUNK)
        for address, size in zip(arena.addresses, trace.sizes, strict=True)
    )
    return max(ends, default=0) * CHUNK


class SimulatedArena:
    """The state of an arena between runs. Addresses and sizes are in chunks.

    Attributes:
        addresses: address of each allocation of the last run, by its index.
    """

    __slots__ = (
        "_following",
        "_free",
        "_free_addresses",
        "_growth",
        "_held",
        "_limit",
        "_max_dead",
        "_max_extension",
        "_place_region",
        "_previous",
        "_sizes",
        "_top",
        "addresses",
    )

    def __init__(
        self,
        settings: ArenaSettings,
        limit: int = UNLIMITED,
        place_region: PlaceRegion | None = None,
    ) -> None:
        """Create an empty arena.

        Args:
            settings: of the arena.
            limit: a run stops when the arena holds more bytes than this.
            place_region: where regions lie; None places each above the ones before.
        """
        self.addresses: list[int] = []
        self._max_dead = -(-settings.max_dead_bytes // CHUNK)
        self._growth = -(-settings.initial // CHUNK)
        self._max_extension = (
            0 if settings.exact else max(-(-settings.max_extension // CHUNK), 1)
        )
        self._limit = limit // CHUNK
        self._place_region = place_region
        self._top = 0
        """The end of the highest region."""
        self._held = 0
        self._free: list[int] = []
        """A sorted key of each free chunk: ``size << _ADDRESS_BITS | address``."""
        self._free_addresses: set[int] = set()
        self._sizes: dict[int, int] = {}
        """The size of each chunk, by address."""
        self._previous: dict[int, int] = {}
        """The chunk before each chunk in its region, by address; -1 at the start of the region."""
        self._following: dict[int, int] = {}
        """The chunk behind each chunk in its region, by address; -1 at the end of the region."""

    @property
    def held(self) -> int:
        """Bytes that the arena has reserved from the system."""
        return self._held * CHUNK

    def is_whole(self) -> bool:
        """Return whether the arena is one free region, so that an equal run would not change it."""
        return len(self._sizes) == len(self._free) == 1

    def run(self, trace: AllocationTrace) -> bool:
        """Serve the requests of one run. Return False if the arena exceeded its limit: it stopped there."""
        free, free_addresses, sizes = self._free, self._free_addresses, self._sizes
        previous, following, max_dead = self._previous, self._following, self._max_dead
        addresses = self.addresses = [0] * len(trace.sizes)
        for wanted, allocation in trace.steps:
            if wanted:  # allocate a chunk, and split it
                index = bisect_left(free, wanted << _ADDRESS_BITS)
                if index == len(free):
                    if not self._extend(wanted):
                        return False
                    index = bisect_left(free, wanted << _ADDRESS_BITS)
                key = free.pop(index)
                start, size = key & _ADDRESS, key >> _ADDRESS_BITS
                free_addresses.remove(start)
                rest = size - wanted
                if rest >= max_dead or size >= 2 * wanted:
                    rest_start, behind = start + wanted, following[start]
                    if behind >= 0:
                        previous[behind] = rest_start
                    previous[rest_start], following[rest_start] = start, behind
                    following[start] = rest_start
                    sizes[start], sizes[rest_start] = wanted, rest
                    free_addresses.add(rest_start)
                    insort(free, rest << _ADDRESS_BITS | rest_start)
                addresses[allocation] = start
            else:  # free a chunk, and merge it with its neighbours behind and ahead
                start = addresses[allocation]
                size = sizes[start]
                behind, ahead = following[start], previous[start]
                if behind in free_addresses:
                    free_addresses.remove(behind)
                    behind_size = sizes.pop(behind)
                    del free[bisect_left(free, behind_size << _ADDRESS_BITS | behind)]
                    size += behind_size
                    behind = following.pop(behind)
                    following[start] = behind
                    if behind >= 0:
                        previous[behind] = start
                if ahead in free_addresses:
                    del sizes[start]
                    ahead_size = sizes[ahead]
                    size += ahead_size
                    del free[bisect_left(free, ahead_size << _ADDRESS_BITS | ahead)]
                    following[ahead] = behind
                    if behind >= 0:
                        previous[behind] = ahead
                    start = ahead
                else:
                    free_addresses.add(start)
                sizes[start] = size
                insort(free, size << _ADDRESS_BITS | start)
        return True

    def shrink(self) -> None:
        """Return empty regions to the system, except the first one of an arena that doubles.

        The first region is the one at address 0, where regions are placed by default.
        """
        for start in sorted(self._free_addresses):
            is_region = self._previous[start] < 0 and self._following[start] < 0
            if is_region and (start or not self._max_extension):
                size = self._sizes.pop(start)
                self._free_addresses.remove(start)
                del self._previous[start], self._following[start]
                del self._free[bisect_left(self._free, size << _ADDRESS_BITS | start)]
                self._held -= size

    def _extend(self, wanted: int) -> bool:
        """Reserve a region for a request. Return False if that exceeds the limit."""
        size = self._next_region_size(wanted) if self._max_extension else wanted
        start = self._place_region(size) if self._place_region else self._top
        self._top = max(self._top, start + size)
        self._held += size
        if self._held > self._limit:
            return False
        self._sizes[start], self._previous[start], self._following[start] = size, -1, -1
        self._free_addresses.add(start)
        insort(self._free, size << _ADDRESS_BITS | start)
        return True

    def _next_region_size(self, wanted: int) -> int:
        """Return the size of the next region of an arena that grows by powers of two.

        The step doubles until the request fits. The cap applies only where the step was large
        enough already: a step that a large request made stays (core/framework/bfc_arena.cc).
        """
        is_too_small = wanted > self._growth
        while wanted > self._growth:
            self._growth *= 2
        size = self._growth
        if not is_too_small:
            self._growth = min(2 * size, self._max_extension)
        return size
