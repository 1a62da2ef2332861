"""Spooled bytes: made once, gone through more than once, without being in memory.

The text of a large plan, and the notes in its model, are each ten times the size of the
graph. What is longer than a few megabytes waits in a file without a name; where there is no
room for one, in memory after all.
"""

from __future__ import annotations

import tempfile
import weakref
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import BinaryIO

MOST_KEPT = 8 << 20
"""Bytes up to which all stays in memory: the notes of a graph of 30,000 nodes."""

_CHUNK = 1 << 20


class Parts:
    """Bytes in several pieces, one after the other, to be gone through again and again."""

    def __init__(self, *parts: Iterable[bytes]) -> None:
        self._parts = parts

    def __iter__(self) -> Iterator[bytes]:
        return chain.from_iterable(self._parts)


def spooled(pieces: Iterable[bytes]) -> Iterable[bytes]:
    """Go through pieces of bytes; return the same bytes to be gone through again and again."""
    kept: list[bytes] = []
    left, size = iter(pieces), 0
    for piece in left:
        kept.append(piece)
        size += len(piece)
        if size > MOST_KEPT:
            return _poured(kept, left)
    return kept


def _poured(kept: list[bytes], left: Iterator[bytes]) -> Iterable[bytes]:
    """Return what is kept and what is left, as much of it as possible from a file."""
    try:
        file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - it goes with who reads it
    except OSError:
        return [*kept, *left]
    size, waiting = 0, chain(kept, left)
    for piece in waiting:
        try:
            _write(file, piece)
        except OSError:  # the disk is full
            return Parts(_Poured(file, size), [piece, *waiting])
        size += len(piece)
    return _Poured(file, size)


def _write(file: BinaryIO, piece: bytes) -> None:
    left = memoryview(piece)
    while left:
        left = left[file.write(left) :]


class _Poured:
    """The first bytes of a file; who reads them twice at once reads them right."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._size = file, size
        weakref.finalize(self, file.close)

    def __iter__(self) -> Iterator[bytes]:
        at = 0
        while at < self._size:
            self._file.seek(at)
            found = self._file.read(min(_CHUNK, self._size - at))
            at += len(found)
            yield found
