"""What a runtime holds, outputs included: counted, minimized, and what a budget means."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from memplan_cli.analysis.aliasing import SHARE_SAFELY
from memplan_cli.analysis.storage import live_peak, result_sizes
from memplan_cli.core.symbolic.sizes import Size
from memplan_cli.ordering.best_order import best_order
from memplan_cli.ordering.late_outputs import fewer_resident
from memplan_cli.ordering.records import PlannedVars
from memplan_cli.settings.settings import Settings

if TYPE_CHECKING:
    from memplan_cli.core.program import Program
from builders import plan_of_text, read, var_sizes
from features.recompute_programs import bytes_of, program, terms

# `early` reads x alone and frees nothing: made first or last is one to a plan.
EARLY = """g (float[64] x) => (float[64] early, float[1] z) {
    early = Exp(x) a = Sin(x) b = Concat <axis = 0> (a, a) c = Concat <axis = 0> (b, b)
    z = ReduceSum(c) }"""


def terms_of(program: Program) -> PlannedVars:
    results = result_sizes(program)
    return PlannedVars(var_sizes(program, *results), (), SHARE_SAFELY, results)


def peaks(planned: PlannedVars, program: Program) -> tuple[int, int]:
    """Return the live peak, and that with outputs counted."""
    return planned.live_peak(program), planned.resident.live_peak(program)


def test_resident_counts_outputs_from_their_producer_to_the_end() -> None:
    report = plan_of_text(EARLY, Settings(order="keep")).report
    assert report.memory.live_peak == 512 + 1024
    assert report.memory.resident == 256 + 512 + 1024
    assert report.original_resident == report.memory.resident


def test_an_output_that_frees_nothing_is_made_late() -> None:
    report = plan_of_text(EARLY).report
    assert report.chosen_order == "resident"
    assert report.memory.live_peak == report.original_live_peak == 512 + 1024
    assert report.original_resident == 256 + 512 + 1024
    assert report.memory.resident == 512 + 1024
    assert report.memory.order_proved


def test_nothing_is_written_in_place_and_views_share() -> None:
    text = """g (float[64] x) => (float[1] z) <int64[2] to = {8, 8}> {
        a = Exp(x) b = Neg(a) c = Reshape(b, to) z = ReduceSum <keepdims = 0> (c) }"""
    report = plan_of_text(text.replace("float[1] z", "float z")).report
    assert report.memory.live_peak == 256, "b is written over a"
    assert report.memory.resident == 512


def test_a_donated_output_takes_no_memory() -> None:
    text = """g (float[64] w, float[64] x) => (float[64] new_w) {
        a = Exp(x) new_w = Sub(w, a) }"""
    plain = plan_of_text(text).report.memory
    donated = plan_of_text(text, Settings(donate={"w": "new_w"})).report.memory
    assert (plain.resident, donated.resident) == (512, 256)


def test_symbolic_sizes_give_an_expression() -> None:
    report = plan_of_text(EARLY.replace("64", "n"), Settings(order="keep")).report
    assert report.memory.resident is None
    assert report.symbolic["resident"] == "28*n"


@pytest.mark.parametrize("level", [0, 1])
def test_resident_does_not_depend_on_the_level(level: int) -> None:
    order = Settings(order="keep", level=level)  # type: ignore[arg-type]
    assert plan_of_text(EARLY, order).report.memory.resident == 256 + 512 + 1024


def test_a_proved_live_peak_is_not_given_up_for_outputs() -> None:
    program = read(EARLY)
    terms = terms_of(program)
    found = best_order(program, terms.sizes, aliasing=SHARE_SAFELY)
    late = fewer_resident(found, terms)
    assert late is not None
    assert terms.live_peak(late) == live_peak(found.program, terms.sizes)
    assert terms.resident.live_peak(late) < terms.resident.live_peak(found.program)


def test_fewer_resident_bytes_do_not_buy_a_higher_live_peak() -> None:
    """An order of 201 bytes resident has a live peak of 140 here: it is not taken."""
    tested = program(
        "x", "a40_5 a1_0 a40_2 a100_3",
        ("MatMul", "x", "a1_0"), ("MatMul", "x", "a100_1"), ("MatMul", "a1_0 x", "a40_2"),
        ("MatMul", "a1_0 a100_1", "a100_3"), ("MatMul", "a1_0", "a40_4"),
        ("MatMul", "a40_2", "a40_5"),
    )  # fmt: skip
    results = {var: Size(bytes_of(var)) for var in tested.body.outputs}
    given = replace(terms(tested), results=results)
    found = best_order(tested, given.sizes, aliasing=SHARE_SAFELY)
    assert peaks(given, found.program) == (100, 241)
    late = fewer_resident(found, given)
    assert late is None or given.live_peak(late) == 100


def test_a_live_peak_that_is_not_proved_may_rise_by_one_in_2048() -> None:
    tested = program(
        "x", "d1000 e2048", ("MatMul", "x", "a40"), ("MatMul", "x", "b1"),
        ("MatMul", "a40", "c2048"), ("MatMul", "a40 x", "d1000"), ("MatMul", "c2048 b1", "e2048"),
    )  # fmt: skip
    results = {var: Size(bytes_of(var)) for var in tested.body.outputs}
    given = replace(terms(tested), results=results)
    found = best_order(tested, given.sizes, aliasing=SHARE_SAFELY)
    assert peaks(given, found.program) == (2088, 5097)
    late = fewer_resident(replace(found, proved=False), given)
    assert late is not None
    assert peaks(given, late) == (2089, 4137)
    assert fewer_resident(replace(found, proved=True), given) is None


def test_what_is_pinned_is_held_at_every_step_of_an_order_with_late_outputs() -> None:
    tested = program(
        "x", "d100 c40 e100", ("MatMul", "x", "a10"), ("MatMul", "x a10", "b10"),
        ("MatMul", "b10", "c40"), ("MatMul", "a10 b10", "d100"), ("MatMul", "a10", "e100"),
    )  # fmt: skip
    results = {var: Size(bytes_of(var)) for var in tested.body.outputs}
    given = replace(terms(tested, "b10"), results=results)
    found = best_order(tested, given.sizes, pinned=given.pinned, aliasing=SHARE_SAFELY)
    assert given.resident.live_peak(found.program) == 260
    late = fewer_resident(found, given)
    assert late is not None
    assert given.resident.live_peak(late) == 250


def test_a_budget_is_of_what_is_resident() -> None:
    report = plan_of_text(EARLY, Settings(recompute="auto", budget=512 + 1024)).report
    assert report.recompute.met
    assert report.memory.resident == 512 + 1024
    tight = plan_of_text(EARLY, Settings(recompute="auto", budget=512 + 1023)).report
    assert not tight.recompute.met
