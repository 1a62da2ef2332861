"""Programs can be walked, whatever nests in what."""

from __future__ import annotations

import pytest

from builders import block, ids, op, program
from memplan_cli.core.program import (
    Op,
    Origin,
    VarId,
    blocks,
    captures,
    intermediates,
    walk,
)

INNER = block("i", "r", op("t <- i w"), op("r <- t"))
OUTER = block("j", "s", op("u <- j"), op("q <- u", INNER, kind="Loop"), op("s <- q v"))
TOP = block("x w v", "z", op("y <- x"), op("p <- y", OUTER, kind="Loop"), op("z <- p"))


def test_walk_yields_subgraphs_after_their_op_and_before_its_successor() -> None:
    got = [each.name for _, each in walk(TOP)]
    assert got == ["y", "p", "u", "q", "t", "r", "s", "z"]


def test_walk_yields_two_subgraphs_in_their_order() -> None:
    first, second = block("", "a", op("a <- x")), block("", "b", op("b <- x"))
    top = block("c x", "y", op("y <- c", first, second, kind="If"))
    assert [each.name for _, each in walk(top)] == ["y", "a", "b"]


def test_walk_says_which_block_each_op_is_in() -> None:
    assert {each.name: inner for inner, each in walk(TOP)}["t"] is INNER


def test_walk_goes_deeper_than_the_interpreter_recurses() -> None:
    nested = block("", "v0", op("v0 <- x"))
    for depth in range(1, 3000):
        nested = block("", f"v{depth}", op(f"v{depth} <- c", nested, kind="If"))
    assert sum(1 for _ in walk(nested)) == 3000
    assert sum(1 for _ in blocks(nested)) == 3000


def test_blocks_come_outer_ones_first() -> None:
    assert [inner.inputs for inner in blocks(TOP)] == [ids("x w v"), ids("j"), ids("i")]


def test_captures_of_a_subgraph_are_what_it_or_a_deeper_one_reads_from_outside() -> None:
    assert captures(INNER) == ids("w")
    assert set(captures(OUTER)) == set(ids("v w"))
    assert captures(TOP) == ()


def test_a_subgraph_that_only_passes_a_value_through_captures_it() -> None:
    assert captures(block("", "x", op("t <- y"))) == ids("y x")


def test_an_omitted_input_is_no_capture() -> None:
    assert captures(block("a", "b", op("b <- a _"))) == ()


def test_intermediates_are_what_ops_make_less_the_results_plus_what_subgraphs_are_given() -> (
    None
):
    made = program(block("x", "z", op("k <-", kind="Constant"), op("z <- x k")), weights="")
    assert intermediates(made) == ids("k")
    everything = set(intermediates(program(TOP)))
    assert everything == set(ids("y p u q s j t r i"))


def test_weights_are_no_intermediates() -> None:
    made = program(block("x", "y", op("y <- x w")), weights="w")
    assert made.vars[VarId("w")].origin is Origin.WEIGHT
    assert intermediates(made) == ()


@pytest.mark.parametrize("kind", ["Loop", "Scan", "SequenceMap"])
def test_an_op_that_may_run_its_subgraph_again_repeats(kind: str) -> None:
    assert op("y <- x", block("i", "o", op("o <- i")), kind=kind).repeats


def test_an_if_and_an_op_without_subgraphs_do_not_repeat() -> None:
    assert not op("y <- c", block("", "o", op("o <- x")), kind="If").repeats
    assert not op("y <- x", kind="Scan").repeats


def test_an_op_reads_each_input_once_and_no_omitted_one() -> None:
    assert op("y <- x w x").reads == ids("x w")
    assert Op("", "Clip", (*ids("x"), VarId(""), *ids("top")), ids("y")).reads == ids("x top")


def test_a_nameless_op_goes_by_type_and_index() -> None:
    assert Op("", "Relu", ids("x"), ids("y"), source=7).label == "Relu#7"
    assert Op("act", "Relu", ids("x"), ids("y"), source=7).label == "act"


@pytest.mark.parametrize(
    ("each", "expected"),
    [
        (op("y <- x", kind="RandomNormalLike"), True),
        (op("y <- x r t", kind="Dropout"), True),
        (op("y <- x r", kind="Dropout"), False),
        (op("y <- x", kind="RandomNormalLike", domain="local"), False),
        (op("y <- x", kind="Relu"), False),
        (op("y <- c", block("", "o", op("o <- x", kind="Bernoulli")), kind="If"), True),
    ],
)
def test_an_op_is_random_if_it_or_its_subgraph_draws_numbers(
    each: Op, *, expected: bool
) -> None:
    assert each.is_random is expected
