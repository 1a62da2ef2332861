"""The C library's heap, simulated: best fit with coalescing, mappings, trimming (glibc 2.36).

A large request gets a mapping of its own, which goes back to the system when it is freed;
from then on requests up to that size come from the heap, which shrinks at its end only.
What was freed below a block in use stays resident: a large part of what loading
leaves behind.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

PAGE = 4096
ALIGNED = 64
"""What the runtime aligns tensors to."""
_ALIGN = 16
_HEADER = 8
_SMALLEST = 32
_DESCRIBED = 48
"""Bytes of a free chunk that say its size and its neighbours on the lists of free ones."""
_PAD = 128 << 10
_LARGEST_THRESHOLD = 32 << 20
_SLIVER = 56
"""Bytes below which some small object takes what is cut off around a tensor at once."""
_CONSOLIDATE = 64 << 10
_THRESHOLD = 1_052_672
"""From which a request is mapped when the runtime is imported: Python has freed mappings."""

MAPPED_LOADING = 128 << 10
"""Bytes from which a request is mapped when a process begins, and while a session is loaded."""

MAPPED_LOADED = _LARGEST_THRESHOLD
"""Bytes from which one is mapped afterwards, as in a process that has freed as large ones."""


@dataclass(slots=True)
class Heap:
    """Addresses of one heap; ``top`` is where it is unused from, ``end`` where it ends.

    Attributes:
        threshold: bytes from which a request gets a mapping, where nothing free fits.
        top, end: as above.
        fixed: whether the threshold stays as it is.
    """

    threshold: int = _THRESHOLD
    top: int = 0
    end: int = 0
    fixed: bool = False
    _used: dict[int, int] = field(default_factory=dict)
    _free: list[tuple[int, int]] = field(default_factory=list)
    _starts: dict[int, int] = field(default_factory=dict)
    _ends: dict[int, int] = field(default_factory=dict)

    def allocate(self, size: int, alignment: int = _ALIGN) -> int | None:
        """Return the address of a chunk; None where a mapping is made instead."""
        extra = alignment + _SMALLEST if alignment > _ALIGN else 0
        wanted = max(_SMALLEST, _up(size + extra + _HEADER, _ALIGN))
        chunk = self._taken(wanted)
        if chunk is None:
            return None
        if not extra:
            return chunk
        return self._aligned(chunk, size, alignment)

    def free(self, chunk: int) -> None:
        """Give a chunk back; join it with its neighbours; shrink the heap at its end."""
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
            self.end = _up(self.top + _PAD, PAGE)

    def fix(self, threshold: int) -> None:
        """Map requests from so many bytes on, whatever is freed (``mallopt``)."""
        self.threshold, self.fixed = threshold, True

    def trim(self) -> list[tuple[int, int]]:
        """End the heap where it is unused from; return the free pages below, from and to which.

        The pages that say how large a free chunk is stay (``malloc_trim``).
        """
        before, self.end = self.end, _up(self.top + _SMALLEST, PAGE)
        pages = [
            (_up(start + _DESCRIBED, PAGE) // PAGE, (start + size) // PAGE)
            for size, start in self._free
        ]
        pages.append((self.end // PAGE, _up(before, PAGE) // PAGE))
        return [(first, last) for first, last in pages if first < last]

    def unmapped(self, size: int) -> None:
        """Hear that a mapping was freed: requests up to its size come from the heap now."""
        whole = _up(size + ALIGNED + 2 * _HEADER, PAGE)
        if not self.fixed and self.threshold < whole <= _LARGEST_THRESHOLD:
            self.threshold = whole

    def _taken(self, wanted: int) -> int | None:
        index = bisect_left(self._free, (wanted, -1))
        if index < len(self._free):
            size, start = self._free[index]
            self._forget(start)
            if size - wanted >= _SMALLEST:
                self._remember(start + wanted, size - wanted)
                size = wanted
            self._used[start] = size
            return start
        if self.end - self.top < wanted + _SMALLEST:
            if wanted >= self.threshold:
                return None
            self.end = _up(self.top + wanted + _PAD, PAGE)
        start = self.top
        self.top += wanted
        self._used[start] = wanted
        return start

    def _aligned(self, chunk: int, size: int, alignment: int) -> int:
        """Cut an aligned chunk out of a larger one, and give back what is around it."""
        have = self._used.pop(chunk)
        start = _up(chunk + 2 * _HEADER, alignment) - 2 * _HEADER
        if start != chunk and start - chunk < _SMALLEST:
            start += alignment
        wanted = _up(size + _HEADER, _ALIGN)
        left = have - (start - chunk)
        if left - wanted < _SMALLEST:
            wanted = left
        self._used[start] = wanted
        for at, piece in ((chunk, start - chunk), (start + wanted, left - wanted)):
            if piece >= _SLIVER:
                self._used[at] = piece
                self.free(at)
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


def _up(size: int, step: int) -> int:
    return -(-size // step) * step
