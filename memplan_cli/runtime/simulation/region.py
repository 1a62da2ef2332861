"""The setup of the arena with which it reserves least of the system's memory.

Exact growth never joins its regions, so they pile up: 1.57 times the peak on average. One
region of the right size, in which every chunk is split, fragments far less. Where large
tensors take turns, even that has holes, and two or three regions of the right sizes hold
nothing but what is live. The sizes are found by simulating the arena on the run's own
requests.

    exact growth   |--a--|---b---|-c-|----d----|     regions of all sizes that ever met
    one region     |--a--|-c-| b |    |              best fit inside one region
    two regions    |--a--|    |---b---|              two that take turns, each in its own
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise, permutations
from typing import TYPE_CHECKING

from memplan_cli.runtime.simulation.bfc import CHUNK, ArenaRules
from memplan_cli.runtime.simulation.requests import most_in_use
from memplan_cli.runtime.simulation.trace import (
    ENDLESS,
    Request,
    Trace,
    held_by,
    held_in_turn,
    tried,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from memplan_cli.core.results.observations import Setting

_WORK = 1_500_000
"""Requests simulated in one search: about three seconds."""

_MOST_TRIALS = 48

_MOST_REGION_TRIALS = 600

_LARGEST_SIZES = 10
"""Of the distinct sizes asked for, how many the first region is made for."""

_STEP = 1.015
"""From one total to the next when several regions are tried."""

_FINE_STEP = 1.005
"""From one first region to the next when it has to do for many runs."""

_LARGER = (1.0, 1.03, 1.06, 1.1, 1.15)
"""Factors by which several regions that do for one run are tried larger for others."""

_ORDERS = tuple(tuple(permutations(range(count)))[1:] for count in (1, 2, 3))
"""The other orders of one region, of two and of three."""

_LARGEST = 2**31 - CHUNK
"""``initial_chunk_size_bytes`` is a C int."""

SMALL_STEP = 1 << 20
"""How an arena of one region grows, should a run need more than was seen."""

EXACT: Mapping[str, Setting] = {
    "arena_extend_strategy": "kSameAsRequested",
    "max_dead_bytes_per_chunk": 1,
}
"""Regions as large as what was asked for, and whatever is left of a chunk is split off."""

EXACT_UNSPLIT: Mapping[str, Setting] = {"arena_extend_strategy": "kSameAsRequested"}
"""The same regions, their chunks split by the runtime's own rule."""


@dataclass(frozen=True, slots=True)
class ArenaChoice:
    """Arena settings, and what they are predicted to hold (weights left out)."""

    arena: Mapping[str, Setting]
    held: int

    @property
    def chunk(self) -> int:
        """The initial chunk in bytes; 0 under exact growth."""
        return int(self.arena.get("initial_chunk_size_bytes", 0))


def one_chunk(size: int) -> dict[str, Setting]:
    """Return the settings of an arena that begins with one region of ``size`` bytes.

    Should a run need more (larger dims, more workspace), it grows in small steps: by the
    default it would take twice the first region.
    """
    return regions(size, SMALL_STEP)


def regions(first: int, later: int) -> dict[str, Setting]:
    """Return the settings of an arena whose first region and later ones have given bytes.

    A later region has ``later`` bytes as long as that is at most twice the first and no
    request is larger.
    """
    return {
        "arena_extend_strategy": "kNextPowerOfTwo",
        "initial_chunk_size_bytes": first,
        "max_dead_bytes_per_chunk": 1,
        "max_power_of_two_extend_bytes": later,
    }


