"""Return memory of this process to the system that a session no longer needs: free heap, and unused code.

Memory that was freed stays resident while the C library keeps it, and would count as memory of a
session.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's ``mallopt``."""

LOADING_THRESHOLD = 128 << 10
"""Bytes from which glibc gives a block a mapping of its own, in a new process (by default) and while
`memplan_cli.load` creates a session."""

LOADED_THRESHOLD = 32 << 20
"""The same after `memplan_cli.load` of a file whose arena is kept between runs: the most that glibc ever raises it
to (``DEFAULT_MMAP_THRESHOLD_MAX``)."""

LOADING_ENVIRONMENT = {
    "MALLOC_MMAP_THRESHOLD_": str(LOADING_THRESHOLD),
    "MALLOC_TRIM_THRESHOLD_": str(2 * LOADING_THRESHOLD),
}
"""Environment variables with which glibc, in programs without memplan, has the thresholds that
`memplan_cli.load` sets while it creates a session. They hold as long as the process."""

LOADING_ENVIRONMENT_TEXT = " ".join(
    f"{key}={value}" for key, value in LOADING_ENVIRONMENT.items()
)
"""The same, as before a command in a shell."""

_MADV_DONTNEED = 4
"""Unmaps pages of this process (``madvise``); those of a file stay in the system's cache."""

_ENTRY_BYTES = 8
_IN_MEMORY, _IN_SWAP, _IS_FILE_PAGE = 0x80, 0x40, 0x20
"""Bytes of an entry of ``/proc/self/pagemap``, which has one for each page, and flags in its highest byte."""

_THRESHOLD_VARIABLES = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")
"""Environment variables with which users set the same parameters."""


def release_free_memory() -> None:
    """Collect garbage, and return the free memory of the heap to the system."""
    gc.collect()
    trim_heap()


def trim_heap() -> None:
    """Return the free memory of the heap to the system. No effect without glibc."""
    with suppress(OSError, AttributeError, TypeError):  # Windows needs the name of a library
        ctypes.CDLL(None).malloc_trim(0)


def threshold_of_runs(run_config: Mapping[str, str]) -> int:
    """Return the bytes from which glibc maps blocks while a session with these run entries is used.

    If runs release the arena, its regions need mappings of their own: freed on the heap they stay resident.
    """
    return LOADING_THRESHOLD if run_config else LOADED_THRESHOLD


@contextmanager
def release_after_loading(run_config: Mapping[str, str]) -> Iterator[None]:
    """Return the memory to the system that a session, created in this block, no longer needs.

    Packing weights and folding constants leave up to a quarter of the size of the session free.
    ``run_config`` are the run entries of the session.
    """
    with map_large_blocks(threshold_of_runs(run_config)):
        yield
    trim_heap()
    unmap_runtime_code()


def unmap_runtime_code() -> None:
    """Unmap the pages of ONNX Runtime's code in this process. No effect except on Linux.

    Creating a session executes 8 MB of code that no run needs: it parses the file and registers
    all kernels. A run maps the pages that it executes again, without reading a file, because they are in
    the system's cache. Code that was changed in memory, by a debugger for example, stays mapped.
    """
    with suppress(OSError, AttributeError):  # another system
        library = ctypes.CDLL(None)
        for start, size in _mapped_code("onnxruntime"):
            if not _has_changed_pages(start, size):
                library.madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), _MADV_DONTNEED)


def _mapped_code(name: str) -> Iterator[tuple[int, int]]:
    """Yield address and bytes of each mapping of executable code from a file with ``name`` in its name."""
    with Path("/proc/self/maps").open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            # 7f0000000000-7f0001000000 r-xp 00400000 fe:00 1234    /path/of/the/file
            addresses, permissions, _offset, _device, _inode, *path = line.split(maxsplit=5)
            if permissions == "r-xp" and path and name in path[0].rpartition("/")[2]:
                start, end = (int(address, 16) for address in addresses.split("-"))
                yield start, end - start


def _has_changed_pages(start: int, size: int) -> bool:
    """Return whether a mapping of a file has pages that differ from the file: unmapping would lose them."""
    page = os.sysconf("SC_PAGE_SIZE")
    with Path("/proc/self/pagemap").open("rb") as pagemap:
        pagemap.seek(start // page * _ENTRY_BYTES)
        entries = pagemap.read(size // page * _ENTRY_BYTES)
    highest_byte = _ENTRY_BYTES - 1 if sys.byteorder == "little" else 0
    return any(
        flags & (_IN_MEMORY | _IN_SWAP) and not flags & _IS_FILE_PAGE
        for flags in set(entries[highest_byte::_ENTRY_BYTES])
    )


@contextmanager
def map_large_blocks(threshold_afterwards: int = LOADED_THRESHOLD) -> Iterator[None]:
    """Make glibc map each large block by itself in this block, so that freeing returns it.

    By default glibc raises the size from which it maps with each mapping that is freed. A packed
    operand of 9 MB then lies on the heap between others and leaves a hole when it is freed:
    loading a BERT took 26 MB instead of 16.5 in every second process. glibc cannot be set back
    to adapting, so afterwards the threshold is by default the largest that it would have reached.
    Settings in the environment are kept.
    """
    if any(name in os.environ for name in _THRESHOLD_VARIABLES):
        yield
        return
    _set_mapping_threshold(LOADING_THRESHOLD)
    try:
        yield
    finally:
        _set_mapping_threshold(threshold_afterwards)


def _set_mapping_threshold(size: int) -> None:
    """Map blocks from ``size`` bytes on, and trim the heap at twice that. glibc only."""
    with suppress(OSError, AttributeError, TypeError):
        library = ctypes.CDLL(None)
        if hasattr(library, "gnu_get_libc_version"):
            library.mallopt(_M_MMAP_THRESHOLD, size)
            library.mallopt(_M_TRIM_THRESHOLD, 2 * size)
