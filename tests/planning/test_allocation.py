"""Each level at its best, never worse than the one below."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from builders import allocated_at_each_level, block, ids, op, program, var_sizes
from memplan_cli.core.problem import Layout, Problem
from memplan_cli.core.program import VarId
from memplan_cli.core.symbolic.sizes import Size
from memplan_cli.errors import InvalidLayoutError
from memplan_cli.packing.pools import SlotAssignment, naive, pool_levels
from memplan_cli.planning import allocation
from memplan_cli.planning.allocation import Needs, allocate, allocate_apart, heights_by_level

if TYPE_CHECKING:
    from memplan_cli.core.program import Block

CHAIN = block("x", "z", op("a <- x"), op("b <- a"), op("c <- b"), op("d <- c"), op("z <- d"))


def needs(top: Block, alignment: int | None = 1, pinned: str = "", **sizes: int) -> Needs:
    made = program(top, sizes=sizes)
    return Needs(made, var_sizes(made), dict.fromkeys(ids(pinned), "test"), alignment)


def heights(wanted: Needs) -> tuple[int, ...]:
    found = heights_by_level(wanted, allocate(wanted, 2), 2)
    return tuple(by_unit.get("1", 0) for by_unit in found)


def test_level_0_hands_a_slot_to_a_twin() -> None:
    assert heights(needs(CHAIN, a=8, b=8, c=8, d=8)) == (16, 16, 16)


def test_level_1_hands_a_slot_to_what_is_not_larger() -> None:
    assert heights(needs(CHAIN, a=8, b=8, c=4, d=8)) == (20, 16, 16)


def test_level_2_packs_bytes() -> None:
    assert heights(needs(CHAIN, a=4, b=1, c=1, d=4)) == (6, 6, 5)
    assert heights(needs(CHAIN, a=4, b=3, c=2, d=1)) == (10, 7, 7)


def test_a_slot_of_level_1_is_as_large_as_its_largest_tensor_whenever_that_is_live() -> None:
    assert heights(needs(CHAIN, a=1, b=2, c=3, d=4)) == (10, 7, 7)


def test_a_level_of_slots_has_the_bound_of_slots() -> None:
    wanted = needs(CHAIN, a=4, b=1, c=1, d=4)
    bounds = [allocate(wanted, level).arenas[0].bound for level in (0, 1, 2)]
    assert bounds == [6, 5, 5], "level 0 needs two slots of 1; of level 1 it is not known"


def test_a_level_is_never_worse_than_the_one_below_when_padding_costs_a_lot() -> None:
    tiny = needs(CHAIN, alignment=None, a=4, b=8, c=12, d=16)
    assert heights(tiny) == (40, 28, 28)
    assert allocate(tiny, 2).arenas[0].problem.alignment == 4


def test_the_default_alignment_is_kept_where_it_costs_nothing() -> None:
    large = needs(CHAIN, alignment=None, a=128, b=256, c=128, d=64)
    (arena,) = allocate(large, 2).arenas
    assert arena.problem.alignment == 64
    assert all(offset % 64 == 0 for offset in arena.layout.offsets.values())


def test_an_alignment_that_was_asked_for_is_kept_at_every_level() -> None:
    tiny = needs(CHAIN, alignment=64, a=1, b=2, c=3, d=4)
    assert heights(tiny) == (256, 128, 128), "padded, it takes more than 10 bytes apart"
    for placed in allocated_at_each_level(tiny):
        (arena,) = placed.arenas
        assert arena.problem.alignment == 64
        assert not any(offset % 64 for offset in arena.layout.offsets.values())


def test_the_default_alignment_is_never_below_the_widest_element() -> None:
    made = program(CHAIN, sizes={"a": 24, "b": 24, "c": 3, "d": 3})
    wide = {id_: var._replace(dtype="int64") for id_, var in made.vars.items() if id_ in "ab"}
    wanted = Needs(replace(made, vars={**made.vars, **wide}), var_sizes(made))
    for placed in allocated_at_each_level(wanted):
        (arena,) = placed.arenas
        assert not any(arena.layout.offsets[placed.buffers[VarId(n)]] % 8 for n in "ab")


def test_a_fall_back_to_the_pool_shares_no_bytes_between_views(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def wasteful(problem: Problem, **_: object) -> Layout:
        found = naive(problem)
        return replace(found, height=found.height + 4096)

    top = block(
        "x", "z", op("a <- x"), op("b <- a", kind="Reshape"), op("c <- b"), op("z <- c")
    )
    monkeypatch.setattr(allocation, "portfolio", wasteful)
    placed = allocate(needs(top, a=8, b=8, c=8), 2)
    assert placed.arenas[0].slots
    assert set(placed.buffers.values()) == set(placed.arenas[0].layout.offsets)


def test_a_fall_back_to_the_pool_has_the_bound_of_offsets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def wasteful(problem: Problem, **_: object) -> Layout:
        found = naive(problem)
        return replace(found, height=found.height + 4096)

    made = program(CHAIN, sizes=dict.fromkeys("abcd", 8))
    wide = {id_: var._replace(dtype="int64") for id_, var in made.vars.items() if id_ in "ad"}
    wanted = Needs(replace(made, vars={**made.vars, **wide}), var_sizes(made), alignment=1)
    monkeypatch.setattr(allocation, "portfolio", wasteful)
    assert [allocate(wanted, level).arenas[0].bound for level in (1, 2)] == [24, 16]


def test_left_apart_every_var_has_bytes_of_its_own() -> None:
    placed = allocate_apart(needs(CHAIN, a=1, b=2, c=3, d=4), 2)
    assert placed.heights == {"1": 10}
    assert sorted(placed.arenas[0].layout.offsets.values()) == [0, 1, 3, 6]


def test_no_other_buffer_overlaps_a_pinned_one() -> None:
    for placed in allocated_at_each_level(needs(CHAIN, pinned="b", a=8, b=8, c=8, d=8)):
        (arena,) = placed.arenas
        at = arena.layout.offsets[placed.buffers[VarId("b")]]
        others = [o for b, o in arena.layout.offsets.items() if b != "b"]
        assert all(offset + 8 <= at or at + 8 <= offset for offset in others)


def test_each_unit_has_an_arena_of_its_own() -> None:
    made = program(CHAIN)
    sizes = {
        VarId("a"): Size(4, ("n",)),
        VarId("b"): Size(8),
        VarId("c"): Size(8, ("n",)),
        VarId("d"): Size(8),
    }
    for placed in allocated_at_each_level(Needs(made, sizes, alignment=1)):
        assert [arena.unit for arena in placed.arenas] == ["1", "n"]
        assert placed.heights["1"] == 8, "b is dead when d is made"
        assert set(placed.buffers) == set(sizes)


def test_nothing_to_place_is_no_arena() -> None:
    for placed in allocated_at_each_level(needs(block("x", "z", op("z <- x")))):
        assert placed.arenas == ()
        assert placed.heights == {}


def test_vars_of_no_bytes_are_placed() -> None:
    assert heights(needs(CHAIN, a=0, b=8, c=0, d=8)) == (8, 8, 8)


def test_an_allocator_that_breaks_its_promise_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def everything_at_once(problem: Problem, **_: object) -> Layout:
        return Layout({buffer.id: 0 for buffer in problem.buffers}, 8)

    monkeypatch.setattr(allocation, "portfolio", everything_at_once)
    with pytest.raises(InvalidLayoutError, match="overlap in time and in memory"):
        heights(needs(CHAIN, a=8, b=8, c=8, d=8))


@pytest.mark.parametrize("level", [0, 1])
def test_a_slot_that_is_handed_on_too_soon_is_caught_at_every_level(
    monkeypatch: pytest.MonkeyPatch, level: int
) -> None:
    def one_slot_for_all(problem: Problem) -> tuple[SlotAssignment, SlotAssignment]:
        found = pool_levels(problem)
        shared = SlotAssignment(problem.buffers, (0,) * len(problem.buffers))
        return (shared, found[1]) if level == 0 else (found[0], shared)

    monkeypatch.setattr(allocation, "pool_levels", one_slot_for_all)
    with pytest.raises(InvalidLayoutError, match="a slot is taken before it is free: a, b"):
        heights(needs(CHAIN, a=8, b=8, c=8, d=8))
