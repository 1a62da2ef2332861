"""Which results of branches share the bytes of what the If gives, and which must not."""

from __future__ import annotations

import pytest

from analysis.test_aliasing import groups
from builders import block, op, program, var_sizes
from memplan_cli.analysis.aliasing import SHARE_NOTHING, SHARE_SAFELY, share_storage
from memplan_cli.analysis.defining_blocks import defining_blocks
from memplan_cli.analysis.storage import live_peak
from memplan_cli.core.program import Block, VarId

MADE = op("a <- x")
END = op("z <- y")


def choice(then: Block, other: Block, *after: str) -> Block:
    """Return a block of an op that makes ``a``, an If that gives ``y``, and a last one."""
    last = op(f"z <- y {' '.join(after)}")
    return block("x", "z", MADE, op("y <- x", then, other, kind="If"), last)


THEN = block("", "r", op("t <- a"), op("r <- t"))
OTHER = block("", "s", op("u <- a"), op("s <- u"))
SHORT = block("", "p", op("p <- a"))


def test_the_results_of_both_branches_are_the_output() -> None:
    assert groups(choice(THEN, OTHER)) == {"r s y"}


def test_levels_below_2_share_nothing() -> None:
    assert groups(choice(THEN, OTHER), aliasing=SHARE_NOTHING) == set()


def test_the_buffer_is_named_by_the_oldest_result() -> None:
    made = program(choice(THEN, OTHER))
    assert share_storage(made, var_sizes(made))[VarId("y")] == "r"
    inner = block("", "s", op("s <- a", THEN, block("", "v", op("v <- a")), kind="If"))
    made = program(choice(inner, SHORT))
    assert share_storage(made, var_sizes(made))[VarId("y")] == "r"


def test_nested_ifs_chain() -> None:
    inner = block("", "s", op("s <- a", THEN, block("", "v", op("v <- a")), kind="If"))
    assert groups(choice(inner, SHORT)) == {"p r s v y"}
    assert groups(choice(SHORT, inner)) == {"p r s v y"}


@pytest.mark.parametrize(
    ("given_through", "shared"),
    [
        (block("", "a"), {"r y"}),
        (block("", "w"), {"r y"}),
        (block("", "v", op("v <- a", kind="Identity")), {"a v", "r y"}),
    ],
    ids=["a capture", "a weight", "a view of a capture"],
)
def test_what_a_branch_only_passes_through_is_copied(
    given_through: Block, shared: set[str]
) -> None:
    assert groups(choice(THEN, given_through, "a"), weights="w") == shared
    assert groups(choice(given_through, THEN, "a"), weights="w") == shared


def test_a_view_made_of_what_the_branch_made_is_a_result_like_any() -> None:
    view = block("", "v", op("t <- a"), op("v <- t", kind="Reshape"))
    assert groups(choice(view, OTHER)) == {"s t v y"}


def test_one_result_for_two_outputs_shares_with_none() -> None:
    twice = block("", "t t", op("t <- a"))
    views = block("", "t v", op("t <- a"), op("v <- t", kind="Reshape"))
    two = block("", "p q", op("p <- a"), op("q <- a"))
    for then, left in ((twice, set()), (views, {"t v"})):
        top = block("x", "z", MADE, op("y k <- x", then, two, kind="If"), op("z <- y k"))
        assert groups(top) == {"p y", "k q"} | left


def test_each_output_takes_the_results_at_its_own_place() -> None:
    one = block("", "p q", op("p <- a"), op("q <- a"))
    two = block("", "r s", op("s <- a"), op("r <- a"))
    top = block("x", "z", MADE, op("y k <- x", one, two, kind="If"), op("z <- y k"))
    assert groups(top) == {"p r y", "k q s"}


def test_graph_outputs_share_no_storage_with_branch_results() -> None:
    top = block("x", "y", MADE, op("y <- x", THEN, OTHER, kind="If"))
    assert groups(top) == set()


def test_sizes_must_be_equal() -> None:
    assert groups(choice(THEN, OTHER), sizes={"r": 8}) == {"s y"}
    assert groups(choice(THEN, OTHER), sizes={"y": 8}) == set()


