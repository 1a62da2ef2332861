"""`make measure-cuda` goes on where it was stopped, and its page begins with what was not measured."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks import cuda
from documents.pages import DOCS
from memplan_cli.errors import MemplanError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Json = dict[str, Any]


class Device:
    """Parts whose calls are recorded; names in ``broken`` fail."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.broken: set[str] = set()

    def __call__(self, name: str = "") -> Json:
        self.calls.append(name)
        if name in self.broken:
            raise MemplanError(f"{name} failed")
        return {"bytes": {name: 1}}


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Device:
    """Two parts in an empty folder: one with three names, one with none."""
    fake = Device()
    parts: dict[str, tuple[str, Callable[..., Json], tuple[str, ...]]] = {
        "many": ("three models", fake, ("a", "b", "c")),
        "one": ("one figure of the GPU", fake, cuda.ONCE),
    }
    monkeypatch.setattr(cuda, "PARTS", parts)
    monkeypatch.setattr(cuda, "_TABLES", dict.fromkeys(parts, cuda._pairs))
    monkeypatch.setattr(cuda, "OUT", tmp_path)
    return fake


def measure(seconds: float = 60.0) -> None:
    for part in cuda.PARTS:
        cuda.measure(part, time.monotonic() + seconds)


def first_line() -> str:
    return cuda.page().splitlines()[0]


def test_nothing_was_measured_at_first(device: Device) -> None:
    assert first_line() == "**Not measured: everything, for want of a GPU.**"
    assert device.calls == []


def test_what_is_there_is_not_measured_again_and_what_failed_is(device: Device) -> None:
    device.broken = {"b"}
    measure()
    assert device.calls == ["a", "b", "c", ""]
    assert first_line() == "**Not measured: many (b).**"
    assert "- `many b`: b failed" in cuda.page()
    assert "| many | three models | 2 of 3 |" in cuda.page()
    device.broken.clear()
    measure()
    assert device.calls == ["a", "b", "c", "", "b"]
    assert first_line() == "**Not measured: nothing.**"


def test_no_part_begins_when_the_time_is_over(device: Device) -> None:
    measure(seconds=0.0)
    assert device.calls == []
    assert first_line() == "**Not measured: everything, for want of a GPU.**"


def test_figures_of_a_rehearsal_are_not_on_the_page(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure()
    assert "| a bytes | a: 1 |" in cuda.page()
    assert "\nOne figure of the GPU.\n" in cuda.page()
    monkeypatch.setattr(cuda, "IS_REHEARSAL", True)
    assert first_line() == "**Not measured: everything, for want of a GPU.**"
    assert "bytes" not in cuda.page().replace("process's", "")
    assert "| many | three models | 3 of 3 |" in cuda.page(), "the parts ran through"
    assert device.calls


def test_the_page_of_the_repository_begins_with_what_was_not_measured() -> None:
    page = (DOCS / "measurements" / "cuda.md").read_text(encoding="utf-8")
    assert page.startswith("**Not measured: ")


@pytest.mark.usefixtures("cuda_device")
def test_parts_run_against_the_simulated_device(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cuda, "OUT", tmp_path)
    cuda_parts = ("device", "first-region", "rounding", "context")
    for part in cuda_parts:
        cuda.measure(part, time.monotonic() + 100)
    found = {
        part: json.loads((tmp_path / part / f"{part}.json").read_text()) for part in cuda_parts
    }
    assert found["device"]["device"] == "simulated device"
    held = found["first-region"]["held without weights"]
    assert all(int(size) == bytes_held for size, bytes_held in held.items())
    assert found["rounding"]["taken"]["1"] == 2 << 20
    assert list(found["context"]["taken"].values()) == sorted(
        found["context"]["taken"].values()
    )
