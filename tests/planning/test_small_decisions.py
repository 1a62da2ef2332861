"""Small decisions of the planner, each where another one would show."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import block, ids, op, plan_of_text, program, var_sizes
from memplan_cli.analysis.aliasing import Aliasing
from memplan_cli.core.problem import Buffer, BufferId, LiveRange, Problem
from memplan_cli.core.results.chunks import Chunks
from memplan_cli.core.results.fallbacks import Fallback
from memplan_cli.errors import PlanError
from memplan_cli.planning import account, certify, fit, planner
from memplan_cli.planning.checking.plan_file import checked_plan
from memplan_cli.planning.choosing import levels, tied_orders
from memplan_cli.planning.choosing.allocation import Needs
from memplan_cli.planning.choosing.levels import allocate, heights_by_level
from memplan_cli.planning.chunking import Chunking
from memplan_cli.planning.maxima import is_at_least
from memplan_cli.planning.print_log import print_log
from memplan_cli.settings.settings import Settings
from memplan_cli.transforms.terms import Ordering

if TYPE_CHECKING:
    from random import Random

    from memplan_cli.core.program import Program
    from memplan_cli.settings.choices import Level

CHAIN = block("x", "z", op("a <- x"), op("b <- a"), op("c <- b"), op("d <- c"), op("z <- d"))
TEXT = """g (float[2,3] x, float[3,3] k, float[3,2] l, float[2,3] m) => (float[3,3] z) {
    a = MatMul(x, k) b = MatMul(a, l) c = MatMul(b, m) d = MatMul(c, k) e = Transpose(d)
    z = MatMul(e, d) }"""


def test_what_level_2_came_to_is_not_searched_again() -> None:
    made = program(CHAIN, sizes={"a": 4, "b": 1, "c": 1, "d": 4})
    needs = Needs(made, var_sizes(made), dict.fromkeys(ids(""), "test"), 1)
    known = replace(allocate(needs, 2), heights={"1": 77})
    assert heights_by_level(needs, known, 2)[2] == {"1": 77}
    assert heights_by_level(needs, known, 1)[2] == {"1": 5}


@pytest.mark.parametrize(
    ("one", "other", "proved"),
    [
        ({"m": 1}, {"n": 1}, False),
        ({"m*n": 1}, {"n": 1}, True),
        ({"m*n": 1}, {"k": 1}, False),
        ({"(2*n - m)": 1}, {"(n - m)": 1}, True),
        ({"(2*n - m)": 1}, {"(3*n - m)": 1}, False),
        ({"n": 2}, {"(n + 1)": 1}, True),
        ({"n": 2}, {"(n + 2)": 1}, False),
        ({"m": 1}, {"floor(n/4)": 1}, False),
    ],
)
def test_sums_of_differences_are_compared_term_by_term(
    one: dict[str, int], other: dict[str, int], *, proved: bool
) -> None:
    assert is_at_least(one, other) is proved


@pytest.mark.parametrize("level", [0, 1, 2])
@given(chance=st.randoms(use_true_random=False))
def test_the_log_is_that_of_the_ticks_whatever_the_order_of_the_rows(
    level: Level, chance: Random
) -> None:
    plan = plan_of_text(TEXT, Settings(level=level, order="keep"))
    rows = list(plan.tensors)
    chance.shuffle(rows)
    assert list(print_log(replace(plan, tensors=tuple(rows)))) == list(print_log(plan))


def ordering(made: Program, peak: int, *, proved: bool = False) -> Ordering:
    return Ordering(made, {"search": peak}, "search", None, proved=proved)


@pytest.mark.parametrize(
    ("peaks", "searches", "left"),
    [  # less than a 64th is not worth another search
        ([100, 100], 2, 100),
        ([100, 120], 2, 100),
        ([100, 50, 20, 20], 4, 20),
        ([6400, 6390, 5], 2, 6390),
    ],
)
def test_an_order_is_searched_again_as_long_as_that_is_worth_it(
    peaks: list[int], searches: int, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, asked = program(CHAIN), list[int]()

    def best_order(*_: object, **__: object) -> Ordering:
        asked.append(peaks[len(asked)])
        return ordering(made, asked[-1])

    monkeypatch.setattr("memplan_cli.transforms.ordering.order.best_order", best_order)
    found = tied_orders._searched_again(made, {}, Aliasing({}, {}), None)
    assert (len(asked), found.candidates["search"]) == (searches, left)


@pytest.mark.parametrize(("limit", "proved"), [(1.0, False), (None, True)])
def test_what_is_proved_or_has_a_limit_of_seconds_is_searched_once(
    limit: float | None, monkeypatch: pytest.MonkeyPatch, *, proved: bool
) -> None:
    made, asked = program(CHAIN), list[object]()

    def best_order(*given: object, **_: object) -> Ordering:
        asked.append(given)
        return ordering(made, 100, proved=proved)

    monkeypatch.setattr("memplan_cli.transforms.ordering.order.best_order", best_order)
    tied_orders._searched_again(made, {}, Aliasing({}, {}), limit)
    assert len(asked) == 1


def test_three_of_what_no_total_has_are_named() -> None:
    names = [SimpleNamespace(name=f"s{at}", dtype="str") for at in range(5)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(account, "uncounted", lambda _: names)
        (line,) = account._not_counted(program(CHAIN))
    assert line.endswith("'s0' (str), 's1' (str), 's2' (str) and 2 more")


def test_a_plan_of_slots_may_need_more_than_the_arena_that_it_is_compared_with() -> None:
    text = """g (float[8] x) => (float[8] z) {
        a = Exp(x) b = Identity(a) c = Identity(b) z = Add(a, c) }"""
    plan = plan_of_text(text, Settings(level=1))
    low, high = plan.report.levels["2"], plan.report.levels["1"]
    assert low is not None
    assert high is not None
    assert low < high
    assert checked_plan(json.loads(plan.dumps())) == plan


def test_a_file_lists_no_foldable_tensors_without_their_bytes() -> None:
    text = """g (float[8] x) => (float[8] z) <float[8] w = {1, 2, 3, 4, 5, 6, 7, 8}> {
        c = Exp(w) a = Exp(x) z = Add(a, c) }"""
    data = json.loads(plan_of_text(text).dumps())
    assert data["report"]["foldable"]
    assert data["report"]["memory"]["foldable"] == 32
    data["report"]["memory"]["foldable"] = None
    with pytest.raises(PlanError, match="foldable is said to be None"):
        checked_plan(data)


def test_what_donations_save_is_0_where_it_is_no_number() -> None:
    text = "g (float[batch,8] s) => (float[batch,8] t) { t = Relu(s) }"
    donated = plan_of_text(text, Settings(donate={"s": "t"})).report.donated
    assert donated.pairs == (("s", "t"),)
    assert donated.bytes == 0


def test_a_plan_of_shared_bytes_may_need_less_than_its_tensors_apart() -> None:
    text = """g (float[8] x) => (float[8] z) {
        a = Exp(x) b = Identity(a) c = Identity(b) z = Add(a, c) }"""
    plan = plan_of_text(text)
    assert checked_plan(json.loads(plan.dumps())) == plan
    data = json.loads(plan.dumps())
    data["report"]["levels"]["1"] = data["report"]["levels"]["2"]
    with pytest.raises(PlanError, match="the bytes of level 1"):
        checked_plan(data)


def test_the_peak_may_be_where_a_loop_begins() -> None:
    text = """g (float[8] x, bool c, int64 n) => (float[8] z) {
        a = Exp(x) y = Loop (n, c, a) <body = b (int64 i, bool in, float[8] v)
            => (bool in, float[8] v) { }>
        z = Neg(y) }"""
    plan = plan_of_text(text)
    peak = plan.report.peak
    assert peak is not None
    assert peak.node == "Loop#1"
    assert checked_plan(json.loads(plan.dumps())) == plan


def test_where_no_alignment_is_low_enough_the_finest_is_taken() -> None:
    buffers = tuple(
        Buffer(BufferId(name), size, LiveRange(0, 1), "float32")
        for name, size in zip("ab", (4, 12), strict=True)
    )
    needs = Needs(program(CHAIN), {}, {}, None)
    never = SimpleNamespace(allows=lambda *_: False)
    arena = levels._arena(Problem(buffers), "1", needs, never, 1)  # type: ignore[arg-type]
    assert (arena.problem.alignment, arena.layout.height) == (4, 16)


@pytest.mark.parametrize(
    ("alone", "pieces", "taken"),
    [  # the peak, then the share of work that is added
        ((100, 0.2), (100, 0.1), "pieces"),
        ((100, 0.1), (100, 0.2), "alone"),
        ((101, 0.1), (100, 0.2), "pieces"),
        ((100, 0.2), (100, 0.2), "pieces"),
    ],
)
def test_a_budget_is_met_by_what_adds_less_work(
    alone: tuple[int, float],
    pieces: tuple[int, float],
    taken: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole, cut = program(CHAIN), program(CHAIN)

    def planned_as(made: Program, *_: object) -> SimpleNamespace:
        peak, work = alone if made is whole else (pieces[0], 0.0)
        return SimpleNamespace(
            allocation=SimpleNamespace(live_peak=peak),
            candidate=SimpleNamespace(recompute=SimpleNamespace(flops_increase=work)),
        )

    monkeypatch.setattr(planner, "_planned_as", planned_as)
    facts = Chunks(regions=(object(),), flops_increase=pieces[1], budget=100)  # type: ignore[arg-type]
    settings = Settings(chunk="auto", recompute="auto", budget=100)
    chosen, _ = planner._cheaper(Chunking(cut, {}, facts), whole, settings, None, None)  # type: ignore[arg-type]
    assert chosen.program is (whole if taken == "alone" else cut)


def test_a_plan_in_pieces_is_compared_with_the_model_as_it_was() -> None:
    text = """g (float[2,64,64] x) => (float[2,64] z) {
        a = Exp(x) b = Mul(a, x) c = Softmax(b) z = ReduceMax<axes = [2], keepdims = 0>(c) }"""
    plain, cut = plan_of_text(text), plan_of_text(text, Settings(chunk="auto", budget=0.5))
    report = cut.report
    assert report.chunked.regions
    assert report.original_live_peak == plain.report.memory.live_peak
    assert len(cut.order[0].nodes) > len(plain.order[0].nodes)


def test_a_bound_of_slots_that_nobody_can_check_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = plan_of_text(TEXT, Settings(level=1))
    assert certify._arena(plan, plan.arenas[0]).why == ""
    monkeypatch.setattr(certify, "_COUNTED", 1)
    proof = certify._arena(plan, plan.arenas[0])
    assert proof.why == "there are too many sizes to count the slots of each"


def test_what_a_search_did_not_reach_is_in_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    fallback = Fallback("slots-kept", "the arena has slots", "it was taller")
    monkeypatch.setattr(planner, "fallbacks", lambda *_: [fallback])
    assert plan_of_text(TEXT).report.fallbacks == (fallback,)


def test_a_process_that_has_imported_the_runtime_takes_what_was_measured() -> None:
    assert round(fit.PROCESS_OVERHEAD / 1e6) == 50
