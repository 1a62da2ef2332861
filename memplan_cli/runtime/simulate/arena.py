"""ONNX Runtime's arena: best fit with coalescing (BFC), region by region.

Requests are rounded up to units of 256 bytes. The smallest free chunk that fits is allocated,
of several the one at the lowest address. It is split if it has at least twice the requested
size or at least ``max_dead_bytes`` more. A freed chunk is merged with its free neighbors in the
same region. If no chunk fits, the arena reserves another region from the system.

Searches for the best arena simulate thousands of arenas on the same requests. Most of these arenas soon
exceed a limit, where the simulation stops.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from memplan_cli.runtime.profile.record import PROFILE
from memplan_cli.runtime.simulate.trace import CHUNK

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memplan_cli.core.results.observations import Setting
    from memplan_cli.runtime.simulate.trace import AllocationTrace, TraceStep

UNLIMITED = 1 << 64
"""A number of bytes that no arena holds."""

AfterRun = Literal["keep", "shrink"]
"""What happens to empty regions after each run: they are kept, or given back to the system."""

PlaceRegion = Callable[[int], int]
"""Return the address of a new region, given its size; both in units of `CHUNK` bytes.

Addresses decide between free chunks of equal size. Chunks of two regions are never merged,
wherever the regions lie."""


@dataclass(frozen=True, slots=True)
class ArenaSettings:
    """The settings of an arena (``OrtArenaCfg``), in bytes.

    Attributes:
        initial: size of the first region, where regions grow by powers of two.
        max_dead_bytes: a chunk is split if this much or more would be left.
        max_extension: no region that doubles the last one is larger.
        exact: regions are as large as the request (``kSameAsRequested``), instead of growing by
            powers of two.
        growth_after_shrink: size of the next region of an arena that was shrunk, where regions grow by powers of two.
    """

    initial: int = PROFILE.arena_initial
    max_dead_bytes: int = PROFILE.arena_max_dead
    max_extension: int = PROFILE.arena_max_extension
    exact: bool = False
    growth_after_shrink: int = PROFILE.arena_growth_after_shrink

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
            read_bytes("initial_growth_chunk_size_bytes", PROFILE.arena_growth_after_shrink),
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

    The simulation stops when the arena holds more than ``limit`` bytes.
    """
    arena = SimulatedArena(settings, limit)
    most_held = 0
    last: AllocationTrace | None = None
    for trace in traces:
        if trace is last and after_run == "keep" and arena.is_whole():
            # One region has served all requests of the last run, and serves the same ones again. An
            # arena that shrinks may have had further regions in that run.
            continue
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
    """Return the highest end of an allocation, in bytes, if best fit serves a run in one region without end."""
    # With ``max_dead_bytes=1``, free memory that is larger than a request is always split: nothing stays unused.
    arena = SimulatedArena(ArenaSettings(initial=UNLIMITED, max_dead_bytes=1))
    arena.run(trace)
    ends = (  # in units of `CHUNK` bytes
        address + _units(size)
        for address, size in zip(arena.addresses, trace.sizes, strict=True)
    )
    return max(ends, default=0) * CHUNK


