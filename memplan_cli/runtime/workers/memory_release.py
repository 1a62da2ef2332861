"""Return memory of this process to the system: free heap memory, and pages of mapped files.

Memory that was freed stays resident while the C library keeps it, and pages of a mapped file
stay resident after they were read once. Both would count as memory of a session.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import sys
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import FileIO

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's ``mallopt``."""

LOADING_THRESHOLD = 128 << 10
"""Bytes from which glibc gives a block a mapping of its own, in a new process (by default) and while
`memplan_cli.load` creates a session."""

LOADED_THRESHOLD = 32 << 20
"""The same after `memplan_cli.load`: the most that glibc ever raises it to
(``DEFAULT_MMAP_THRESHOLD_MAX``)."""

_THRESHOLD_VARIABLES = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")
"""Environment variables with which users set the same parameters."""

_PAGEMAP = Path("/proc/self/pagemap")
"""Eight bytes for each page of the address space, in native byte order."""

_PRESENT = 1 << 63
"""The bit of a pagemap entry that is set if the page is in memory."""

_IN_MEMORY_OR_SWAPPED, _UNCHANGED_FILE_PAGE = 0xC0, 0x20
"""Bits of the highest byte of a pagemap entry."""

_MADV_POPULATE_READ = 22
"""Reads pages into memory; since Linux 5.14. Older systems refuse it."""


class FileMapping(NamedTuple):
    """A part of a file that is mapped into this process.

    Attributes:
        start: the first address.
        end: the address behind the last byte.
        permissions: ``r``, ``w`` and ``x`` as in ``/proc/self/maps``.
        path: the file.
    """

    start: int
    end: int
    permissions: str
    path: str


# ---- free memory of the heap ----


def release_free_memory() -> None:
    """Collect garbage, and return the free memory of the heap to the system."""
    gc.collect()
    trim_heap()


def trim_heap() -> None:
    """Return the free memory of the heap to the system. No effect without glibc."""
    with suppress(OSError, AttributeError, TypeError):  # Windows needs the name of a library
        ctypes.CDLL(None).malloc_trim(0)


@contextmanager
def release_after_loading(folder: Path) -> Iterator[None]:
    """Return the memory to the system that a session, created in this block, no longer needs.

    Packing weights and folding constants leave up to a quarter of the size of the session free,
    and pages of weights resident that were read once, to be packed.

    Args:
        folder: the folder of the model and its external weights.
    """
    with drop_new_file_pages(folder), map_large_blocks():
        yield
    trim_heap()


@contextmanager
def map_large_blocks() -> Iterator[None]:
    """Make glibc map each large block by itself in this block, so that freeing returns it.

    By default glibc raises the size from which it maps with each mapping that is freed. A packed
    operand of 9 MB then lies on the heap between others and leaves a hole when it is freed:
    loading a BERT took 26 MB instead of 16.5 in every second process. glibc cannot be set back
    to adapting, so afterwards the threshold is the largest that it would have reached. Settings
    in the environment are kept.
    """
    if any(name in os.environ for name in _THRESHOLD_VARIABLES):
        yield
        return
    _set_mapping_threshold(LOADING_THRESHOLD)
    try:
        yield
    finally:
        _set_mapping_threshold(LOADED_THRESHOLD)


def _set_mapping_threshold(size: int) -> None:
    """Map blocks from ``size`` bytes on, and trim the heap at twice that. glibc only."""
    with suppress(OSError, AttributeError, TypeError):
        library = ctypes.CDLL(None)
        if hasattr(library, "gnu_get_libc_version"):
            library.mallopt(_M_MMAP_THRESHOLD, size)
            library.mallopt(_M_TRIM_THRESHOLD, 2 * size)


# ---- pages of mapped files ----

_open_blocks: set[object] = set()
"""An object for each block of `drop_new_file_pages` that is entered, in any thread."""


