"""What processes take of the system's memory: read where the system says it, else unknown."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from memplan_cli.core.results.observations import ProcessBytes, RuntimeSettings
from memplan_cli.loading.heap import map_large_blocks, trim_heap
from memplan_cli.runtime.run.run_model import process_of_run
from memplan_cli.runtime.workers import process_memory
from memplan_cli.runtime.workers.process_memory import (
    Resident,
    baseline,
    bytes_beyond,
    resident,
)
from memplan_cli.runtime.workers.spec import RunConditions

if TYPE_CHECKING:
    from types import ModuleType

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")

SAMPLES = Path(__file__).parents[2] / "sample_models"
MIB = 1 << 20


def without_proc(monkeypatch: pytest.MonkeyPatch, psutil: ModuleType | None) -> None:
    """Let the system say nothing, as macOS and Windows do; psutil may know something."""
    monkeypatch.setattr(process_memory, "_STATUS", Path("/nowhere/status"))
    monkeypatch.setattr(process_memory, "_CLEAR_REFS", Path("/nowhere/clear_refs"))
    monkeypatch.setitem(sys.modules, "psutil", psutil)


def psutil_of(**found: int) -> ModuleType:
    process = SimpleNamespace(memory_full_info=lambda: SimpleNamespace(**found))
    return SimpleNamespace(Process=lambda: process, Error=RuntimeError)  # type: ignore[return-value]


@linux
def test_an_allocated_block_counts_as_private() -> None:
    """In a process that does nothing else."""
    code = """
from memplan_cli.runtime.workers.process_memory import baseline, bytes_beyond, resident
before = baseline()
block = bytearray(range(64)) * (1 << 20)
after = resident()
print(bytes_beyond(before, after, after).private)
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert abs(int(done.stdout) - 64 * MIB) < 2 * MIB


@linux
def test_free_memory_of_the_c_library_is_released() -> None:
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "malloc_trim"):
        pytest.skip("another C library than glibc keeps no such memory")
    libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    blocks = [libc.malloc(16 << 10) for _ in range(2 * MIB // 1024)]
    for block in blocks:
        ctypes.memset(block, 1, 16 << 10)
    for block in blocks[:-1]:  # the last one holds the end of the heap
        libc.free(block)
    kept = resident()
    trim_heap()
    left = resident()
    libc.free(blocks[-1])
    assert kept is not None
    assert left is not None
    assert kept.anonymous - left.anonymous > 24 * MIB


def test_memory_is_unknown_where_no_source_provides_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without_proc(monkeypatch, None)
    assert resident() is None
    assert bytes_beyond(baseline(), resident(), resident()) is None


def test_elsewhere_psutil_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    without_proc(monkeypatch, psutil_of(rss=100, uss=70, peak_wset=130))
    assert resident() == Resident(130, 100, 70, 30)
    without_proc(monkeypatch, psutil_of(rss=1 << 40, uss=70))  # no peak: that of the process
    assert resident() == Resident(1 << 40, 1 << 40, 70, (1 << 40) - 70)


def test_a_psutil_that_may_not_look_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise RuntimeError("access denied")

    process = SimpleNamespace(memory_full_info=refuse)
    other = SimpleNamespace(Process=lambda: process, Error=RuntimeError)
    without_proc(monkeypatch, other)  # type: ignore[arg-type]
    assert resident() is None


@linux
def test_a_measured_run_has_the_bytes_of_its_process() -> None:
    model = SAMPLES / "branchy_cnn.onnx"
    found = process_of_run(model, RuntimeSettings(), RunConditions())
    assert isinstance(found, ProcessBytes)
    assert 0 < found.load <= found.run


class Library:
    """The C library, as far as it is asked to map blocks."""

    def __init__(self) -> None:
        self.set: list[tuple[int, int]] = []
        self.gnu_get_libc_version = object()

    def mallopt(self, number: int, size: int) -> None:
        """Write down what is set."""
        self.set.append((number, size))


def test_large_blocks_are_mapped_by_themselves_while_a_session_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    library = Library()
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library)
    with map_large_blocks():
        assert library.set == [(-3, 128 << 10), (-1, 256 << 10)]
    assert library.set[2:] == [(-3, 32 << 20), (-1, 64 << 20)]


def test_they_are_as_before_where_making_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library()
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library)
    with pytest.raises(OSError, match="lost"), map_large_blocks():
        raise OSError("lost")
    assert len(library.set) == 4


@pytest.mark.parametrize("name", ["MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"])
def test_what_the_environment_says_of_blocks_stays(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    library = Library()
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library)
    monkeypatch.setenv(name, "1")
    with map_large_blocks():
        pass
    assert not library.set


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library()
    del library.gnu_get_libc_version
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library)
    with map_large_blocks():
        pass
    assert not library.set


@linux
def test_a_block_of_a_size_that_was_freed_before_is_mapped_meanwhile() -> None:
    """In a process of its own: glibc never forgets what it was told."""
    code = """
import ctypes
from memplan_cli.loading.heap import map_large_blocks
library = ctypes.CDLL(None)
library.malloc.restype, library.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
class Said(ctypes.Structure):
    _fields_ = [(f"number{at}", ctypes.c_size_t) for at in range(10)]
library.mallinfo2.restype = Said
def mapped(size):
    before = library.mallinfo2().number3
    block = library.malloc(ctypes.c_size_t(size))
    after = library.mallinfo2().number3
    library.free(block)
    return after > before
MIB = 1 << 20
assert mapped(16 * MIB) and not mapped(8 * MIB)
with map_large_blocks():
    assert mapped(12 * MIB)  # what the last one has left free has room for eight
assert not mapped(12 * MIB) and mapped(40 * MIB)
"""
    if not hasattr(ctypes.CDLL(None), "mallinfo2"):
        pytest.skip("this C library does not say what it has mapped")
    subprocess.run([sys.executable, "-c", code], check=True)
