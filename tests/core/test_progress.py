"""Parts of a stage are counted as they begin; what is not needed is expected no more."""

from __future__ import annotations

from memplan_cli.core.progress import Counted, Tally


def test_each_part_is_told_when_it_begins_with_those_done_before_it() -> None:
    told: list[str] = []
    tally = Tally(told.append, "measuring", 3)
    tally.begin()
    tally.begin()
    assert told == ["measuring, 0 of 3", "measuring, 1 of 3"]
    assert all(isinstance(text, Counted) for text in told)


def test_parts_that_were_not_needed_are_taken_off() -> None:
    told: list[str] = []
    tally = Tally(told.append, "measuring", 20)
    before = tally.begun
    tally.begin()
    tally.begin()
    tally.settle(10, before)
    tally.begin()
    assert told[-1] == "measuring, 2 of 12"


def test_more_parts_than_were_expected_are_counted_too() -> None:
    told: list[str] = []
    tally = Tally(told.append, "measuring", 1)
    for _ in range(3):
        tally.begin()
    tally.settle(1, 0)
    assert told == ["measuring, 0 of 1", "measuring, 1 of 2", "measuring, 2 of 3"]
    assert tally.expected == 3
