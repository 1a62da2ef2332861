"""Return of freed heap memory, which the C library keeps for later, to the system.

Protobuf and shape inference take their memory from the C library's heap, Python's objects
do not. What one stage of planning has freed, the next one does not use.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


LARGE = 20_000
"""Nodes, or values, of a graph that is worth the trouble: parsed, it takes seven megabytes."""


def give_back(size: int = LARGE) -> None:
    """Give freed memory back to the system, where the C library can: GNU's.

    Args:
        size: The nodes or values of the graph in hand; nothing is done for a small one.
    """
    if size >= LARGE:
        _trim()(0)


@cache
def _trim() -> Callable[[int], object]:
    """Return the C library's function, or one that does nothing.

    ``ctypes`` is loaded where a large model is planned only: it takes some milliseconds.
    """
    try:
        import ctypes

        found: Callable[[int], object] = ctypes.CDLL(None).malloc_trim
    except (ImportError, OSError, TypeError, AttributeError):  # another library, or system
        return lambda pad: pad
    return found
