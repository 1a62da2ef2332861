"""Temporary files that are removed when their process ends, or by the next run of memplan.

A process holds a file lock (``flock``) as long as it needs its temporary files. The system
releases the lock however the process ends, so files that another run can lock are leftovers, and
it removes them. Only files and folders that have memplan's name pattern, belong to the same user
and are no links are ever removed. Without such locks (Windows, some file systems) no leftovers
are removed.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.core.interrupts import deferred

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_RUN_FOLDER = re.compile(r"memplan-[0-9a-f]{16}\.tmp")
"""The name of the folder of one run, in the system's folder for temporary files."""

_LOCK_FILE = ".memplan-lock"
"""The file in the folder of a run that its process keeps locked."""

_MAX_LEFTOVERS = 1000
"""Leftovers that are checked in one call, so that a huge folder costs no time."""

_TEMPORARY_FOLDER_VARIABLES = ("TMPDIR", "TEMP", "TMP")
"""Variables that name the folder for temporary files, in the order in which `tempfile` reads them."""


@contextmanager
def run_folder() -> Iterator[Path | None]:
    """Let all temporary files of this process and its children go into one new folder.

    The folder is removed at the end of the block; folders of killed runs are removed first. Sets
    ``TMPDIR`` for the block. Yields None if the folder cannot be created; temporary files then go
    where they went before.
    """
    base = _temporary_folder()
    clear_run_folders(base)
    folder, lock = None, None  # while the lock is held, other runs do not remove the folder
    previous_variable = os.environ.get("TMPDIR")
    try:
        with deferred():  # a signal before the assignment would leave the folder behind
            folder, lock = _new_run_folder(base)
            if folder:
                _set_temporary_folder(str(folder))
        yield folder
    finally:
        try:
            with deferred():
                _remove_and_restore(folder, previous_variable)
        except KeyboardInterrupt:
            # The signal came before `deferred` began, or at its end. In the second case all is done
            # already, and doing it again changes nothing.
            _remove_and_restore(folder, previous_variable)
            raise
        finally:
            if lock is not None:
                os.close(lock)


def _remove_and_restore(folder: Path | None, previous_variable: str | None) -> None:
    """Remove a run's folder, if it has one and it is still there, and restore ``TMPDIR``."""
    if folder:
        _set_temporary_folder(previous_variable)
        _remove_tree(folder)


@contextmanager
def temporary_beside(target: Path) -> Iterator[Path]:
    """Create an empty temporary file in the folder of ``target``, for the duration of the block.

    Its name is ``.<target>.<random>.tmp``. It stays locked during the block, so that other runs do
    not take it for a leftover; leftovers of killed runs are removed first. The block may rename it.

    Raises:
        OSError: the file cannot be created.
    """
    prefix = f".{target.name[:100]}."
    clear_files(target.parent, re.compile(rf"{re.escape(prefix)}[0-9a-f]{{16}}\.tmp"))
    file, lock = None, None
    try:
        with deferred():  # a signal between creation and lock would leave the file behind
            while lock is None:  # another run may remove the file before it is locked
                file = target.with_name(f"{prefix}{_random_name()}.tmp")
                lock = create_locked(file)
        assert file  # noqa: S101 - for the type checker
        yield file
    finally:
        with deferred():
            if lock is not None and file is not None:
                file.unlink(missing_ok=True)
                os.close(lock)


def create_locked(path: Path) -> int | None:
    """Create a file, lock it and return its file descriptor.

    Returns None if another run removed the file between its creation and its lock.

    Raises:
        OSError: the file cannot be created.
    """
    flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_BINARY", 0)
    file = os.open(path, flags, 0o600)
    try:
        _lock(file, wait=True)
        if os.path.samestat(os.fstat(file), path.lstat()):
            return file
    except FileNotFoundError:
        pass
    except BaseException:
        os.close(file)
        raise
    os.close(file)
    return None


