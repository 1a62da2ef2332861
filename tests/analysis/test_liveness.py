"""When each var is needed: one clock over all blocks."""

from __future__ import annotations

from builders import block, ids, op, program
from memplan_cli.analysis.liveness import Timeline, duration, last_uses, live_ranges, steps
from memplan_cli.core.problem import LiveRange
from memplan_cli.core.program import Block, VarId


def ranges_of(top: Block, weights: str = "") -> dict[str, LiveRange]:
    return {str(var): live for var, live in live_ranges(program(top, weights=weights)).items()}


def releases_of(top: Block, weights: str = "") -> dict[str, str]:
    timeline = Timeline(program(top, weights=weights))
    return {str(var): step.op.name for var, step in last_uses(timeline).items()}


LOOP = op("y <- n x", block("i c", "r", op("t <- c w"), op("r <- t i")), kind="Loop")
"""Ticks: p 0, loop 1, t 2, r 3, end of the loop 4, z 5."""
AROUND_LOOP = block("n x", "z", op("w <- x"), LOOP, op("z <- y"))


def test_chain_var_is_live_from_its_definition_to_its_last_use() -> None:
    got = ranges_of(block("x", "z", op("y <- x"), op("z <- y")))
    assert got == {"x": LiveRange(0, 1), "y": LiveRange(0, 2), "z": LiveRange(1, 2)}


def test_an_output_that_nothing_reads_is_live_while_it_is_made() -> None:
    got = ranges_of(block("x", "z", op("y unread <- x"), op("z <- y")))
    assert got["unread"] == LiveRange(0, 1)


def test_a_result_is_live_to_the_end_of_the_run() -> None:
    got = ranges_of(block("x", "y", op("y <- x"), op("a <- x"), op("b <- a")))
    assert got["y"] == LiveRange(0, 3)


def test_a_result_that_is_read_again_is_live_to_the_end_too() -> None:
    got = ranges_of(block("x", "y z", op("y <- x"), op("z <- y"), op("a <- z"), op("b <- a")))
    assert got["y"] == LiveRange(0, 4)


def test_omitted_inputs_and_outputs_have_no_range() -> None:
    assert VarId("") not in ranges_of(block("x", "y", op("_ y <- x _")))


def test_ops_of_nested_blocks_have_ticks_of_their_own() -> None:
    made = program(AROUND_LOOP)
    assert [(s.op.name, s.start, s.end) for s in steps(made)] == [
        ("w", 0, 0),
        ("y", 1, 4),
        ("t", 2, 2),
        ("r", 3, 3),
        ("z", 5, 5),
    ]
    assert duration(made) == 6


def test_an_empty_subgraph_takes_two_ticks() -> None:
    made = program(block("c x", "z", op("y <- c", block("", "x"), kind="If"), op("z <- y")))
    assert [(s.start, s.end) for s in steps(made)] == [(0, 1), (2, 2)]
    assert duration(made) == 3


def test_an_empty_program_has_no_ticks() -> None:
    made = program(block("x", "x"))
    assert not list(steps(made))
    assert duration(made) == 0
    assert live_ranges(made) == {"x": LiveRange(0, 1)}


def test_branches_lie_at_different_ticks() -> None:
    first, second = block("", "a", op("a <- x")), block("", "b", op("b <- x"))
    got = ranges_of(block("c x", "y", op("y <- c", first, second, kind="If")))
    assert got["a"].start == 1
    assert got["b"].start == 2
    assert got["y"].start == 3


def test_a_branch_frees_its_captures_at_their_last_use() -> None:
    body = block("", "b", op("a <- w"), op("b <- a"))
    got = ranges_of(
        block("c x", "y", op("w <- x"), op("y <- c", body, block("", "x"), kind="If"))
    )
    assert got["w"] == LiveRange(0, 3)


def test_a_loop_keeps_its_captures_until_it_ends() -> None:
    """Repeats line: a capture is read again on the next turn."""
    assert ranges_of(AROUND_LOOP)["w"] == LiveRange(0, 5)


def test_a_loop_keeps_its_bodys_inputs_until_it_ends() -> None:
    """Repeats line: the next turn's value is written while this turn's result is there."""
    got = ranges_of(AROUND_LOOP)
    assert got["c"] == LiveRange(1, 5)
    assert got["i"] == LiveRange(1, 5)


def test_a_loops_results_grow_while_it_runs() -> None:
    """Repeats line: scan outputs are appended to on every turn."""
    assert ranges_of(AROUND_LOOP)["y"] == LiveRange(1, 6)


