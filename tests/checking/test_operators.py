"""Two tables of what operators do to memory, written apart, say the same."""

from __future__ import annotations

from memplan_cli.analysis import aliasing
from memplan_cli.checking import operators
from memplan_cli.core import program
from memplan_cli.core.symbolic.sizes import BITS


def test_the_planner_shares_bytes_only_where_the_check_finds_a_reason() -> None:
    assert aliasing.VIEWS <= operators.SAME_BYTES
    for kind, positions in aliasing.IN_PLACE.items():
        assert set(positions) <= set(operators.OVERWRITES.get(kind, ())), kind
    assert aliasing.BRANCHES <= operators.EITHER
    assert program.REPEATING <= operators.REPEATING


def test_the_check_allows_no_more_than_the_planner_does() -> None:
    """An entry that nothing uses would be one that no test has looked at."""
    assert operators.SAME_BYTES == aliasing.VIEWS
    assert dict(operators.OVERWRITES) == dict(aliasing.IN_PLACE)
    assert not operators.SAME_BYTES & operators.OVERWRITES.keys()


def test_elements_are_as_wide_in_both() -> None:
    assert dict(operators.WIDTHS) == dict(BITS)
