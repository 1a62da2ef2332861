"""Atomic writes: a file gets onto the disk whole, or not at all.

Everything is written under a temporary name in the target's folder, then renamed: whoever
looks, at any moment, finds the old file or the whole new one. Temporary ones of runs that
were killed are removed by the next run that writes the same target.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from memplan_cli.core.interrupts import deferred
from memplan_cli.core.temporary import clear_files, held, random_name
from memplan_cli.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


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
    with ExitStack() as partials:
        try:
            for target, data in regular.items():
                place = _followed(target)
                staged[place] = partials.enter_context(_staged(place, data))
            for target, data in contents.items():
                if target not in regular:
                    _pour(target, data)
            with deferred():  # all of them, or none
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


@contextmanager
def staged(target: Path, data: Content) -> Iterator[Path]:
    """Write bytes under a temporary name beside ``target``, for as long as the block lasts.

    Raises:
        ModelError: the folder cannot be written.
    """
    with ExitStack() as partials:
        try:
            partial = partials.enter_context(_staged(target, data))
        except OSError as error:
            raise ModelError(
                f"{target} cannot be written: {error.strerror}",
                hint="choose another place with -o",
            ) from error
        yield partial


def _followed(target: Path) -> Path:
    """Return the file that a link stands for.

    Raises:
        OSError: links lead in a circle: a `RuntimeError` up to Python 3.12, and then a path
            that is a link still.
    """
    if not target.is_symlink():
        return target
    circle = OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    try:
        found = target.resolve()
    except RuntimeError as error:
        raise circle from error
    if found.is_symlink():
        raise circle
    return found


def _is_special(path: Path) -> bool:
    """Whether a path is there and neither a file nor a folder: replacing it would end it."""
    return path.exists() and not path.is_file() and not path.is_dir()


def _pour(target: Path, data: Content) -> None:
    with target.open("wb") as file:
        file.writelines([data] if isinstance(data, bytes) else data)


@contextmanager
def _staged(target: Path, data: Content) -> Iterator[Path]:
    """Write bytes under a temporary name; the file goes, if it still has that name."""
    with temporary_beside(target) as partial:
        with partial.open("wb") as file:
            file.writelines([data] if isinstance(data, bytes) else data)
            file.flush()
            os.fsync(file.fileno())
        partial.chmod(file_mode(target))
        yield partial


@contextmanager
def temporary_beside(target: Path) -> Iterator[Path]:
    """Create an empty file in the folder of ``target``, for as long as the block lasts.

    Those of runs that were killed are removed first.

    Raises:
        OSError: it cannot be created.
    """
    start = f".{target.name[:100]}."
    clear_files(target.parent, re.compile(rf"{re.escape(start)}[0-9a-f]{{16}}\.tmp"))
    partial, lock = None, None
    try:
        with deferred():
            while lock is None:
                partial = target.with_name(f"{start}{random_name()}.tmp")
                lock = held(partial)
        assert partial  # noqa: S101 - for the type checker
        yield partial
    finally:
        with deferred():
            if lock is not None and partial is not None:
                partial.unlink(missing_ok=True)
                os.close(lock)


def file_mode(target: Path) -> int:
    """Return the mode of the file that is replaced, or what a new file would get."""
    if target.exists():
        return target.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def same_bytes(one: Path, other: Path) -> bool:
    """Whether two files hold the same, a piece at a time."""
    if one.stat().st_size != other.stat().st_size:
        return False
    block = 1 << 20
    with one.open("rb") as left, other.open("rb") as right:
        while True:
            a, b = left.read(block), right.read(block)
            if a != b:
                return False
            if not a:
                return True
