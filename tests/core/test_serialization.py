"""JSON by what classes declare: what is written is read back, and nothing else is read."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence  # noqa: TC003 - types to read by
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplan_cli.core.deserialization import MisfitError, from_json
from memplan_cli.core.json_types import Condition, Range, one_of
from memplan_cli.core.serialization import (
    OPTIONAL,
    SORTED,
    SPARSE,
    Keys,
    json_form,
    to_json,
)


class Row(NamedTuple):
    """A row of a long table."""

    name: str
    shape: tuple[Annotated[int, Range(0, 99)] | str, ...]
    slot: Annotated[int, Range(0, 99)] | None


@dataclass(frozen=True, slots=True)
class Inner:
    """Nothing but fields."""

    share: Annotated[float, Condition("a share", lambda value: 0 <= value <= 1)]
    pair: tuple[str, int]
    path: Path
    flag: bool = False


@dataclass(frozen=True, slots=True)
class Outer:
    """Keys of every kind."""

    schema: ClassVar[str] = "outer/1"
    json_keys: ClassVar[Keys] = (
        "rows",
        ("count.rows", "size"),
        ("count.limit", "limit"),
        ("inner.first", "inner"),
        "table",
        "words",
        "note",
        "far",
    )

    name: str
    rows: Sequence[Row]
    limit: int
    inner: Inner
    table: Mapping[str, float | None] = field(metadata=SORTED)
    far: float = field(
        metadata=json_form(
            type_hint=float | None, read=lambda far: math.inf if far is None else far
        )
    )
    words: tuple[Annotated[str, one_of("a", "b")], ...] = field(default=(), metadata=OPTIONAL)
    note: str = field(default="", metadata=SPARSE)
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Return the number of rows."""
        return len(self.rows)


OUTER = Outer(
    name="given",
    rows=(Row("x", (1, "n"), None), Row("y", (), 3)),
    limit=4,
    inner=Inner(0.5, ("p", 1), Path("a/b")),
    table={"z": 1.5, "a": None},
    far=math.inf,
    words=("a", "b"),
)


def written() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(json.dumps(to_json(OUTER), allow_nan=False))
    return data


def refused(data: object, kind: type = Outer) -> str:
    with pytest.raises(MisfitError) as caught:
        from_json(kind, data, "the file", **({"name": "given"} if kind is Outer else {}))
    return str(caught.value)


def test_keys_stand_in_the_order_and_the_nesting_that_the_class_says() -> None:
    data = written()
    assert list(data) == ["schema", "rows", "count", "inner", "table", "words", "far"]
    assert data["count"] == {"rows": 2, "limit": 4}
    assert list(data["table"]) == ["a", "z"]
    assert data["rows"][0] == {"name": "x", "shape": [1, "n"], "slot": None}
    assert data["inner"]["first"]["path"] == "a/b"
    assert data["far"] is None


def test_a_record_is_equal_after_writing_and_reading() -> None:
    assert from_json(Outer, written(), "it", name="given") == OUTER
    noted = replace(OUTER, note="n")
    assert from_json(Outer, to_json(noted), "it", name="given") == noted


@given(
    st.lists(
        st.builds(
            Row,
            st.text(),
            st.lists(st.integers(0, 99) | st.text(max_size=3)).map(tuple),
            st.none() | st.integers(0, 99),
        )
    )
)
def test_any_rows_come_back(rows: list[Row]) -> None:
    made = replace(OUTER, rows=tuple(rows))
    assert from_json(Outer, to_json(made), "it", name="given") == made


def test_optional_keys_may_be_there_or_not() -> None:
    data = written()
    del data["words"]
    assert from_json(Outer, data, "it", name="given") == replace(OUTER, words=())


