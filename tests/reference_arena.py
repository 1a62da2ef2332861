"""A plain arena to hold the simulated one against: regions are lists of chunks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memplan_cli.runtime.simulate.arena import ArenaSettings

if TYPE_CHECKING:
    from memplan_cli.runtime.simulate.trace import AllocationTrace


@dataclass
class Chunk:
    """Bytes of a region that are allocated or free."""

    address: int
    size: int
    free: bool = True


@dataclass
class ReferenceArena:
    """Best fit with coalescing, in bytes, by searching all chunks for each request."""

    settings: ArenaSettings = field(default_factory=ArenaSettings)
    regions: list[list[Chunk]] = field(default_factory=list)
    growth: int = 0
    top: int = 0

    def __post_init__(self) -> None:
        self.growth = whole(self.settings.initial)

    @property
    def held(self) -> int:
        return sum(chunk.size for region in self.regions for chunk in region)

    def allocate(self, size: int) -> Chunk | None:
        if not size:
            return None
        wanted = whole(size)
        fits = [
            (c.size, c.address, r, c) for r in self.regions for c in r if fits_in(c, wanted)
        ]
        if not fits:
            self.extend(wanted)
            return self.allocate(size)
        *_, region, chunk = min(fits, key=lambda fit: fit[:2])
        rest = chunk.size - wanted
        if chunk.size >= 2 * wanted or rest >= self.settings.max_dead_bytes:
            index = region.index(chunk)
            region.insert(index + 1, Chunk(chunk.address + wanted, rest))
            chunk.size = wanted
        chunk.free = False
        self.top = max(self.top, chunk.address + wanted)
        return chunk

    def free(self, chunk: Chunk | None) -> None:
        if chunk is None:
            return
        chunk.free = True
        (region,) = (region for region in self.regions if any(c is chunk for c in region))
        merged: list[Chunk] = []
        for each in region:
            if merged and merged[-1].free and each.free:
                merged[-1].size += each.size
            else:
                merged.append(each)
        region[:] = merged

    def extend(self, wanted: int) -> None:
        size, doubles = wanted, not self.settings.exact
        if doubles:
            fits = wanted <= self.growth
            while wanted > self.growth:
                self.growth *= 2
            size = self.growth
            if fits:
                cap = max(whole(self.settings.max_extension), 256)
                self.growth = min(2 * self.growth, cap)
        start = sum(chunk.size for region in self.regions for chunk in region)
        self.regions.append([Chunk(start, size)])

    def run(self, trace: AllocationTrace) -> None:
        live: dict[int, Chunk | None] = {}
        for chunks, index in trace.steps:
            if chunks:
                live[index] = self.allocate(trace.sizes[index])
            else:
                self.free(live.pop(index))


def fits_in(chunk: Chunk, wanted: int) -> bool:
    return chunk.free and chunk.size >= wanted


def whole(size: int) -> int:
    return -(-size // 256) * 256
