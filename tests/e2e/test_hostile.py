"""Files that nobody should have to read end in one message, no traceback and no output."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks.hostile import CASES, LIMITS, PATIENCE, ROOT, run, started_anew
from benchmarks.hostile_proofs import LOAD

if TYPE_CHECKING:
    import subprocess

    from _pytest.mark.structures import ParameterSet

    from benchmarks.hostile import Command
    from warm_workers import WarmWorkers


@pytest.fixture
def command(_warm: WarmWorkers | None) -> Command:
    """Return how memplan is run: in a process of its own, forked where that can be."""

    def forked(words: list[str]) -> subprocess.CompletedProcess[bytes]:
        assert _warm is not None
        return _warm.command(words, ROOT, LIMITS, PATIENCE)

    return started_anew if _warm is None else forked


def _in_turn(name: str) -> ParameterSet:
    """Return a case; one that takes a Python of its own, or a gigabyte to write, is slow."""
    is_slow = name.startswith(f"{LOAD}:") or " GB" in name
    return pytest.param(name, marks=[pytest.mark.slow] * is_slow)


@pytest.mark.parametrize("name", [*map(_in_turn, CASES)])
def test_hostile_input_ends_in_one_message_and_no_output(name: str, command: Command) -> None:
    outcome = run(CASES[name], command)
    assert outcome.faults == [], outcome.message


@pytest.mark.parametrize("anew", [True, False], ids=["started anew", "forked"])
def test_fault_is_seen_in_a_traceback(command: Command, *, anew: bool) -> None:
    words = ["optimize", "--debug", "absent.onnx"]
    outcome = run(lambda _: words, started_anew if anew else command)
    assert outcome.faults, "the check itself must be able to fail"
