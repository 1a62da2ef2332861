"""Hints offer what can be bound, in words that a shell takes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from memplan_cli import api
from memplan_cli.core.results.rewrites import ChunkingSummary, RecomputeSummary
from memplan_cli.core.symbolic.dims import symbols_of
from memplan_cli.errors import PlanError, UnknownSizeError
from memplan_cli.reporting.commands.gate import Rules, judge
from memplan_cli.reporting.hints import (
    budget_message,
    report_command,
    unknown_sizes_hint,
)
from memplan_cli.reporting.plans.exports import require_fixed_sizes
from memplan_cli.reporting.snapshot import snapshot_of
from memplan_cli.settings.settings import Settings
from story import write

if TYPE_CHECKING:
    from pathlib import Path

    from memplan_cli.core.results.plan import Plan

MADE_UP = """g (float[batch,4] x) => (float[batch,4] y) <float[LayerNormh_dim_0,4] a> {
    a = Neg(x) y = Neg(a) }"""
"""A name that inference has an expression for."""

BY_DATA = """g (float[batch] x) => (float[u,1] y) <int64[1,found] i, int64[found,1] j> {
    i = NonZero(x) j = Transpose(i) y = Cast<to = 1>(j) }"""
"""How many there are, only a run can tell."""

UNKNOWN = "g (float[4] x) => (float[4] z) { a = Exp(x) k = NonZero(a) z = Neg(a) }"
"""Without a run nothing is known of the size of k, which has no name for it either."""


def planned(folder: Path, text: str) -> Plan:
    return api.plan(write(folder / "m.onnx", text), Settings(run=False))


def test_a_made_up_name_that_inference_can_express_is_no_symbol(tmp_path: Path) -> None:
    plan = planned(tmp_path, MADE_UP)
    assert {name for arena in plan.arenas for name in symbols_of(arena.unit)} == {"batch"}
    with pytest.raises(PlanError) as told:
        require_fixed_sizes(plan)
    assert told.value.hint == "--dim batch=1 makes them known"


def test_dims_of_symbolic_sizes_are_offered_for_binding_if_a_run_is_allowed_too(
    tmp_path: Path,
) -> None:
    plan = api.plan(write(tmp_path / "m.onnx", MADE_UP), Settings())
    with pytest.raises(PlanError) as told:
        require_fixed_sizes(plan)
    assert told.value.hint == "--dim batch=1 makes them known"


def test_no_dim_is_offered_for_sizes_that_a_run_did_not_tell(tmp_path: Path) -> None:
    """Texts have no known size, whatever the batch is."""
    text = "g (float[batch,4] x) => (float[batch,4] z) { s = Cast<to = 8>(x) y = Cast<to = 1>(s) a = Exp(x) z = Add(y, a) }"
    plan = api.plan(write(tmp_path / "m.onnx", text), Settings())
    assert plan.report.partial
    assert any("batch" in symbols_of(arena.unit) for arena in plan.arenas)
    assert "--dim" not in unknown_sizes_hint(plan)


def test_what_only_a_run_can_tell_is_not_offered_for_binding(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", BY_DATA)
    plan = api.plan(path, Settings(run=False))
    assert any("found" in symbols_of(arena.unit) for arena in plan.arenas)
    with pytest.raises(PlanError) as told:
        require_fixed_sizes(plan)
    assert "--dim found" not in told.value.hint
    assert told.value.hint == "--dim batch=1 --run makes them known"
    with pytest.raises(UnknownSizeError) as told_by_gate:
        judge(snapshot_of(plan, "m"), None, Rules(metrics=("planned",), max_memory=1))
    assert "--dim found" not in told_by_gate.value.hint
    assert told_by_gate.value.hint == told.value.hint


def test_what_was_counted_already_is_not_offered_again(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", UNKNOWN)
    offered = "--allow-partial counts the known sizes only"
    alone = api.plan(path, Settings(run=False))
    assert offered in unknown_sizes_hint(alone)
    counted = api.plan(path, Settings(run=False, allow_partial=True))
    assert counted.report.partial
    assert counted.report.memory.planned is not None
    assert offered not in unknown_sizes_hint(counted)


def test_dims_that_were_assumed_in_vain_are_not_offered(tmp_path: Path) -> None:
    text = """g (float[n,4] x) => (float[n,4] y) {
        o = com.acme.Nobody(x) e = Neg(o) y = Relu(e) }"""
    plan = api.plan(write(tmp_path / "m.onnx", text))
    assert "n" in plan.report.bindings
    with pytest.raises(UnknownSizeError) as told:
        judge(snapshot_of(plan, "m"), None, Rules(metrics=("planned",), max_memory=1))
    assert told.value.hint == "--allow-partial counts the known sizes only"


def test_a_command_names_the_model_as_a_shell_takes_it(tmp_path: Path) -> None:
    report = planned(tmp_path, MADE_UP).report
    odd = replace(report, model=replace(report.model, path="-my model.onnx"))
    wanted = "memplan report './-my model.onnx' --dim batch=1"
    assert report_command(odd) == wanted


def test_a_whole_command_keeps_the_numbers_that_were_given(tmp_path: Path) -> None:
    text = "g (float[batch,n,4] x) => (float[batch,n,4] y) { a = Neg(x) y = Neg(a) }"
    path = write(tmp_path / "m.onnx", text)
    given = api.plan(path, Settings(dims={"batch": 3})).report
    assert report_command(given).endswith("m.onnx --dim batch=3 --dim n=1")
    whole = api.plan(path, Settings(dims={"batch": 3, "n": 2})).report
    assert not report_command(whole)


def test_a_missed_budget_of_unknown_sizes_names_no_size() -> None:
    message = budget_message(None, RecomputeSummary(), ChunkingSummary(budget=1024, met=False))
    assert message == "the budget of 1.00 KiB cannot be met: some sizes are unknown"


def test_a_missed_budget_has_the_bound_that_is_known() -> None:
    summary = RecomputeSummary(budget=1024, met=False, bound=2048, resident_bound=3072)
    assert "lower bound: 3.00 KiB for any order, with outputs" in budget_message(4096, summary)