@pytest.mark.parametrize(
    ("way", "value", "said"),
    [
        (
            ("rows", 1, "slot"),
            True,
            "rows[1].slot: expected a whole number from 0 to 99, got 'True'",
        ),
        (
            ("rows", 1, "slot"),
            100,
            "rows[1].slot: expected a whole number from 0 to 99, got '100'",
        ),
        (
            ("rows", 1, "slot"),
            -1,
            "rows[1].slot: expected a whole number from 0 to 99, got '-1'",
        ),
        (("rows", 1, "name"), None, "rows[1].name: expected a text, got 'None'"),
        (("rows", 0, "shape"), [1, None], "rows[0].shape[1]: 'None' has a wrong type"),
        (("rows", 0, "shape"), "1", "rows[0].shape: expected a list, got '1'"),
        (
            ("rows", 0, "shape"),
            [-1],
            "rows[0].shape[0]: expected a whole number from 0 to 99, got '-1'",
        ),
        (("rows", 0), ["x", [], 1], "rows[0]: expected an object, got \"['x', [], 1]\""),
        (("rows", 0), "abc", "rows[0]: expected an object, got 'abc'"),
        (("rows", 0, "evil"), 1, "rows[0].evil: is unknown"),
        (("rows",), {}, "rows: expected a list, got '{}'"),
        (("count", "rows"), 3, "count.rows: '3', but the rest says '2'"),
        (("count", "rows"), 2.0, "count.rows: '2.0', but the rest says '2'"),
        (("count", "limit"), 1.0, "count.limit: expected a whole number, got '1.0'"),
        (("count", "limits"), 1, "count.limits: is unknown"),
        (("count",), None, "count: expected an object, got 'None'"),
        (
            ("inner", "first", "share"),
            float("nan"),
            "inner.first.share: expected a finite number, got 'nan'",
        ),
        (
            ("inner", "first", "share"),
            False,
            "inner.first.share: expected a finite number, got 'False'",
        ),
        (
            ("inner", "first", "share"),
            10**400,
            "inner.first.share: expected a finite number, got '1000",
        ),
        (("inner", "first", "share"), 1.5, "inner.first.share: expected a share, got '1.5'"),
        (
            ("inner", "first", "pair"),
            ["p"],
            "inner.first.pair: expected a list of 2 items, got \"['p']\"",
        ),
        (("inner", "first", "flag"), 0, "inner.first.flag: expected true or false, got '0'"),
        (("inner", "first", "path"), 0, "inner.first.path: expected a text, got '0'"),
        (("table", "a"), float("inf"), "table.a: expected a finite number, got 'inf'"),
        (("table", "\x1b[2J"), "", "table['\\x1b[2J']: expected a finite number, got ''"),
        (("words",), ["c"], "words[0]: expected one of a, b, got 'c'"),
        (("limit",), 4, "limit: is unknown"),
        (("name",), "x", "name: is unknown"),
        (("settings",), {}, "settings: is unknown"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_the_way_to_it(
    way: tuple[Any, ...], value: object, said: str
) -> None:
    data = written()
    inner: Any = data
    for step in way[:-1]:
        inner = inner[step]
    inner[way[-1]] = value
    assert refused(data).startswith(f"the file: {said}")


@pytest.mark.parametrize(
    "way",
    [
        ("rows",), ("count",), ("count", "rows"), ("count", "limit"), ("inner", "first", "share"),
        ("inner", "first", "flag"), ("rows", 0, "slot"), ("far",),
    ],
)  # fmt: skip
def test_a_key_that_is_missing_is_named(way: tuple[Any, ...]) -> None:
    data = written()
    inner: Any = data
    for step in way[:-1]:
        inner = inner[step]
    del inner[way[-1]]
    assert refused(data).endswith(": is missing")
    assert str(way[-1]) in refused(data)


@pytest.mark.parametrize("data", [None, [], "outer/1", 3, {}, {"schema": "outer/2"}])
def test_another_schema_is_refused_before_anything_else(data: object) -> None:
    assert refused(data).startswith("the file is not of schema outer/1, but ")


class Color(Enum):
    """Something with a value."""

    RED = "red"


def test_numbers_without_end_are_null_and_other_values_have_their_form() -> None:
    values = (
        math.nan,
        -math.inf,
        1.5,
        Color.RED,
        Path("p"),
        (1, [True, None]),
        {"k": Color.RED},
    )
    assert to_json(values) == [None, None, 1.5, "red", "p", [1, [True, None]], {"k": "red"}]
    with pytest.raises(TypeError, match="complex has no form"):
        to_json(1j)
