"""Atomic writes: a file gets onto the disk whole, or not at all.

Everything is written under a temporary name in the target's folder, then renamed: whoever
looks, at any moment, finds the old file or the whole new one.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


Content = bytes | Iterable[bytes]
"""What is written into a file: all of it, or piece by piece."""


def write_files(contents: Mapping[Path, Content]) -> None:
    """Write several files: all temporary ones first, then rename each.

    A link stays one, and what it points to is replaced. What is no regular file, a device
    or a pipe, is written into.

    Raises:
        ModelError: a folder or file cannot be written; nothing is left behind.
    """
    staged: dict[Path, Path] = {}
    fresh: list[Path] = []
    target = next(iter(contents))
    regular = {path: data for path, data in contents.items() if not _is_special(path)}
    try:
        for target, data in regular.items():
            place = _followed(target)
            staged[place] = _stage(place, data)
        for target, data in contents.items():
            if target not in regular:
                _pour(target, data)
        for target, partial in staged.items():
            is_new = not target.exists()
            partial.replace(target)
            fresh.extend([target] if is_new else [])
    except OSError as error:
        for path in fresh:
            path.unlink(missing_ok=True)
        raise ModelError(
            f"{target} cannot be written: {error.strerror}",
            hint="choose another place with -o",
        ) from error
    finally:
        for partial in staged.values():
            partial.unlink(missing_ok=True)


@contextmanager
def staged(target: Path, data: Content) -> Iterator[Path]:
    """Write bytes under a temporary name beside ``target``, for as long as the block lasts.

    Raises:
        ModelError: the folder cannot be written.
    """
    try:
        partial = _stage(target, data)
    except OSError as error:
        raise ModelError(
            f"{target} cannot be written: {error.strerror}",
            hint="choose another place with -o",
        ) from error
    try:
        yield partial
    finally:
        partial.unlink(missing_ok=True)


def _followed(target: Path) -> Path:
    """Return the file that a link stands for.

    Raises:
        OSError: links lead in a circle, for which Python 3.11 has a `RuntimeError`.
    """
    try:
        return target.resolve() if target.is_symlink() else target
    except RuntimeError as error:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from error


def _is_special(path: Path) -> bool:
    """Whether a path is there and neither a file nor a folder: replacing it would end it."""
    return path.exists() and not path.is_file() and not path.is_dir()


def _pour(target: Path, data: Content) -> None:
    with target.open("wb") as file:
        file.writelines([data] if isinstance(data, bytes) else data)


def _stage(target: Path, data: Content) -> Path:
    handle, name = tempfile.mkstemp(
        prefix=f".{target.name[:100]}.", suffix=".tmp", dir=target.parent
    )
    partial = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines([data] if isinstance(data, bytes) else data)
            file.flush()
            os.fsync(file.fileno())
        partial.chmod(_mode(target))
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    return partial


def _mode(target: Path) -> int:
    """Return the mode of the file that is replaced, or what a new file would get."""
    if target.exists():
        return target.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
