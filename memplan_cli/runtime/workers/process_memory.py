"""Measure the memory of this process: resident, of its heap, and on CUDA devices.

Linux provides resident sizes in ``/proc``. On other systems psutil provides a part of them, if it
is installed: the unique bytes of a process count as private, and other resident bytes as mapped
files. What no source provides is None.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from operator import sub
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from memplan_cli.core.results.observations import CUDA, ProcessBytes
from memplan_cli.loading.heap import release_free_memory

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from memplan_cli.runtime.workers.spec import SessionSpec

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"
"""Written to ``clear_refs``, it resets the highest resident size to the current one."""

_MADV_POPULATE_READ = 22
"""Reads pages into memory; since Linux 5.14. Older systems refuse it."""


# ---- resident memory ----


@dataclass(frozen=True, slots=True)
class Resident:
    """Resident bytes of a process.

    Attributes:
        highest: the most since the process began, or since `reset_highest`.
        now: the current size.
        anonymous: the part of ``now`` that belongs to no file.
        file: the part of ``now`` that is mapped from files.
    """

    highest: int
    now: int
    anonymous: int
    file: int


def resident() -> Resident | None:
    """Return the resident bytes of this process."""
    try:
        lines = _STATUS.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return _resident_by_psutil()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    try:
        keys = ("VmHWM", "VmRSS", "RssAnon", "RssFile")
        return Resident(*(int(fields[key].split()[0]) * 1024 for key in keys))
    except (KeyError, ValueError, IndexError):
        return None


def _resident_by_psutil() -> Resident | None:
    """Return the resident bytes of this process, if psutil is installed and may read them."""
    try:
        import psutil  # type: ignore[import-untyped] # it has stubs of its own elsewhere
    except ImportError:
        return None
    try:
        info = psutil.Process().memory_full_info()
        now, unique = int(info.rss), int(info.uss)
        highest = getattr(info, "peak_wset", None)  # Windows
        if highest is None:
            import resource

            highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            highest *= 1 if sys.platform == "darwin" else 1024
    except (psutil.Error, OSError, AttributeError):
        return None
    # An approximation: pages that only this process has count as anonymous, shared ones as pages of files.
    return Resident(
        highest=max(highest, now), now=now, anonymous=unique, file=max(now - unique, 0)
    )


def baseline() -> Resident | None:
    """Import ONNX Runtime, reset the highest resident size, and return the resident bytes.

    Sizes of sessions are measured beyond these.
    """
    import onnxruntime  # noqa: F401

    _load_imported_pages()
    release_free_memory()
    reset_highest()
    return resident()


def reset_highest() -> None:
    """Reset the highest resident size to the current one."""
    with suppress(OSError):  # if a container forbids it, the highest counts from the start
        _CLEAR_REFS.write_text(_RESET_PEAK, encoding="ascii")


def bytes_beyond(
    before: Resident | None,
    loaded: Resident | None,
    after: Resident | None,
    device: int | None = None,
) -> ProcessBytes | None:
    """Return the bytes of a process beyond those before its session; None if a reading is missing.

    ``loaded`` is read when the session has been created, ``after`` after its first runs. ``device`` are bytes that
    the session took on devices, None if unknown.
    """
    if before is None or loaded is None or after is None:
        return None
    return ProcessBytes(
        load=max(loaded.highest - before.now, 0),
        run=max(after.highest - before.now, 0),
        private=max(after.anonymous - before.anonymous, 0),
        file=max(after.file - before.file, 0),
        device=device,
    )


# ---- pages of files in forks ----


class _ImportedPages:
    """The pages of mapped files that the fork server had in memory, as runs of address and bytes."""

    runs: Sequence[tuple[int, int]] = ()


def note_imported_pages() -> None:
    """Note, in the fork server, which pages of libraries are in memory. Its forks inherit the note.

    A fork starts without the file pages of its parent. `baseline` loads them again, or a job would count
    those of the libraries as memory of its own. Jobs that measure no memory do not need them: loading
    takes 10 ms.
    """
    _ImportedPages.runs = _resident_file_pages()


def _load_imported_pages() -> None:
    """Load the pages that the fork server had in memory; nothing in a process that is no fork."""
    if not _ImportedPages.runs:
        return
    library = ctypes.CDLL(None)
    for start, size in _ImportedPages.runs:
        library.madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), _MADV_POPULATE_READ)


def _resident_file_pages() -> list[tuple[int, int]]:
    """Return address and bytes of each run of pages of mapped files that are in memory now.

    Empty if the system does not list them.
    """
    import numpy as np

    runs = []
    try:
        with Path("/proc/self/pagemap").open("rb", buffering=0) as pagemap:
            for start, end in _file_mappings():
                # Eight bytes for each page; the highest bit is set if the page is in memory.
                first, count = start // mmap.PAGESIZE, (end - start) // mmap.PAGESIZE
                entries = os.pread(pagemap.fileno(), 8 * count, 8 * first)
                is_present = np.frombuffer(entries, np.uint64) >> np.uint64(63) == 1
                changes = np.flatnonzero(np.diff(is_present, prepend=False, append=False))
                runs += [
                    (start + begin * mmap.PAGESIZE, (after - begin) * mmap.PAGESIZE)
                    for begin, after in changes.reshape(-1, 2).tolist()
                ]
    except OSError:
        return []
    return runs


def _file_mappings() -> Iterator[tuple[int, int]]:
    """Yield start and end address of each readable mapping of a file.

    Raises:
        OSError: the system does not list them.
    """
    for line in os.fsdecode(Path("/proc/self/maps").read_bytes()).splitlines():
        addresses, permissions, _, _, inode = line.split(maxsplit=5)[:5]
        if inode != "0" and permissions.startswith("r"):
            start, end = addresses.split("-")
            yield int(start, 16), int(end, 16)


# ---- the heap ----


@dataclass(frozen=True, slots=True)
class HeapUse:
    """Bytes of the C library's heap: in allocated blocks, mapped ones included, and free."""

    used: int
    free: int


