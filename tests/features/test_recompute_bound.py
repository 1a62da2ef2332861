"""What no order with whatever copies can do without."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builders import block, op, var_sizes
from builders import program as nested
from features.recompute_programs import fitted, program, terms
from memplan_cli.analysis.storage import live_peak
from memplan_cli.features.recompute.bound import step_bytes
from memplan_cli.ordering.records import PlannedVars

if TYPE_CHECKING:
    from memplan_cli.core.program import Program


def test_the_bound_is_what_one_op_needs() -> None:
    tested = program(
        "x",
        "z",
        ("Tanh", "x", "a10"),
        ("Neg", "a10", "b10"),
        ("MatMul", "b10 x", "c7"),
        ("Tanh", "c7", "z"),
    )
    assert max(step_bytes(tested, terms(tested))) == 17


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


def test_the_bound_counts_what_is_pinned_once() -> None:
    tested = program("x", "z", ("Tanh", "x", "a100"), ("MatMul", "a100 x", "b10"),
                     ("MatMul", "b10 x", "z"))  # fmt: skip
    assert max(step_bytes(tested, terms(tested, "a100"))) == 110
    overwritten = program("x", "z", ("MatMul", "x", "a100"), ("Tanh", "a100", "b100"),
                          ("MatMul", "b100 x", "z"))  # fmt: skip
    assert step_bytes(overwritten, terms(overwritten)) == [100, 100, 100]
    assert step_bytes(overwritten, terms(overwritten, "a100")) == [100, 200, 200]


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
        assert max(step_bytes(tested, PlannedVars(sizes))) <= peak
