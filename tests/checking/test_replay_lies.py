"""A replay binds what the plan places, in the plan's order, or fails."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from lies import of_plans
from lies.told import nothing, tell
from memplan_cli.planning.plan_file import plan_from_json
from memplan_cli.runtime.replay.replay import replay_unchecked
from memplan_cli.runtime.workers.spec import RunConditions

if TYPE_CHECKING:
    from pathlib import Path

    from lies.told import Lie, Told
    from memplan_cli.runtime.replay.replay import ReplayResult


def replayed(base: str, lie: Lie, folder: Path) -> ReplayResult:
    written = tell(base, lie[1], folder)
    plan = plan_from_json(json.loads(written.with_suffix(".json").read_text()))
    return replay_unchecked(written, plan, RunConditions())


def stripped(told: Told) -> None:
    told.tensor("i")["name"] = "x"


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        (of_plans.rename, "places 'nobody', which no node of the model computes"),
        (stripped, "places 'x', which no node of the model computes"),
        (of_plans.early_consumer, "'n_b' reads 'a' before the plan's order makes it"),
        (of_plans.rename_node, "order has other nodes than the model"),
        (of_plans.drop_node, "order has other nodes than the model"),
    ],
)
def test_a_replay_of_a_lie_fails(lie: object, reason: str, tmp_path: Path) -> None:
    found = replayed("flat", ("flat", lie, reason), tmp_path)  # type: ignore[arg-type]
    assert found.status == "failed"
    assert reason in found.reason


def test_a_replay_runs_the_order_of_the_plan(tmp_path: Path) -> None:
    """Two nodes that do not need each other: either order gives the same outputs."""
    found = replayed("flat", ("flat", of_plans.swap_nodes, ""), tmp_path)
    assert found.reason == ""


def test_a_replay_counts_what_it_bound(tmp_path: Path) -> None:
    found = replayed("flat", ("flat", nothing, ""), tmp_path)
    assert (found.status, found.coverage.placed) == ("passed", 11)
