"""What a process takes of the system's memory, read by the process itself.

Linux says it in ``/proc``. Elsewhere psutil knows a part of it, where it is installed: the unique
bytes of a process stand for its private ones, and the rest of what is resident for mapped files.
What nobody says is not known, and nothing is made up.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.core.results.observations import ProcessBytes
from memplan_cli.runtime.process.memory import LOADED_THRESHOLD, LOADING_THRESHOLD
from memplan_cli.runtime.workers.mapped_pages import letting_go

if TYPE_CHECKING:
    from collections.abc import Iterator

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"
"""Written to ``clear_refs``, it makes the highest resident size the present one."""


_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1
"""Numbers of glibc's settings."""

_SET_BY = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")
"""Variables of the environment by which people set the same."""


@dataclass(frozen=True, slots=True)
class Resident:
    """Resident bytes: at their highest, now, anonymous now, of mapped files now."""

    highest: int
    now: int
    anonymous: int
    file: int


def resident() -> Resident | None:
    """Return what lies in memory of this process; None where the system does not say."""
    try:
        lines = _STATUS.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return _resident_elsewhere()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    try:
        keys = ("VmHWM", "VmRSS", "RssAnon", "RssFile")
        return Resident(*(int(fields[key].split()[0]) * 1024 for key in keys))
    except (KeyError, ValueError, IndexError):
        return None


def _resident_elsewhere() -> Resident | None:
    """Return what psutil says; None where it is not installed, or knows no highest size."""
    try:
        import psutil  # type: ignore[import-untyped] # it has stubs of its own elsewhere
    except ImportError:
        return None
    try:
        found = psutil.Process().memory_full_info()
        now, own = int(found.rss), int(found.uss)
        highest = getattr(found, "peak_wset", None)  # Windows
        return Resident(max(int(highest or _largest_ever()), now), now, own, max(now - own, 0))
    except (psutil.Error, OSError, AttributeError):
        return None


def _largest_ever() -> int:
    """Return the highest resident size of this process since it began, as Unix says it.

    Raises:
        OSError: the system does not say.
    """
    try:
        import resource
    except ImportError as error:
        raise OSError("nothing says how large this process ever was") from error
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else largest * 1024


def proportional(process: int | None) -> int | None:
    """Return the bytes of a process, each page shared by n of them counted as an n-th.

    Args:
        process: its number; None: this one.

    Returns:
        None where the system does not say: Linux alone does.
    """
    who = "self" if process is None else process
    try:
        lines = Path(f"/proc/{who}/smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = next((line for line in lines if line.startswith("Pss:")), None)
    return int(found.split()[1]) * 1024 if found else None


def baseline() -> Resident | None:
    """Return what lies in memory with the runtime imported; count the highest anew from here."""
    import onnxruntime  # noqa: F401 - what it takes by itself is nobody's model's

    give_back()
    forget_highest()
    return resident()


def forget_highest() -> None:
    """Count the highest resident size anew from here."""
    with suppress(OSError):  # a container may refuse it: then the highest of all counts
        _CLEAR.write_text(_RESET_PEAK, encoding="ascii")


def give_back() -> None:
    """Give back what was freed: a session that lay in it would seem to take nothing."""
    gc.collect()
    trim()


def trim() -> None:
    """Give back the free memory that the C library keeps; another one than glibc keeps its own."""
    with suppress(OSError, AttributeError, TypeError):  # Windows opens no library of no name
        ctypes.CDLL(None).malloc_trim(0)


@contextmanager
def mapping_large() -> Iterator[None]:
    """Have glibc map what is large meanwhile, each block by itself.

    By default it maps less and less of what is freed often: a packed operand of 9 MB that lies
    between others leaves a hole when it is freed, of which the next one may need more. That was
    26 MB to load a BERT instead of 16.5, in every second process. What a process sets by its
    environment stays; afterwards it maps what it would have come to at most, 32 MiB.
    """
    if any(name in os.environ for name in _SET_BY):
        yield
        return
    _set_threshold(LOADING_THRESHOLD)
    try:
        yield
    finally:
        _set_threshold(LOADED_THRESHOLD)


def _set_threshold(size: int) -> None:
    with suppress(OSError, AttributeError, TypeError):  # another library than glibc
        library = ctypes.CDLL(None)
        if hasattr(library, "gnu_get_libc_version"):
            library.mallopt(_MMAP_THRESHOLD, size)
            library.mallopt(_TRIM_THRESHOLD, 2 * size)


@contextmanager
def giving_back(folder: Path) -> Iterator[None]:
    """Give back what making a session on a file in a folder leaves free, and let its pages go.

    Packing and folding leave up to a quarter of what the session keeps, and pages of weights
    that were read to be packed, once.
    """
    with letting_go(folder), mapping_large():
        yield
    trim()


def beyond(
    before: Resident | None,
    loaded: Resident | None,
    ran: Resident | None,
    device: int | None = None,
) -> ProcessBytes | None:
    """Return what a session took beyond what the process had before it.

    Args:
        before: with the runtime imported, and nothing loaded.
        loaded: when the session stood.
        ran: after its first runs.
        device: what it took on devices.
    """
    if before is None or loaded is None or ran is None:
        return None
    return ProcessBytes(
        load=max(loaded.highest - before.now, 0),
        run=max(ran.highest - before.now, 0),
        private=max(ran.anonymous - before.anonymous, 0),
        file=max(ran.file - before.file, 0),
        device=device,
    )
