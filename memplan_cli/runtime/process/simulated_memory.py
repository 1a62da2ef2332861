"""A simulation of the memory of one process: the C library's heap, mappings, and resident pages.

The heap is that of glibc 2.36: best fit with coalescing. A large request gets a mapping of its own,
which returns to the system when it is freed; from then on, requests up to that size come from the
heap. The heap shrinks only at its end: memory that was freed below a block in use stays resident,
a large part of the memory that remains after a model was loaded.

Each block has a purpose (`parts`), by which resident bytes are reported.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from dataclasses import dataclass, field

from memplan_cli.core.problem import align
from memplan_cli.loading.heap import LOADED_THRESHOLD
from memplan_cli.runtime.process.parts import HEAP_SLACK
from memplan_cli.runtime.profile.record import PROFILE

PAGE = 4096

SMALL_ALIGNMENT = 16
"""The alignment of every block of the heap (``MALLOC_ALIGNMENT``)."""

_HEADER = 8
"""Bytes before each block that hold the size of its chunk."""

_MIN_CHUNK = 32
"""Bytes of the smallest chunk (``MINSIZE``); the unused end of the heap keeps as many."""

_FREE_HEADER = 48
"""Bytes of a free chunk that hold its size and its neighbors in the lists of free chunks."""

_TOP_PAD = 128 << 10
"""Bytes that the heap grows by beyond a request (``M_TOP_PAD``)."""

_MIN_FREE_PIECE = 56
"""Bytes of the smallest piece beside an aligned block that becomes a free chunk."""


@dataclass(slots=True)
class Heap:
    """The chunks of a heap, by address; addresses begin at 0.

    Attributes:
        threshold: bytes from which a request gets a mapping of its own if no free chunk fits.
        top: address from which the heap is unused.
        end: address at which the heap ends, a page boundary.
        fixed: whether the threshold stays as it is when mappings are freed.
        _used: size of each allocated chunk, by address.
        _free: ``(size, address)`` of each free chunk, sorted.
        _starts: size of each free chunk, by address.
        _ends: address of each free chunk, by its end.
    """

    threshold: int = PROFILE.imported_threshold
    top: int = 0
    end: int = 0
    fixed: bool = False
    _used: dict[int, int] = field(default_factory=dict)
    _free: list[tuple[int, int]] = field(default_factory=list)
    _starts: dict[int, int] = field(default_factory=dict)
    _ends: dict[int, int] = field(default_factory=dict)

    def allocate(self, size: int, alignment: int = SMALL_ALIGNMENT) -> int | None:
        """Return the address of a chunk, or None if the request gets a mapping instead."""
        is_aligned = alignment > SMALL_ALIGNMENT
        # Room to move the block to a multiple of the alignment, with a whole chunk ahead of it.
        extra = alignment + _MIN_CHUNK if is_aligned else 0
        wanted = max(_MIN_CHUNK, align(size + extra + _HEADER, SMALL_ALIGNMENT))
        chunk = self._take(wanted)
        if chunk is None or not is_aligned:
            return chunk
        return self._cut_aligned(chunk, size, alignment)

    def free(self, chunk: int) -> None:
        """Free a chunk, merge it with free neighbors, and shrink the heap if it is at the end."""
        start, size = chunk, self._used.pop(chunk)
        if start + size in self._starts:
            size += self._remove_free(start + size)
        if start in self._ends:
            previous = self._ends[start]
            size += self._remove_free(previous)
            start = previous
        if start + size == self.top:
            self.top = start
            # glibc trims an unused end of twice the size from which it maps blocks.
            if self.end - self.top >= 2 * self.threshold:
                self.end = align(self.top + _TOP_PAD, PAGE)
        else:
            self._add_free(start, size)

    def fix_threshold(self, threshold: int) -> None:
        """Set the threshold, and keep it whatever is freed (``mallopt``)."""
        self.threshold, self.fixed = threshold, True

    def trim(self) -> list[tuple[int, int]]:
        """Cut off the unused end, and return half-open ranges of free page numbers (``malloc_trim``).

        A page is free if all of it is cut off, or in a free chunk behind the chunk's header.
        """
        ranges = [
            (align(start + _FREE_HEADER, PAGE) // PAGE, (start + size) // PAGE)
            for size, start in self._free
        ]
        previous_end = self.end
        self.end = align(self.top + _MIN_CHUNK, PAGE)
        ranges.append((self.end // PAGE, previous_end // PAGE))
        return [(first, end) for first, end in ranges if first < end]

    def raise_threshold(self, size: int) -> None:
        """Raise the threshold to the size of a freed mapping, unless it is fixed.

        glibc never raises it above `LOADED_THRESHOLD`.

        Args:
            size: bytes of the block in the mapping. The mapping consists of whole pages, and also has two
                headers and room to align the block.
        """
        mapping_size = align(size + PROFILE.tensor_alignment + 2 * _HEADER, PAGE)
        if not self.fixed and self.threshold < mapping_size <= LOADED_THRESHOLD:
            self.threshold = mapping_size

    def _take(self, wanted: int) -> int | None:
        """Allocate the smallest free chunk that fits, or a new one at the top, and return its address.

        None if the heap would have to grow for a request of ``threshold`` bytes or more.
        """
        index = bisect_left(self._free, (wanted, -1))
        if index < len(self._free):
            size, start = self._free[index]
            self._remove_free(start)
            if size - wanted >= _MIN_CHUNK:
                self._add_free(start + wanted, size - wanted)
                size = wanted
            self._used[start] = size
            return start
        if self.end - self.top < wanted + _MIN_CHUNK:
            if wanted >= self.threshold:
                return None
            self.end = align(self.top + wanted + _TOP_PAD, PAGE)
        start = self.top
        self.top += wanted
        self._used[start] = wanted
        return start

    def _cut_aligned(self, chunk: int, size: int, alignment: int) -> int:
        """Cut an aligned chunk out of a larger one, free the pieces around it, and return its address.

            chunk          start                                 chunk_end  end
            | piece ahead  | 2 headers | block of ``size`` bytes | piece behind |
                                       ^ multiple of ``alignment``

        Args:
            chunk: address of the larger chunk, which is used; it is replaced by the smaller chunk.
            size: bytes of the block.
            alignment: of the block.
        """
        end = chunk + self._used.pop(chunk)
        start = align(chunk + 2 * _HEADER, alignment) - 2 * _HEADER
        if 0 < start - chunk < _MIN_CHUNK:  # the piece ahead is too small for a chunk
            start += alignment
        # The block also uses the first header of the next chunk, hence one header.
        chunk_end = start + align(size + _HEADER, SMALL_ALIGNMENT)
        if end - chunk_end <= _MIN_CHUNK:  # the piece behind stays a part of the chunk
            chunk_end = end
        self._used[start] = chunk_end - start
        for piece_start, piece_end in ((chunk, start), (chunk_end, end)):
            # A smaller piece is not freed: some small object that is not simulated takes it at once.
            if piece_end - piece_start >= _MIN_FREE_PIECE:
                self._used[piece_start] = piece_end - piece_start
                self.free(piece_start)
        return start

    def _add_free(self, start: int, size: int) -> None:
        """Add a free chunk to the three tables of free chunks."""
        insort(self._free, (size, start))
        self._starts[start] = size
        self._ends[start + size] = start

    def _remove_free(self, start: int) -> int:
        """Remove a free chunk from the three tables, and return its size."""
        size = self._starts.pop(start)
        del self._ends[start + size]
        del self._free[bisect_left(self._free, (size, start))]
        return size


@dataclass(slots=True)
class PageSet:
    """A set of page numbers, as half-open ranges: a range of any length takes two numbers.

    Attributes:
        _bounds: first page and end of each range, in turn, ascending. Between two pages of the set an even
            number of bounds lies, so that a page with an odd number of bounds up to it is in the set.
    """

    _bounds: list[int] = field(default_factory=list)

    def count(self, first: int = 0, end: int = sys.maxsize) -> int:
        """Return how many pages of the set lie from ``first`` up to ``end``, which must be larger than ``first``."""
        start, stop = bisect_right(self._bounds, first), bisect_left(self._bounds, end)
        inside = self._bounds[start:stop]
        # After an odd number of bounds a range has begun and not ended: ``first`` or ``end`` cuts it.
        if start % 2:
            inside.insert(0, first)
        if stop % 2:
            inside.append(end)
        return sum(inside[1::2]) - sum(inside[::2])

    def add(self, first: int, end: int) -> None:
        """Add the pages from ``first`` up to ``end``, at least one."""
        start, stop = bisect_left(self._bounds, first), bisect_right(self._bounds, end)
        # After an odd number of bounds, the pages continue a range of the set, and no bound is needed.
        new_first, new_end = [] if start % 2 else [first], [] if stop % 2 else [end]
        self._bounds[start:stop] = new_first + new_end

    def discard(self, first: int, end: int = sys.maxsize) -> None:
        """Remove the pages from ``first`` up to ``end``, at least one."""
        start, stop = bisect_left(self._bounds, first), bisect_right(self._bounds, end)
        # After an odd number of bounds, the pages cut a range of the set, which ends or begins there.
        new_end, new_first = [first] if start % 2 else [], [end] if stop % 2 else []
        self._bounds[start:stop] = new_end + new_first


@dataclass(slots=True)
class MemoryBlock:
    """An allocated block.

    Attributes:
        purpose: by which its bytes are reported.
        size: its bytes.
        address: of its chunk on the heap; None if it is a mapping.
        pages: the pages where the block was written, counted from its first byte.
    """

    purpose: str
    size: int
    address: int | None
    pages: PageSet = field(default_factory=PageSet)


@dataclass(slots=True)
class SimulatedMemory:
    """The memory of a process: anonymous bytes on its heap and in mappings, and bytes of mapped files.

    Attributes:
        heap: the addresses of its heap.
        live: bytes of written pages of blocks that are not freed, by purpose. A page of the heap that two
            blocks have written counts for both.
        file: resident bytes of mapped files, by purpose.
        peak_bytes: the most resident bytes so far.
        peak_parts: the parts of ``peak_bytes``, by purpose.
        _mapping_bytes: resident bytes of mappings and of small objects.
        _heap_pages: the resident pages of the heap.
        _heap_bytes: resident bytes of the heap.
    """

    heap: Heap = field(default_factory=Heap)
    live: Counter[str] = field(default_factory=Counter)
    file: Counter[str] = field(default_factory=Counter)
    peak_bytes: int = 0
    peak_parts: Counter[str] = field(default_factory=Counter)
    _mapping_bytes: int = 0
    _heap_pages: PageSet = field(default_factory=PageSet)
    _heap_bytes: int = 0

    @property
    def anonymous(self) -> int:
        """Resident bytes that belong to no file."""
        return self._mapping_bytes + self._heap_bytes

    @property
    def resident(self) -> int:
        """All resident bytes."""
        return self.anonymous + self.file.total()

    def allocate(
        self, purpose: str, size: int, alignment: int = PROFILE.tensor_alignment
    ) -> MemoryBlock:
        """Allocate a block and write all of it."""
        block = self.reserve(purpose, size, alignment)
        self.touch(block, 0, size)
        return block

    def reserve(
        self, purpose: str, size: int, alignment: int = PROFILE.tensor_alignment
    ) -> MemoryBlock:
        """Allocate a block without writing to it."""
        address = self.heap.allocate(size, alignment)
        return MemoryBlock(purpose, size, address)

    def touch(self, block: MemoryBlock, start: int, size: int) -> None:
        """Simulate a write of ``size`` bytes from byte ``start`` of a block.

        Pages that are written for the first time become resident.
        """
        if size <= 0:
            return
        new_bytes = _mark_pages(block.pages, start, size)
        self.live[block.purpose] += new_bytes
        if block.address is None:
            self._mapping_bytes += new_bytes
        else:  # a page of the heap may have bytes of several blocks, and is resident once
            self._heap_bytes += _mark_pages(self._heap_pages, block.address + start, size)
        self._update_peak()

    def free(self, block: MemoryBlock) -> None:
        """Free a block. Pages of a mapping are returned at once, those of the heap only if it shrinks."""
        written = block.pages.count() * PAGE
        self.live[block.purpose] -= written  # even if the pages of the block stay resident
        if block.address is None:
            self._mapping_bytes -= written
            self.heap.raise_threshold(block.size)  # the size from which requests get a mapping
            return
        self.heap.free(block.address)
        self._release_heap(self.heap.end // PAGE)  # the pages by which the heap has shrunk

    def add_objects(self, purpose: str, size: int) -> None:
        """Add the bytes of many small objects that are never freed."""
        self._mapping_bytes += size
        self.live[purpose] += size
        self._update_peak()

    def map_file(self, purpose: str, size: int) -> None:
        """Make bytes of a mapped file resident."""
        self.file[purpose] += size
        self._update_peak()

    def unmap_file(self, purpose: str, size: int) -> None:
        """End the mapping of bytes of a file."""
        self.file[purpose] -= size

    def trim(self) -> None:
        """Return whole free pages of the heap to the system."""
        for first, end in self.heap.trim():
            self._release_heap(first, end)

    def anonymous_parts(self) -> Counter[str]:
        """Return the anonymous bytes by purpose, with the free memory that the heap keeps (`HEAP_SLACK`).

        A page of two blocks is resident once, so the largest parts shrink if ``live`` adds up to more.
        """
        parts = Counter(self.live)
        parts[HEAP_SLACK] = max(self.anonymous - parts.total(), 0)
        excess = parts.total() - self.anonymous
        for name, size in parts.most_common():
            reduction = min(excess, size)
            parts[name] -= reduction
            excess -= reduction
        return parts

    def _release_heap(self, first: int, end: int = sys.maxsize) -> None:
        """Return the resident pages of the heap from ``first`` up to ``end`` to the system."""
        self._heap_bytes -= self._heap_pages.count(first, end) * PAGE
        self._heap_pages.discard(first, end)

    def _update_peak(self) -> None:
        """Set ``peak_bytes`` and ``peak_parts`` if more bytes are resident than ever before."""
        resident = self.resident
        if resident > self.peak_bytes:
            self.peak_bytes = resident
            self.peak_parts = self.anonymous_parts() + self.file


def _mark_pages(pages: PageSet, start: int, size: int) -> int:
    """Add the pages of a range of bytes, and return the bytes of those that were not in the set."""
    first, end = start // PAGE, (start + size - 1) // PAGE + 1
    new_bytes = (end - first - pages.count(first, end)) * PAGE
    pages.add(first, end)
    return new_bytes
