"""The check of offsets against every pair of tensors, and sums of bytes against numbers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplan_cli.checking.live_bytes import (
    add_sums,
    canonical_expression,
    evaluate_expression,
    evaluate_sum,
    evaluate_unit,
    is_symbolic,
    sample_dims,
)
from memplan_cli.checking.tensors import check_layout
from memplan_cli.core.results.placements import Placement, PlannedArena

BOXES = st.lists(
    st.tuples(st.integers(0, 12), st.integers(0, 5), st.integers(0, 8), st.integers(1, 5)),
    max_size=7,
)
"""Offset, bytes, first tick, ticks."""


def plan(tensors: list[Placement], height: int, *, level: int = 2, alignment: int = 1) -> Any:  # noqa: ANN401
    arena = PlannedArena(0, "1", height, 0, alignment)
    report = SimpleNamespace(level=level)
    return SimpleNamespace(tensors=tuple(tensors), arenas=(arena,), report=report)


def tensor(name: str, offset: int, size: int, first: int, end: int, **other: Any) -> Placement:  # noqa: ANN401
    row = {"dtype": "int8", "shape": (size,), "slot": None, "arena": 0} | other
    return Placement(
        name,
        "",
        row["dtype"],
        row["shape"],
        size,
        row["arena"],
        offset,
        row["slot"],
        first,
        end,
    )


def top(tensors: list[Placement]) -> int:
    return max((each.offset + each.bytes for each in tensors), default=0)


@given(boxes=BOXES)
def test_an_overlap_is_found_exactly_where_two_share_a_byte_and_a_tick(
    boxes: list[tuple[int, int, int, int]],
) -> None:
    tensors = [
        tensor(f"t{at}", low, size, first, first + ticks)
        for at, (low, size, first, ticks) in enumerate(boxes)
    ]
    found = list(check_layout(plan(tensors, top(tensors))))
    shared = any(
        a.first < b.last
        and b.first < a.last
        and a.offset < b.offset + b.bytes
        and b.offset < a.offset + a.bytes
        and a.bytes
        and b.bytes
        for at, a in enumerate(tensors)
        for b in tensors[:at]
    )
    assert any("lie on the same bytes" in each for each in found) == shared
    assert shared or found == []


@pytest.mark.parametrize(
    ("height", "alignment", "wrong"),
    [(9, 1, False), (8, 1, True), (10, 1, True), (12, 4, False), (9, 4, False), (13, 4, True),
     (16, 4, True)],
)  # fmt: skip
def test_an_arena_ends_where_its_last_tensor_does(
    height: int, alignment: int, *, wrong: bool
) -> None:
    tensors = [tensor("a", 0, 3, 0, 1), tensor("b", 8, 1, 0, 1)]
    found = list(check_layout(plan(tensors, height, alignment=alignment)))
    assert [each for each in found if "tall" in each] == (found if wrong else [])
    assert bool(found) is wrong


def test_an_offset_off_the_alignment_is_named() -> None:
    found = list(check_layout(plan([tensor("a", 6, 2, 0, 1)], 8, alignment=4)))
    assert found == ["tensor 'a' lies at 6, off the alignment"]


def test_a_tensor_of_no_arena_is_named() -> None:
    lost = tensor("a", 0, 2, 0, 1, arena=7)
    assert list(check_layout(plan([lost], 0))) == [
        "tensor 'a' lies in arena 7, which does not exist"
    ]


@pytest.mark.parametrize(
    ("level", "other", "wrong"),
    [
        (0, {}, False), (0, {"shape": (1, 2)}, True), (1, {"shape": (1, 2)}, False),
        (0, {"dtype": "uint8"}, True), (1, {"dtype": "uint8"}, True), (1, {"slot": None}, True),
        (2, {"slot": None}, False), (2, {"dtype": "uint8"}, True), (1, {"slot": 4}, False),
    ],
)  # fmt: skip
def test_a_slot_is_of_one_offset_type_and_at_level_0_shape(
    level: int, other: dict[str, Any], *, wrong: bool
) -> None:
    tensors = [
        tensor("a", 0, 2, 0, 1, slot=3),
        tensor("b", 0, 2, 1, 2, **{"slot": 3, **other}),
    ]
    assert bool(list(check_layout(plan(tensors, 2, level=level)))) is wrong


def test_a_slot_at_two_offsets_is_wrong() -> None:
    tensors = [tensor("a", 0, 2, 0, 1, slot=3), tensor("b", 2, 2, 1, 2, slot=3)]
    (found,) = check_layout(plan(tensors, 4, level=1))
    assert "have slot 3" in found


def test_sums_add_up_and_what_comes_to_nothing_is_left_out() -> None:
    assert add_sums({"1": 4, "n": 2}, {"n": -2, "m": 1}) == {"1": 4, "m": 1}


@pytest.mark.parametrize(
    ("sums", "expected"),
    [({"1": 4, "n": 2}, 10), ({"m": 2}, None), ({"m": 0, "1": 1}, 1), (None, None), ({}, 0),
     ({"m*n": 1}, None), ({"n*n": 1, "n": 1}, 12)],
)  # fmt: skip
def test_a_sum_has_a_number_where_its_symbols_do(
    sums: dict[str, int] | None, expected: int | None
) -> None:
    assert evaluate_sum(sums, {"n": 3}) == expected


def test_factors_symbols_and_values() -> None:
    assert (evaluate_unit("1", {}), evaluate_unit("n", {"n": 4}), evaluate_unit("n", {})) == (
        1,
        4,
        None,
    )
    assert is_symbolic({"1": 3, "n": 1})
    assert not is_symbolic({"1": 3, "n": 0})
    assert evaluate_expression("2*n + 1", {"n": 4}) == 9
    assert evaluate_expression("2*n + m", {"n": 4}) is None


@pytest.mark.parametrize(
    ("sums", "expected"),
    [({}, 0), ({"1": 7}, 7), ({"n": 2, "1": 4}, "2*n + 4"), ({"n": 1}, "n"), ({"1": 0}, 0)],
)
def test_a_sum_has_one_text(sums: dict[str, int], expected: int | str) -> None:
    assert canonical_expression(sums) == expected


def test_samples_give_each_symbol_a_number_of_its_own() -> None:
    found = list(sample_dims(["1", "n", "m*n"]))
    assert len(found) == 3
    for dims in found:
        assert set(dims) == {"n", "m"}
        assert dims["n"] != dims["m"]
        assert all(value >= 128 for value in dims.values())
