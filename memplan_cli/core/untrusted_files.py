"""Rejection of files without an end: pipes nobody writes to, devices, terabytes of nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from memplan_cli.errors import MemplanError

LARGEST = 1 << 31
"""Bytes of a file that is read as a whole: as many as a message of protobuf can have."""


def refuse_endless(path: Path, error: type[MemplanError], largest: int = LARGEST) -> None:
    """Refuse a device, a pipe, a socket, and what is larger than any file of its kind.

    A sparse file says that it has terabytes, and takes none on the disk. What is not there
    is for the reader to say.

    Raises:
        MemplanError: of the given type, naming the path.
    """
    if path.is_file():
        size = path.stat().st_size
        if size > largest:
            raise error(f"{path} has {size} bytes, more than a file of its kind ({largest})")
    elif path.exists() and not path.is_dir():
        raise error(f"{path} is no regular file", hint="a device or a pipe may never end")
