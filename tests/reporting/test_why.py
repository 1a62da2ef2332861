from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplan_cli.core.results.placements import BlockOrder, Placement, PlannedArena
from memplan_cli.errors import PlanError, SettingsError
from memplan_cli.planning.plan_file import read_plan
from memplan_cli.reporting.commands.why import why_peak, why_tensor

if TYPE_CHECKING:
    from memplan_cli.core.results.plan import Plan

PLANS = Path(__file__).parents[1] / "golden" / "renderers" / "plans"


def plan_named(name: str) -> Plan:
    return read_plan(PLANS / f"{name}.memplan.json")


def tensor(name: str, offset: int, size: int, first: int, last: int) -> Placement:
    return Placement(name, "", "float32", (size,), size, 0, offset, None, first, last)


def skip_plan() -> Plan:
    """A chain of a, b, c, d below a skip that waits from tick 0 to tick 4."""
    tensors = (
        tensor("skip", 0, 100, 0, 5),
        tensor("b", 100, 50, 1, 3),
        tensor("c", 150, 60, 2, 4),
        tensor("d", 100, 10, 4, 6),
    )
    order = (BlockOrder("", ("n0", "n1", "n2", "n3", "n4", "n5")),)
    arena = PlannedArena(0, "1", 210, 210, 1)
    return replace(plan_named("branchy"), tensors=tensors, arenas=(arena,), order=order)


def test_the_live_set_at_the_peak_has_producers_readers_and_shares() -> None:
    story = why_peak(skip_plan())
    assert (story.step, story.node, story.bytes) == (2, "n2", 210)
    assert [(row.tensor, row.bytes, row.made_by, row.read_by) for row in story.rows] == [
        ("skip", 100, "n0", "n4"),
        ("c", 60, "n2", "n3"),
        ("b", 50, "n1", "n2"),
    ]


def test_what_waits_longest_lowers_the_peak_most() -> None:
    story = why_peak(skip_plan())
    without = {row.tensor: row.peak_without for row in story.rows}
    # Without the skip between ticks 1 and 3 most is live at tick 2: b and c, 110 bytes;
    # at ticks 0 and 4 it is there. What is made or read at the peak cannot go.
    assert without == {"skip": 110, "c": 210, "b": 210}
    assert story.best is not None
    assert story.best.tensor == "skip"


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 6), st.integers(1, 9)), min_size=1)
)
def test_the_peak_without_a_tensor_is_what_counting_again_gives(
    lives: list[tuple[int, int, int]],
) -> None:
    offsets = list(accumulate((size for _, _, size in lives), initial=0))
    tensors = tuple(
        tensor(f"t{n}", offsets[n], size, first, first + steps)
        for n, (first, steps, size) in enumerate(lives)
    )
    arena = PlannedArena(0, "1", offsets[-1], 0, 1)
    plan = replace(skip_plan(), tensors=tensors, arenas=(arena,))
    story = why_peak(plan)
    for row in story.rows:
        gone = plan.by_id[row.tensor]
        counted = [
            sum(t.bytes for t in tensors if t.first <= tick < t.last)
            - (gone.bytes if gone.first < tick < gone.last - 1 else 0)
            for tick in range(20)
        ]
        assert row.peak_without == max(counted)


def test_the_bytes_at_the_peak_add_up_to_it() -> None:
    for name in ("branchy", "train_level1", "dynamic"):
        story = why_peak(plan_named(name))
        assert sum(row.bytes for row in story.rows) == story.bytes


def test_an_empty_plan_has_no_peak() -> None:
    plan = replace(skip_plan(), tensors=(), arenas=())
    with pytest.raises(PlanError, match="no peak") as error:
        why_peak(plan)
    assert f"`memplan report {plan.report.model.path}`" in error.value.hint


def test_a_tensor_has_a_story() -> None:
    story = why_tensor(skip_plan(), "d")
    assert (story.made_by, story.read_by, story.before) == ("n4", "n5", "b")
    assert not story.at_peak
    first = why_tensor(skip_plan(), "b")
    assert first.before is None
    assert first.reason == "first use of this memory range"
    assert first.after == ("d",)
    assert first.at_peak


def test_what_shares_bytes_is_named_with_who_holds_them_longest() -> None:
    plan = plan_named("branchy")
    shared = next(t for t in plan.tensors if t.alias_of)
    story = why_tensor(plan, shared.id)
    assert shared.alias_of in story.shares
    longest = max(
        (t for t in plan.tensors if shared.alias_of in (t.alias_of, t.id)),
        key=lambda t: (t.last, t.id),
    )
    assert story.held_by == longest.id


def test_an_excluded_tensor_says_who_excluded_it() -> None:
    story = why_tensor(plan_named("branchy"), "fc1")
    assert story.tensor.pinned == "excluded by 'fc1'"
    assert story.reason == "excluded by 'fc1'"
    assert story.read_by == ""


def test_a_name_that_is_not_there_brings_the_nearest() -> None:
    with pytest.raises(SettingsError, match="no tensor 'b0_rleu'") as caught:
        why_tensor(plan_named("branchy"), "b0_rleu")
    assert "b0_relu" in caught.value.hint


def test_the_name_alone_of_a_tensor_in_a_body_brings_its_full_name() -> None:
    plan = plan_named("nested")
    full = next(tensor for tensor in plan.tensors if tensor.block)
    with pytest.raises(SettingsError) as caught:
        why_tensor(plan, full.name)
    assert f"did you mean {full.id}" in caught.value.hint


def test_a_name_that_resembles_nothing_brings_what_a_plan_leaves_out() -> None:
    with pytest.raises(SettingsError) as caught:
        why_tensor(plan_named("branchy"), "x")
    assert "inputs, graph outputs and weights are never planned" in caught.value.hint


def test_a_tensor_that_is_not_planned_says_why() -> None:
    plan = plan_named("nested")
    name = plan.report.unplanned[0].name
    with pytest.raises(SettingsError, match="is not planned: its shape is not known"):
        why_tensor(plan, name)
