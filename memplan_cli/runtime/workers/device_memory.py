"""Bytes that a process holds on CUDA devices, from NVIDIA's management library.

`nvidia-ml-py` is part of the extra ``cuda``. The library makes no CUDA context, so the query takes
no device memory. It lists processes by the ids that they have outside of any container; where
this process is not listed under its own id, only the total of all processes is known.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from memplan_cli.core.results.observations import CUDA


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """Bytes in use on all devices: by this process (None if it is not listed), and by all."""

    own: int | None
    all_processes: int


def device_use(provider: str) -> DeviceUse | None:
    """Return the bytes in use now; None for a provider without a device, or if not known."""
    if provider != CUDA:
        return None
    try:
        import pynvml
    except ImportError:
        return None
    return use_by(pynvml, os.getpid())


def bytes_taken(before: DeviceUse | None, now: DeviceUse | None) -> int | None:
    """Return the bytes that a process took on devices between two readings."""
    if before is None or now is None:
        return None
    if now.own is not None:
        return max(now.own - (before.own or 0), 0)
    return max(now.all_processes - before.all_processes, 0)


def use_by(nvml: Any, process: int) -> DeviceUse | None:  # noqa: ANN401 - a module without types
    """Return the bytes in use on all devices, and those of one process; None on any error."""
    try:
        nvml.nvmlInit()
        indices = range(nvml.nvmlDeviceGetCount())
        devices = [nvml.nvmlDeviceGetHandleByIndex(index) for index in indices]
        total = sum(int(nvml.nvmlDeviceGetMemoryInfo(device).used) for device in devices)
    except nvml.NVMLError:
        return None
    listed = [_listed_bytes(nvml, device, process) for device in devices]
    own = [size for size in listed if size is not None]
    return DeviceUse(sum(own) if own else None, total)


def _listed_bytes(nvml: Any, device: Any, process: int) -> int | None:  # noqa: ANN401
    """Return the bytes with which a device lists a process; None if it does not."""
    try:
        entries = nvml.nvmlDeviceGetComputeRunningProcesses(device)
    except nvml.NVMLError:
        return None
    # The size is None on Windows, whose own driver model manages device memory.
    sizes = (entry.usedGpuMemory for entry in entries if entry.pid == process)
    return next(sizes, None)
