"""Search for the arena settings with which the arena reserves the least memory from the system.

With exact growth the arena holds 1.57 times the peak on average, because regions are never merged.
One region of the right size, in which every chunk is split, fragments far less. If large tensors
alternate, one region still has holes, while two or three regions of the right sizes hold nothing
but live tensors. The sizes are found by simulating the arena on the requests of a run.

    exact growth   |--a--|---b---|-c-|----d----|     regions of all sizes that ever met
    one region     |--a--|-c-| b |    |              best fit inside one region
    two regions    |--a--|    |---b---|              two tensors that alternate, each in its own

Most simulations stop early, once the arena holds too much. Work is counted in trials and never in seconds,
so that the result is deterministic.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice, pairwise
from operator import attrgetter
from typing import TYPE_CHECKING

from memplan_cli.core.results.observations import CPU
from memplan_cli.runtime.simulate.arena import (
    UNLIMITED,
    ArenaSettings,
    held_after_runs,
)
from memplan_cli.runtime.simulate.trace import CHUNK, AllocationTrace, rounded_up

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from memplan_cli.core.results.observations import Setting

_WORK = 1_500_000
"""Requests of the trials of a search, were each simulated to its end."""

_MIN_TRIALS = 4
"""Trials of a search, however large the graph."""

_MAX_ONE_REGION_TRIALS, _MAX_SEVERAL_REGIONS_TRIALS = 48, 600

_LARGEST_TENSORS = 10
"""First regions are derived from so many of the largest distinct tensor sizes."""

_TOTAL_STEP = 1.015
"""Ratio of one total of several regions to the next."""

_NEGLIGIBLE_BYTES, _NEGLIGIBLE_SHIFT = 1 << 16, 7
"""Bytes above the live bytes that are not worth a search: this many, or one in 2**7."""

_SHARED_REGION_STEP = 1.005
"""Ratio of one size of a region for several runs to the next."""

LARGEST_REGION = 2**31 - CHUNK
"""``initial_chunk_size_bytes`` is a C int."""

SMALL_STEP = 1 << 20
"""Size of further regions behind one region, should a run need more than predicted."""

OWN_INITIALIZERS: Mapping[str, str] = {"session.use_device_allocator_for_initializers": "1"}
"""Session entries with which weights get memory of their own size. In the arena they would take its
first region."""

EXACT: Mapping[str, Setting] = {
    "arena_extend_strategy": "kSameAsRequested",
    "max_dead_bytes_per_chunk": 1,
}
"""Exact growth: regions as large as the request, and the rest of a larger chunk is split off."""

EXACT_UNSPLIT: Mapping[str, Setting] = {"arena_extend_strategy": "kSameAsRequested"}
"""Exact growth, with chunks split by the default rule."""


def release_entries(provider: str = CPU) -> Mapping[str, str]:
    """Return run entries with which the arena gives empty regions back to the system at the end of a run.

    They need an arena of `EXACT` growth. Outputs are alive at the end of a run, so one region for all tensors
    would never be empty. An arena that is named, but that the session does not have, fails the run
    (core/session/inference_session.cc, ``ValidateAndParseShrinkArenaString``).
    """
    return {"memory.enable_memory_arena_shrinkage": "cpu:0" if provider == CPU else "gpu:0"}


RELEASE_AFTER_RUN = release_entries()
"""`release_entries` of the CPU provider."""


@dataclass(frozen=True, slots=True)
class ArenaChoice:
    """Settings of the arena, and the bytes that it is predicted to hold.

    Attributes:
        settings: keys of ``OrtArenaCfg``.
        held: bytes reserved from the system, without weights.
    """

    settings: Mapping[str, Setting]
    held: int


def one_region(size: int) -> dict[str, Setting]:
    """Return the settings of an arena whose first region has ``size`` bytes.

    If a run needs more (larger dims, more workspace), the arena grows by small steps. By default
    it would add twice the first region.
    """
    return regions(size, SMALL_STEP)


def regions(first: int, later: int) -> dict[str, Setting]:
    """Return the settings of an arena whose first region and later ones have these sizes.

    Each region is twice as large as the one before, but at most ``later`` bytes, unless a request is
    larger. So later regions have ``later`` bytes if that is at most twice ``first``. Every larger chunk
    is split, so that no bytes are lost in chunks that are larger than their tensors.
    """
    return {
        "arena_extend_strategy": "kNextPowerOfTwo",
        "initial_chunk_size_bytes": first,
        "max_dead_bytes_per_chunk": 1,
        "max_power_of_two_extend_bytes": later,
    }


def best_arena(trace: AllocationTrace) -> ArenaChoice:
    """Return the arena that holds least after two runs, of those that are tried.

    These are exact growth with and without splitting, then one region, then two or three regions.
    """
    best = min(_held_by(trace, EXACT), _held_by(trace, EXACT_UNSPLIT), key=attrgetter("held"))
    count = _trials(trace, _MAX_ONE_REGION_TRIALS)
    for size in _one_region_sizes(
        trace.rounded_peak, max(best.held, trace.rounded_peak), count
    ):
        # Sizes ascend, and an arena holds at least its first region: no later size is better, or allowed.
        if size >= best.held or size > LARGEST_REGION:
            break
        choice = _held_by(trace, one_region(size), limit=best.held)
        best = min(best, choice, key=attrgetter("held"))
    return _arena_of_several_regions(trace, best.held) or best


def _arena_of_several_regions(trace: AllocationTrace, best_held: int) -> ArenaChoice | None:
    """Return an arena of two or three regions that holds less than the best until now (``best_held`` bytes), or None.

    Totals of regions are tried in ascending order. The first arena whose regions suffice for two runs is returned.
    """
    first_sizes = _first_region_sizes(trace)
    candidates = (
        (total, arena)
        for total in _totals(trace.rounded_peak, best_held)
        for first in first_sizes
        for arena in _several_regions(first, total)
    )
    for total, arena in islice(candidates, _trials(trace, _MAX_SEVERAL_REGIONS_TRIALS)):
        # Rounded up, the two or three regions have at most two chunks more than the total. An arena that holds
        # more after two runs has grown by a further region.
        limit = min(total + 2 * CHUNK, best_held - 1)
        choice = _held_by(trace, arena, limit)  # above the limit, the simulation has stopped
        if choice.held <= limit:
            return choice  # arenas of larger totals rarely hold less
    return None


def is_tight(held: int, lowest: int) -> bool:
    """Return whether an arena holds hardly more bytes than are live at once."""
    return held - lowest <= max(_NEGLIGIBLE_BYTES, lowest >> _NEGLIGIBLE_SHIFT)


def _trials(trace: AllocationTrace, most: int) -> int:
    """Return the number of trials whose requests are about `_WORK`, but at most ``most``."""
    requests = 2 * len(trace.sizes)  # each tensor is allocated and freed
    return max(_MIN_TRIALS, min(most, _WORK // max(requests, 1)))


def _held_by(
    trace: AllocationTrace, arena: Mapping[str, Setting], limit: int = UNLIMITED
) -> ArenaChoice:
    """Return arena settings with the bytes that the arena holds after two runs.

    Above ``limit`` bytes the simulation stops, and the result only tells that the limit is exceeded.
    """
    settings = ArenaSettings.from_settings(arena)
    return ArenaChoice(arena, held_after_runs(trace, settings, runs=2, limit=limit))


def _totals(lowest: int, highest: int) -> Iterator[int]:
    """Yield totals from ``lowest`` to below ``highest`` bytes, each `_TOTAL_STEP` times the one before."""
    total = lowest
    while total < highest:
        yield total
        total = max(rounded_up(total * _TOTAL_STEP), total + CHUNK)


def _one_region_sizes(lowest: int, highest: int, count: int) -> list[int]:
    """Return ``count + 1`` sizes or fewer from lowest to highest, denser near the lowest."""
    span = max(highest - lowest, 0)
    points = [lowest + int(span * (step / count) ** 2) for step in range(count + 1)]
    return sorted({rounded_up(max(point, CHUNK)) for point in points})


def _first_region_sizes(trace: AllocationTrace) -> list[int]:
    """Return sizes that `best_arena` tries for the first region of an arena, in ascending order.

    They are derived from the largest distinct tensor sizes. For the sizes 8, 5 and 4, in units of `CHUNK` bytes, and
    the peak 20:

        one tensor                  8, 5, 4
        two tensors                 8 + 5, 5 + 4, and 2 * 8; other pairs are not tried
        the peak without a tensor   20 - 8, 20 - 5, 20 - 4
    """
    peak = trace.rounded_peak
    distinct_sizes = sorted({rounded_up(size) for size in trace.sizes if size}, reverse=True)
    large = distinct_sizes[:_LARGEST_TENSORS]
    neighbors = [larger + smaller for larger, smaller in pairwise(large)]
    twice_largest = [2 * size for size in large[:1]]  # no size if there are no tensors
    peak_without_one = [peak - size for size in large]
    candidates = {*large, *neighbors, *twice_largest, *peak_without_one}
    return sorted(size for size in candidates if 0 < size < peak)


def _several_regions(first: int, total: int) -> Iterator[Mapping[str, Setting]]:
    """Yield the settings of arenas with ``total`` bytes: a first region, and one or two later ones.

    Later regions have equal sizes, so only the second one has to obey ONNX Runtime's rule (`regions`):
    a region is at most twice as large as the one before.
    """
    if first > LARGEST_REGION:  # the setting for the first region cannot be larger
        return
    for later_count in (1, 2):
        later_size = rounded_up((total - first) / later_count)
        if 0 < later_size <= 2 * first:
            yield regions(first, later_size)


def shared_region(traces: Sequence[AllocationTrace], lowest: int) -> int | None:
    """Return the size of one region that never grows in any of several runs.

    The region is empty again after each run, so the runs may come in any order. None if no region
    can be that large.

    Args:
        traces: the requests of each run.
        lowest: the smallest size to try.
    """
    size, previous_size = max(rounded_up(lowest), CHUNK), 0
    # A larger region may have other holes, so runs that did not grow it are simulated again.
    while size != previous_size:
        previous_size = size
        for trace in traces:
            while _grows(trace, size):
                size = max(rounded_up(size * _SHARED_REGION_STEP), size + CHUNK)
                if size > LARGEST_REGION:
                    return None
    return size if size <= LARGEST_REGION else None


def _grows(trace: AllocationTrace, size: int) -> bool:
    """Return whether a run needs more than one region of this size."""
    settings = ArenaSettings.from_settings(one_region(size))
    return held_after_runs(trace, settings, runs=1, limit=size) > size
