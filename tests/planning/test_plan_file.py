"""A plan file that somebody touched is refused in words."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memplan_cli.core.results.plan import check
from memplan_cli.errors import InvalidLayoutError, PlanError
from memplan_cli.planning.plan_file import checked_plan, plan_from_json, read_plan
from memplan_cli.reporting.formats import render
from planning.plan_cases import LEVEL2, PLANS, of, tensor

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def refused(data: object) -> PlanError:
    with pytest.raises(PlanError) as caught:
        check(plan_from_json(data))
    assert str(caught.value)
    return caught.value


def test_an_overlap_is_refused_and_the_tensors_are_named() -> None:
    for plan in PLANS:
        data = of(plan)
        tensor(data, "d")["offset"] = tensor(data, "f")["offset"]
        error = refused(data)
        assert isinstance(error, InvalidLayoutError)
        assert "'d'" in str(error)
        assert "'f'" in str(error)


def test_a_tensor_above_the_arena_is_refused() -> None:
    data = of(LEVEL2)
    tensor(data, "d")["offset"] = data["arenas"][0]["height"]
    assert "sticks out" in str(refused(data))


def test_an_arena_that_is_too_low_is_refused() -> None:
    data = of(LEVEL2)
    data["arenas"][0]["height"] -= 1
    assert "sticks out" in str(refused(data))


def test_a_longer_life_that_meets_another_tensor_is_refused() -> None:
    data = of(PLANS[0])
    for each in data["tensors"]:
        each["first"], each["last"] = 0, 100
    refused(data)


def test_a_misaligned_offset_is_refused() -> None:
    data = of(LEVEL2)
    data["arenas"][0]["alignment"] = 64
    for each in data["tensors"]:
        each["offset"] += 4
    data["arenas"][0]["height"] += 64
    assert "misaligned" in str(refused(data))


def test_an_alias_to_nowhere_is_refused() -> None:
    data = of(LEVEL2)
    tensor(data, "d")["alias_of"] = "nobody"
    assert "'nobody'" in str(refused(data))


def test_an_alias_that_lies_elsewhere_is_refused() -> None:
    data = of(LEVEL2)
    tensor(data, "e")["alias_of"] = "a"
    assert "is placed elsewhere" in str(refused(data))


def test_an_alias_of_an_alias_or_of_itself_is_refused() -> None:
    data = of(LEVEL2)
    assert tensor(data, "b")["alias_of"] == "a"
    tensor(data, "a")["alias_of"] = "b"
    refused(data)
    data = of(LEVEL2)
    tensor(data, "d")["alias_of"] = "d"
    refused(data)


def test_an_alias_of_a_pinned_tensor_is_refused() -> None:
    data = of(LEVEL2)
    end = max(each["last"] for each in data["tensors"])
    tensor(data, "a").update(pinned="excluded by 'a'", first=0, last=end)
    assert "one of both is pinned" in str(refused(data))


def test_a_pinned_tensor_that_does_not_last_the_whole_run_is_refused() -> None:
    data = of(LEVEL2)
    assert tensor(data, "f")["first"] == 0
    tensor(data, "f")["first"] = 4
    assert "'f'" in str(refused(data))
    data = of(LEVEL2)
    tensor(data, "f")["last"] = 5
    assert "'f'" in str(refused(data))


def test_a_tensor_placed_twice_is_refused() -> None:
    data = of(LEVEL2)
    data["tensors"].append(copy.deepcopy(data["tensors"][0]))
    assert "twice" in str(refused(data))


def test_a_tensor_in_no_arena_is_refused() -> None:
    data = of(LEVEL2)
    tensor(data, "d")["arena"] = 7
    assert "no arena" in str(refused(data))


def test_two_arenas_of_one_id_are_refused() -> None:
    data = of(LEVEL2)
    data["arenas"].append(dict(data["arenas"][0]))
    assert "two arenas" in str(refused(data))


def test_a_life_that_ends_before_it_begins_is_refused() -> None:
    data = of(LEVEL2)
    tensor(data, "d")["last"] = tensor(data, "d")["first"]
    assert "has its last use before its first" in str(refused(data))


@pytest.mark.parametrize(
    "value", [-1, 1 << 62, 10**30, 1.5, True, "12", None, [], {}, float("nan"), float("inf")]
)
@pytest.mark.parametrize("key", ["bytes", "offset", "first", "last", "arena"])
def test_a_number_that_is_none_is_refused(key: str, value: object) -> None:
    data = of(LEVEL2)
    tensor(data, "d")[key] = value
    refused(data)


@pytest.mark.parametrize(
    "value", [None, [], "memplan.plan/1", 3, {"schema": "memplan.plan/2"}]
)
def test_another_schema_is_refused(value: object) -> None:
    assert "memplan.plan/1" in str(refused(value))


@pytest.mark.parametrize("value", [None, [], "level: 2", 2])
def test_settings_that_are_no_table_are_refused(value: object) -> None:
    data = of(LEVEL2)
    data["settings"] = value
    refused(data)


@pytest.mark.parametrize("part", list(of(LEVEL2)))
def test_a_missing_part_is_refused(part: str) -> None:
    data = of(LEVEL2)
    if part == "unplanned":
        pytest.skip("the report says it too")
    del data[part]
    refused(data)


@pytest.mark.parametrize(
    "text",
    ["", "{", "nothing", '"text"', "[" * 100_000, "9" * 5000, "\ud800".encode("utf-8", "surrogatepass"),
     b"\xff\xfe\x00"],
    ids=["empty", "open", "word", "string", "deep", "long", "surrogate", "binary"],
)  # fmt: skip
def test_a_file_that_is_no_plan_is_refused(text: str | bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(PlanError, match=r"x\.json"):
        read_plan(path)


def test_a_missing_plan_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"there is no file .*none\.json"):
        read_plan(tmp_path / "none.json")
    with pytest.raises(PlanError, match="cannot be read"):
        read_plan(tmp_path)


def test_what_check_finds_in_a_file_names_the_file(tmp_path: Path) -> None:
    data = of(LEVEL2)
    data["tensors"].append(data["tensors"][0])
    path = tmp_path / "twice.json"
    path.write_text(json.dumps(data))
    with pytest.raises(PlanError, match=r"twice\.json"):
        read_plan(path)


def paths(data: object, path: tuple[object, ...] = ()) -> Iterator[tuple[object, ...]]:
    """Yield the way to every value in a JSON document."""
    if path:
        yield path
    items = (
        data.items()
        if isinstance(data, dict)
        else enumerate(data)
        if isinstance(data, list)
        else ()
    )
    for key, value in items:
        yield from paths(value, (*path, key))


EVERYWHERE = list(paths(of(LEVEL2)))
JUNK: list[object] = [
    None,
    True,
    -1,
    0,
    10**20,
    1.5,
    "",
    "x\u001b[2J",
    [],
    [None],
    {},
    {"a": 1},
]


@settings(max_examples=100, deadline=None)
@given(place=st.sampled_from(EVERYWHERE), junk=st.sampled_from(JUNK))
def test_junk_anywhere_is_refused_or_does_no_harm(
    place: tuple[Any, ...], junk: object
) -> None:
    """Whatever is read without a complaint can be drawn without one."""
    data = of(LEVEL2)
    inner: Any = data
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = copy.deepcopy(junk)
    try:
        plan = checked_plan(data)
    except PlanError:
        return
    for form in ("text", "json", "markdown", "csv", "html"):
        render(plan, form, print_log=form == "text")
    assert plan.digest


@settings(max_examples=40, deadline=None)
@given(place=st.sampled_from(EVERYWHERE))
def test_what_is_missing_anywhere_is_refused_or_does_no_harm(place: tuple[Any, ...]) -> None:
    data = of(LEVEL2)
    inner: Any = data
    for key in place[:-1]:
        inner = inner[key]
    del inner[place[-1]]
    try:
        plan = checked_plan(data)
    except PlanError:
        return
    render(plan, "text", print_log=True)
