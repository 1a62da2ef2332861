"""Plans for all values of the symbols, held against ten bindings each."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.dynamic import CASES, SHARED, Case, found_wrong, planned, static_model
from memplan_cli import workflows
from memplan_cli.settings.settings import Settings

pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason=f"{SHARED} is not there")

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@every_case
def test_a_plan_for_all_values_is_safe_at_ten_bindings(case: Case) -> None:
    plan = planned(case, {})
    assert plan.report.coverage == 1.0
    for dims in case.bindings():
        assert found_wrong(case, plan, dims) == []


@every_case
def test_a_bound_model_gives_the_figures_of_a_static_one(case: Case) -> None:
    bound = planned(case, case.complete(case.bound)).report
    static = planned(case, {}, static_model(case)).report
    assert bound.memory == static.memory
    assert bound.memory.total is not None
    assert bound.levels == static.levels


def test_the_check_notices_a_tensor_that_lies_elsewhere() -> None:
    case = CASES[0]
    plan = planned(case, {})
    shared = {t.alias_of for t in plan.tensors if t.alias_of}
    alone = [t for t in plan.tensors if t.id not in shared and not t.alias_of and t.offset]
    chosen = max(alone, key=lambda t: (t.bytes, t.id))
    moved = tuple(t._replace(offset=0) if t.id == chosen.id else t for t in plan.tensors)
    wrong = [found_wrong(case, replace(plan, tensors=moved), dims) for dims in case.bindings()]
    assert all(wrong)


def test_bounds_let_tensors_of_different_symbols_share_memory() -> None:
    path = SHARED / "moe_sparse.onnx"
    dims = {f"u{n}": 256 for n in range(16)}
    apart = planned(CASES[4], {})
    together = workflows.plan(
        path, Settings(bounds=dict.fromkeys(dims, (0, 256)), order="keep")
    )
    largest = sum(a.height * (256 if a.unit != "1" else 1) for a in apart.arenas)
    assert together.report.memory.planned is not None
    assert together.report.memory.planned < largest / 10
    assert [arena.unit for arena in together.arenas] == ["1"]
