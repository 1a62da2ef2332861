"""A donated pair is safe in the order that is planned, and never costs more than it saves."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from builders import planned_program
from features.recompute_programs import Line, program, same_results, terms
from memplan_cli.analysis.aliasing import SHARE_NOTHING
from memplan_cli.analysis.phase import Phases
from memplan_cli.core.results.rewrites import RecomputeSummary
from memplan_cli.features.donation.transform import donate
from memplan_cli.planning.candidate import Candidate, PlanningTask, Runtime
from memplan_cli.settings.settings import Settings

if TYPE_CHECKING:
    from memplan_cli.core.program import Program
    from memplan_cli.planning.planner import PlannedProgram

READ_AND_UPDATED = (
    ("MatMul", "x in4", "b4"),
    ("Sub", "in4 x", "new4"),
    ("Exp", "b4", "y4"),
)


def planned(
    tested: Program, pairs: dict[str, str], runtime: Runtime | None = None
) -> PlannedProgram:
    return planned_program(tested, Settings(donate=pairs), runtime=runtime)


def order_of(found: PlannedProgram) -> list[str]:
    return [op.name for op in found.program.body.ops]


def backwards(made: Program, _: object) -> Program:
    """Run what can run early late: the last ready op of the file goes first."""
    ops, done = list(made.body.ops), set(made.body.inputs)
    taken = []
    while ops:
        last = next(op for op in reversed(ops) if done.issuperset(op.inputs))
        ops.remove(last)
        done.update(last.outputs)
        taken.append(last)
    return made.with_ops(taken)


def test_an_order_for_a_runtime_does_not_undo_a_donation() -> None:
    tested = program("x in4", "new4 y4", *READ_AND_UPDATED)
    runtime = Runtime(SHARE_NOTHING, backwards, lambda _: None)
    free = planned(tested, {}, runtime)
    assert order_of(free) == ["n1", "n0", "n2"], "alone, the update goes before the reader"
    found = planned(tested, {"in4": "new4"}, runtime)
    assert found.plan.report.donated.pairs == (("in4", "new4"),)
    assert order_of(found).index("n0") < order_of(found).index("n1")
    assert same_results(tested, found.program)


COSTLY = (
    ("Mul", "x64 x64", "sq64"),
    ("ReduceSum", "sq64", "loss1"),
    ("Exp", "x64", "t64"),
    ("Mul", "t64 lr1", "y64"),
)
"""``lr1`` is read last of all, and what ``loss1`` is made from would wait for that."""


def test_a_donated_plan_is_compared_with_the_order_of_the_file() -> None:
    tested = program(
        "x in4", "new4 y4", ("MatMul", "x", "a100"), ("MatMul", "x", "b100"),
        ("MatMul", "a100", "c4"), ("MatMul", "b100", "d4"), ("MatMul", "c4 d4", "y4"),
        ("Sub", "in4 x", "new4"),
    )  # fmt: skip
    report = planned(tested, {"in4": "new4"}).plan.report
    assert report.donated.pairs == (("in4", "new4"),)
    assert report.memory.planned == 4 * (100 + 4 + 4)
    assert report.original_planned == report.original_live_peak == 4 * (100 + 100 + 4)


def test_a_pair_that_costs_more_than_it_saves_is_refused_with_the_reason() -> None:
    tested = program("x64 lr1", "loss1 y64", *COSTLY)
    without, found = planned(tested, {}), planned(tested, {"lr1": "loss1"})
    (refused,) = found.plan.report.donated.refused
    assert refused.name == "lr1=loss1"
    assert refused.reason == (
        "n3 reads the input later, and to run it before takes more memory"
    )
    assert found.plan.report.memory == without.plan.report.memory


def test_a_pair_that_needs_no_other_order_is_made_beside_one_that_costs_too_much() -> None:
    lines: tuple[Line, ...] = (*COSTLY, ("Sub", "in4 y64", "new4"))
    tested = program("x64 lr1 in4", "loss1 y64 new4", *lines)
    found = planned(tested, {"lr1": "loss1", "in4": "new4"})
    assert found.plan.report.donated.pairs == (("in4", "new4"),)
    assert found.plan.report.donated.bytes == 16


def test_a_pair_never_breaks_a_budget() -> None:
    lines = (
        ("Mul", "x in40", "a4"),
        ("Sub", "a4 x", "new40"),
        ("Exp", "x", "c4"),
        ("MatMul", "c4 in40", "y4"),
    )
    tested = program("x in40", "new40 y4", *lines)
    start = Candidate(tested, terms(tested).sizes)
    task = PlanningTask(tested, terms(tested), Phases(), Settings(donate={"in40": "new40"}))
    assert donate(start, task).donated.pairs
    budget = task.planned_vars.resident.live_peak(tested)
    recomputed = replace(start, recompute=RecomputeSummary(budget=budget)), task
    in_chunks = start, replace(task, settings=replace(task.settings, budget=budget))
    for kept, same_task in (recomputed, in_chunks):
        found = donate(kept, same_task)
        assert not found.donated.pairs
        assert found.program is tested
    missed = replace(task, settings=replace(task.settings, budget=budget - 1))
    assert donate(start, missed).donated.pairs
