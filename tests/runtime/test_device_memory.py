"""What the driver's library says of a process on CUDA devices, and what is made of it."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from memplan_cli.core.results.observations import CPU, CUDA, ProcessBytes
from memplan_cli.core.serialization import to_json
from memplan_cli.runtime.workers.process_memory import (
    DeviceUse,
    Resident,
    bytes_beyond,
    device_bytes_taken,
    device_use,
    device_use_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ME = 77


class Entry:
    """A process in the list of a device."""

    def __init__(self, pid: int, size: int | None) -> None:
        self.pid, self.usedGpuMemory = pid, size


class Info:
    """The memory of a device."""

    def __init__(self, used: int) -> None:
        self.used = used


class Driver:
    """A stand-in for the module ``pynvml``: of each device, bytes in use by process id."""

    class NVMLError(Exception):
        """What its functions raise."""

    def __init__(self, devices: Sequence[Mapping[int, int | None]], broken: str = "") -> None:
        self.devices, self.broken = devices, broken

    def _called(self, name: str) -> None:
        if name == self.broken:
            raise self.NVMLError

    def nvmlInit(self) -> None:  # noqa: N802 - the library's names
        self._called("nvmlInit")

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        self._called("nvmlDeviceGetCount")
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        self._called("nvmlDeviceGetHandleByIndex")
        return index

    def nvmlDeviceGetMemoryInfo(self, device: int) -> Info:  # noqa: N802
        self._called("nvmlDeviceGetMemoryInfo")
        return Info(sum(size or 0 for size in self.devices[device].values()))

    def nvmlDeviceGetComputeRunningProcesses(self, device: int) -> list[Entry]:  # noqa: N802
        self._called("nvmlDeviceGetComputeRunningProcesses")
        return [Entry(pid, size) for pid, size in self.devices[device].items()]


def test_a_processs_bytes_on_all_devices_are_summed() -> None:
    driver = Driver([{ME: 300, 5: 1000}, {5: 50}, {ME: 20}])
    assert device_use_of(ME, driver) == DeviceUse(own=320, all_processes=1370)


def test_a_process_that_is_listed_nowhere_has_no_bytes_of_its_own() -> None:
    assert device_use_of(ME, Driver([{5: 1000}])) == DeviceUse(own=None, all_processes=1000)


def test_bytes_that_the_driver_does_not_know_are_not_made_up() -> None:
    assert device_use_of(ME, Driver([{ME: None}])) == DeviceUse(own=None, all_processes=0)


@pytest.mark.parametrize(
    "broken",
    [
        "nvmlInit",
        "nvmlDeviceGetCount",
        "nvmlDeviceGetHandleByIndex",
        "nvmlDeviceGetMemoryInfo",
    ],
)
def test_a_driver_that_fails_says_nothing(broken: str) -> None:
    assert device_use_of(ME, Driver([{ME: 1}], broken)) is None


def test_without_a_list_of_processes_what_anybody_holds_is_left() -> None:
    driver = Driver([{ME: 9}], "nvmlDeviceGetComputeRunningProcesses")
    assert device_use_of(ME, driver) == DeviceUse(own=None, all_processes=9)


@pytest.mark.parametrize(
    ("before", "now", "taken"),
    [
        (DeviceUse(None, 500), DeviceUse(400, 900), 400),
        (DeviceUse(100, 500), DeviceUse(400, 700), 300),
        (DeviceUse(None, 500), DeviceUse(None, 900), 400),
        (DeviceUse(None, 500), DeviceUse(None, 100), 0),
        (None, DeviceUse(400, 900), None),
        (DeviceUse(None, 500), None, None),
    ],
)
def test_what_was_taken_is_the_processs_own_where_it_is_listed(
    before: DeviceUse | None, now: DeviceUse | None, taken: int | None
) -> None:
    assert device_bytes_taken(before, now) == taken


def test_on_the_cpu_no_device_is_asked() -> None:
    assert device_use(CPU) is None


def test_on_cuda_the_library_is_asked_about_this_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Driver([{os.getpid(): 8, 1: 2}]))
    assert device_use(CUDA) == DeviceUse(own=8, all_processes=10)


def test_without_the_library_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert device_use(CUDA) is None


def test_bytes_of_a_device_are_in_the_json_only_where_there_are_any() -> None:
    empty, full = Resident(1, 1, 1, 0), Resident(9, 9, 8, 1)
    assert bytes_beyond(empty, full, full, 5) == ProcessBytes(8, 8, 7, 1, device=5)
    assert to_json(bytes_beyond(empty, full, full, 5))["device"] == 5
    assert "device" not in to_json(bytes_beyond(empty, full, full))
