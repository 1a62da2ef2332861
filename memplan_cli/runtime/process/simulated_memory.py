"""The memory of one process, simulated: the C library's heap, mappings, and touched pages.

The heap is glibc's (2.36): best fit with coalescing. A large request gets a mapping of its own,
which returns to the system when it is freed; from then on, requests up to that size come from the
heap. The heap shrinks only at its end. What was freed below a block in use stays resident: a large
part of what loading a model leaves behind.

Blocks have a purpose, so that resident bytes can be attributed.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memplan_cli.runtime.process.parts import SLACK, WEIGHT_FILES
from memplan_cli.runtime.profile.record import PROFILE

if TYPE_CHECKING:
    from memplan_cli.core.results.observations import ProcessBytes

PAGE = 4096

SMALL_ALIGNMENT = 16
"""The alignment of every block of the heap (``MALLOC_ALIGNMENT``)."""

_HEADER = 8
_SMALLEST_CHUNK = 32
_FREE_HEADER = 48
"""Bytes of a free chunk that hold its size and its neighbours on the lists of free chunks."""
_TOP_PAD = 128 << 10
"""Bytes that the heap grows by beyond a request (``M_TOP_PAD``)."""
_LARGEST_THRESHOLD = 32 << 20
"""``DEFAULT_MMAP_THRESHOLD_MAX``."""
_SLIVER = 56
"""A rest below this size beside a tensor is taken by some small object at once."""
_CONSOLIDATE = 64 << 10
"""Freeing at least this much trims the end of the heap (``FASTBIN_CONSOLIDATION_THRESHOLD``)."""

LOADING_THRESHOLD = 128 << 10
"""Size from which requests are mapped when a process begins, and while `load` makes a session."""

LOADED_THRESHOLD = _LARGEST_THRESHOLD
"""Size from which requests are mapped afterwards, as if a mapping that large had been freed."""


@dataclass(slots=True)
class Heap:
    """The addresses of a heap.

    Attributes:
        threshold: bytes from which a request gets a mapping if no free chunk fits.
        top: address from which the heap is unused.
        end: address at which the heap ends.
        fixed: whether the threshold stays as it is when mappings are freed.
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
        extra = alignment + _SMALLEST_CHUNK if is_aligned else 0
        wanted = max(_SMALLEST_CHUNK, _up(size + extra + _HEADER, SMALL_ALIGNMENT))
        chunk = self._take(wanted)
        if chunk is None or not is_aligned:
            return chunk
        return self._cut_aligned(chunk, size, alignment)

    def free(self, chunk: int) -> None:
        """Free a chunk, merge it with free neighbours, and shrink the heap at its end."""
        start, size = chunk, self._used.pop(chunk)
        if start + size in self._starts:
            size += self._forget(start + size)
        if start in self._ends:
            before = self._ends[start]
            size += self._forget(before)
            start = before
        if start + size == self.top:
            self.top = start
        else:
            self._remember(start, size)
        if size >= _CONSOLIDATE and self.end - self.top >= 2 * self.threshold:
            self.end = _up(self.top + _TOP_PAD, PAGE)

    def fix_threshold(self, threshold: int) -> None:
        """Map requests from this size on, whatever is freed (``mallopt``)."""
        self.threshold, self.fixed = threshold, True

    def trim(self) -> list[tuple[int, int]]:
        """Cut the unused end off, and return ranges of free page numbers (``malloc_trim``).

        The pages that hold the header of a free chunk are not free.
        """
        before, self.end = self.end, _up(self.top + _SMALLEST_CHUNK, PAGE)
        pages = [
            (_up(start + _FREE_HEADER, PAGE) // PAGE, (start + size) // PAGE)
            for size, start in self._free
        ]
        pages.append((self.end // PAGE, _up(before, PAGE) // PAGE))
        return [(first, last) for first, last in pages if first < last]

    def raise_threshold(self, size: int) -> None:
        """Adapt to a freed mapping: from now on, requests up to its size come from the heap."""
        whole = _up(size + PROFILE.tensor_alignment + 2 * _HEADER, PAGE)
        if not self.fixed and self.threshold < whole <= _LARGEST_THRESHOLD:
            self.threshold = whole

    def _take(self, wanted: int) -> int | None:
        """Return the smallest free chunk that fits, or a new one at the top, or None."""
        index = bisect_left(self._free, (wanted, -1))
        if index < len(self._free):
            size, start = self._free[index]
            self._forget(start)
            if size - wanted >= _SMALLEST_CHUNK:
                self._remember(start + wanted, size - wanted)
                size = wanted
            self._used[start] = size
            return start
        if self.end - self.top < wanted + _SMALLEST_CHUNK:
            if wanted >= self.threshold:
                return None
            self.end = _up(self.top + wanted + _TOP_PAD, PAGE)
        start = self.top
        self.top += wanted
        self._used[start] = wanted
        return start

    def _cut_aligned(self, chunk: int, size: int, alignment: int) -> int:
        """Cut an aligned chunk out of a larger one, and free the pieces around it."""
        available = self._used.pop(chunk)
        start = _up(chunk + 2 * _HEADER, alignment) - 2 * _HEADER
        if start != chunk and start - chunk < _SMALLEST_CHUNK:
            start += alignment
        wanted = _up(size + _HEADER, SMALL_ALIGNMENT)
        behind = available - (start - chunk)
        if behind - wanted < _SMALLEST_CHUNK:
            wanted = behind
        self._used[start] = wanted
        for address, piece in ((chunk, start - chunk), (start + wanted, behind - wanted)):
            if piece >= _SLIVER:
                self._used[address] = piece
                self.free(address)
        return start

    def _remember(self, start: int, size: int) -> None:
        insort(self._free, (size, start))
        self._starts[start] = size
        self._ends[start + size] = start

    def _forget(self, start: int) -> int:
        size = self._starts.pop(start)
        del self._ends[start + size]
        del self._free[bisect_left(self._free, (size, start))]
        return size


@dataclass(slots=True)
class Block:
    """An allocated block. ``address`` is None and ``pages`` its touched pages if it is a mapping."""

    purpose: str
    size: int
    address: int | None
    pages: bytearray


@dataclass(slots=True)
class ProcessMemory:
    """A process: anonymous bytes on its heap and in mappings, and bytes of mapped files.

    Attributes:
        heap: the addresses of its heap.
        live: written bytes of blocks that are not freed, by purpose.
        file: resident bytes of mapped files, by purpose.
        highest: the most resident bytes so far.
        peak: the parts of ``highest``, by purpose.
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
        """Resident bytes that are not of a file."""
        return self._mapped + self._resident

    @property
    def resident(self) -> int:
        """All resident bytes."""
        return self.anonymous + self.file.total()

    def allocate(
        self, purpose: str, size: int, alignment: int = PROFILE.tensor_alignment
    ) -> Block:
        """Allocate a block and write all of it."""
        block = self.reserve(purpose, size, alignment)
        self.touch(block, 0, size)
        return block

    def reserve(
        self, purpose: str, size: int, alignment: int = PROFILE.tensor_alignment
    ) -> Block:
        """Allocate a block without writing to it."""
        address = self.heap.allocate(size, alignment)
        return Block(purpose, size, address, bytearray(-(-size // PAGE) + 1))

    def touch(self, block: Block, start: int, size: int) -> None:
        """Simulate a write of ``size`` bytes from byte ``start`` of a block.

        Pages that are written for the first time become resident.
        """
        if size <= 0:
            return
        fresh = _mark(block.pages, start, size)
        self.live[block.purpose] += fresh
        if block.address is None:
            self._mapped += fresh
        else:
            self._resident += _mark(self._touched, block.address + start, size)
        self._update_highest()

    def free(self, block: Block) -> None:
        """Free a block."""
        freed = block.pages.count(1) * PAGE
        self.live[block.purpose] -= freed
        if block.address is None:
            self._mapped -= freed
            self.heap.raise_threshold(block.size)
            return
        self.heap.free(block.address)
        kept = -(-self.heap.end // PAGE)
        if kept < len(self._touched):
            self._resident -= self._touched.count(1, kept) * PAGE
            del self._touched[kept:]

    def add_objects(self, purpose: str, size: int) -> None:
        """Add the bytes of many small objects that last."""
        self._mapped += size
        self.live[purpose] += size
        self._update_highest()

    def map_file(self, purpose: str, size: int) -> None:
        """Read bytes of a mapped file."""
        self.file[purpose] += size
        self._update_highest()

    def unmap_file(self, purpose: str, size: int) -> None:
        """End the mapping of bytes of a file."""
        self.file[purpose] -= size

    def trim(self) -> None:
        """Return whole free pages of the heap, and the pages of weight files, to the system."""
        for first, last in self.heap.trim():
            self._resident -= self._touched.count(1, first, last) * PAGE
            count = max(min(last, len(self._touched)) - first, 0)
            self._touched[first : first + count] = bytes(count)
        self.file[WEIGHT_FILES] = 0

    def continue_from(self, observed: ProcessBytes) -> None:
        """Continue from what a real process took until here, instead of what was simulated.

        Parts keep their sizes. What the heap keeps makes up the difference.
        """
        self._mapped += observed.private - self.anonymous
        other_files = self.file.total() - self.file[WEIGHT_FILES]
        self.file[WEIGHT_FILES] = max(observed.file - other_files, 0)
        self.highest = observed.load
        self.peak = _fitted_parts(self.peak, observed.load)

    def anonymous_parts(self) -> Counter[str]:
        """Return the anonymous bytes by purpose, including those that the heap keeps."""
        return _fitted_parts(self.live, self.anonymous)

    def _update_highest(self) -> None:
        resident = self.resident
        if resident > self.highest:
            self.highest = resident
            self.peak = self.anonymous_parts() + self.file


def _fitted_parts(parts: Counter[str], total: int) -> Counter[str]:
    """Return parts that add up to a total: adjust what the heap keeps, then the largest parts."""
    fitted = Counter(parts)
    fitted[SLACK] = max(total - fitted.total() + fitted[SLACK], 0)
    excess = fitted.total() - total
    for name, size in fitted.most_common():
        reduction = min(excess, size)
        fitted[name] -= reduction
        excess -= reduction
    return fitted


def _mark(pages: bytearray, start: int, size: int) -> int:
    """Mark the pages of a range as touched. Return the bytes that were not touched before."""
    first, last = start // PAGE, (start + size - 1) // PAGE + 1
    if last > len(pages):
        pages.extend(bytes(last - len(pages)))
    fresh = (last - first - pages.count(1, first, last)) * PAGE
    pages[first:last] = b"\x01" * (last - first)
    return fresh


def _up(size: int, step: int) -> int:
    return -(-size // step) * step
