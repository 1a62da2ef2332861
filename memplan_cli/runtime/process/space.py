"""The memory of one process, simulated: blocks, the pages that were touched, and the highest.

Blocks have a purpose, so that what is resident can be attributed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memplan_cli.runtime.process.heap import ALIGNED, PAGE, Heap
from memplan_cli.runtime.process.parts import SLACK, WEIGHT_FILES

if TYPE_CHECKING:
    from memplan_cli.core.results.observations import ProcessBytes


@dataclass(slots=True)
class Block:
    """Bytes that were asked for; ``pages`` are those of a mapping that were touched."""

    purpose: str
    size: int
    address: int | None
    pages: bytearray


@dataclass(slots=True)
class Space:
    """A process: anonymous bytes on its heap and in mappings, and bytes of mapped files.

    Attributes:
        live: bytes written and not given back, by purpose.
        file: resident bytes of mapped files, by purpose.
        highest: the most resident bytes so far.
        peak: what these were, by purpose.
    """

    heap: Heap = field(default_factory=Heap)
    live: Counter[str] = field(default_factory=Counter)
    file: Counter[str] = field(default_factory=Counter)
    highest: int = 0
    peak: Counter[str] = field(default_factory=Counter)
    _mapped: int = 0
    _touched: bytearray = field(default_factory=bytearray)
    _resident: int = 0

    @property
    def anonymous(self) -> int:
        """Return the resident bytes that no file has."""
        return self._mapped + self._resident

    @property
    def resident(self) -> int:
        """Return all resident bytes."""
        return self.anonymous + self.file.total()

    def take(self, purpose: str, size: int, alignment: int = ALIGNED) -> Block:
        """Ask for a block and write all of it."""
        block = self.reserve(purpose, size, alignment)
        self.touch(block, 0, size)
        return block

    def reserve(self, purpose: str, size: int, alignment: int = ALIGNED) -> Block:
        """Ask for a block; nothing of it is written yet."""
        address = self.heap.allocate(size, alignment)
        return Block(purpose, size, address, bytearray(-(-size // PAGE) + 1))

    def touch(self, block: Block, start: int, size: int) -> None:
        """Write to a part of a block."""
        if size <= 0:
            return
        fresh = _mark(block.pages, start, size)
        self.live[block.purpose] += fresh
        if block.address is None:
            self._mapped += fresh
        else:
            self._resident += _mark(self._touched, block.address + start, size)
        self.look()

    def give(self, block: Block) -> None:
        """Give a block back."""
        gone = block.pages.count(1) * PAGE
        self.live[block.purpose] -= gone
        if block.address is None:
            self._mapped -= gone
            self.heap.unmapped(block.size)
            return
        self.heap.free(block.address)
        kept = -(-self.heap.end // PAGE)
        if kept < len(self._touched):
            self._resident -= self._touched.count(1, kept) * PAGE
            del self._touched[kept:]

    def add(self, purpose: str, size: int) -> None:
        """Count many small objects together."""
        self._mapped += size
        self.live[purpose] += size
        self.look()

    def map(self, purpose: str, size: int) -> None:
        """Read bytes of a mapped file."""
        self.file[purpose] += size
        self.look()

    def unmap(self, purpose: str, size: int) -> None:
        """Let go of bytes of a mapped file."""
        self.file[purpose] -= size

    def give_back(self) -> None:
        """Give back whole free pages of the heap; let go of weights' pages that were read."""
        for first, last in self.heap.trim():
            self._resident -= self._touched.count(1, first, last) * PAGE
            there = max(min(last, len(self._touched)) - first, 0)
            self._touched[first : first + there] = bytes(there)
        self.file[WEIGHT_FILES] = 0

    def settle(self, seen: ProcessBytes) -> None:
        """Go on from what a real process took until here, instead of what was simulated.

        Parts keep their sizes, and what the heap keeps makes up the difference.
        """
        self._mapped += seen.private - self.anonymous
        known = self.file.total() - self.file[WEIGHT_FILES]
        self.file[WEIGHT_FILES] = max(seen.file - known, 0)
        self.highest = seen.load
        self.peak = _fitted(self.peak, seen.load)

    def anonymous_parts(self) -> Counter[str]:
        """Return the anonymous bytes by purpose, what the heap keeps included."""
        return _fitted(self.live, self.anonymous)

    def look(self) -> None:
        """Note what is resident, if it is the most so far."""
        now = self.resident
        if now > self.highest:
            self.highest = now
            self.peak = self.anonymous_parts() + self.file


def _fitted(parts: Counter[str], total: int) -> Counter[str]:
    """Return parts that come to a total: by what the heap keeps, then by the largest."""
    found = Counter(parts)
    found[SLACK] = max(total - found.total() + found[SLACK], 0)
    over = found.total() - total
    for name, size in found.most_common():
        less = min(over, size)
        found[name] -= less
        over -= less
    return found


def _mark(pages: bytearray, start: int, size: int) -> int:
    """Mark the pages of some bytes as touched; return the bytes that were not before."""
    first, last = start // PAGE, (start + size - 1) // PAGE + 1
    if last > len(pages):
        pages.extend(bytes(last - len(pages)))
    fresh = (last - first - pages.count(1, first, last)) * PAGE
    pages[first:last] = b"\x01" * (last - first)
    return fresh