@contextmanager
def drop_new_file_pages(folder: Path) -> Iterator[None]:
    """Drop the pages of files in a folder that are mapped while the block lasts.

    Reading a dropped page again loads it from the file. These pages are not dropped:

    - of a mapping with a page that this process has changed: the change would be lost;
    - of files that are mapped as code: the folder may lie above all libraries;
    - if another thread is in such a block too: that thread may end a mapping at any time, and
      get other memory at the same address.
    """
    before, this_block = _mappings_or_none(), object()
    _open_blocks.add(this_block)
    try:
        yield
        after = _mappings_or_none()
        is_alone = {this_block} == _open_blocks
    finally:
        _open_blocks.discard(this_block)
    if is_alone:
        code = {mapping.path for mapping in after if "x" in mapping.permissions}
        _drop_unchanged(
            mapping
            for mapping in sorted(after - before)
            if mapping.path not in code and Path(mapping.path).is_relative_to(folder)
        )


def _drop_unchanged(mappings: Iterator[FileMapping]) -> None:
    """Drop the pages of mappings in which this process has changed no page."""
    with suppress(OSError, AttributeError, TypeError):  # no Linux, or pagemap is not readable
        library = ctypes.CDLL(None)
        with _PAGEMAP.open("rb", buffering=0) as pagemap:
            for mapping in mappings:
                if not _has_changed_page(pagemap, mapping):
                    size = ctypes.c_size_t(mapping.end - mapping.start)
                    library.madvise(ctypes.c_void_p(mapping.start), size, mmap.MADV_DONTNEED)


def _has_changed_page(pagemap: FileIO, mapping: FileMapping) -> bool:
    """Return whether a page of a mapping is this process's own copy, in memory or swapped."""
    # Without numpy, whose code would add a third of a megabyte to the mapped files.
    highest_byte = 7 if sys.byteorder == "little" else 0
    flags = set(_pagemap_entries(pagemap, mapping)[highest_byte::8])
    return any(
        flag & _IN_MEMORY_OR_SWAPPED and not flag & _UNCHANGED_FILE_PAGE for flag in flags
    )


@dataclass(frozen=True, slots=True)
class FilePages:
    """Pages of mapped files, as runs of pages: the address of each run and its bytes.

    A forked process starts without the file pages of its parent. Its first job would seem to
    need the pages of the libraries.
    """

    runs: tuple[tuple[int, int], ...] = ()

    @classmethod
    def resident(cls) -> Self:
        """Return the pages that are in memory now; none if the system does not list them."""
        try:
            return cls(tuple(_resident_runs()))
        except OSError:
            return cls()

    def load(self) -> None:
        """Read these pages into memory, in a fork of the process that had them."""
        if not self.runs:
            return
        library = ctypes.CDLL(None)
        for start, size in self.runs:
            library.madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), _MADV_POPULATE_READ)


def _resident_runs() -> Iterator[tuple[int, int]]:
    """Yield address and bytes of each run of file pages that are in memory.

    Raises:
        OSError: the system does not list them.
    """
    import numpy as np

    page = mmap.PAGESIZE
    with _PAGEMAP.open("rb", buffering=0) as pagemap:
        for mapping in _mappings():
            entries = np.frombuffer(_pagemap_entries(pagemap, mapping), np.uint64)
            present = np.flatnonzero(entries & np.uint64(_PRESENT))
            if not present.size:
                continue
            breaks = np.flatnonzero(np.diff(present) > 1)
            firsts = present[np.concatenate(([0], breaks + 1))]
            lasts = present[np.concatenate((breaks, [present.size - 1]))]
            for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
                yield mapping.start + first * page, (last - first + 1) * page


def _pagemap_entries(pagemap: FileIO, mapping: FileMapping) -> bytes:
    """Return the pagemap entries of a mapping, eight bytes for each page."""
    size = 8 * ((mapping.end - mapping.start) // mmap.PAGESIZE)
    return os.pread(pagemap.fileno(), size, 8 * (mapping.start // mmap.PAGESIZE))


def _mappings_or_none() -> frozenset[FileMapping]:
    """Return the readable mappings of files; none if the system does not list them."""
    try:
        return frozenset(_mappings())
    except OSError:
        return frozenset()


def _mappings() -> Iterator[FileMapping]:
    """Yield the readable mappings of files.

    Raises:
        OSError: the system does not list them.
    """
    for line in os.fsdecode(Path("/proc/self/maps").read_bytes()).split("\n")[:-1]:
        addresses, permissions, _, _, inode, *path = line.split(maxsplit=5)
        if inode != "0" and permissions.startswith("r"):
            start, end = (int(address, 16) for address in addresses.split("-"))
            yield FileMapping(start, end, permissions, "".join(path))
