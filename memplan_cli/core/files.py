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
    """Write one or more files, which must be different ones.

    All data goes to temporary files first. Only when all of these are on disk are they renamed, so
    that a full disk changes no file. If a path is a symbolic link, the file behind it is replaced.
    Devices and pipes are opened and written to, before the renames.

    Raises:
        ModelError: a folder or file cannot be written. If a rename fails, files that did not exist
            before are removed, but files that were already replaced keep their new data.
    """
    temporary_files: dict[Path, Path] = {}  # by the file that each will replace
    devices = [path for path in contents if _is_device_or_pipe(path)]
    with ExitStack() as stack:
        for path in (path for path in contents if path not in devices):
            with _write_errors(path):
                target = _resolve_link(path)
                temporary_files[target] = stack.enter_context(_staged(target, contents[path]))
        for device in devices:
            with _write_errors(device), device.open("wb") as file:
                file.writelines(_parts(contents[device]))
        with deferred():  # a signal must not stop between two renames
            _rename_all(temporary_files)


def _rename_all(temporary_files: Mapping[Path, Path]) -> None:
    """Replace each file (key) by its temporary file. If that fails, remove those that are new."""
    new_files: list[Path] = []
    try:
        for target, temporary_file in temporary_files.items():
            with _write_errors(target):
                if not target.exists():
                    new_files.append(target)
                temporary_file.replace(target)
    except ModelError:
        for path in new_files:
            path.unlink(missing_ok=True)
        raise


@contextmanager
def staged(target: Path, data: Content) -> Iterator[Path]:
    """Write data to a temporary file beside ``target``, for the duration of the block.

    Raises:
        ModelError: the folder cannot be written.
    """
    with ExitStack() as stack:
        with _write_errors(target):  # errors of the block are no write errors
            temporary_file = stack.enter_context(_staged(target, data))
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


@contextmanager
def _write_errors(target: Path) -> Iterator[None]:
    """Raise an `OSError` of the block as a `ModelError` that names the file."""
    try:
        yield
    except OSError as error:
        message = f"{target} cannot be written: {error.strerror}"
        raise ModelError(message, hint="choose another path with -o") from error


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
