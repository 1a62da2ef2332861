"""The pages of libraries that a process has touched, touched again in a fork of it.

A fork starts without those of mapped files: it would seem to take them with what it does
first, and a session to need what the runtime's import has needed before it.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterator

_PRESENT = 1 << 63
"""The bit of an entry of ``pagemap`` that says that its page is there."""

_READ = 22
"""``MADV_POPULATE_READ`` of Linux 5.14; older systems refuse it."""


@dataclass(frozen=True, slots=True)
class Mapped:
    """Address and bytes of runs of pages of mapped files."""

    runs: tuple[tuple[int, int], ...] = ()

    @classmethod
    def now(cls) -> Self:
        """Return what is there in this process; nothing where the system does not say."""
        try:
            return cls(tuple(_runs()))
        except OSError:
            return cls()

    def restore(self) -> None:
        """Touch these pages, in a fork of the process that had them."""
        if not self.runs:
            return
        library = ctypes.CDLL(None)
        for start, size in self.runs:
            library.madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), _READ)


def _runs() -> Iterator[tuple[int, int]]:
    import numpy as np

    page = mmap.PAGESIZE
    with Path("/proc/self/pagemap").open("rb", buffering=0) as pages:
        for start, end in _files():
            count = (end - start) // page
            entries = np.frombuffer(
                os.pread(pages.fileno(), 8 * count, 8 * (start // page)), np.uint64
            )
            there = np.flatnonzero(entries & np.uint64(_PRESENT))
            if not there.size:
                continue
            breaks = np.flatnonzero(np.diff(there) > 1)
            firsts = there[np.concatenate(([0], breaks + 1))]
            lasts = there[np.concatenate((breaks, [there.size - 1]))]
            for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
                yield start + first * page, (last - first + 1) * page


def _files() -> Iterator[tuple[int, int]]:
    """Yield the addresses of mapped files that can be read."""
    for line in Path("/proc/self/maps").read_text(encoding="ascii").splitlines():
        addresses, rights, _, _, inode, *_ = line.split(maxsplit=5)
        if inode != "0" and rights.startswith("r"):
            start, end = (int(each, 16) for each in addresses.split("-"))
            yield start, end
