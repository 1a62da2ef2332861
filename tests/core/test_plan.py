"""A plan says in its file what it says as data, and has one digest."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from builders import plan_of_text
from memplan_cli.core.results.bound_plan import with_bound_symbols
from memplan_cli.core.results.memory import BoundDim
from memplan_cli.core.results.placements import Release
from memplan_cli.core.results.plan import list_text
from memplan_cli.core.serialization import to_json
from memplan_cli.planning.plan_file import plan_from_json, read_plan
from memplan_cli.settings.settings import Settings
from planning.plan_cases import LEVEL2, PLANS, TEXT, of

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_plan_comes_back_as_it_was(level: int, tmp_path: Path) -> None:
    path = tmp_path / "a.memplan.json"
    path.write_text(PLANS[level].dumps(), encoding="utf-8")
    again = read_plan(path)
    assert again == PLANS[level]
    assert again.dumps() == PLANS[level].dumps()
    assert again.digest == PLANS[level].digest


def test_the_file_has_the_layout_of_the_contract() -> None:
    data = of(LEVEL2)
    assert list(data) == [
        "schema", "producer", "model", "settings", "order", "arenas", "tensors",
        "releases", "unplanned", "report",
    ]  # fmt: skip
    assert data["schema"] == "memplan.plan/1"
    assert data["producer"]["name"] == "memplan"
    assert set(data["model"]) == {"sha256", "graph_sha256"}
    assert set(data["arenas"][0]) == {"id", "unit", "height", "lower_bound", "alignment"}
    assert set(data["tensors"][0]) == {
        "name", "block", "dtype", "shape", "bytes", "arena", "offset", "slot", "first",
        "last", "alias_of", "pinned",
    }  # fmt: skip
    assert {block["block"] for block in data["order"]} == {
        "", "pick.then_branch", "pick.else_branch",
    }  # fmt: skip
    assert all(set(release) == {"step", "node", "tensors"} for release in data["releases"])
    assert data["unplanned"] == [{"name": "f", "reason": "excluded by 'f'"}]


def test_the_report_has_the_layout_of_the_contract() -> None:
    report = of(LEVEL2)["report"]
    wanted = {
        "schema", "model", "phase", "level", "coverage", "partial", "memory", "original",
        "levels", "peak", "recompute", "runtime", "validation", "reuses", "unplanned",
        "warnings",
    }  # fmt: skip
    assert wanted <= set(report)
    assert set(report["model"]) == {"path", "sha256", "nodes", "blocks", "intermediates"}
    assert set(report["memory"]) >= {
        "weights", "inputs", "outputs", "naive", "live_peak", "planned", "total",
        "order_bound", "order_proved",
    }  # fmt: skip
    assert set(report["original"]) == {"live_peak", "planned", "resident"}
    assert list(report["levels"]) == ["0", "1", "2"]
    assert set(report["peak"]) == {"step", "node", "tensors"}
    assert set(report["recompute"]) >= {"nodes", "flops_increase"}


def test_the_same_plan_has_the_same_bytes() -> None:
    settings_ = Settings(level=2, exclude=("f",))
    assert plan_of_text(TEXT, settings_).dumps() == LEVEL2.dumps()


def test_the_digest_is_about_what_was_decided_and_not_about_what_was_measured() -> None:
    data = of(LEVEL2)
    data["report"]["warnings"] = ["something new"]
    assert plan_from_json(data).digest == LEVEL2.digest
    data["tensors"][0]["offset"] += 64
    assert plan_from_json(data).digest != LEVEL2.digest


@pytest.mark.parametrize("level", [0, 1, 2])
def test_the_file_says_what_the_plan_says_as_data(level: int) -> None:
    plan = PLANS[level]
    assert json.loads(plan.dumps()) == to_json(plan)
    assert list(json.loads(plan.dumps())) == list(to_json(plan))


@pytest.mark.parametrize("count", [0, 1, 999, 1000, 1001, 2500])
def test_a_list_of_any_length_has_a_line_for_each_item(count: int) -> None:
    text = "".join(list_text(map(str, range(count))))
    assert json.loads(text) == list(range(count))
    assert text.count("\n") == (count + 1 if count else 0)


def test_a_name_that_is_no_text_has_a_digest() -> None:
    tensors = (LEVEL2.tensors[0]._replace(name="\ud800"),)
    assert len(replace(LEVEL2, tensors=tensors).digest) == 64


def test_names_that_json_must_escape_come_back_as_they_were() -> None:
    odd = 'a"b\\c\nd\x00é\u2028'
    tensors = tuple(t._replace(name=odd, pinned=odd, alias_of=odd) for t in LEVEL2.tensors[:1])
    plan = replace(LEVEL2, tensors=tensors, releases=(Release(1, odd, (odd, odd)),))
    assert json.loads(plan.dumps()) == to_json(plan)


def test_more_evidence_changes_the_file_and_not_the_digest() -> None:
    plan = plan_of_text(TEXT)
    assert plan.digest
    report = replace(plan.report, warnings=("measured",))
    more = plan.with_report(report)
    assert more == replace(plan, report=report)
    assert more.digest == plan.digest
    assert more.dumps() == replace(plan, report=report).dumps() != plan.dumps()


def test_a_dim_that_divides_by_zero_keeps_its_place_in_a_shape() -> None:
    plan = plan_of_text("g (float[n,4] x) => (float[n,4] y) { e = Exp(x) y = Neg(e) }")
    empty = plan.tensors[0]._replace(shape=("n", "floor(8/m)", 0), bytes=0)
    bindings = {"n": BoundDim(2, "given"), "m": BoundDim(0, "given")}
    report = replace(plan.report, bindings=bindings)
    bound = with_bound_symbols(replace(plan, tensors=(empty,), report=report))
    assert bound.tensors[0].shape == (2, "floor(8/m)", 0)