def test_a_loop_keeps_what_it_was_given_until_it_ends() -> None:
    """Repeats line: a Scan takes its next slice from its input on every turn."""
    assert ranges_of(block("q", "z", op("x <- q"), LOOP_OF_X, op("z <- y")))["x"].end == 4


LOOP_OF_X = op("y <- x", block("s", "r", op("r <- s")), kind="Scan")


def test_what_a_subgraph_makes_for_itself_is_live_inside_it() -> None:
    assert ranges_of(AROUND_LOOP)["t"] == LiveRange(2, 4)


def test_what_a_subgraph_gives_is_live_to_the_end_of_its_op() -> None:
    body = block("i", "early late", op("early <- i"), op("t <- i"), op("late <- t"))
    got = ranges_of(block("x", "y z", op("y z <- x", body, kind="Loop")))
    assert got["early"] == LiveRange(1, 5)


def test_a_capture_of_an_inner_loop_lasts_as_long_as_the_outer_one() -> None:
    inner = block("i", "r", op("r <- i w"))
    outer = block("j", "s", op("q <- j", inner, kind="Loop"), op("s <- q"))
    got = ranges_of(block("x w0", "y", op("w <- w0"), op("y <- x", outer, kind="Loop")))
    assert got["w"] == LiveRange(0, 7)


def test_a_branch_in_a_loop_keeps_what_the_loop_needs_again() -> None:
    branches = block("", "a", op("a <- w")), block("", "b", op("b <- v"))
    body = block("i k", "k2 s", op("k2 <- k"), op("s <- k2", *branches, kind="If"))
    made = block("x", "y", op("w <- x"), op("v <- x"), op("y <- x", body, kind="Loop"))
    got = ranges_of(made)
    assert got["w"].end == got["v"].end == 9


def test_what_nothing_needs_any_more_is_released_after_its_last_reader() -> None:
    top = block("x", "z", op("a <- x"), op("b <- a"), op("c <- a b"), op("z <- c"))
    assert releases_of(top) == {"a": "c", "b": "c", "c": "z"}


def test_an_unread_output_is_released_after_its_producer() -> None:
    assert releases_of(block("x", "y", op("y extra <- x")))["extra"] == "y extra"


def test_inputs_weights_and_results_are_not_released() -> None:
    assert releases_of(block("x", "y", op("y <- x w")), weights="w") == {}


def test_a_capture_is_released_after_the_branching_op_because_a_branch_may_not_be_taken() -> (
    None
):
    taken, other = block("", "a", op("a <- w")), block("", "b", op("b <- x"))
    top = block("c x", "z", op("w <- x"), op("y <- c", taken, other, kind="If"), op("z <- y"))
    assert releases_of(top) == {"w": "y", "y": "z"}


def test_a_capture_of_the_last_branch_is_released_after_the_branching_op_too() -> None:
    branches = block("", "a", op("a <- x")), block("", "b", op("b <- w"))
    top = block("c x", "y", op("w <- x"), op("y <- c", *branches, kind="If"))
    assert releases_of(top)["w"] == "y"


def test_a_subgraph_releases_what_it_made_on_every_turn() -> None:
    got = releases_of(AROUND_LOOP)
    assert got["t"] == "r"
    assert got["w"] == "y"
    assert "r" not in got, "it becomes the next turn's value"
    assert "c" not in got, "it belongs to the loop"


def test_a_value_that_a_branch_gives_as_it_is_is_released_after_its_last_reader() -> None:
    branches = block("", "w"), block("", "b", op("b <- x"))
    top = block("c x", "z", op("w <- x"), op("y <- c", *branches, kind="If"), op("z <- y w"))
    assert releases_of(top) == {"w": "z", "y": "z"}


def test_a_result_of_an_inner_block_read_outside_of_its_op_is_released_there() -> None:
    inner = block("", "b", op("a <- w"), op("b <- a"))
    outer = block(
        "", "s", op("w <- x"), op("q <- c", inner, inner_twin(), kind="If"), op("s <- q")
    )
    top = block("c x", "y", op("y <- c", outer, block("", "x"), kind="If"))
    assert releases_of(top) == {"a": "b", "w": "q", "q": "s"}


def inner_twin() -> Block:
    return block("", "e", op("e <- x"))


def test_ranges_of_a_deep_chain_take_no_recursion() -> None:
    made = block("v0", "v5000", *(op(f"v{i + 1} <- v{i}") for i in range(5000)))
    assert ranges_of(made)["v2500"] == LiveRange(2499, 2501)


def test_every_touched_var_has_a_range_and_every_range_is_of_a_touched_var() -> None:
    assert set(ranges_of(AROUND_LOOP)) == set(ids("n x w y i c r t z"))
