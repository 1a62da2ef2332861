"""What the driver's library says of a process on CUDA devices, and what is made of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from memplan_cli.core.results.observations import CPU, ProcessBytes
from memplan_cli.core.serialization import to_json
from memplan_cli.runtime.workers.device_memory import DeviceUse, device_use, taken, use_by
from memplan_cli.runtime.workers.process_memory import Resident, beyond

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ME = 77

FUNCTIONS = {
    "nvmlInit_v2": "init",
    "nvmlDeviceGetCount_v2": "count",
    "nvmlDeviceGetHandleByIndex_v2": "handle",
    "nvmlDeviceGetMemoryInfo": "memory",
    "nvmlDeviceGetComputeRunningProcesses_v3": "processes",
}


class Driver:
    """A library that says what it was made with: of each device, bytes in use by process."""

    def __init__(self, devices: Sequence[Mapping[int, int]], broken: str = "") -> None:
        self.devices, self.broken = devices, broken

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - a C function
        if name == self.broken:
            return lambda *_: 3
        return getattr(self, f"_{FUNCTIONS[name]}")

    def _init(self) -> int:
        return 0

    def _count(self, count: Any) -> int:  # noqa: ANN401 - a pointer
        count._obj.value = len(self.devices)
        return 0

    def _handle(self, index: int, device: Any) -> int:  # noqa: ANN401
        device._obj.value = index + 1
        return 0

    def _memory(self, device: Any, memory: Any) -> int:  # noqa: ANN401
        known = self.devices[device.value - 1].values()
        memory._obj.used = sum(size for size in known if size < 2**60)
        return 0

    def _processes(
        self,
        device: Any,  # noqa: ANN401 - pointers
        count: Any,  # noqa: ANN401
        found: Any,  # noqa: ANN401
    ) -> int:
        listed = self.devices[device.value - 1].items()
        for place, (pid, size) in enumerate(listed):
            found[place].pid, found[place].used = pid, size
        count._obj.value = len(listed)
        return 0


def test_a_processs_bytes_on_all_devices_are_summed() -> None:
    driver = Driver([{ME: 300, 5: 1000}, {5: 50}, {ME: 20}])
    assert use_by(driver, ME) == DeviceUse(own=320, anybody=1370)


def test_a_process_that_is_listed_nowhere_has_no_bytes_of_its_own() -> None:
    assert use_by(Driver([{5: 1000}]), ME) == DeviceUse(own=None, anybody=1000)


def test_bytes_that_the_driver_does_not_know_are_not_made_up() -> None:
    assert use_by(Driver([{ME: 2**64 - 1}]), ME) == DeviceUse(own=None, anybody=0)


@pytest.mark.parametrize(
    "broken",
    [
        "nvmlInit_v2",
        "nvmlDeviceGetCount_v2",
        "nvmlDeviceGetHandleByIndex_v2",
        "nvmlDeviceGetMemoryInfo",
    ],
)
def test_a_driver_that_fails_says_nothing(broken: str) -> None:
    assert use_by(Driver([{ME: 1}], broken), ME) is None


def test_without_a_list_of_processes_what_anybody_holds_is_left() -> None:
    driver = Driver([{ME: 9}], "nvmlDeviceGetComputeRunningProcesses_v3")
    assert use_by(driver, ME) == DeviceUse(own=None, anybody=9)


@pytest.mark.parametrize(
    ("before", "now", "bytes_taken"),
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
    before: DeviceUse | None, now: DeviceUse | None, bytes_taken: int | None
) -> None:
    assert taken(before, now) == bytes_taken


def test_on_the_cpu_no_device_is_asked() -> None:
    assert device_use(CPU) is None


def test_bytes_of_a_device_are_in_the_json_only_where_there_are_any() -> None:
    empty, full = Resident(1, 1, 1, 0), Resident(9, 9, 8, 1)
    assert beyond(empty, full, full, 5) == ProcessBytes(8, 8, 7, 1, device=5)
    assert to_json(beyond(empty, full, full, 5))["device"] == 5
    assert "device" not in to_json(beyond(empty, full, full))
