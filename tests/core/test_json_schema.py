"""A generated schema says what the class says, and refuses nothing that the reader accepts."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping  # noqa: TC003 - a type to read by
from dataclasses import dataclass, field, make_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from memplan_cli.api.schema import schema_of
from memplan_cli.core.deserialization import MisfitError, from_json
from memplan_cli.core.json_schema import FILE_KEYS, RESULT_KEYS, document_schema
from memplan_cli.core.json_types import Count, Natural, Share, one_of
from memplan_cli.core.results.plan import Plan
from memplan_cli.core.serialization import OPTIONAL, SPARSE, Keys

PLANS = sorted((Path(__file__).parents[1] / "golden/renderers/plans").glob("*.json"))


class Size(NamedTuple):
    """A row."""

    name: str
    bytes: Natural


class Color(Enum):
    """A few values."""

    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True)
class Record:
    """One of each kind.

    More words, which are for readers of the code.

    Attributes:
        rows: the sizes,
            largest first.
        share: a part.
    """

    producer: ClassVar[str] = "memplan"
    json_keys: ClassVar[Keys] = (
        ("made.by", "producer"),
        ("made.rows", "number"),
        "rows",
        "share",
        ("first", "best.name"),
        "color",
        "words",
        "table",
        "peak",
        "level",
        "note",
    )

    rows: tuple[Size, ...]
    share: Share
    best: Size
    color: Color
    words: tuple[str, int]
    table: Mapping[str, int | str | None]
    peak: Size | None
    level: Annotated[int, one_of(0, 1)] | None = field(default=None, metadata=OPTIONAL)
    note: str = field(default="", metadata=SPARSE)

    @property
    def number(self) -> Count:
        """Return the number of rows."""
        return len(self.rows)


def schema(required: frozenset[Any] = FILE_KEYS) -> Any:  # noqa: ANN401 - JSON
    return document_schema("record/1", "A record", (Record,), required)


def test_a_schema_names_its_draft_its_document_and_its_title() -> None:
    found = schema()
    assert found["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert (found["$id"], found["title"]) == ("record/1", "A record")
    assert found["properties"]["schema"] == {"const": "record/1"}
    Draft202012Validator.check_schema(found)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("first", {"type": "string"}),
        ("color", {"enum": ["red", "blue"]}),
        (
            "words",
            {
                "type": "array",
                "prefixItems": [{"type": "string"}, {"type": "integer"}],
                "minItems": 2,
                "maxItems": 2,
            },
        ),
        (
            "table",
            {
                "type": "object",
                "additionalProperties": {"type": ["integer", "string", "null"]},
            },
        ),
        ("peak", {"anyOf": [{"$ref": "#/$defs/Size"}, {"type": "null"}]}),
        ("level", {"enum": [0, 1, None]}),
        ("note", {"type": "string"}),
        ("share", {"description": "a part.", "type": "number", "minimum": 0, "maximum": 1}),
        (
            "rows",
            {
                "description": "the sizes, largest first.",
                "type": "array",
                "items": {"$ref": "#/$defs/Size"},
            },
        ),
        (
            "made",
            {
                "type": "object",
                "properties": {
                    "by": {"const": "memplan"},
                    "rows": {"type": "integer", "minimum": 0},
                },
                "required": ["by", "rows"],
                "additionalProperties": False,
            },
        ),
    ],
)
def test_a_key_has_the_schema_of_what_is_behind_it(key: str, expected: object) -> None:
    assert schema()["properties"][key] == expected


def test_a_record_in_a_document_is_a_definition() -> None:
    definition = schema()["$defs"]["Size"]
    assert definition["description"] == "A row."
    assert definition["properties"]["bytes"]["maximum"] == 2**62 - 1
    assert definition["required"] == ["name", "bytes"]
    assert definition["additionalProperties"] is False


def test_a_file_needs_what_has_no_default_and_a_result_has_all_that_is_always_written() -> (
    None
):
    needed = {"schema", "made", "rows", "share", "first", "color", "words", "table", "peak"}
    assert set(schema(FILE_KEYS)["required"]) == needed
    assert set(schema(RESULT_KEYS)["required"]) == {*needed, "level"}


def test_two_classes_of_one_name_are_refused() -> None:
    other = make_dataclass("Size", [("elements", int)])
    pair = make_dataclass("Pair", [("one", Size), ("other", other)])
    with pytest.raises(TypeError, match="two classes Size"):
        document_schema("pair/1", "A pair", (pair,), FILE_KEYS)


@cache
def plan_data(path: Path) -> Any:  # noqa: ANN401 - JSON
    return json.loads(path.read_text())


@cache
def plan_validator() -> Draft202012Validator:
    return Draft202012Validator(schema_of("plan"))


def places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:  # noqa: ANN401 - JSON
    items = data.items() if isinstance(data, dict) else enumerate(data)
    inner = [
        place
        for step, value in items
        for place in (
            (*path, step),
            *(places(value, (*path, step)) if isinstance(value, dict | list) else ()),
        )
    ]
    return [place for place in inner if place]


BROKEN: tuple[object, ...] = (None, True, -1, 0, 1.5, "x", [], {}, 1 << 62, 10**30, "failed")


@given(data=st.data())
def test_what_the_schema_of_plans_refuses_the_reader_refuses_too(data: st.DataObject) -> None:
    plan = copy.deepcopy(plan_data(data.draw(st.sampled_from(PLANS))))
    *way, last = data.draw(st.sampled_from(places(plan)))
    holder = plan
    for step in way:
        holder = holder[step]
    change = data.draw(st.sampled_from(("set", "remove", "add")))
    if change == "set" or not isinstance(holder, dict):
        holder[last] = data.draw(st.sampled_from(BROKEN))
    elif change == "remove":
        del holder[last]
    else:
        holder["no such key"] = 1
    if not plan_validator().is_valid(plan):
        with pytest.raises(MisfitError):
            from_json(Plan, plan, "the plan")