def clear_run_folders(base: Path) -> None:
    """Remove the folders of runs in ``base`` whose processes have ended: their locks are free.

    Empty folders are removed too. If the run of one is only about to create its lock file, it creates
    another folder (`_new_run_folder`).
    """
    for folder in _own_paths(base, _RUN_FOLDER, stat.S_ISDIR):
        lock = _open(folder / _LOCK_FILE)
        if lock is None:
            with suppress(OSError):
                folder.rmdir()  # fails if the folder is not empty
            continue
        try:
            if _lock(lock, wait=False):
                _remove_tree(folder)
        finally:
            os.close(lock)


def clear_files(folder: Path, pattern: re.Pattern[str]) -> None:
    """Remove the files in ``folder`` whose name matches and whose processes have ended."""
    for path in _own_paths(folder, pattern, stat.S_ISREG):
        file = _open(path)
        if file is None:
            continue
        try:
            if _lock(file, wait=False):
                path.unlink(missing_ok=True)
        except OSError:
            pass  # the file stays, until a later run can remove it
        finally:
            os.close(file)


def _random_name() -> str:
    return os.urandom(8).hex()


def _temporary_folder() -> Path:
    """Return the system's folder for temporary files, without the import of `tempfile` on POSIX."""
    named = (os.environ.get(name) for name in _TEMPORARY_FOLDER_VARIABLES)
    folder = next((path for path in named if path and Path(path).is_dir()), None)
    if folder is None and sys.platform == "win32":
        import tempfile

        folder = tempfile.gettempdir()
    return Path(folder or "/tmp").absolute()  # noqa: S108 - the default of tempfile


def _set_temporary_folder(folder: str | None) -> None:
    """Set or unset ``TMPDIR`` for this process and its children."""
    if folder is None:
        os.environ.pop("TMPDIR", None)
    else:
        os.environ["TMPDIR"] = folder
    if "tempfile" in sys.modules:
        # Clear the folder that tempfile has cached.
        sys.modules["tempfile"].tempdir = None  # type: ignore[attr-defined]


def _new_run_folder(base: Path) -> tuple[Path | None, int | None]:
    """Create the folder of a run; return it and its lock, or two Nones if that is not possible."""
    # Another run may take a new folder for a leftover and remove it while it has no lock. Then the
    # next folder is tried.
    for _ in range(100):
        folder = base / f"memplan-{_random_name()}.tmp"
        try:
            folder.mkdir(mode=0o700)
        except OSError:
            return None, None
        try:
            lock = create_locked(folder / _LOCK_FILE)
        except FileNotFoundError:  # the folder was removed before it had a lock file
            continue
        except OSError:
            with suppress(OSError):
                folder.rmdir()
            return None, None
        if lock is None:  # the folder was removed with its lock file, before that was locked
            continue
        return folder, lock
    return None, None


def _lock(file: int, *, wait: bool) -> bool:
    """Lock an open file; return whether that succeeded."""
    try:
        import fcntl
    except ImportError:  # Windows
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        return False
    return True


def _own_paths(
    folder: Path, pattern: re.Pattern[str], is_kind: Callable[[int], bool]
) -> Iterator[Path]:
    """Yield the paths in a folder whose whole name matches, that are of a kind, and of this user.

    ``is_kind`` tests ``st_mode``, as `stat.S_ISREG` does; links fail it. Only the first `_MAX_LEFTOVERS`
    matching names are considered. Nothing is yielded if the folder cannot be read.
    """
    user = os.getuid() if hasattr(os, "getuid") else None
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if pattern.fullmatch(entry.name)]
    except OSError:
        return
    for name in names[:_MAX_LEFTOVERS]:
        path = folder / name
        with suppress(OSError):
            status = path.lstat()
            if is_kind(status.st_mode) and user in (None, status.st_uid):
                yield path


def _open(path: Path) -> int | None:
    """Open a file for reading and return its descriptor; None if it is a link or cannot be opened."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        return os.open(path, flags)
    except OSError:
        return None


def _remove_tree(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)
