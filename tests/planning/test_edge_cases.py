"""Plans and reports in cases at the edge: no saving, no number, a peak at a loop's start."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import plan_of_text, planned_program, read
from memplan_cli.analysis.aliasing import SHARE_NOTHING
from memplan_cli.errors import PlanError
from memplan_cli.features.chunking.report import chunking_section
from memplan_cli.planning.candidate import Runtime
from memplan_cli.planning.plan_file import checked_plan
from memplan_cli.planning.print_log import log_lines
from memplan_cli.planning.totals import is_at_least
from memplan_cli.settings.settings import Settings

if TYPE_CHECKING:
    from random import Random

    from memplan_cli.settings.choices import Level

TEXT = """g (float[2,3] x, float[3,3] k, float[3,2] l, float[2,3] m) => (float[3,3] z) {
    a = MatMul(x, k) b = MatMul(a, l) c = MatMul(b, m) d = MatMul(c, k) e = Transpose(d)
    z = MatMul(e, d) }"""


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
    assert list(log_lines(replace(plan, tensors=tuple(rows)))) == list(log_lines(plan))


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
    with pytest.raises(PlanError, match="foldable is recorded as nothing, it is 32"):
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


def test_a_plan_in_pieces_is_compared_with_the_model_as_it_was() -> None:
    text = """g (float[2,64,64] x) => (float[2,64] z) {
        a = Exp(x) b = Mul(a, x) c = Softmax(b) z = ReduceMax<axes = [2], keepdims = 0>(c) }"""
    plain, cut = plan_of_text(text), plan_of_text(text, Settings(chunk="auto", budget=0.5))
    report = cut.report
    assert report.chunked.regions
    assert report.original_live_peak == plain.report.memory.live_peak
    assert len(cut.order[0].nodes) > len(plain.order[0].nodes)
    assert checked_plan(json.loads(cut.dumps())) == cut


@pytest.mark.parametrize("change", [-1, 1])
def test_without_a_budget_chunks_are_left_out_if_a_runtime_holds_more_with_them(
    change: int,
) -> None:
    wide = read("""g (float[512,256] x, float[256,4096] w, float[4096,256] v) => (float[512,256] z) {
        a = MatMul(x, w) b = Relu(a) z = MatMul(b, v) }""")
    # The runtime holds more for each op that chunks add, or less.
    runtime = Runtime(
        SHARE_NOTHING,
        order_for_arena=lambda ordered, _: ordered,
        arena_bytes=lambda planned: 1000 + change * len(planned.body.ops),
    )
    report = planned_program(wide, Settings(chunk="auto"), runtime=runtime).plan.report
    (taken,) = (point for point in report.chunked.curve if point.taken)
    assert taken.nodes == report.chunked.nodes
    text = str(list(chunking_section(report, 5)))
    if change > 0:
        assert not report.chunked.regions
        assert report.chunked.nodes == report.chunked.flops_increase == 0
        assert taken is report.chunked.curve[0]
        assert "more memory in a process" in text
    else:
        assert report.chunked.regions
