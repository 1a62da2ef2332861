"""One region, two or three, on finer and finer grids: an arena that holds hardly more than is live.

Whether tensors that take turns find room in a region hangs on a few bytes of its size, and of
two regions on both sizes. A simulation ends where it can no longer win, most of them early, so
tens of thousands of pairs can be tried in the time of a few runs.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from memplan_cli.runtime.simulation.bfc import CHUNK, ArenaRules
from memplan_cli.runtime.simulation.region import (
    ArenaChoice,
    cuts,
    is_held_anywhere,
    one_chunk,
    regions,
    rounded,
)
from memplan_cli.runtime.simulation.requests import most_in_use
from memplan_cli.runtime.simulation.trace import Trace, tried

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from memplan_cli.core.results.observations import Setting
    from memplan_cli.runtime.simulation.trace import Request

_GRIDS = ((1.004, 1.01), (1.03, inf), (1.01, inf), (1.004, inf))
"""From one total, and from one first region, to the next; and how far above what is live totals go.

Where regions hold hardly more than that, they do so at few sizes; what holds more, at many.
"""

_SMALLEST = 0.12
"""Of what is live at once, the first region is no smaller part."""

_LITTLE, _SHARE = 1 << 16, 7
"""Bytes beyond what is live that are not worth a search: so many, or one in two to the power of so many."""

_BYTES_OF_WORK = 16
"""Requests are looked at for so many bytes each that could be saved: a quarter second for 4 MB."""

_TRIAL = 20
"""Requests that a trial costs, however early it ends."""

_LEAST_WORK, _MOST_WORK = 20_000, 500_000


def is_tight(held: int, lowest: int) -> bool:
    """Whether an arena holds hardly more bytes than are live at once."""
    return held - lowest <= max(_LITTLE, lowest >> _SHARE)


def finer(requests: Sequence[Request], choice: ArenaChoice) -> ArenaChoice:
    """Return an arena that holds less than a choice for these requests, where one is found.

    Totals are tried from what is live upwards, on each grid up to the best there is. The work
    goes by what could be saved, and never by a clock.
    """
    lowest = rounded(most_in_use(requests))
    left = min(max((choice.held - lowest) // _BYTES_OF_WORK, _LEAST_WORK), _MOST_WORK)
    best, trace = choice, Trace.of(requests)
    for number, (grid, reach) in enumerate(_GRIDS):
        total, kept = lowest, 0 if number else left // 2
        while total < min(best.held, reach * lowest) and left > kept:
            if is_tight(best.held, lowest):
                return best
            found, work = _with_total(trace, total, lowest, grid, left - kept)
            left -= work
            if found is not None:
                best = found
                break
            total = max(rounded(total * grid), total + CHUNK)
    return best


def _with_total(
    trace: Trace, total: int, lowest: int, grid: float, left: int
) -> tuple[ArenaChoice | None, int]:
    """Return the first arena that holds a total, or hardly more; and the requests looked at."""
    work, most = 0, total + 2 * CHUNK
    for arena in _arenas(total, lowest, grid):
        held, looked_at = tried(trace, ArenaRules.from_settings(arena), most=most)
        choice, work = ArenaChoice(arena, held), work + looked_at + _TRIAL
        if held <= most and is_held_anywhere(trace, choice):
            return choice, work
        if work > left:
            break
    return None, work


def _arenas(total: int, lowest: int, grid: float) -> Iterator[Mapping[str, Setting]]:
    """Yield the arenas of a total: the one region, and first ones with others beside them."""
    yield one_chunk(total)
    first = lowest * _SMALLEST
    while first < total:
        for one, later in cuts((rounded(first),), total):
            yield regions(one, later)
        first *= grid
