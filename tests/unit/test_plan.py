"""A plan comes back as it was, and one that somebody touched is refused in words."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import plan_of_text
from memplan_cli.errors import InvalidLayoutError, PlanError
from memplan_cli.plan import Release, check
from memplan_cli.plan_file import plan_from_json, read_plan
from memplan_cli.plan_text import listed
from memplan_cli.renderers import render
from memplan_cli.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from memplan_cli.plan import Plan

TEXT = """g (float[8,8] x, bool c) => (float[8,8] z) {
    a = MatMul(x, x) b = Exp(a) d = MatMul(b, b) e = MatMul(d, b) f = MatMul(e, e)
    [pick] y = If (c) <then_branch = t () => (float[8,8] one) { one = MatMul(f, d) },
                       else_branch = s () => (float[8,8] two) { two = MatMul(d, f) }>
    z = Neg(y)
}"""
PLANS = [plan_of_text(TEXT, Settings(level=level, exclude=("f",))) for level in (0, 1, 2)]
LEVEL2 = PLANS[2]


def of(plan: Plan) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(plan.dumps())
    return found


def tensor(data: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(t for t in data["tensors"] if t["name"] == name)
    return found


@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_plan_comes_back_as_it_was(level: int, tmp_path: Path) -> None:
    path = tmp_path / "a.memplan.json"
    path.write_text(PLANS[level].dumps(), encoding="utf-8")
    again = read_plan(path)
    assert again == PLANS[level]
    assert again.dumps() == PLANS[level].dumps()
    assert again.digest == PLANS[level].digest


def test_the_file_has_the_layout_of_the_contract() -> None:
    data = of(LEVEL2)
    assert list(data) == [
        "schema", "producer", "model", "settings", "order", "arenas", "tensors",
        "releases", "unplanned", "report",
    ]  # fmt: skip
    assert data["schema"] == "memplan.plan/1"
    assert data["producer"]["name"] == "memplan"
    assert set(data["model"]) == {"sha256", "graph_sha256"}
    assert set(data["arenas"][0]) == {"id", "unit", "height", "lower_bound", "alignment"}
    assert set(data["tensors"][0]) == {
        "name", "block", "dtype", "shape", "bytes", "arena", "offset", "slot", "first",
        "last", "alias_of", "pinned",
    }  # fmt: skip
    assert {block["block"] for block in data["order"]} == {
        "", "pick.then_branch", "pick.else_branch",
    }  # fmt: skip
    assert all(set(release) == {"step", "node", "tensors"} for release in data["releases"])
    assert data["unplanned"] == [{"name": "f", "reason": "excluded by 'f'"}]


def test_the_report_has_the_layout_of_the_contract() -> None:
    report = of(LEVEL2)["report"]
    wanted = {
        "schema", "model", "phase", "level", "coverage", "partial", "memory", "original",
        "levels", "peak", "recompute", "runtime", "validation", "reuses", "unplanned",
        "warnings",
    }  # fmt: skip
    assert wanted <= set(report)
    assert set(report["model"]) == {"path", "sha256", "nodes", "blocks", "intermediates"}
    assert set(report["memory"]) >= {
        "weights", "inputs", "outputs", "naive", "live_peak", "planned", "total",
        "order_bound", "order_proved",
    }  # fmt: skip
    assert set(report["original"]) == {"live_peak", "planned"}
    assert list(report["levels"]) == ["0", "1", "2"]
    assert set(report["peak"]) == {"step", "node", "tensors"}
    assert set(report["recompute"]) >= {"nodes", "flops_increase"}


def test_the_same_plan_has_the_same_bytes() -> None:
    settings_ = Settings(level=2, exclude=("f",))
    assert plan_of_text(TEXT, settings_).dumps() == LEVEL2.dumps()


def test_the_digest_is_about_what_was_decided_and_not_about_what_was_measured() -> None:
    data = of(LEVEL2)
    data["report"]["warnings"] = ["something new"]
    assert plan_from_json(data).digest == LEVEL2.digest
    data["tensors"][0]["offset"] += 64
    assert plan_from_json(data).digest != LEVEL2.digest


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
    assert "lies elsewhere" in str(refused(data))


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
    tensor(data, "a")["pinned"] = "excluded by 'a'"
    refused(data)


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
    assert "dies before it lives" in str(refused(data))


@pytest.mark.parametrize(
    "value", [-1, 1 << 62, 10**30, 1.5, True, "12", None, [], {}, float("nan"), float("inf")]
)
@pytest.mark.parametrize("key", ["bytes", "offset", "first", "last", "arena"])
def test_a_number_that_is_none_is_refused(key: str, value: object) -> None:
    data = of(LEVEL2)
    tensor(data, "d")[key] = value
    refused(data)


@pytest.mark.parametrize("level", [0, 1, 2])
def test_the_file_says_what_the_plan_says_as_data(level: int) -> None:
    plan = PLANS[level]
    assert json.loads(plan.dumps()) == plan.to_json()
    assert list(json.loads(plan.dumps())) == list(plan.to_json())


@pytest.mark.parametrize("count", [0, 1, 999, 1000, 1001, 2500])
def test_a_list_of_any_length_has_a_line_for_each_item(count: int) -> None:
    text = "".join(listed(map(str, range(count))))
    assert json.loads(text) == list(range(count))
    assert text.count("\n") == (count + 1 if count else 0)


def test_a_name_that_is_no_text_has_a_digest() -> None:
    tensors = (LEVEL2.tensors[0]._replace(name="\ud800"),)
    assert len(replace(LEVEL2, tensors=tensors).digest) == 64


def test_names_that_json_must_escape_come_back_as_they_were() -> None:
    odd = 'a"b\\c\nd\x00é\u2028'
    tensors = tuple(t._replace(name=odd, pinned=odd, alias_of=odd) for t in LEVEL2.tensors[:1])
    plan = replace(LEVEL2, tensors=tensors, releases=(Release(1, odd, (odd, odd)),))
    assert json.loads(plan.dumps()) == plan.to_json()


def test_more_evidence_changes_the_file_and_not_the_digest() -> None:
    plan = plan_of_text(TEXT)
    assert plan.digest
    report = replace(plan.report, warnings=("measured",))
    more = plan.with_report(report)
    assert more == replace(plan, report=report)
    assert more.digest == plan.digest
    assert more.dumps() == replace(plan, report=report).dumps() != plan.dumps()


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
    with pytest.raises(PlanError, match="cannot be read"):
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


@settings(max_examples=250, deadline=None)
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
        plan = plan_from_json(data)
        check(plan)
    except PlanError:
        return
    for form in ("text", "json", "markdown", "csv", "html"):
        render(plan, form, print_log=form == "text")
    assert plan.digest


@settings(max_examples=100, deadline=None)
@given(place=st.sampled_from(EVERYWHERE))
def test_what_is_missing_anywhere_is_refused_or_does_no_harm(place: tuple[Any, ...]) -> None:
    data = of(LEVEL2)
    inner: Any = data
    for key in place[:-1]:
        inner = inner[key]
    del inner[place[-1]]
    try:
        plan = plan_from_json(data)
        check(plan)
    except PlanError:
        return
    render(plan, "text", print_log=True)
