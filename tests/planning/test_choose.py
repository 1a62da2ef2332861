"""The least candidate is taken, and no more is searched than that needs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from builders import block, op, program, var_sizes
from memplan_cli.packing import portfolio
from memplan_cli.packing.portfolio import DEFAULT_WORK
from memplan_cli.planning import allocation
from memplan_cli.planning.allocation import Needs
from memplan_cli.planning.candidate import FILE, Candidate
from memplan_cli.planning.choose import choose
from memplan_cli.settings.choices import DEFAULT_ALIGNMENT
from memplan_cli.settings.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memplan_cli.core.problem import Layout, Problem
    from memplan_cli.core.program import Program
    from memplan_cli.planning.choose import EvaluatedCandidate

SIZES = {"p1": 6400, "p2": 6400, "a1": 2560, "a2": 2560} | dict.fromkeys(
    ("q1", "q2", "s", "b1", "b2"), 192
)

STORED = block(
    "x",
    "z",
    op("p1 <- x"),
    op("p2 <- x"),
    op("q1 <- p1"),
    op("q2 <- p2"),
    op("s <- q1 q2"),
    op("a1 <- s"),
    op("a2 <- s"),
    op("b1 <- a1"),
    op("b2 <- a2"),
    op("z <- b1 b2"),
)
STRAIGHT = [0, 2, 1, 3, 4, 5, 6, 7, 8, 9]
LOOSE = [0, 2, 1, 3, 4, 5, 7, 6, 8, 9]
HIGH = [0, 1, 2, 3, 4, 5, 7, 6, 8, 9]


def in_order(order: list[int]) -> Program:
    """Return the program of the file in another order of its ops."""
    made = program(STORED, sizes=SIZES)
    return made.with_ops(made.body.ops[at] for at in order)


def candidate(order: list[int], name: str = "searched", bound: int | None = None) -> Candidate:
    made = in_order(order)
    return Candidate(made, var_sizes(made), name, bound=bound)


STRAIGHT_ONE, LOOSE_ONE, HIGH_ONE = (candidate(order) for order in (STRAIGHT, LOOSE, HIGH))
FILES = candidate(list(range(10)), FILE)


def chosen(*found: Candidate, alignment: int | None = 64) -> EvaluatedCandidate:
    return choose(found, Settings(alignment=alignment), {})[0]


def then_fail(*found: Candidate) -> Iterator[Candidate]:
    yield from found
    pytest.fail("a candidate was asked for in vain")


class Packer:
    """Packs an order only with enough work; with less, all lies too high."""

    def __init__(self, straight: int, loose: int) -> None:
        self.enough = {False: straight, True: loose}
        self.gap = {False: 64, True: 64}
        self.tries: list[tuple[str, int]] = []

    def __call__(
        self, problem: Problem, *, work: int, time_limit: float | None, **_: object
    ) -> Layout:
        live = {str(buffer.id): buffer.live for buffer in problem.buffers}
        is_loose = live["a1"].end <= live["a2"].start
        self.tries.append(("loose" if is_loose else "straight", work))
        layout = portfolio(problem, time_limit=time_limit)
        if work >= self.enough[is_loose] or problem.alignment != DEFAULT_ALIGNMENT:
            return layout
        gap = self.gap[is_loose]
        lifted = {buffer: offset + gap for buffer, offset in layout.offsets.items()}
        return replace(layout, offsets=lifted, height=layout.height + gap, proved=False)


def packer(monkeypatch: pytest.MonkeyPatch, straight: int, loose: int) -> Packer:
    made = Packer(straight, loose)
    monkeypatch.setattr(allocation, "portfolio", made)
    return made


def test_the_files_order_is_taken_where_another_needs_as_much() -> None:
    same = replace(STRAIGHT_ONE, order=FILE)
    assert chosen(STRAIGHT_ONE, same).candidate is same


def test_the_files_order_is_searched_where_it_may_need_as_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packed = packer(monkeypatch, straight=0, loose=DEFAULT_WORK)
    files = replace(LOOSE_ONE, order=FILE)
    assert chosen(STRAIGHT_ONE, files).candidate is files
    assert packed.tries == [("straight", 0), ("loose", 0), ("loose", DEFAULT_WORK)]


def test_an_order_that_sweeps_pack_is_taken_before_anything_is_searched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packed = packer(monkeypatch, straight=1, loose=0)
    found = chosen(STRAIGHT_ONE, LOOSE_ONE)
    assert found.candidate is LOOSE_ONE
    assert found.allocation.is_minimal
    assert packed.tries == [("straight", 0), ("loose", 0)]


def test_the_candidate_that_came_first_is_searched_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packed = packer(monkeypatch, straight=1, loose=1)
    assert chosen(STRAIGHT_ONE, LOOSE_ONE).candidate is STRAIGHT_ONE
    assert packed.tries == [("straight", 0), ("loose", 0), ("straight", DEFAULT_WORK)]


def test_where_neither_is_at_the_bound_the_first_stays_unless_it_is_taller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packed = packer(monkeypatch, DEFAULT_WORK + 1, DEFAULT_WORK + 1)
    assert chosen(STRAIGHT_ONE, LOOSE_ONE).candidate is STRAIGHT_ONE
    assert [work for _, work in packed.tries] == [
        work for work in (0, DEFAULT_WORK) for _ in range(2)
    ]
    packed.gap[False] = 128
    assert chosen(STRAIGHT_ONE, LOOSE_ONE).candidate is LOOSE_ONE
    packed.gap[True] = 192
    assert chosen(STRAIGHT_ONE, LOOSE_ONE).candidate is STRAIGHT_ONE


def test_what_cannot_become_the_least_is_not_searched_further(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packed = packer(monkeypatch, straight=DEFAULT_WORK + 1, loose=DEFAULT_WORK + 1)
    assert chosen(STRAIGHT_ONE, HIGH_ONE).candidate is STRAIGHT_ONE
    assert ("loose", DEFAULT_WORK) not in packed.tries
    assert ("straight", DEFAULT_WORK) in packed.tries


def test_a_height_is_proved_by_the_search_that_rules_out_all_below(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packed = packer(monkeypatch, straight=DEFAULT_WORK, loose=DEFAULT_WORK)
    packed.gap[False] = 0
    found = chosen(STRAIGHT_ONE, LOOSE_ONE)
    assert found.candidate is STRAIGHT_ONE
    assert found.allocation.is_minimal
    assert packed.tries[-1] == ("straight", DEFAULT_WORK)


def test_an_alignment_is_given_up_only_after_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = packer(monkeypatch, straight=DEFAULT_WORK, loose=DEFAULT_WORK)
    packed.gap = {False: 1 << 20, True: 1 << 20}  # above any pool: the alignment is halved
    found = chosen(STRAIGHT_ONE, alignment=None)
    assert [a.problem.alignment for a in found.allocation.arenas] == [DEFAULT_ALIGNMENT]
    assert packed.tries[-1] == ("straight", DEFAULT_WORK)


def test_slots_are_compared_by_what_they_take_not_by_the_live_peak() -> None:
    """At level 1 a greater live peak may need fewer bytes of slots."""
    found = choose([STRAIGHT_ONE, FILES, LOOSE_ONE, HIGH_ONE], Settings(level=1), {})
    least = min(level1(each) for each in (STRAIGHT_ONE, FILES, LOOSE_ONE, HIGH_ONE))
    assert found[0].allocation.heights == {"1": least}
    assert any(each.candidate is FILES for each in found), "the report compares with it"
    bounded = [replace(each, bound=1) for each in (STRAIGHT_ONE, FILES, LOOSE_ONE, HIGH_ONE)]
    assert choose(bounded, Settings(level=1), {})[0].allocation.heights == {"1": least}


def level1(one: Candidate) -> int:
    return allocation.allocate(Needs(one.program, one.sizes), 1).heights["1"]


def test_no_slots_are_matched_in_vain_where_the_bound_on_all_orders_is_met() -> None:
    bound = level1(STRAIGHT_ONE)
    met = replace(STRAIGHT_ONE, bound=bound)
    assert choose(then_fail(met, FILES), Settings(level=1), {})[0].candidate is met
    # An order after the file's ends the work too.
    assert choose(then_fail(FILES, met), Settings(level=1), {})[0].candidate is met