def test_excluded_results_and_outputs_share_with_nobody() -> None:
    assert groups(choice(THEN, OTHER), "r") == {"s y"}
    assert groups(choice(THEN, OTHER), "y") == set()


def test_an_op_of_another_kind_or_domain_may_run_both_bodies() -> None:
    for kind, domain in (("Both", ""), ("If", "local")):
        control_flow = op("y <- x", THEN, OTHER, kind=kind, domain=domain)
        assert groups(block("x", "z", MADE, control_flow, END)) == set()


def test_carried_values_of_a_loop_share_no_storage() -> None:
    body = block("c", "r", op("r <- c"))
    assert groups(block("x", "z", op("y <- x", body, kind="Loop"), END)) == set()


def test_an_if_in_a_loop_shares_like_any() -> None:
    inner = op("k <- c", block("", "r", op("r <- c")), block("", "c"), kind="If")
    body = block("c", "k", inner)
    assert groups(block("x", "z", op("y <- x", body, kind="Loop"), END)) == {"k r"}


def test_in_place_results_in_both_branches_lie_where_the_output_does() -> None:
    then = block("", "r", op("t <- a"), op("r <- t", kind="Relu"))
    other = block("", "s", op("u <- a"), op("s <- u", kind="Tanh"))
    assert groups(choice(then, other)) == {"r s t u y"}


def test_a_result_replaces_a_capture_that_dies_in_the_first_branch() -> None:
    then = block("", "r", op("r <- a", kind="Relu"))
    assert groups(choice(then, block("", "s", op("s <- x")))) == {"a r s y"}


def test_a_result_does_not_replace_a_capture_that_another_branch_reads_beside_its_own() -> (
    None
):
    """The first branch reads the capture when its result, the same bytes, is there."""
    then = block("", "r", op("r <- x"), op("t <- r a"))
    other = block("", "s", op("s <- a", kind="Relu"))
    assert groups(choice(then, other)) == {"r s y"}


def test_what_dies_outside_of_all_branches_is_replaced_by_the_output() -> None:
    top = block(
        "x", "z", MADE, op("y <- x", THEN, OTHER, kind="If"), op("b <- y", kind="Relu"),
        op("z <- b"),
    )  # fmt: skip
    assert groups(top) == {"b r s y"}


def test_the_output_is_live_from_the_first_branchs_result_on() -> None:
    made = program(choice(THEN, OTHER), sizes={"t": 50, "u": 60, "r": 7, "s": 7, "y": 7})
    assert live_peak(made, var_sizes(made)) == 4 + 60 + 7
    made = program(choice(THEN, OTHER), sizes={"t": 50, "u": 60, "r": 7, "s": 8, "y": 9})
    assert live_peak(made, var_sizes(made)) == 60 + 7 + 8


def test_only_branches_of_one_op_are_exclusive() -> None:
    two = block("", "c", op("c <- x", block("", "e", op("e <- x")), kind="If"))
    top = block(
        "x", "z", op("y <- x", block("", "a", op("a <- x")), two, kind="If"),
        op("k <- x", block("", "b", op("b <- x")), kind="If"),
        op("m <- x", block("", "f", op("f <- x")), block("", "g", op("g <- x")), kind="Both"),
        op("z <- y k m"),
    )  # fmt: skip
    blocks = defining_blocks(program(top), SHARE_SAFELY.runs_one_body)
    met = {
        f"{one} {other}"
        for one in "abcefgy"
        for other in "abcefgy"
        if one < other and blocks.are_exclusive(VarId(one), VarId(other))
    }
    assert met == {"a c", "a e"}
    assert [choice.op.outputs for choice in blocks.branch_ops] == [("c",), ("y",), ("k",)]


def test_branches_in_subgraphs_that_both_run_are_not_exclusive() -> None:
    def branching(name: str) -> Block:
        bodies = block("", f"{name}1", op(f"{name}1 <- x")), block("", "x")
        swapped = bodies if name == "p" else bodies[::-1]
        return block("", name, op(f"{name} <- x", *swapped, kind="If"))

    top = block("x", "z", op("y k <- x", branching("p"), branching("q"), kind="Both"), END)
    blocks = defining_blocks(program(top), SHARE_SAFELY.runs_one_body)
    assert not blocks.are_exclusive(VarId("p1"), VarId("q1"))
