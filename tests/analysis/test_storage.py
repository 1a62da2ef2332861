"""Which buffers a program needs; and its live peak, defined once."""

from __future__ import annotations

from builders import block, op, program, var_sizes
from memplan_cli.analysis.aliasing import SHARE_NOTHING
from memplan_cli.analysis.storage import live_peak, storage_of
from memplan_cli.core.problem import BufferId, LiveRange
from memplan_cli.core.program import Block, VarId
from memplan_cli.core.symbolic.sizes import Size

CHAIN = block("x", "z", op("a <- x"), op("b <- a", kind="Relu"), op("c <- b"), op("z <- c"))


def test_vars_that_share_bytes_are_one_buffer_that_is_live_as_long_as_all_of_them() -> None:
    made = program(CHAIN, sizes={"a": 10, "b": 10, "c": 7})
    buffer_of, units = storage_of(made, var_sizes(made))
    assert buffer_of == {"a": "a", "b": "a", "c": "c"}
    assert {b.id: (b.size, b.live) for b in units["1"]} == {
        "a": (10, LiveRange(0, 3)),
        "c": (7, LiveRange(2, 4)),
    }


def test_a_pinned_var_is_live_for_the_whole_run_and_shares_with_none() -> None:
    made = program(CHAIN)
    buffer_of, units = storage_of(made, var_sizes(made), pinned=[VarId("b")])
    assert buffer_of == {"a": "a", "b": "b", "c": "c"}
    assert {b.id: b.live for b in units["1"]}[BufferId("b")] == LiveRange(0, 4)


def test_sizes_of_other_symbols_lie_in_other_arenas() -> None:
    made = program(CHAIN)
    sizes = {VarId("a"): Size(4, ("n",)), VarId("b"): Size(4, ("n",)), VarId("c"): Size(8)}
    _, units = storage_of(made, sizes)
    assert {unit: [b.id for b in found] for unit, found in units.items()} == {
        "n": ["a"],
        "1": ["c"],
    }


def peak(top: Block, **sizes: int) -> int:
    made = program(top, sizes=sizes)
    return live_peak(made, var_sizes(made))


def test_live_peak_counts_what_an_op_reads_and_writes() -> None:
    top = block("x", "z", op("a <- x"), op("b <- a"), op("z <- b"))
    assert peak(top, a=10, b=7) == 17


def test_live_peak_counts_shared_bytes_once() -> None:
    assert peak(CHAIN, a=10, b=10, c=1) == 11
    made = program(CHAIN, sizes={"a": 10, "b": 10, "c": 1})
    assert live_peak(made, var_sizes(made), aliasing=SHARE_NOTHING) == 20


def test_live_peak_counts_a_pinned_var_at_every_step() -> None:
    made = program(CHAIN, sizes={"a": 1, "b": 1, "c": 50})
    assert live_peak(made, var_sizes(made), pinned=[VarId("a")]) == 52


def test_live_peak_counts_no_inputs_and_no_outputs() -> None:
    assert peak(block("x", "y", op("y <- x")), x=100, y=100) == 0


def test_branches_do_not_add_up() -> None:
    branches = block("", "a", op("a <- x")), block("", "b", op("b <- x"))
    top = block("c x", "z", op("y <- c", *branches, kind="If"), op("z <- y"))
    assert peak(top, a=10, b=10, y=10) == 10, "one of them is made, and it is the output"
    assert peak(top, a=10, b=11, y=12) == 33, "results last to the end of their op"
    inner = (
        block("", "a", op("t <- x"), op("a <- t")),
        block("", "b", op("u <- x"), op("b <- u")),
    )
    top = block("c x", "z", op("y <- c", *inner, kind="If"), op("z <- y"))
    assert peak(top, t=50, u=50, a=1, b=1, y=1) == 51
    assert peak(top, t=50, u=50, a=1, b=2, y=3) == 53


def test_a_program_that_plans_nothing_needs_nothing() -> None:
    made = program(block("x", "x"))
    assert storage_of(made, {}) == ({}, {})
    assert live_peak(made, {}) == 0
