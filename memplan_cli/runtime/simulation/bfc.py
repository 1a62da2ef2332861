"""ONNX Runtime's arena, simulated: best fit with coalescing, region by region.

Requests are rounded up to 256 bytes. The smallest free chunk that fits is taken; it is
split where it is at least twice the request, or wastes ``max_dead_bytes`` or more.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.core.results.observations import Setting

CHUNK = 256
"""Bytes that every request is rounded up to a multiple of."""

_DEFAULT_INITIAL = 1 << 20
_DEFAULT_DEAD = 128 << 20
_DEFAULT_MOST = 1 << 30
"""Bytes; these three are what ``OrtArenaCfg`` has where nothing is set (1.31.1)."""


@dataclass(frozen=True, slots=True)
class ArenaRules:
    """The knobs of the arena, in bytes; ``exact`` is ``kSameAsRequested``."""

    initial: int = _DEFAULT_INITIAL
    max_dead_bytes: int = _DEFAULT_DEAD
    most: int = _DEFAULT_MOST
    exact: bool = False

    @classmethod
    def from_settings(cls, arena: Mapping[str, Setting]) -> ArenaRules:
        """Read the keys of ``OrtArenaCfg``; -1 and what is missing mean the default."""

        def value(key: str, default: int) -> int:
            given = int(arena.get(key, -1))
            return default if given < 0 else given

        return cls(
            value("initial_chunk_size_bytes", _DEFAULT_INITIAL),
            value("max_dead_bytes_per_chunk", _DEFAULT_DEAD),
            value("max_power_of_two_extend_bytes", _DEFAULT_MOST),
            str(arena.get("arena_extend_strategy", "")) in ("kSameAsRequested", "1"),
        )


@dataclass(slots=True)
class _Chunk:
    """A piece of a region; neighbours are found through addresses."""

    start: int
    size: int
    requested: int = 0
    before: int | None = None
    after: int | None = None


@dataclass(slots=True)
class Arena:
    """The arena in some state; addresses are numbers, regions never touch.

    Attributes:
        held: bytes taken from the system.
        in_use: bytes of the chunks given out.
        high: the most ``in_use`` so far.
    """

    rules: ArenaRules = field(default_factory=ArenaRules)
    held: int = 0
    in_use: int = 0
    high: int = 0
    _next: int = 0
    _growth: int = 0
    _chunks: dict[int, _Chunk] = field(default_factory=dict)
    _free: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._growth = _rounded(self.rules.initial)

    def allocate(self, size: int) -> int | None:
        """Return the address of a chunk of at least ``size`` bytes; None for no bytes."""
        if not size:
            return None
        wanted = _rounded(size)
        index = bisect_left(self._free, (wanted, -1))
        if index == len(self._free):
            self._extend(wanted)
            index = bisect_left(self._free, (wanted, -1))
        _, start = self._free.pop(index)
        chunk = self._chunks[start]
        if chunk.size >= 2 * wanted or chunk.size - wanted >= self.rules.max_dead_bytes:
            self._split(chunk, wanted)
        chunk.requested = size
        self.in_use += chunk.size
        self.high = max(self.high, self.in_use)
        return start

    def free(self, address: int | None) -> None:
        """Give a chunk back and join it with its free neighbours."""
        if address is None:
            return
        chunk = self._chunks[address]
        self.in_use -= chunk.size
        chunk.requested = 0
        self._join(chunk, chunk.after)
        before = self._chunks.get(chunk.before) if chunk.before is not None else None
        if before is not None and not before.requested:
            self._drop(before)
            self._absorb(before, chunk)
            chunk = before
        insort(self._free, (chunk.size, chunk.start))

    def _join(self, chunk: _Chunk, neighbour: int | None) -> None:
        after = self._chunks.get(neighbour) if neighbour is not None else None
        if after is not None and not after.requested:
            self._drop(after)
            self._absorb(chunk, after)

    def _drop(self, chunk: _Chunk) -> None:
        del self._free[bisect_left(self._free, (chunk.size, chunk.start))]

    def _absorb(self, chunk: _Chunk, after: _Chunk) -> None:
        chunk.size += after.size
        chunk.after = after.after
        if after.after is not None:
            self._chunks[after.after].before = chunk.start
        del self._chunks[after.start]

    def _split(self, chunk: _Chunk, size: int) -> None:
        rest = _Chunk(chunk.start + size, chunk.size - size, 0, chunk.start, chunk.after)
        if chunk.after is not None:
            self._chunks[chunk.after].before = rest.start
        chunk.after, chunk.size = rest.start, size
        self._chunks[rest.start] = rest
        insort(self._free, (rest.size, rest.start))

    def _extend(self, wanted: int) -> None:
        size = wanted if self.rules.exact else self._power_of_two(wanted)
        start = self._region(size)
        self._chunks[start] = _Chunk(start, size)
        insort(self._free, (size, start))
        self.held += size

    def _region(self, size: int) -> int:
        """Return where a new region begins."""
        # A page between regions: chunks of two regions are never neighbours.
        start = self._next
        self._next += size + CHUNK
        return start

    def _power_of_two(self, wanted: int) -> int:
        grown = False
        while wanted > self._growth:
            self._growth *= 2
            grown = True
        size = self._growth
        # The cap holds where a region was large enough; what a larger request made it stays.
        if not grown:
            self._growth = min(self._growth * 2, max(_rounded(self.rules.most), CHUNK))
        return size


def _rounded(size: int) -> int:
    return -(-size // CHUNK) * CHUNK
