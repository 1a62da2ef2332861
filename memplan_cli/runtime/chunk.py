"""How should the arena be set up so that it takes least from the system?

Exact growth never joins its regions, so they pile up: 1.57 times the peak on average. One
region of the right size, in which every chunk is split, fragments far less; the right size
is found by simulating the arena on the run's own requests.

    exact growth   |--a--|---b---|-c-|----d----|     regions of all sizes that ever met
    one chunk      |--a--|-c-| b |    |              best fit inside one region
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan_cli.runtime.bfc import CHUNK, ArenaRules
from memplan_cli.runtime.requests import held_after, most_in_use

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memplan_cli.evidence import Setting
    from memplan_cli.runtime.requests import Request

_WORK = 1_500_000
"""Requests simulated in one search: about three seconds."""

_MOST_TRIALS = 48

_LARGEST = 2**31 - CHUNK
"""``initial_chunk_size_bytes`` is a C int."""

EXACT: Mapping[str, Setting] = {
    "arena_extend_strategy": "kSameAsRequested",
    "max_dead_bytes_per_chunk": 1,
}

_EXACT_UNSPLIT: Mapping[str, Setting] = {"arena_extend_strategy": "kSameAsRequested"}


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
    return {
        "arena_extend_strategy": "kNextPowerOfTwo",
        "initial_chunk_size_bytes": size,
        "max_dead_bytes_per_chunk": 1,
        "max_power_of_two_extend_bytes": 1 << 20,
    }


def best_arena(requests: Sequence[Request]) -> ArenaChoice:
    """Return the arena settings under which these requests hold least."""
    # Splitting every chunk wins nearly always, but not always.
    regions = [
        ArenaChoice(arena, held_after(requests, ArenaRules.from_settings(arena)))
        for arena in (EXACT, _EXACT_UNSPLIT)
    ]
    best = min(regions, key=lambda choice: choice.held)
    lowest = most_in_use(requests)
    trials = max(4, min(_MOST_TRIALS, _WORK // max(len(requests), 1)))
    for size in _sizes(lowest, max(best.held, lowest), trials):
        if size >= min(best.held, _LARGEST):
            break
        arena = one_chunk(size)
        held = held_after(requests, ArenaRules.from_settings(arena))
        if held < best.held:
            best = ArenaChoice(arena, held)
    return best


def _sizes(lowest: int, highest: int, count: int) -> list[int]:
    """Return sizes from the lowest on, close together where they matter most."""
    span = max(highest - lowest, 0)
    points = [lowest + int(span * (step / count) ** 2) for step in range(count + 1)]
    return sorted({-(-max(point, CHUNK) // CHUNK) * CHUNK for point in points})
