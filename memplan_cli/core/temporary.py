"""Temporary files that end with the process that made them, or with the next run.

Each is held under a lock for as long as its process is there. The system lets go of the lock
however that ends, so what can be locked has none, and is removed. Nothing is touched
but what has memplan's own pattern of names, belongs to the same user and is no link.
Where the system or the file system has no such locks, nothing is ever taken for left behind.
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

_RUN = re.compile(r"memplan-[0-9a-f]{16}\.tmp")
"""The folder of one run, in the folder for temporary files."""

_LOCK = ".memplan-lock"
"""A file in each run's folder that its process holds."""

_MOST_LEFT = 1000
"""Files that are looked at in one go: a folder with more is none of ours to clear."""

_PLACES = ("TMPDIR", "TEMP", "TMP")
"""Variables that name the folder for temporary files, as `tempfile` reads them."""


def random_name() -> str:
    """Return what tells one temporary file from another."""
    return os.urandom(8).hex()


@contextmanager
def run_folder() -> Iterator[Path | None]:
    """Give this process, and those that it starts, a folder of their own for temporary files.

    Folders of runs that were killed are removed first. Yields None where there is no room
    for one: what needs a temporary file says so then.
    """
    base = _base()
    clear_runs(base)
    folder, lock = None, None
    former = os.environ.get("TMPDIR")
    try:
        with deferred():
            folder, lock = _new_run(base)
            if folder:
                _use(str(folder))
        yield folder
    finally:
        with deferred():
            if folder:
                _use(former)
                _remove_tree(folder)
            if lock is not None:
                os.close(lock)


def _base() -> Path:
    named = (os.environ.get(name) for name in _PLACES)
    found = next((place for place in named if place and Path(place).is_dir()), None)
    if found is None and sys.platform == "win32":
        import tempfile

        found = tempfile.gettempdir()
    return Path(found or "/tmp").absolute()  # noqa: S108 - what tempfile takes where none is named


def _use(folder: str | None) -> None:
    """Let temporary files go into a folder, here and in processes that are started."""
    if folder is None:
        os.environ.pop("TMPDIR", None)
    else:
        os.environ["TMPDIR"] = folder
    if "tempfile" in sys.modules:
        sys.modules["tempfile"].tempdir = None  # type: ignore[attr-defined] # it looks again then


def _new_run(base: Path) -> tuple[Path | None, int | None]:
    """Return a new folder and the lock on it, or nothing where there is no room."""
    for _ in range(100):
        folder = base / f"memplan-{random_name()}.tmp"
        try:
            folder.mkdir(mode=0o700)
        except OSError:
            return None, None
        try:
            lock = held(folder / _LOCK)
        except FileNotFoundError:  # cleared by another run, before the lock was there
            continue
        except OSError:
            with suppress(OSError):
                folder.rmdir()
            return None, None
        if lock is not None:
            return folder, lock
    return None, None


def held(path: Path) -> int | None:
    """Create a file and return it open and locked; None where it was cleared before it was.

    Raises:
        OSError: it cannot be created.
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


def _lock(file: int, *, wait: bool) -> bool:
    """Lock an open file; return whether it is locked."""
    try:
        import fcntl
    except ImportError:  # Windows
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        return False
    return True


def clear_runs(base: Path) -> None:
    """Remove the folders of runs whose process is gone."""
    for folder in _ours(base, _RUN, stat.S_ISDIR):
        lock = _open(folder / _LOCK)
        if lock is None:
            with suppress(OSError):
                folder.rmdir()  # only an empty one: its run ended before it had a lock
            continue
        try:
            if _lock(lock, wait=False):
                _remove_tree(folder)
        finally:
            os.close(lock)


def clear_files(folder: Path, pattern: re.Pattern[str]) -> None:
    """Remove files whose whole name fits a pattern, and whose process is gone."""
    for path in _ours(folder, pattern, stat.S_ISREG):
        file = _open(path)
        if file is None:
            continue
        try:
            if _lock(file, wait=False):
                path.unlink(missing_ok=True)
        except OSError:
            pass
        finally:
            os.close(file)


def _ours(
    folder: Path, pattern: re.Pattern[str], kind: Callable[[int], bool]
) -> Iterator[Path]:
    """Yield what has a name of the pattern, is of a kind, no link, and this user's own."""
    user = os.getuid() if hasattr(os, "getuid") else None
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if pattern.fullmatch(entry.name)]
    except OSError:
        return
    for name in names[:_MOST_LEFT]:
        path = folder / name
        with suppress(OSError):
            found = path.lstat()
            if kind(found.st_mode) and user in (None, found.st_uid):
                yield path


def _open(path: Path) -> int | None:
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        return os.open(path, flags)
    except OSError:
        return None


def _remove_tree(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)
