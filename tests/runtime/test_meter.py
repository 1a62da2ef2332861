"""What one session takes is noted, and what noting it takes is not counted."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import onnx
import pytest

from builders import parse
from memplan_cli.core.results.observations import CPU, RuntimeSettings
from memplan_cli.runtime.run.run_model import process_of_run, record_run
from memplan_cli.runtime.workers import process_memory as meters
from memplan_cli.runtime.workers.process_memory import (
    HeapUse,
    Resident,
    SessionMeter,
    heap_use,
)
from memplan_cli.runtime.workers.spec import RunConditions

if TYPE_CHECKING:
    from pathlib import Path

    from memplan_cli.core.results.observations import ProcessBytes

MB = 1_000_000


@dataclass
class System:
    """A process that is what is written here."""

    resident: int = 100 * MB
    highest: int = 100 * MB
    used: int = 10 * MB
    free: int = 0

    def grow(self, size: int) -> None:
        """Take bytes, from holes of the heap while there are some."""
        self.used += size
        fresh = max(size - self.free, 0)
        self.free -= size - fresh
        self.resident += fresh
        self.highest = max(self.highest, self.resident)

    def now(self) -> Resident:
        return Resident(self.highest, self.resident, self.resident, 0)

    def forget(self) -> None:
        self.highest = self.resident


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> System:
    made = System()
    monkeypatch.setattr(meters, "resident", made.now)
    monkeypatch.setattr(meters, "baseline", made.now)
    monkeypatch.setattr(meters, "reset_highest", made.forget)
    monkeypatch.setattr(meters, "heap_use", lambda: HeapUse(made.used, made.free))
    return made


def noted(
    system: System, profile: int, looks: int = 0, *, keeps: bool = True, held: int = 0
) -> ProcessBytes | None:
    """Return what a session took that loads 30 MB, and 20 with its first run."""
    meter = SessionMeter(CPU, system.now(), None, keeps)
    system.grow(30 * MB)
    meter.note_loaded()
    for run in range(3):
        system.grow((20 * MB if run == 0 else 0) + profile + held)
        meter.note_run()
        system.grow(looks)
        system.resident -= looks
        system.used -= looks
        meter.note_after_run()
    return meter.result([run * held for run in range(3)])


def test_what_the_profile_of_each_run_takes_is_left_out(system: System) -> None:
    found = noted(system, profile=7 * MB)
    assert found is not None
    assert (found.load, found.run, found.private) == (30 * MB, 50 * MB, 50 * MB)


def test_a_profile_that_lies_in_holes_of_the_heap_took_nothing(system: System) -> None:
    meter = SessionMeter(CPU, system.now(), None, has_holes=True)
    system.grow(30 * MB)
    system.free = 9 * MB
    meter.note_loaded()
    for _ in range(3):
        system.grow(4 * MB)
        meter.note_run()
        meter.note_after_run()
    found = meter.result([0, 0, 0])
    assert found is not None
    assert found.private == 30 * MB
    assert found.run == 30 * MB


def test_a_run_is_never_below_the_load_before_it(system: System) -> None:
    meter = SessionMeter(CPU, system.now(), None, has_holes=True)
    system.grow(80 * MB)
    system.resident -= 50 * MB
    meter.note_loaded()
    for _ in range(3):
        system.grow(4 * MB)
        meter.note_run()
        meter.note_after_run()
    found = meter.result([0, 0, 0])
    assert found is not None
    assert (found.load, found.run, found.private) == (80 * MB, 80 * MB, 30 * MB)


def test_holes_that_were_given_back_are_none(system: System) -> None:
    system.free = 9 * MB
    meter = SessionMeter(CPU, system.now(), None, has_holes=False)
    meter.note_loaded()
    system.free = 0
    for _ in range(3):
        system.grow(4 * MB)
        meter.note_run()
        meter.note_after_run()
    found = meter.result([0, 0, 0])
    assert found is not None
    assert found.private == 0


def test_what_outputs_are_compared_with_counts_neither_in_the_run_nor_after_it(
    system: System,
) -> None:
    found = noted(system, profile=0, looks=40 * MB)
    assert found is not None
    assert (found.run, found.private) == (50 * MB, 50 * MB)


def test_an_arena_that_grows_with_each_run_counts(system: System) -> None:
    found = noted(system, profile=3 * MB, held=5 * MB)
    assert found is not None
    assert (found.run, found.private) == (65 * MB, 65 * MB)


def test_without_a_profile_nothing_is_taken_off(system: System) -> None:
    meter = SessionMeter(CPU, system.now(), None, has_holes=True)
    meter.note_loaded()
    for _ in range(3):
        system.grow(6 * MB)
        meter.note_run()
        meter.note_after_run()
    found = meter.result()
    assert found is not None
    assert (found.run, found.private) == (18 * MB, 18 * MB)


def test_a_session_that_runs_nothing_took_what_it_took_to_make_it(system: System) -> None:
    meter = SessionMeter(CPU, system.now(), None, has_holes=True)
    system.grow(12 * MB)
    meter.note_loaded()
    found = meter.result()
    assert found is not None
    assert (found.load, found.run, found.private) == (12 * MB, 12 * MB, 12 * MB)


@pytest.mark.skipif(heap_use() is None, reason="this C library does not say what it gave out")
def test_the_heap_says_what_is_in_use() -> None:
    before = heap_use()
    block = bytearray(50 * MB)
    after = heap_use()
    assert before is not None
    assert after is not None
    assert len(block) <= after.used - before.used <= len(block) + MB


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what a process takes")
def test_a_graph_of_thousands_of_nodes_takes_as_much_with_a_profile_as_without(
    tmp_path: Path,
) -> None:
    count = 2000
    nodes = "\n".join(f"v{n + 1} = Neg(v{n})" for n in range(count))
    model = parse(f"deep (float[64] v0) => (float[64] v{count}) {{ {nodes} }}")
    path = tmp_path / "deep.onnx"
    onnx.save(model, path)
    # Optimization takes pairs of Neg away.
    settings = RuntimeSettings(session={"graph_optimization_level": "ORT_DISABLE_ALL"})
    alone = process_of_run(path, settings, RunConditions())
    beside = record_run(path, settings, RunConditions(), "arena", "process").peaks.process
    assert alone is not None
    assert beside is not None
    for name in ("load", "run", "private"):
        mine, theirs = getattr(beside, name), getattr(alone, name)
        assert abs(mine - theirs) <= 3 * MB, (name, mine, theirs)
