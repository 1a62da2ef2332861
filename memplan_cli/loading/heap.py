"""Return free heap memory of this process to the system.

Memory that was freed stays resident while the C library keeps it, and would count as memory of a
session.
"""

from __future__ import annotations

import ctypes
import gc
import os
from contextlib import contextmanager, suppress
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
    """Return glibc's mmap threshold while a session is used: the bytes from which a block is a mapping of its own.

    ``run_config`` are the entries of its run options, which are empty unless runs release the arena. If they do, the
    regions of the arena need mappings of their own: freed on the heap they stay resident.
    """
    return LOADING_THRESHOLD if run_config else LOADED_THRESHOLD


@contextmanager
def release_after_loading(run_config: Mapping[str, str]) -> Iterator[None]:
    """Give free memory back to the system after a session was created in the ``with`` statement.

    Packing weights and folding constants leave up to a quarter of the size of the session free.
    ``run_config`` are the entries of the session's run options.
    """
    # glibc's mmap threshold, from which a block gets a mapping of its own, is low while loading, then as runs need it.
    with map_large_blocks(threshold_afterwards=threshold_of_runs(run_config)):
        yield
    trim_heap()


@contextmanager
def map_large_blocks(threshold_afterwards: int = LOADED_THRESHOLD) -> Iterator[None]:
    """Keep glibc's mmap threshold low during a ``with`` statement, so that large freed blocks are returned.

    A block at or above the threshold gets a mapping of its own, which the system gets back when the block is
    freed. By default, glibc raises the threshold to the size of each freed mapping. Then a later block of 9 MB
    lies on the heap, and leaves a hole when freed: loading a BERT took 26 MB instead of 16.5 in every second
    process.
    """
    if any(name in os.environ for name in _THRESHOLD_VARIABLES):  # the user's choice is kept
        yield
        return
    _set_mapping_threshold(LOADING_THRESHOLD)
    try:
        yield
    finally:
        # Once set, the threshold no longer adapts. By default it gets the largest number that it would have reached.
        _set_mapping_threshold(threshold_afterwards)


def _set_mapping_threshold(size: int) -> None:
    """Map blocks from ``size`` bytes on, and trim the heap at twice that. glibc only."""
    with suppress(OSError, AttributeError, TypeError):
        library = ctypes.CDLL(None)
        if hasattr(library, "gnu_get_libc_version"):
            library.mallopt(_M_MMAP_THRESHOLD, size)
            library.mallopt(_M_TRIM_THRESHOLD, 2 * size)
