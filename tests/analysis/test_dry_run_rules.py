"""Each rule of the dry run on the smallest network that shows it."""

from __future__ import annotations

from analysis.test_dry_run import network
from memplan_cli.analysis.dry_run import DryRun, dry_run


def test_gradients_of_a_chain_are_returned_as_the_backward_pass_goes_on() -> None:
    program, sizes = network(
        ("Add", "x w1", "a10"), ("Add", "a10 w2", "b11"), ("Add", "b11 w3", "c12"),
        ("Add", "c12 w3", "d13"), ("Add", "d13 w3", "e14"), outputs="e14",
    )  # fmt: skip
    # Two slots hold the data by turns, two the gradients: that of e stays, and no more than
    # one of a layer's result and one of its input are there together.
    assert dry_run(program, sizes).slots == 4


def test_a_sum_of_one_input_is_that_input() -> None:
    program, sizes = network(
        ("Conv", "x w1", "a100"), ("Sum", "a100", "b100"), ("Conv", "b100 w2", "c10"),
        outputs="c10",
    )  # fmt: skip
    assert dry_run(program, sizes).raw == 2 * (100 + 10)


def test_what_lies_over_another_value_is_overwritten_by_nobody() -> None:
    program, sizes = network(
        ("Conv", "x w1", "a100"), ("Relu", "a100", "b100"), ("Relu", "b100", "c100"),
        ("Conv", "c100 w2", "d10"), outputs="d10",
    )  # fmt: skip
    assert dry_run(program, sizes).raw == 2 * (100 + 100 + 10)


def test_a_result_of_the_network_shares_with_nobody() -> None:
    program, sizes = network(
        ("Conv", "x w1", "a100"), ("Relu", "a100", "b100"), outputs="a100 b100"
    )
    assert dry_run(program, sizes) == DryRun(400, 400, 4)
