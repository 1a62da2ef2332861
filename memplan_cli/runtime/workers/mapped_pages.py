"""The pages of mapped files that a process has touched: touched again in a fork, or let go.

A fork starts without those of libraries: it would seem to take them with what it does
first, and a session to need what the runtime's import has needed before it. A session keeps
those of weights that it has read to pack them, where a subgraph has the weight.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import FileIO

    _Files = frozenset[tuple[int, int, str, str]]

_PAGES = Path("/proc/self/pagemap")

_PRESENT = 1 << 63
"""The bit of an entry of ``pagemap`` that says that its page is there."""

_THERE, _OF_FILE = 0xC0, 0x20
"""Bits of an entry's highest byte: its page is there or swapped; it is a file's as it is."""

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


_UNDER_WAY: set[object] = set()
"""One for each session that is being made: threads may make several at once."""


@contextmanager
def letting_go(folder: Path) -> Iterator[None]:
    """Let go of the pages of files in a folder that are mapped meanwhile.

    Who reads on has the same pages again. A page that this process has changed would be lost:
    what has one stays as it is. Code stays too: a model may lie in a folder above all libraries.
    What is mapped while another thread is within stays: that one may end a mapping at
    any time, and have memory of its own at the same address.
    """
    before, this = _all_files(), object()
    _UNDER_WAY.add(this)
    try:
        yield
        found = _all_files()
        alone = {this} == _UNDER_WAY
    finally:
        _UNDER_WAY.discard(this)
    if alone:
        _let_go(folder, found - before, found)


def _let_go(folder: Path, new: _Files, found: _Files) -> None:
    code = {name for *_, rights, name in found if "x" in rights}
    with suppress(OSError, AttributeError, TypeError):  # not Linux, or nothing is said
        library = ctypes.CDLL(None)
        with _PAGES.open("rb", buffering=0) as pages:
            for start, end, _, name in sorted(new):
                if name in code or not Path(name).is_relative_to(folder):
                    continue
                if not _changed(pages, start, end):
                    size = ctypes.c_size_t(end - start)
                    library.madvise(ctypes.c_void_p(start), size, mmap.MADV_DONTNEED)


def _all_files() -> _Files:
    """Return the files that are mapped now; none where the system does not say."""
    try:
        return frozenset(_files())
    except OSError:
        return frozenset()


def _changed(pages: FileIO, start: int, end: int) -> bool:
    """Whether a page is the process's own, in memory or not."""
    # Nothing of numpy: its code would be a third of a megabyte more of mapped files.
    highest = 7 if sys.byteorder == "little" else 0
    flags = set(_entries(pages, start, end)[highest::8])
    return any(flag & _THERE and not flag & _OF_FILE for flag in flags)


def _runs() -> Iterator[tuple[int, int]]:
    import numpy as np

    page = mmap.PAGESIZE
    with _PAGES.open("rb", buffering=0) as pages:
        for start, end, *_ in _files():
            entries = np.frombuffer(_entries(pages, start, end), np.uint64)
            there = np.flatnonzero(entries & np.uint64(_PRESENT))
            if not there.size:
                continue
            breaks = np.flatnonzero(np.diff(there) > 1)
            firsts = there[np.concatenate(([0], breaks + 1))]
            lasts = there[np.concatenate((breaks, [there.size - 1]))]
            for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
                yield start + first * page, (last - first + 1) * page


def _entries(pages: FileIO, start: int, end: int) -> bytes:
    """Return what ``pagemap`` says of each page of a range, in eight bytes."""
    place, size = (8 * (each // mmap.PAGESIZE) for each in (start, end - start))
    return os.pread(pages.fileno(), size, place)


def _files() -> Iterator[tuple[int, int, str, str]]:
    """Yield mapped files that can be read: first address, end, rights, name."""
    for line in os.fsdecode(Path("/proc/self/maps").read_bytes()).split("\n")[:-1]:
        addresses, rights, _, _, inode, *name = line.split(maxsplit=5)
        if inode != "0" and rights.startswith("r"):
            start, end = (int(each, 16) for each in addresses.split("-"))
            yield start, end, rights, "".join(name)
