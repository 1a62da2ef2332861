"""Rows kept by column are the rows that tuples would be."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from memplan_cli.core.compact.columns import (
    Columns,
    Groups,
    Made,
    Same,
    cells,
    column,
    numbers,
)


class Point(NamedTuple):
    name: str
    x: int


POINTS = Columns(Point, ["a", "b", "c"], numbers([1, 2, 3]))
ROWS = (Point("a", 1), Point("b", 2), Point("c", 3))


def test_a_table_is_equal_to_a_tuple_of_its_rows_either_way() -> None:
    assert POINTS == ROWS
    assert ROWS == POINTS
    assert Columns(Point, ["a", "b", "c"], [1, 2, 3]) == POINTS
    assert ROWS[:2] != POINTS
    assert (*ROWS[:2], Point("c", 4)) != POINTS
    assert POINTS != "abc"
    assert hash(POINTS) == hash(ROWS)
    assert repr(POINTS) == repr(ROWS)


def test_rows_are_found_by_place_and_by_slice() -> None:
    assert POINTS[0] == ROWS[0]
    assert POINTS[-1].name == "c"
    assert POINTS[1:] == ROWS[1:]
    assert ROWS[1] in POINTS
    assert len(POINTS) == 3
    with pytest.raises(IndexError):
        POINTS[3]


@pytest.mark.parametrize("table", [POINTS, ROWS], ids=["columns", "tuple"])
def test_some_fields_are_read_alone(table: tuple[Point, ...]) -> None:
    assert list(cells(table, "x", "name")) == [(1, "a"), (2, "b"), (3, "c")]
    assert list(cells(table, "x")) == [(1,), (2,), (3,)]


def test_a_table_of_no_rows_is_one() -> None:
    nothing = Columns(Point, column([]), numbers([]))
    assert nothing == ()
    assert list(cells(nothing, "x")) == list(cells((), "x")) == []


def test_what_is_alike_is_kept_once() -> None:
    assert isinstance(column(["f"] * 3), Same)
    assert column(["f"] * 3) == ("f", "f", "f")
    assert column(["f"] * 3)[2] == "f"
    assert list(column(["f", "g", "f"])) == ["f", "g", "f"]
    assert list(numbers([1 << 62, -1])) == [1 << 62, -1]


def test_columns_of_different_lengths_are_no_table() -> None:
    with pytest.raises(ValueError, match="zip"):
        list(Columns(Point, ["a"], [1, 2]))


def test_groups_keep_their_lengths() -> None:
    groups = Groups([("a", "b"), (), ("c",)])
    assert groups == (("a", "b"), (), ("c",))
    assert groups[0] == ("a", "b")
    assert groups[-1] == ("c",)
    assert list(groups) == [("a", "b"), (), ("c",)]


def test_what_is_made_is_made_from_the_items_at_its_place() -> None:
    made = Made("{}{}".format, ["a", "b"], [1, 2])
    assert made == ("a1", "b2")
    assert made[1] == "b2"
    assert len(made) == 2