def rounded(size: float) -> int:
    """Return the bytes of whole arena chunks that ``size`` bytes take."""
    return -(-int(size) // CHUNK) * CHUNK


def region_for_all(traces: Callable[[], Iterable[Trace]], lowest: int) -> int | None:
    """Return a first region in which each of several runs finds room, none grows it.

    Whoever runs them in whatever sequence finds that region whole again each time, so it is
    all that is ever held. None where no region can be that large.

    Args:
        traces: gives the requests of each run, as often as it is asked.
        lowest: bytes that the region has at least.
    """
    size, before = max(rounded(lowest), CHUNK), 0
    while size != before:
        before = size
        for trace in traces():
            while held_by(trace, ArenaRules.from_settings(one_chunk(size)), 1, size) > size:
                size = max(rounded(size * _FINE_STEP), size + CHUNK)
                if size > _LARGEST:
                    return None
    return size if size <= _LARGEST else None


def regions_for_all(
    traces: Callable[[], Iterable[Trace]], choice: ArenaChoice, most: int
) -> ArenaChoice | None:
    """Return two or three regions in which each of several runs finds room, none adds one.

    All regions are whole again after each run, so a run finds as many of them as those before
    it have taken: each run is tried with none, with the first, and so on up to all. None where
    regions a little larger do not do either.

    Args:
        traces: gives the requests of each run, as often as it is asked.
        choice: regions that do for one of the runs.
        most: bytes that are too many.
    """
    if choice.arena.keys() != regions(0, 0).keys():
        return None
    for factor in _LARGER:
        found = larger(choice, factor)
        if found.held >= most:
            break
        rules = ArenaRules.from_settings(found.arena)
        before = _taken(found)
        if all(
            held_in_turn((*taken, trace), rules, found.held) <= found.held
            for trace in traces()
            for taken in before
        ):
            return found
    return None


def larger(choice: ArenaChoice, factor: float) -> ArenaChoice:
    """Return as many regions, each larger by a factor."""
    first, later, count = _parts(choice)
    more = rounded(later * factor) if count else later
    wider = rounded(first * factor)
    return ArenaChoice(regions(wider, more), wider + count * more)


def _parts(choice: ArenaChoice) -> tuple[int, int, int]:
    """Return the size of the first region, that of later ones, and how many are held of these."""
    first = int(choice.arena["initial_chunk_size_bytes"])
    later = int(choice.arena["max_power_of_two_extend_bytes"])
    return first, later, (choice.held - first) // later


def _taken(choice: ArenaChoice) -> list[tuple[Trace, ...]]:
    """Return runs that leave no region, the first one, the first two, and so on."""
    first, later, count = _parts(choice)
    sizes = (first, *[later] * count)
    asked = [Request(ticket, size) for ticket, size in enumerate(sizes)]
    given = [Request(ticket, -1) for ticket in range(len(sizes))]
    states = range(1, len(sizes) + 1)
    return [(), *((Trace.of((*asked[:n], *given[:n])),) for n in states)]


def best_arena(requests: Sequence[Request]) -> ArenaChoice:
    """Return the arena settings under which these requests hold least."""
    # Splitting every chunk wins nearly always, but not always.
    trace = Trace.of(requests)
    exact = [_choice(trace, arena) for arena in (EXACT, EXACT_UNSPLIT)]
    best = min(exact, key=lambda choice: choice.held)
    lowest = most_in_use(requests)
    trials = max(4, min(_MOST_TRIALS, _WORK // max(len(requests), 1)))
    for size in _sizes(lowest, max(best.held, lowest), trials):
        if size >= min(best.held, _LARGEST):
            break
        found = _choice(trace, one_chunk(size), best.held)
        best = min(best, found, key=lambda choice: choice.held)
    several = _several(requests, trace, lowest, best.held)
    return several if several is not None else best


def _choice(trace: Trace, arena: Mapping[str, Setting], most: int = ENDLESS) -> ArenaChoice:
    """Return what an arena holds, or more than ``most`` where it holds more."""
    return ArenaChoice(arena, held_by(trace, ArenaRules.from_settings(arena), most=most))


def is_held_anywhere(trace: Trace, choice: ArenaChoice) -> bool:
    """Whether an arena holds no more, however the system lays up to three regions in memory."""
    rules = ArenaRules.from_settings(choice.arena)
    return all(
        tried(trace, rules, most=choice.held, places=places)[0] <= choice.held
        for places in _ORDERS[min(_parts(choice)[2], len(_ORDERS) - 1)]
    )


def _several(
    requests: Sequence[Request], trace: Trace, lowest: int, highest: int
) -> ArenaChoice | None:
    """Return two or three regions that hold less than ``highest``, where there are any.

    Totals are tried from the least that can do upwards, so the first that holds is the
    best there is within a step.
    """
    left = max(4, min(_MOST_REGION_TRIALS, _WORK // max(len(requests), 1)))
    firsts = _first_regions(requests, lowest)
    total = lowest
    while total < highest:
        for first, later in cuts(firsts, total):
            most = min(total + 2 * CHUNK, highest - 1)
            found = _choice(trace, regions(first, later), most)
            if found.held <= most and is_held_anywhere(trace, found):
                return found
            left -= 1
            if not left:
                return None
        total = max(rounded(total * _STEP), total + CHUNK)
    return None


def cuts(firsts: Sequence[int], total: int) -> Iterator[tuple[int, int]]:
    """Yield a first region and the size of the one or two others that add up to a total."""
    for first in firsts:
        for others in (1, 2):
            later = rounded((total - first) / others)
            # The runtime doubles its growth once after the first region, and no more.
            if 0 < later <= 2 * first <= 2 * _LARGEST:
                yield first, later


def _first_regions(requests: Sequence[Request], lowest: int) -> list[int]:
    """Return sizes that large tensors, or two of them, or what they leave, would fill."""
    distinct = sorted({rounded(r.size) for r in requests if r.size > 0}, reverse=True)
    large = distinct[:_LARGEST_SIZES]
    pairs = [2 * large[0], *(one + other for one, other in pairwise(large))] if large else []
    found = {*large, *pairs, *(lowest - size for size in large)}
    return sorted(size for size in found if 0 < size < lowest)


def _sizes(lowest: int, highest: int, count: int) -> list[int]:
    """Return sizes from the lowest on, close together where they matter most."""
    span = max(highest - lowest, 0)
    points = [lowest + int(span * (step / count) ** 2) for step in range(count + 1)]
    return sorted({rounded(max(point, CHUNK)) for point in points})
