"""What no order with whatever copies can do without."""

from __future__ import annotations

import pytest

from builders import block, op, var_sizes
from builders import program as nested
from features.recompute_programs import fitted, program, terms
from memplan_cli.analysis.storage import live_peak
from memplan_cli.core.program import Program, VarId
from memplan_cli.features.recompute.bound import Bound
from memplan_cli.features.recompute.build import write_copies
from memplan_cli.features.recompute.values import find_values
from memplan_cli.ordering.records import PlannedVars


def test_the_bound_is_what_one_op_needs() -> None:
    tested = program(
        "x",
        "z",
        ("Tanh", "x", "a10"),
        ("Neg", "a10", "b10"),
        ("MatMul", "b10 x", "c7"),
        ("Tanh", "c7", "z"),
    )
    assert Bound(tested, terms(tested)).simple_bound == 17


def kept_out() -> Program:
    """Its largest value is kept until it meets one that cannot be made beside it."""
    return program(
        "x",
        "z",
        ("MatMul", "x x", "a100"),
        ("MatMul", "a100 x", "b90"),
        ("MatMul", "a100 b90", "c30"),
        ("MatMul", "x c30", "d20"),
        ("MatMul", "x x", "e80"),
        ("MatMul", "e80 x", "f90"),
        ("MatMul", "f90 d20", "z"),
    )


def test_what_cannot_be_made_beside_a_large_value_is_there_before() -> None:
    tested = kept_out()
    bound = Bound(tested, terms(tested))
    # b90 with a100 and c30 is the most that one op touches.
    assert bound.simple_bound == 220
    # f90 comes from e80, 170 together; under 310, a100 fits not beside f90, nor what it
    # makes: d20 is there too when f90 is made. That is less than one op needs alone.
    assert bound.best_bound(1000) == 220
    assert not bound.is_impossible(220)


def test_a_cut_raises_the_bound() -> None:
    tested = program(
        "x",
        "z",
        ("MatMul", "x x", "a150"),
        ("MatMul", "a150 x", "b30"),
        ("MatMul", "b30 x", "c20"),
        ("MatMul", "x x", "e100"),
        ("MatMul", "e100 x", "f100"),
        ("MatMul", "f100 c20", "z"),
    )
    bound = Bound(tested, terms(tested))
    # e100 and f100 are there at once. Beside f100 there is no room for a150, so c20 (less
    # than b30, which it could be made of) is there already.
    assert bound.simple_bound == 200
    assert bound.is_impossible(219)
    assert not bound.is_impossible(220)
    assert bound.best_bound(1000) == 220
    result = fitted(tested, 219)
    assert (result.met, result.bound, result.chosen.peak) == (False, 220, 220)


def mask_beside(kind: str) -> Program:
    """A small value whose op makes a large one too, which only the next op reads."""
    return program(
        "x",
        "z",
        (kind, "x", "y10 m100"),
        ("MatMul", "m100 x", "b1"),
        ("MatMul", "x x", "u60"),
        ("MatMul", "u60 x", "w50"),
        ("MatMul", "b1 y10 w50", "z"),
    )


def test_a_copy_is_not_charged_for_the_optional_outputs_that_it_leaves_out() -> None:
    result = fitted(mask_beside("Dropout"), 111)
    assert (result.met, result.chosen.peak) == (True, 111)
    assert not fitted(mask_beside("Split"), 111).met


@pytest.mark.parametrize(
    ("kind", "bound", "reached"), [("Dropout", 111, 111), ("Split", 121, 161)]
)
def test_the_bound_knows_that_copies_may_leave_out_optional_outputs(
    kind: str, bound: int, reached: int
) -> None:
    tested = mask_beside(kind)
    plan = terms(tested)
    values = find_values(tested, plan.sizes, plan.pinned, plan.aliasing)
    copies = [(4,) if value == values.value_of[VarId("y10")] else () for value in range(5)]
    again = write_copies(values, copies, plan.sizes)
    # y10 is made again behind u60, with or without the 100 bytes that nobody reads there.
    assert live_peak(again.program, again.sizes) == reached
    assert Bound(tested, plan).best_bound(1000) == bound


def test_what_an_op_reads_is_not_counted_again_for_what_is_made_of_it() -> None:
    tested = program(
        "x",
        "z",
        ("MatMul", "x x", "a150"),
        ("MatMul", "a150 x", "e100"),
        ("MatMul", "e100 x", "f140"),
        ("Relu", "e100", "q100"),
        ("MatMul", "f140 q100", "z"),
    )
    # q100 is written over e100, which is there when f140 is made and is counted with it.
    assert Bound(tested, terms(tested)).best_bound(1000) == 250
    assert live_peak(tested, terms(tested).sizes) == 250


def test_the_bound_counts_what_is_pinned_once() -> None:
    tested = program("x", "z", ("Tanh", "x", "a100"), ("MatMul", "a100 x", "b10"),
                     ("MatMul", "b10 x", "z"))  # fmt: skip
    assert Bound(tested, terms(tested, "a100")).simple_bound == 110


def test_what_a_branch_reads_may_be_gone_when_the_ifs_output_is_there() -> None:
    """Nor is what the If makes made beside all that its branches read."""
    tops = (
        block(
            "x c", "z", op("a <- x"),
            op("y <- c", block("", "r", op("r <- a", kind="Relu")), block("", "s", op("s <- x")),
               kind="If"),
            op("z <- y"),
        ),
        block(
            "x c", "z", op("a <- x"),
            op("y <- c", block("", "r", op("r <- a", kind="Relu")), block("", "s", op("s <- x")),
               kind="If"),
            op("b <- x"), op("z <- y b"),
        ),
    )  # fmt: skip
    for top, peak in zip(tops, (100, 101), strict=True):
        tested = nested(top, sizes={"a": 100, "r": 100, "s": 100, "y": 100, "b": 1})
        sizes = var_sizes(tested)
        assert live_peak(tested, sizes) == peak
        bound = Bound(tested, PlannedVars(sizes))
        assert bound.simple_bound <= peak
        assert not bound.is_impossible(peak)
        assert bound.best_bound(peak) <= peak


def test_an_ifs_output_that_is_kept_keeps_nothing_out_by_what_its_branches_read() -> None:
    small = block("", "r", op("t <- a"), op("r <- t")), block("", "s", op("s <- x"))
    top = block("x c", "z", op("a <- x"), op("y <- c", *small, kind="If"), op("z <- y"))
    tested = nested(top, sizes={"a": 100, "t": 1, "r": 50, "s": 50, "y": 50})
    sizes = var_sizes(tested)
    peak = live_peak(tested, sizes)
    assert peak == 101
    assert not Bound(tested, PlannedVars(sizes)).is_impossible(peak)
