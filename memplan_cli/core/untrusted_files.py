"""Rejection of files without an end: pipes that nobody writes to, devices and sockets."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from memplan_cli.errors import MemplanError


def refuse_endless(path: Path, error: type[MemplanError]) -> None:
    """Refuse a device, a pipe or a socket; what is not there is for the reader to say.

    Raises:
        MemplanError: of the given type, naming the path.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise error(f"{path} is no regular file", hint="a device or a pipe may never end")
