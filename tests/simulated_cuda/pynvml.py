"""A simulated management library of NVIDIA, with one device; see ``sitecustomize`` beside it."""

from __future__ import annotations

import os
from dataclasses import dataclass

USED = 3 << 20
"""Bytes of this process on the device, at the first reading; each further one is as much more."""


class NVMLError(Exception):
    """What the functions raise."""


@dataclass
class Entry:
    """A process on the device."""

    pid: int
    usedGpuMemory: int  # noqa: N815 - the library's names


class State:
    """The readings so far."""

    count = 0


def nvmlInit() -> None:  # noqa: N802
    """Do nothing."""


def nvmlDeviceGetCount() -> int:  # noqa: N802
    """Return 1."""
    return 1


def nvmlDeviceGetHandleByIndex(index: int) -> int:  # noqa: N802
    """Return the index."""
    return index


def nvmlDeviceGetName(_: int) -> str:  # noqa: N802
    """Return the name of the device."""
    return "simulated device"


def nvmlSystemGetDriverVersion() -> str:  # noqa: N802
    """Return the version of the driver."""
    return "0.0"


@dataclass
class Info:
    """The memory of the device."""

    used: int


def nvmlDeviceGetMemoryInfo(_: int) -> Info:  # noqa: N802
    """Return more bytes than this process has."""
    return Info(1 << 30)


def nvmlDeviceGetComputeRunningProcesses(_: int) -> list[Entry]:  # noqa: N802
    """Return this process, with more bytes at each call."""
    State.count += 1
    return [Entry(os.getpid(), State.count * USED)]
