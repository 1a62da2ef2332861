"""What a process holds on CUDA devices, as the driver's management library says it.

The library makes no context, so asking takes nothing on a device. It lists processes by the
numbers that they have outside of any container; where this one is not found under its own,
what all of them hold together is all there is.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from typing import Any

from memplan_cli.core.results.observations import CUDA

_NAMES = ("libnvidia-ml.so.1", "nvml.dll")
_MOST_PROCESSES = 1024
_NOT_AVAILABLE = 2**64 - 1
"""What it says of bytes that it does not know: Windows gives devices out itself."""


class _Process(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class _Memory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """Bytes in use on all devices: by this process, None where it is not listed; by anybody."""

    own: int | None
    anybody: int


def device_use(provider: str) -> DeviceUse | None:
    """Return what is in use now; None for a provider without a device, or where nobody says it."""
    library = _library() if provider == CUDA else None
    return None if library is None else use_by(library, os.getpid())


def taken(before: DeviceUse | None, now: DeviceUse | None) -> int | None:
    """Return what a process took on devices since then, its context included."""
    if before is None or now is None:
        return None
    if now.own is not None:
        return max(now.own - (before.own or 0), 0)
    return max(now.anybody - before.anybody, 0)


def use_by(library: Any, process: int) -> DeviceUse | None:  # noqa: ANN401 - a C library
    """Return what a process holds on all devices, and what is in use there."""
    count = ctypes.c_uint()
    if library.nvmlInit_v2() or library.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        return None
    own, anybody = None, 0
    for index in range(count.value):
        device, memory = ctypes.c_void_p(), _Memory()
        if library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)):
            return None
        if library.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)):
            return None
        anybody += int(memory.used)
        here = _listed(library, device, process)
        own = own if here is None else (own or 0) + here
    return DeviceUse(own, anybody)


def _listed(library: Any, device: ctypes.c_void_p, process: int) -> int | None:  # noqa: ANN401 - a C library
    """Return what a process is listed with on a device; None where it is not."""
    found, count = (_Process * _MOST_PROCESSES)(), ctypes.c_uint(_MOST_PROCESSES)
    if library.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(count), found):
        return None
    listed = (each for each in found[: count.value] if each.pid == process)
    used = next((int(each.used) for each in listed), _NOT_AVAILABLE)
    return None if used == _NOT_AVAILABLE else used


def _library() -> ctypes.CDLL | None:
    for name in _NAMES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None