class SimulatedArena:
    """The state of an arena between runs. Addresses and sizes are in units of `CHUNK` bytes.

    Attributes:
        addresses: address of each allocation of the last run, by its index, also after its free.
    """

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
        self.addresses: list[int] = []  # of allocations; `run` begins with a new list
        # All sizes and addresses are in units of `CHUNK` bytes.
        self._max_dead = _units(settings.max_dead_bytes)
        self._next_size = _units(settings.initial)  # of the next region
        self._size_after_shrink = _units(settings.growth_after_shrink)
        self._max_extension = max(_units(settings.max_extension), 1)
        self._grows_as_requested = settings.exact  # else regions grow by powers of two
        self._limit = limit // CHUNK  # rounded down: one unit more would exceed it
        self._place_region = place_region
        self._first_region: int | None = None  # address of the region reserved first
        self._top = 0  # the end of the highest region
        self._held = 0  # the total size of the regions
        # A region is divided into chunks: allocations, and the free memory between them.
        self._sizes: dict[int, int] = {}  # of each chunk, by its address
        self._free: list[tuple[int, int]] = []  # size and address of each free chunk, sorted
        self._free_addresses: set[int] = set()
        # The neighbors of each chunk in its region, by address; None at the ends of the region.
        self._previous: dict[int, int | None] = {}
        self._following: dict[int, int | None] = {}

    @property
    def held(self) -> int:
        """Bytes that the arena has reserved from the system."""
        return self._held * CHUNK

    def is_whole(self) -> bool:
        """Return whether the arena is one region, and all of it is free."""
        return len(self._sizes) == len(self._free) == 1

    def run(self, trace: AllocationTrace) -> bool:
        """Serve the requests of one run. Return False if the arena exceeded its limit: it stopped there."""
        self.addresses = [0] * len(trace.sizes)
        return self.serve(trace.steps)

    def serve(self, steps: Sequence[TraceStep]) -> bool:
        """Serve steps of a run, each an allocation or a free. Return False if the arena exceeded its limit.

        `run` begins a run: it gives ``addresses`` an entry for each allocation. Further steps of the run may follow in
        further calls.
        """
        # Both cases are in one loop, without calls, which would take much of the time of a search over arenas.
        addresses, max_dead = self.addresses, self._max_dead
        # Between two steps, ``sizes``, ``previous`` and ``following`` have each chunk, by its address; the last two
        # may have chunks that are gone too, unused. ``free`` and ``free_addresses`` have each free chunk.
        sizes, previous, following = self._sizes, self._previous, self._following
        free, free_addresses = self._free, self._free_addresses
        # ``wanted`` units of `CHUNK` bytes are allocated; 0: the allocation is freed.
        for wanted, allocation in steps:
            if wanted:  # allocate the smallest free chunk that fits
                position = bisect_left(free, (wanted, 0))
                if position == len(free):
                    if not self._extend(wanted):
                        return False
                    position = bisect_left(free, (wanted, 0))
                size, address = free.pop(position)
                free_addresses.remove(address)
                rest = size - wanted
                # A rest of ``max_dead`` or more, or of half the chunk, is too much to stay unused: it is split off.
                if rest >= max_dead or size >= 2 * wanted:
                    rest_address, after = address + wanted, following[address]
                    if after is not None:
                        previous[after] = rest_address
                    previous[rest_address], following[rest_address] = address, after
                    following[address] = rest_address
                    sizes[address], sizes[rest_address] = wanted, rest
                    free_addresses.add(rest_address)
                    insort(free, (rest, rest_address))
                addresses[allocation] = address
            else:  # free the chunk, merged with its free neighbors
                address = addresses[allocation]
                size = sizes.pop(address)
                before, after = previous[address], following[address]
                if after in free_addresses:  # the next chunk becomes part of this one
                    free_addresses.remove(after)
                    after_size = sizes.pop(after)
                    del free[bisect_left(free, (after_size, after))]
                    size += after_size
                    after = following[after]
                if before in free_addresses:  # this chunk becomes part of the one before
                    before_size = sizes[before]
                    del free[bisect_left(free, (before_size, before))]
                    size += before_size
                    address = before
                # The merged chunk, at the address of the first of its parts.
                following[address] = after
                if after is not None:
                    previous[after] = address
                sizes[address] = size
                free_addresses.add(address)
                insort(free, (size, address))
        return True

    def shrink(self) -> list[int]:
        """Give empty regions back to the system; return their addresses.

        An arena whose regions grow by powers of two keeps its first region, and grows anew.
        """
        kept_region = None if self._grows_as_requested else self._first_region
        self._next_size = self._size_after_shrink
        released = []
        for address in sorted(self._free_addresses):
            is_region = self._previous[address] is None and self._following[address] is None
            if is_region and address != kept_region:
                size = self._sizes.pop(address)
                self._free_addresses.remove(address)
                del self._previous[address], self._following[address]
                self._free.remove((size, address))
                self._held -= size
                released.append(address)
        return released

    def _extend(self, wanted: int) -> bool:
        """Reserve a region for a request of ``wanted`` units. Return False if that exceeds the limit.

        The arena is not used any more then: `held` includes a region that it does not have.
        """
        size = wanted if self._grows_as_requested else self._next_region_size(wanted)
        self._held += size
        if self._held > self._limit:
            return False
        address = self._place_region(size) if self._place_region else self._top
        if self._first_region is None:
            self._first_region = address
        self._top = max(self._top, address + size)
        self._sizes[address] = size
        self._previous[address] = self._following[address] = None
        self._free_addresses.add(address)
        insort(self._free, (size, address))
        return True

    def _next_region_size(self, wanted: int) -> int:
        """Return the size of the next region of an arena that grows by powers of two.

        The step doubles until the request fits. The cap applies only where the step was large
        enough already: a step that a large request made stays (core/framework/bfc_arena.cc).
        """
        is_too_small = wanted > self._next_size
        while wanted > self._next_size:
            self._next_size *= 2
        size = self._next_size
        if not is_too_small:
            self._next_size = min(2 * size, self._max_extension)
        return size


def _units(size: int) -> int:
    """Return the number of units of `CHUNK` bytes that hold ``size`` bytes."""
    return -(-size // CHUNK)
