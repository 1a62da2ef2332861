from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from memplan_cli.core.serialization import to_json
from memplan_cli.planning.plan_file import read_plan
from memplan_cli.reporting.commands.diff import Kind, compare
from memplan_cli.reporting.snapshot import Snapshot, TensorFacts, snapshot_of

PLANS = Path(__file__).parents[1] / "golden" / "renderers" / "plans"


def facts(
    size: int = 8, steps: int = 2, read_by: str = "r", at_peak: int | None = None
) -> TensorFacts:
    return TensorFacts(size, steps, "w", read_by, size if at_peak is None else at_peak)


def snapshot(**tensors: TensorFacts) -> Snapshot:
    peak = sum(item.at_peak for item in tensors.values())
    metrics = {"live_peak": peak}
    return Snapshot(
        "m", "sha", 2, "test", 4, "1", "ort 1", metrics, peak_node="top", tensors=tensors
    )


@pytest.mark.parametrize(
    ("before", "after", "kind", "words"),
    [
        (None, facts(), Kind.NEW, "new, made by w"),
        (facts(8), facts(16), Kind.GREW, "grew from 8 B to 16 B"),
        (
            facts(at_peak=0),
            facts(steps=9, read_by="z"),
            Kind.LONGER,
            "lives until z, 9 steps",
        ),
        (facts(at_peak=0), facts(), Kind.ENTERED, "the peak is at top now"),
        (
            facts(steps=9, at_peak=0),
            facts(read_by="z"),
            Kind.ENTERED,
            "live until z; the peak",
        ),
        (facts(), None, Kind.GONE, "no longer in the model"),
        (facts(16), facts(8), Kind.SHRANK, "shrank from 16 B to 8 B"),
        (facts(steps=9), facts(steps=2, at_peak=0), Kind.SHORTER, "before until r, 9 steps"),
        (facts(), facts(at_peak=0), Kind.LEFT, "the peak is at top now"),
    ],
)
def test_what_happened_to_a_tensor_is_said_with_the_nodes_that_matter(
    before: TensorFacts | None, after: TensorFacts | None, kind: Kind, words: str
) -> None:
    old = snapshot(**({"a": before} if before else {}))
    new = snapshot(**({"a": after} if after else {}))
    (change,) = compare(old, new).changes
    assert change.kind is kind
    assert words in change.reason
    expected = (after.at_peak if after else 0) - (before.at_peak if before else 0)
    assert change.effect == expected


def test_sizes_in_reasons_are_said_as_everywhere() -> None:
    (change,) = compare(snapshot(a=facts(32768)), snapshot(a=facts(65536))).changes
    assert change.reason == "grew from 32.00 KiB to 64.00 KiB"


def test_other_sizes_of_an_input_of_both_models_are_said() -> None:
    one, other = (replace(snapshot(), shapes={"x": f"{n},3"}) for n in (2, 4))
    assert compare(one, other).notes == (
        "the graph is the same",
        "sizes: x=2,3 before, x=4,3 after",
    )
    assert compare(replace(one, shapes={"z": "2,3"}), other).notes == (
        "the graph is the same",
    )


def test_partial_totals_are_marked_and_explained() -> None:
    whole = snapshot()
    part = replace(whole, model="p", coverage=0.66666)
    found = compare(whole, part)
    assert to_json(found)["partial"] == {"before": False, "after": True}
    assert found.notes[1:] == (
        "coverage: 1 before, 0.667 after",
        "totals of p are partial: the sizes of 66.6% of the intermediates are known",
    )


def test_the_effects_add_up_to_the_change_of_the_peak() -> None:
    one, other = (
        snapshot_of(read_plan(PLANS / f"{name}.memplan.json"), name)
        for name in ("branchy", "train_level1")
    )
    found = compare(one, other)
    changed = other.metrics["live_peak"] - one.metrics["live_peak"]
    assert sum(change.effect for change in found.changes) == changed
    back = compare(other, one)
    assert sum(change.effect for change in back.changes) == -changed


def test_the_largest_effect_comes_first() -> None:
    old = snapshot(a=facts(8), b=facts(8))
    new = snapshot(a=facts(16), c=facts(64), b=facts(8))
    assert [change.tensor for change in compare(old, new).changes] == ["c", "a"]


def test_a_tensor_of_both_peaks_that_lives_longer_is_the_first_cause_of_a_moved_peak() -> None:
    old = snapshot(stem=facts(8, 4, "r0/Add"), r0_conv=facts(8), r0=facts(8, at_peak=0))
    new = snapshot(stem=facts(8, 8, "skip/Add"), r0_conv=facts(8, at_peak=0), r0=facts(16))
    changes = compare(old, replace(new, peak_node="r1_conv")).changes
    assert [(change.tensor, change.effect) for change in changes] == [
        ("stem", 0),
        ("r0", 16),
        ("r0_conv", -8),
    ]
    assert changes[0].kind is Kind.LONGER
    assert changes[0].reason.startswith("lives until skip/Add, 8 steps; before until r0/Add")
    assert "stem" not in {change.tensor for change in compare(old, new).changes}


def test_a_tensor_that_entered_the_peak_is_said_with_what_keeps_it() -> None:
    (change,) = compare(snapshot(a=facts(at_peak=0)), snapshot(a=facts())).changes
    assert change.reason == "live until r; the peak is at top now"


def test_equal_snapshots_have_no_difference() -> None:
    found = compare(snapshot(a=facts()), snapshot(a=facts()))
    assert found.changes == ()
    assert not any(metric.change for metric in found.metrics)
    assert found.notes == ("the graph is the same",)


def test_other_conditions_are_said() -> None:
    old = snapshot(a=facts())
    new = replace(old, graph_sha256="other", nodes=5, runtime="ort 2", level=1)
    assert compare(old, new).notes == (
        "+1 nodes: 4 before, 5 now",
        "level: 2 before, 1 after",
        "runtime: ort 1 before, ort 2 after",
    )


def test_level_0_is_a_level_and_no_runtime_is_said_to_be_not_known() -> None:
    old = snapshot(a=facts())
    assert compare(old, replace(old, level=0, runtime="")).notes == (
        "the graph is the same",
        "level: 2 before, 0 after",
        "runtime: ort 1 before, unknown after",
    )


def test_a_number_that_was_not_known_has_no_change() -> None:
    old = replace(snapshot(), metrics={"planned": 1})
    new = replace(snapshot(), metrics={"total": 2})
    assert [(m.name, m.change) for m in compare(old, new).metrics] == [
        ("planned", None),
        ("total", None),
    ]
