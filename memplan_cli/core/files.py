"""Atomic writes of files.

Data is first written to a temporary file in the folder of the target, which is then renamed:
other programs see the old file or the complete new one, never a part.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.core.interrupts import deferred
from memplan_cli.core.temporary import temporary_beside
from memplan_cli.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


Content = bytes | Iterable[bytes]
"""The bytes of a file, or its parts in order."""


def write_files(contents: Mapping[Path, Content]) -> None:
    """Write several files. None is replaced before the data of all of them is on disk.

    If a path is a symbolic link, the file behind it is replaced. A device or a pipe is opened and
    written to.

    Raises:
        ModelError: a folder or file cannot be written. If that is one of the last renames, new files
            are removed again, and earlier files that were replaced before it stay replaced.
    """
    temporary_files: dict[Path, Path] = {}  # by the file that each will replace
    new_files: list[Path] = []
    current = next(iter(contents))  # the file at hand, for the error message
    regular = {path: data for path, data in contents.items() if not _is_device_or_pipe(path)}
    with ExitStack() as stack:
        try:
            for current, data in regular.items():
                destination = _resolve_link(current)
                temporary_files[destination] = stack.enter_context(_staged(destination, data))
            for current, data in contents.items():
                if current not in regular:
                    with current.open("wb") as file:
                        file.writelines(_parts(data))
            with deferred():  # a signal must not stop between two renames
                for current, temporary_file in temporary_files.items():
                    is_new = not current.exists()
                    temporary_file.replace(current)
                    if is_new:
                        new_files.append(current)
        except OSError as error:
            for path in new_files:
                path.unlink(missing_ok=True)
            raise _write_error(current, error) from error


@contextmanager
def staged(target: Path, data: Content) -> Iterator[Path]:
    """Write data to a temporary file beside ``target``, for the duration of the block.

    Raises:
        ModelError: the folder cannot be written.
    """
    with ExitStack() as stack:
        try:
            temporary_file = stack.enter_context(_staged(target, data))
        except OSError as error:
            raise _write_error(target, error) from error
        yield temporary_file


@contextmanager
def _staged(target: Path, data: Content) -> Iterator[Path]:
    """Do the same as `staged`, but raise `OSError`. The block may rename the file."""
    with temporary_beside(target) as temporary_file:
        with temporary_file.open("wb") as file:
            file.writelines(_parts(data))
            file.flush()
            os.fsync(file.fileno())
        temporary_file.chmod(file_mode(target))
        yield temporary_file


def _parts(data: Content) -> Iterable[bytes]:
    return [data] if isinstance(data, bytes) else data


def _write_error(target: Path, error: OSError) -> ModelError:
    return ModelError(
        f"{target} cannot be written: {error.strerror}",
        hint="choose another path with -o",
    )


def _resolve_link(target: Path) -> Path:
    """Return the file that a symbolic link leads to, or the path itself if it is no link.

    Raises:
        OSError: the links form a cycle.
    """
    if not target.is_symlink():
        return target
    resolved = Path(os.path.realpath(target))
    if resolved.is_symlink():  # a cycle
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    return resolved


def _is_device_or_pipe(path: Path) -> bool:
    return path.exists() and not path.is_file() and not path.is_dir()


def file_mode(target: Path) -> int:
    """Return the permissions of an existing file, or those that a new file would get."""
    if target.exists():
        return target.stat().st_mode & 0o777
    mask = os.umask(0)  # the mask can be read only by setting another one
    os.umask(mask)
    return 0o666 & ~mask
