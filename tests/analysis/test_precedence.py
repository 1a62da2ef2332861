"""Orders of a graph of indices: nearest to the one that is there, or by a rank."""

from __future__ import annotations

from dataclasses import replace

from builders import block, op
from memplan_cli.analysis.precedence import nearest_order, predecessors, successors


def test_nodes_in_order_stay_where_they_are() -> None:
    assert nearest_order([[1, 2], [3], [3], []]) == [0, 1, 2, 3]


def test_a_node_moves_behind_what_it_needs_and_no_further() -> None:
    needs = [[2], [], [], [0]]
    assert nearest_order(successors(needs)) == [1, 2, 0, 3]


def test_of_those_that_may_go_the_least_rank_goes_first() -> None:
    assert nearest_order([[], [], [0]], rank=lambda at: -at) == [2, 1, 0]


def test_a_circle_and_what_follows_it_is_left_out() -> None:
    assert nearest_order([[], [2], [1, 3], []]) == [0]


def test_an_op_that_reads_old_and_new_statistics_does_not_precede_itself() -> None:
    graph = block(
        "x scale bias mean variance",
        "y both",
        op("y new_mean new_variance <- x scale bias mean variance", kind="BatchNormalization"),
        op("both <- mean new_mean", kind="Add"),
    )
    assert predecessors(graph) == ((), (0,))


def test_who_reads_an_old_statistic_runs_before_a_normalization_writes_over_it() -> None:
    graph = block(
        "x scale bias mean variance",
        "y old_mean old_variance",
        op("old_mean <- mean"),
        op("old_variance <- variance"),
        op("y new_mean new_variance <- x scale bias mean variance", kind="BatchNormalization"),
    )
    assert predecessors(graph) == ((), (), (0, 1))


def test_a_value_of_a_name_that_a_subgraph_uses_stays_behind_it() -> None:
    branch = block("", "If.t/p", op("If.t/q <- x"), op("If.t/p <- If.t/q"))
    branch = replace(branch, path="If.t")
    either = op("b <- x", kind="If")._replace(bodies=(branch,))
    graph = block("x", "y", op("r <- x"), either, op("q <- r"), op("y <- b q"))
    assert predecessors(graph) == ((), (), (0, 1), (1, 2))
    # In a file that has the value before, no order can help.
    graph = block("x", "y", op("q <- x"), either, op("y <- b q"))
    assert predecessors(graph) == ((), (), (0, 1))
