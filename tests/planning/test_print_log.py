"""The log's lines are read off the plan, in the words of the contract."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from builders import plan_of_text
from memplan_cli.core.results.placements import Placement
from memplan_cli.planning.print_log import is_left_alone, log_lines, reuses
from memplan_cli.settings.settings import Settings

CHAIN = """g (float[2,3] x, float[3,3] k, float[3,2] l, float[2,3] m) => (float[3,3] z) {
    a = MatMul(x, k) b = MatMul(a, l) c = MatMul(b, m) d = MatMul(c, k) e = Transpose(d)
    z = MatMul(e, d) }"""
SHAPE = "no free slot of float32 has its shape"
LINE = re.compile(
    r"^\d+: [^ ]+\[[\d,]*\] => [^ ]+\[[\d,]*\], (slot \d+, pool \d+|arena \d+ @\d+)$"
    r"|^-: [^ ]+(\[[\d,]*\])? not reused: .+$"
)


def log_of(level: int, text: str = CHAIN, **others: object) -> list[str]:
    chosen = Settings(level=level, order="keep", **others)  # type: ignore[arg-type]
    return list(log_lines(plan_of_text(text, chosen)))


def test_level_0_says_who_took_the_slot_of_which_twin() -> None:
    assert log_of(0) == [
        "-: a[2,3] not reused: no slot is free",
        "-: b[2,2] not reused: no slot is free",
        "0: c[2,3] => a[2,3], slot 0, pool 1",
        "-: d[2,3] not reused: no free slot of float32 is as large as 24 bytes",
        "-: e[3,2] not reused: " + SHAPE,
    ]


def test_level_1_says_who_took_a_slot_that_is_not_smaller() -> None:
    assert log_of(1) == [
        "-: a[2,3] not reused: no slot is free",
        "-: b[2,2] not reused: no slot is free",
        "0: c[2,3] => a[2,3], slot 0, pool 1",
        "1: d[2,3] => b[2,2], slot 1, pool 1",
        "2: e[3,2] => c[2,3], slot 0, pool 1",
    ]


def test_level_2_says_where_in_the_arena() -> None:
    lines = log_of(2, alignment=1)
    assert lines[0] == "-: a[2,3] not reused: first use of this memory range"
    assert any(re.fullmatch(r"\d: e\[3,2\] => c\[2,3\], arena 0 @\d+", line) for line in lines)
    assert len(lines) == 5


@pytest.mark.parametrize("level", [0, 1, 2])
def test_every_line_has_the_form_of_the_contract(level: int) -> None:
    lines = log_of(level, exclude=("c",))
    assert len(lines) == 5
    for line in lines:
        assert LINE.match(line), line


@pytest.mark.parametrize("level", [0, 1, 2])
def test_lines_are_numbered_from_0_and_counted_in_the_report(level: int) -> None:
    plan = plan_of_text(CHAIN, Settings(level=level, order="keep"))  # type: ignore[arg-type]
    numbered = [line for line in log_lines(plan) if not line.startswith("-")]
    assert [int(line.split(":")[0]) for line in numbered] == list(range(len(numbered)))
    assert plan.report.reuses == len(numbered)


@pytest.mark.parametrize("level", [0, 1, 2])
def test_each_tensor_has_one_line(level: int) -> None:
    names = [line.split(" ")[1].split("[")[0] for line in log_of(level)]
    assert sorted(names) == ["a", "b", "c", "d", "e"]


@pytest.mark.parametrize("level", [0, 1, 2])
def test_an_excluded_tensor_says_who_excluded_it_once(level: int) -> None:
    lines = [line for line in log_of(level, exclude=("c",)) if "c[" in line]
    assert lines == ["-: c[2,3] not reused: excluded by 'c'"]


def test_a_tensor_that_is_not_planned_says_why() -> None:
    text = "g (float[4] x) => (float[4] z) { s = Shape(x) n = NonZero(x) z = Reshape(x, s) }"
    lines = log_of(2, text)
    assert any(line.startswith("-: n not reused: dim") for line in lines)


def test_a_scalar_has_an_empty_shape() -> None:
    text = """g (float[4] x) => (float z) { a = ReduceSum<keepdims=0>(x) b = Exp(a)
              z = Neg(b) }"""
    lines = log_of(2, text)
    assert "-: a[] not reused: first use of this memory range" in lines
    assert "0: b[] => a[], arena 0 @0" in lines


def test_a_view_takes_the_bytes_of_its_base() -> None:
    text = """g (float[4] x) => (float[4] z) { a = Exp(x) b = Identity(a) c = Mul(a, b)
              z = MatMul(c, c) }"""
    assert "0: b[4] => a[4], arena 0 @0" in log_of(2, text)


def placed(name: str, offset: int, size: int, first: int, last: int) -> Placement:
    return Placement(name, "", "int8", (size,), size, 0, offset, None, first, last)


def donors(*tensors: Placement) -> dict[str, str | None]:
    return {r.tensor.name: r.donor.name if r.donor else None for r in reuses(tensors)}


def test_settings_without_phases_leave_no_model_as_it_is() -> None:
    plan = plan_of_text(CHAIN)
    silent: list[dict[str, Any]] = [{}, {"mem_param": None}, {"mem_param": {}}]
    for settings in silent:
        assert not is_left_alone(replace(plan, settings=settings))
    assert is_left_alone(replace(plan, settings={"mem_param": {"optimize_test": False}}))


@pytest.mark.parametrize(
    ("level", "reason"),
    [(0, "has its shape"), (1, "the free slots of float32 are reserved")],
)
def test_only_at_level_0_does_the_shape_rule_out_a_slot(level: int, reason: str) -> None:
    first = Placement("a", "", "float32", (2, 3), 24, 0, 0, 0, 0, 1)
    second = Placement("b", "", "float32", (3, 2), 24, 0, 24, 1, 1, 2)
    assert reason in list(reuses((first, second), level))[1].reason


def test_the_donor_is_the_tensor_that_held_the_memory_just_before() -> None:
    a, b = placed("a", 0, 8, 0, 2), placed("b", 8, 8, 0, 3)
    c, d = placed("c", 4, 8, 3, 5), placed("d", 0, 16, 5, 6)
    assert donors(a, b, c, d) == {"a": None, "b": None, "c": "b", "d": "c"}


def test_a_tensor_in_a_gap_has_no_donor() -> None:
    assert donors(
        placed("a", 0, 4, 0, 9), placed("b", 8, 4, 0, 9), placed("c", 4, 4, 1, 9)
    ) == {
        "a": None,
        "b": None,
        "c": None,
    }


def test_what_is_left_of_a_donor_on_both_sides_is_a_donor_still() -> None:
    wide, thin = placed("wide", 0, 12, 0, 1), placed("thin", 4, 4, 1, 9)
    left, right = placed("left", 0, 4, 2, 9), placed("right", 8, 4, 2, 9)
    assert donors(wide, thin, left, right) == {
        "wide": None,
        "thin": "wide",
        "left": "wide",
        "right": "wide",
    }


def test_an_empty_tensor_has_no_donor() -> None:
    assert donors(placed("a", 0, 4, 0, 1), placed("empty", 0, 0, 1, 2)) == {
        "a": None,
        "empty": None,
    }
