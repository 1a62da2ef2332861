from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from memplan_cli.core.results.placements import BlockOrder
from memplan_cli.core.results.timeline import (
    curve,
    main_arena,
    moments,
    nodes_at,
    occupancies,
    peak_tick,
)
from memplan_cli.planning.plan_file import read_plan

if TYPE_CHECKING:
    from memplan_cli.core.results.plan import Plan

PLANS = Path(__file__).parents[1] / "golden" / "renderers" / "plans"


def plan_named(name: str) -> Plan:
    return read_plan(PLANS / f"{name}.memplan.json")


def ordered(*orders: tuple[str, str]) -> Plan:
    blocks = tuple(BlockOrder(block, tuple(nodes.split())) for block, nodes in orders)
    return replace(plan_named("branchy"), order=blocks)


def test_a_straight_line_takes_a_tick_a_node() -> None:
    got = [(m.start, m.end, m.label) for m in moments(ordered(("", "a b")))]
    assert got == [(0, 0, "a"), (1, 1, "b")]


def test_a_control_flow_node_begins_before_and_ends_after_its_subgraphs() -> None:
    plan = ordered(("", "a c b"), ("c.then_branch", "t u"), ("c.else_branch", "e"))
    got = [(m.start, m.end, m.label) for m in moments(plan)]
    assert got == [
        (0, 0, "a"),
        (1, 5, "c"),
        (2, 2, "c.then_branch/t"),
        (3, 3, "c.then_branch/u"),
        (4, 4, "c.else_branch/e"),
        (6, 6, "b"),
    ]
    assert nodes_at(plan)[5] == "c"


def test_a_nameless_control_flow_node_is_found_by_its_index() -> None:
    plan = ordered(
        ("", "#0 #1"), ("Loop#1.body", "#0 #1"), ("Loop#1.body/If#1.then_branch", "x")
    )
    got = [(m.start, m.end, m.node) for m in moments(plan)]
    assert got == [(0, 0, "#0"), (1, 6, "#1"), (2, 2, "#0"), (3, 5, "#1"), (4, 4, "x")]


def test_subgraphs_of_a_main_graph_that_is_missing_take_no_ticks() -> None:
    assert moments(ordered(("a.body", "x"), ("a.body/b.body", "y"))) == ()


@pytest.mark.parametrize("name", ["branchy", "train_level1"])
def test_the_highest_point_of_the_curve_is_the_live_peak_of_the_report(name: str) -> None:
    plan = plan_named(name)
    points = curve(plan, main_arena(plan))
    assert max(size for _, size in points) == plan.report.memory.live_peak
    assert plan.report.peak is not None
    assert dict(points)[peak_tick(points)] == plan.report.memory.live_peak


def test_the_clock_agrees_with_the_releases_of_the_plan() -> None:
    for name in ("branchy", "nested", "dynamic", "train_level1"):
        plan = plan_named(name)
        at = nodes_at(plan)
        for release in plan.releases:
            ending = release.node.rpartition("#")
            assert at[release.step].endswith((release.node, f"#{ending[2]}"))


def test_aliases_share_one_occupancy() -> None:
    plan = plan_named("branchy")
    items = occupancies(plan)
    assert sum(len(item.members) for item in items) == len(plan.tensors)
    assert {item.tensor.alias_of for item in items} == {None}
    assert any(len(item.members) > 1 for item in items)


def test_the_arena_to_draw_is_the_tallest() -> None:
    dynamic = main_arena(plan_named("dynamic"))
    assert dynamic is not None
    assert dynamic.height == max(a.height for a in plan_named("dynamic").arenas)
    assert main_arena(replace(plan_named("branchy"), arenas=())) is None
