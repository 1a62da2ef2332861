"""Each condition of a fusion is needed: without it a best order would be lost, or made up."""

from __future__ import annotations

import pytest

from memplan_cli.checking.certificates.groups import GroupGraph, NodeGroup, fuse_groups
from memplan_cli.checking.certificates.planned_graph import ProofError
from memplan_cli.core.results.certificate import Fusion


def tasks(weight: dict[str, int], **groups: tuple[str, str, int]) -> GroupGraph:
    """Return groups ``g0``, ``g1``: what each begins, what it reads, and what its step takes.

    Who reads waits for who begins.
    """
    made: dict[int, NodeGroup] = {}
    users: dict[str, set[int]] = {name: set() for name in weight}
    begun: dict[str, int] = {}
    for name, (begins, reads, need) in groups.items():
        group = int(name[1:])
        task = NodeGroup(produced=set(begins.split()), need=need)
        task.used = task.produced | set(reads.split())
        made[group] = task
        begun |= dict.fromkeys(task.produced, group)
        for tensor in task.used:
            users[tensor].add(group)
    for group, task in made.items():
        task.predecessors = {begun[tensor] for tensor in task.used - task.produced}
        for other in task.predecessors:
            made[other].successors.add(group)
    return GroupGraph(made, weight, users, 0)


def test_an_early_fusion_frees_what_it_begins() -> None:
    given = tasks({"a": 4, "b": 4}, g0=("a", "", 9), g1=("b", "a", 4), g2=("", "b", 0))
    fuse_groups(given, [Fusion(1, 0, "early")])
    assert set(given.groups) == {0, 2}
    assert given.groups[0].produced == {"b"}
    assert given.groups[0].successors == {2}
    assert given.groups[2].predecessors == {0}


def test_an_early_fusion_that_leaves_more_behind_is_refused() -> None:
    """Run at once, it would keep 8 bytes where 4 were live until somebody needs them."""
    given = tasks({"a": 4, "b": 8}, g0=("a", "", 12), g1=("b", "a", 8), g2=("", "b", 0))
    with pytest.raises(ProofError, match="it leaves more live"):
        fuse_groups(given, [Fusion(1, 0, "early")])


def test_an_early_fusion_frees_nothing_that_a_third_one_reads() -> None:
    given = tasks(
        {"a": 4, "b": 4}, g0=("a", "", 9), g1=("b", "a", 4), g2=("", "b", 0), g3=("", "a", 0)
    )
    with pytest.raises(ProofError, match="it leaves more live"):
        fuse_groups(given, [Fusion(1, 0, "early")])


def test_an_early_fusion_that_takes_more_at_its_step_is_refused() -> None:
    given = tasks({"a": 4, "b": 4}, g0=("a", "", 7), g1=("b", "a", 4), g2=("", "b", 0))
    with pytest.raises(ProofError, match="its step needs more"):
        fuse_groups(given, [Fusion(1, 0, "early")])


def test_who_waits_for_others_is_fused_early_with_nobody() -> None:
    given = tasks({"a": 4, "b": 4}, g0=("a", "", 9), g1=("b", "", 9), g2=("", "a b", 0))
    with pytest.raises(ProofError, match="it waits for other groups too"):
        fuse_groups(given, [Fusion(2, 0, "early")])


def test_a_group_replaces_nothing_that_lives_until_the_end_of_what_joined_it() -> None:
    """What the first of the two could write over is read by the second: nothing is saved."""
    given = tasks(
        {"x": 4, "a": 4, "b": 4},
        g0=("x", "", 4), g1=("a", "x", 8), g2=("b", "a x", 4), g3=("", "b", 0),
    )  # fmt: skip
    given.groups[2].predecessors = {1}
    given.groups[0].successors = {1}
    given.groups[1].replaceable, given.groups[1].saved_bytes = {"x"}, 4
    fuse_groups(given, [Fusion(2, 1, "early")])
    assert given.groups[1].replaceable == set()
    assert given.possible_saving(1) == 0


def test_a_group_still_replaces_what_the_one_that_joined_it_does_not_read() -> None:
    given = tasks(
        {"x": 4, "a": 4, "b": 4},
        g0=("x", "", 4), g1=("a", "x", 8), g2=("b", "a", 4), g3=("", "b", 0),
    )  # fmt: skip
    given.groups[1].replaceable, given.groups[1].saved_bytes = {"x"}, 4
    fuse_groups(given, [Fusion(2, 1, "early")])
    assert given.groups[1].replaceable == {"x"}
    assert given.possible_saving(1) == 4


def test_a_late_fusion_takes_what_both_take() -> None:
    given = tasks({"a": 4, "b": 2}, g0=("a", "", 4), g1=("b", "a", 2), g2=("", "b", 0))
    fuse_groups(given, [Fusion(0, 1, "late")])
    assert given.groups[1].need == 6
    assert given.groups[1].predecessors == set()
    assert "a" not in given.users


def test_a_late_fusion_into_what_takes_less_is_refused() -> None:
    given = tasks({"a": 4, "b": 2}, g0=("a", "", 7), g1=("b", "a", 2), g2=("", "b", 0))
    with pytest.raises(ProofError, match="its step needs more"):
        fuse_groups(given, [Fusion(0, 1, "late")])


def test_a_late_fusion_of_what_frees_something_is_refused() -> None:
    given = tasks({"a": 4, "b": 2}, g0=("a", "", 4), g1=("b", "a", 2), g2=("", "b", 0))
    with pytest.raises(ProofError, match="it frees a tensor"):
        fuse_groups(given, [Fusion(1, 2, "late")])


def test_a_late_fusion_of_what_others_wait_for_is_refused() -> None:
    given = tasks({"a": 4}, g0=("a", "", 4), g1=("", "a", 2), g2=("", "a", 0))
    with pytest.raises(ProofError, match="other groups wait for it too"):
        fuse_groups(given, [Fusion(0, 1, "late")])


@pytest.mark.parametrize("rule", ["late", "early"])
def test_a_group_is_not_fused_with_itself(rule: str) -> None:
    given = tasks({"a": 4}, g0=("a", "", 4), g1=("", "a", 2))
    with pytest.raises(ProofError, match="it is one group"):
        fuse_groups(given, [Fusion(0, 0, rule)])
