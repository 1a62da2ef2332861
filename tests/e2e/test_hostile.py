"""Files that nobody should have to read end in one message, no traceback and no output."""

from __future__ import annotations

import pytest

from benchmarks.hostile import CASES, run


@pytest.mark.parametrize("name", CASES)
def test_hostile_input_ends_in_one_message_and_no_output(name: str) -> None:
    outcome = run(CASES[name])
    assert outcome.faults == [], outcome.message


def test_fault_is_seen_in_a_traceback() -> None:
    outcome = run(lambda _: ["optimize", "--debug", "absent.onnx"])
    assert outcome.faults, "the check itself must be able to fail"