class _MallInfo(ctypes.Structure):
    """``struct mallinfo2`` of glibc 2.33 and later."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks"),
            *("uordblks", "fordblks", "keepcost"),
        )
    )


def heap_use() -> HeapUse | None:
    """Return the use of the heap; None if the C library does not provide it."""
    try:
        mallinfo2 = ctypes.CDLL(None).mallinfo2
    except (OSError, AttributeError, TypeError):
        return None
    mallinfo2.restype = _MallInfo
    info = mallinfo2()
    return HeapUse(info.uordblks + info.hblkhd, info.fordblks)


# ---- CUDA devices ----


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """Bytes in use on all CUDA devices.

    Attributes:
        own: of this process; None if the devices do not list it under its process id. They list
            processes by the ids outside of containers.
        all_processes: of all processes.
    """

    own: int | None
    all_processes: int


def device_use(provider: str) -> DeviceUse | None:
    """Return the bytes in use on CUDA devices, from NVIDIA's management library.

    The library (``nvidia-ml-py``, in the extras ``gpu`` and ``cuda``) creates no CUDA context, so that the
    query takes no device memory.

    Returns:
        None for another provider, and without the library.
    """
    if provider != CUDA:
        return None
    try:
        import pynvml
    except ImportError:
        return None
    return device_use_of(os.getpid(), pynvml)


def device_use_of(pid: int, nvml: Any) -> DeviceUse | None:  # noqa: ANN401 - a module without types
    """Return the bytes in use on CUDA devices, with those of one process; None on any error."""
    try:
        nvml.nvmlInit()
        indices = range(nvml.nvmlDeviceGetCount())
        devices = [nvml.nvmlDeviceGetHandleByIndex(index) for index in indices]
        total = sum(int(nvml.nvmlDeviceGetMemoryInfo(device).used) for device in devices)
    except nvml.NVMLError:
        return None
    listed = [_listed_bytes(nvml, device, pid) for device in devices]
    own = [size for size in listed if size is not None]
    return DeviceUse(sum(own) if own else None, total)


def _listed_bytes(nvml: Any, device: Any, pid: int) -> int | None:  # noqa: ANN401
    """Return the bytes that a device lists for a process; None if it does not."""
    try:
        entries = nvml.nvmlDeviceGetComputeRunningProcesses(device)
    except nvml.NVMLError:
        return None
    # The size is None on Windows, whose own driver model manages device memory.
    return next((entry.usedGpuMemory for entry in entries if entry.pid == pid), None)


def device_bytes_taken(before: DeviceUse | None, now: DeviceUse | None) -> int | None:
    """Return the bytes that this process took on devices between two readings.

    If the devices do not list this process, the change of all processes counts as its own.
    """
    if before is None or now is None:
        return None
    if now.own is not None:
        return max(now.own - (before.own or 0), 0)
    return max(now.all_processes - before.all_processes, 0)


# ---- one session ----


@dataclass(slots=True)
class SessionMeter:
    """Measures the memory that one session takes, without the memory that the profiler takes.

    A profile stays in memory until it is ended, 2.7 KB for each node and run: 115 MB for three
    runs of an LSTM of 14,000 nodes. Once the arena has grown, the bytes that a run leaves
    allocated are those of the profile. They fill holes of the heap first.

    Call `start`, `note_loaded`, then `note_run` and `note_after_run` for each run, and `result`.

    Attributes:
        provider: where the session runs.
        before: resident bytes before the session is created.
        device_before: bytes in use on devices before the session is created.
        has_holes: whether loading leaves free memory in the heap, for the profile to fill.
        _loaded: resident bytes when the session has been created.
        _hole_bytes: the free memory in the heap at that time; 0 without ``has_holes``.
        _run_peaks: the highest resident size of each run; that of the first one includes the load.
        _after_runs: resident bytes after each run; empty if the system does not provide them.
        _heaps: use of the heap after each run; empty if the C library does not provide it.
    """

    provider: str
    before: Resident | None
    device_before: DeviceUse | None
    has_holes: bool
    _loaded: Resident | None = None
    _hole_bytes: int = 0
    _run_peaks: list[int] = field(default_factory=list)
    _after_runs: list[Resident] = field(default_factory=list)
    _heaps: list[HeapUse] = field(default_factory=list)

    @classmethod
    def start(cls, spec: SessionSpec) -> Self:
        """Return a meter of a session that will be created next."""
        device_before = device_use(spec.provider)  # first, because it loads a library
        # Loading leaves freed memory (holes) in the heap, unless `memplan_cli.load` returns it to the system.
        has_holes = not spec.opened_by_memplan
        return cls(spec.provider, baseline(), device_before, has_holes)

    def note_loaded(self) -> None:
        """Record the memory of the process when the session has been created."""
        self._loaded, heap = resident(), heap_use()
        self._hole_bytes = heap.free if heap and self.has_holes else 0

    def note_run(self) -> None:
        """Record the highest size after a run, before its outputs are compared."""
        now = resident()
        self._run_peaks.append(now.highest if now else 0)

    def note_after_run(self) -> None:
        """Record the memory of the process between two runs, and reset the highest size for the next run.

        The caller has compared the outputs of the run before, and has dropped them if they are not to be counted.
        """
        now, heap = resident(), heap_use()
        if now is not None:
            self._after_runs.append(now)
        if heap is not None:
            self._heaps.append(heap)
        reset_highest()  # the memory in which outputs were compared does not count for the next run

    def result(self, arena_bytes: Sequence[int] = ()) -> ProcessBytes | None:
        """Return the bytes that the session took; None if the system does not provide them.

        They are without the *profile*, a list of events that ONNX Runtime keeps on the heap if the session measures
        its nodes. ``arena_bytes`` are the bytes of the arena after each run, by which the profile is told from the
        rest of the heap; empty if the session makes no profile.
        """
        last = self._after_runs[-1] if self._after_runs else self._loaded
        device = device_bytes_taken(self.device_before, device_use(self.provider))
        total = bytes_beyond(self.before, self._loaded, last, device)
        if total is None or self.before is None:
            return None
        if not self._after_runs:  # before the first run the profile is empty
            return total
        # The resident bytes of the profile after each run, which grow from run to run; 0 without a profile.
        profile_bytes = self._resident_profile_bytes(arena_bytes)
        peaks_without_profile = map(sub, self._run_peaks, profile_bytes)
        highest_run = max(peaks_without_profile) - self.before.now
        return ProcessBytes(
            load=total.load,  # there was no profile yet
            # The highest size may be reached during the load. There is no profile then, and nothing to subtract.
            run=max(highest_run, total.load),
            # ``total.private`` was read after the last run, and has the profile of all runs.
            private=max(total.private - profile_bytes[-1], 0),
            file=total.file,
            device=device,
        )

    def _resident_profile_bytes(self, arena_bytes: Sequence[int]) -> list[int]:
        """Return the bytes by which the profile has made the process larger, at the end of each run.

        The profile is a list of events on the heap, to which each run adds the same number of bytes. ``arena_bytes``
        are the bytes of the arena after each run; empty without a profile, and then the result is all 0.
        """
        event_bytes = 0  # of one run
        # The first two runs leave further memory on the heap, so only the last of three or more is measured.
        if min(len(arena_bytes), len(self._heaps)) >= 3:
            heap_growth = self._heaps[-1].used - self._heaps[-2].used
            arena_growth = arena_bytes[-1] - arena_bytes[-2]  # the arena lies on the heap too
            event_bytes = max(heap_growth - arena_growth, 0)
        # The first events fill holes of the heap, which are resident anyway.
        run_counts = range(1, len(self._run_peaks) + 1)
        return [max(runs * event_bytes - self._hole_bytes, 0) for runs in run_counts]
