"""The check of offsets against every pair of tensors, and sums of bytes against numbers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplan_cli.checking.layout import Storage, check_layout
from memplan_cli.checking.sums import (
    added,
    canonical,
    factor_of,
    is_symbolic,
    number_of,
    samples,
    value_of,
)
from memplan_cli.core.results.placements import ArenaFacts, Placement

BOXES = st.lists(
    st.tuples(st.integers(0, 12), st.integers(0, 5), st.integers(0, 8), st.integers(1, 5)),
    max_size=7,
)
"""Offset, bytes, first tick, ticks."""


def subject(height: int, *, level: int = 2, alignment: int = 1) -> Any:  # noqa: ANN401
    arena = ArenaFacts(0, "1", height, 0, alignment)
    report = SimpleNamespace(level=level)
    return SimpleNamespace(plan=SimpleNamespace(arenas=(arena,), report=report))


def storage(name: str, offset: int, size: int, first: int, last: int, **row: Any) -> Storage:  # noqa: ANN401
    told = {"dtype": "int8", "shape": (size,), "slot": None} | row
    placed = Placement(
        name, "", told["dtype"], told["shape"], size, 0, offset, told["slot"], first, last
    )
    return Storage(name, 0, offset, size, first, last, [placed])


def top(everything: list[Storage]) -> int:
    return max((each.offset + each.bytes for each in everything), default=0)


@given(boxes=BOXES)
def test_an_overlap_is_found_exactly_where_two_share_a_byte_and_a_tick(
    boxes: list[tuple[int, int, int, int]],
) -> None:
    everything = [
        storage(f"t{at}", low, size, first, first + ticks)
        for at, (low, size, first, ticks) in enumerate(boxes)
    ]
    found = list(check_layout(subject(top(everything)), everything))
    shared = any(
        a.first < b.last
        and b.first < a.last
        and a.offset < b.offset + b.bytes
        and b.offset < a.offset + a.bytes
        and a.bytes
        and b.bytes
        for at, a in enumerate(everything)
        for b in everything[:at]
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
    everything = [storage("a", 0, 3, 0, 1), storage("b", 8, 1, 0, 1)]
    found = list(check_layout(subject(height, alignment=alignment), everything))
    assert [each for each in found if "tall" in each] == (found if wrong else [])
    assert bool(found) is wrong


def test_an_offset_off_the_alignment_is_named() -> None:
    found = list(check_layout(subject(8, alignment=4), [storage("a", 6, 2, 0, 1)]))
    assert found == ["tensor 'a' lies at 6, off the alignment"]


def test_a_tensor_of_no_arena_is_named() -> None:
    lost = storage("a", 0, 2, 0, 1)
    lost.arena = 7
    assert list(check_layout(subject(0), [lost])) == [
        "tensor 'a' lies in arena 7, which is not there"
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
    everything = [
        storage("a", 0, 2, 0, 1, slot=3),
        storage("b", 0, 2, 1, 2, **{"slot": 3, **other}),
    ]
    assert bool(list(check_layout(subject(2, level=level), everything))) is wrong


def test_a_slot_at_two_offsets_is_wrong() -> None:
    everything = [storage("a", 0, 2, 0, 1, slot=3), storage("b", 2, 2, 1, 2, slot=3)]
    (found,) = check_layout(subject(4, level=1), everything)
    assert "have slot 3" in found


def test_sums_add_up_and_what_comes_to_nothing_is_left_out() -> None:
    assert added({"1": 4, "n": 2}, {"n": -2, "m": 1}) == {"1": 4, "m": 1}


@pytest.mark.parametrize(
    ("sums", "expected"),
    [({"1": 4, "n": 2}, 10), ({"m": 2}, None), ({"m": 0, "1": 1}, 1), (None, None), ({}, 0),
     ({"m*n": 1}, None), ({"n*n": 1, "n": 1}, 12)],
)  # fmt: skip
def test_a_sum_has_a_number_where_its_symbols_do(
    sums: dict[str, int] | None, expected: int | None
) -> None:
    assert number_of(sums, {"n": 3}) == expected


def test_factors_symbols_and_values() -> None:
    assert (factor_of("1", {}), factor_of("n", {"n": 4}), factor_of("n", {})) == (1, 4, None)
    assert is_symbolic({"1": 3, "n": 1})
    assert not is_symbolic({"1": 3, "n": 0})
    assert value_of("2*n + 1", {"n": 4}) == 9
    assert value_of("2*n + m", {"n": 4}) is None


@pytest.mark.parametrize(
    ("sums", "expected"),
    [({}, 0), ({"1": 7}, 7), ({"n": 2, "1": 4}, "2*n + 4"), ({"n": 1}, "n"), ({"1": 0}, 0)],
)
def test_a_sum_has_one_text(sums: dict[str, int], expected: int | str) -> None:
    assert canonical(sums) == expected


def test_samples_give_each_symbol_a_number_of_its_own() -> None:
    found = list(samples(["1", "n", "m*n"]))
    assert len(found) == 3
    for dims in found:
        assert set(dims) == {"n", "m"}
        assert dims["n"] != dims["m"]
        assert all(value >= 128 for value in dims.values())
