"""Slots in plan files: which tensors may follow one another in one."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from builders import plan_of_text, read
from memplan_cli.api.rewrites import REWRITES
from memplan_cli.core.problem import Layout
from memplan_cli.errors import PlanError
from memplan_cli.packing.portfolio import portfolio
from memplan_cli.planning.candidate import Source
from memplan_cli.planning.plan_file import checked_plan
from memplan_cli.planning.planner import make_plan
from memplan_cli.settings.settings import Settings

if TYPE_CHECKING:
    from memplan_cli.core.problem import Problem
    from memplan_cli.settings.choices import Level

TEXT = """g (float[8,8] x) => (float[64] z)
<int64[1] flat = {64}> {
    a = MatMul(x, x) b = MatMul(a, a) c = Reshape(b, flat) d = Exp(c) e = Cos(d) z = Neg(e)
}"""


def stored(level: Level) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(plan_of_text(TEXT, Settings(level=level)).dumps())
    return found


def put_into_one_slot(data: dict[str, Any]) -> None:
    """Let a flat tensor follow a square one of as many bytes that is dead by then."""
    tensors = {tensor["name"]: tensor for tensor in data["tensors"]}
    square, flat = tensors["a"], tensors["d"]
    assert square["bytes"] == flat["bytes"]
    assert square["shape"] != flat["shape"]
    assert square["last"] <= flat["first"]
    flat["slot"], flat["offset"] = square["slot"], square["offset"]
    data["report"]["reuses"] += 1


def test_level_0_hands_a_slot_to_another_shape_in_no_file() -> None:
    data = stored(0)
    put_into_one_slot(data)
    with pytest.raises(PlanError, match="which level 0 does not allow"):
        checked_plan(data)


def test_level_1_hands_a_slot_to_another_shape() -> None:
    tensors = stored(1)["tensors"]
    shapes: dict[int, set[tuple[int, ...]]] = {}
    for tensor in tensors:
        shapes.setdefault(tensor["slot"], set()).add(tuple(tensor["shape"]))
    assert {(8, 8), (64,)} in shapes.values()
    checked_plan(stored(1))


def test_one_arena_of_level_2_may_have_slots_and_another_offsets() -> None:
    made = read("""g (float[n,n] x, float[8,8] w) => (float[n,n] z, float[8,8] v) {
        a = MatMul(x, x) b = MatMul(a, x) c = Exp(b) z = MatMul(a, c)
        s = MatMul(w, w) v = MatMul(s, w) }""")

    def too_high_with_symbols(problem: Problem) -> Layout:
        if problem.buffers[0].size == 8 * 8 * 4:
            return portfolio(problem)
        offsets = {buffer.id: 64 * place for place, buffer in enumerate(problem.buffers)}
        return Layout(offsets, 64 * len(offsets))

    source = Source("model.onnx", "0" * 64, "1" * 64)
    plan = make_plan(made, Settings(), source, REWRITES, allocate=too_high_with_symbols).plan
    assert [tensor.name for tensor in plan.tensors if tensor.slot is not None] == list("abc")
    assert plan.report.symbolic["live_peak"] == "max(256, 8*n*n)"
    assert checked_plan(json.loads(plan.dumps())) == plan


def test_the_peak_of_slots_at_level_2_cannot_be_left_out() -> None:
    made = read("""g (float[8,8] x) => (float[8,8] z) {
        a = MatMul(x, x) b = MatMul(a, x) c = MatMul(b, x) z = MatMul(c, x) }""")

    def side_by_side(problem: Problem) -> Layout:
        offsets = {buffer.id: 256 * place for place, buffer in enumerate(problem.buffers)}
        return Layout(offsets, 256 * len(offsets))

    source = Source("model.onnx", "0" * 64, "1" * 64)
    plan = make_plan(made, Settings(), source, REWRITES, allocate=side_by_side).plan
    assert [tensor.name for tensor in plan.tensors if tensor.slot is not None] == list("abc")
    checked_plan(json.loads(plan.dumps()))
    without_peak = plan.with_report(replace(plan.report, peak=None))
    with pytest.raises(PlanError, match="bytes of the tensors at the peak is recorded as 0"):
        checked_plan(json.loads(without_peak.dumps()))
