"""Copies that a peak does not need are left out, and the rest computes the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from features.recompute_programs import program, same_results, terms
from memplan_cli.analysis.cost import op_cost
from memplan_cli.features.recompute.build import write_copies
from memplan_cli.features.recompute.solve import (
    Solver,
    Trial,
    live_at,
    without_needless_copies,
)
from memplan_cli.ordering.records import PlannedVars

if TYPE_CHECKING:
    from memplan_cli.core.program import Program

SKIPS = program(
    "x",
    "z",
    ("Tanh", "x", "a60"),
    ("Tanh", "a60", "b70"),
    ("MatMul", "b70 x", "c1"),
    ("MatMul", "c1 x", "d200"),
    ("MatMul", "d200 x", "e1"),
    ("MatMul", "b70 e1", "f1"),
    ("MatMul", "a60 f1", "z"),
)


def with_every_copy(base: Program = SKIPS) -> Trial:
    """Return the program in which each value is made again for its last reader."""
    own = terms(base)
    values = Solver(base, own).values
    made = [set(reads[-1:]) if len(reads) > 2 else set() for reads in values.accesses]
    copied = write_copies(values, made, own.sizes)
    alone = PlannedVars(copied.sizes, own.pinned, own.aliasing)
    peak = int(live_at(copied.program, alone).max())
    work = sum(op_cost(op, copied.program.vars).work for op in copied.copies)
    return Trial(copied, peak, work)


def test_with_room_for_everything_no_copy_is_left() -> None:
    full = with_every_copy()
    assert full.written.copies
    fewer = without_needless_copies(full, terms(SKIPS), 10_000)
    assert not fewer.written.copies
    assert not fewer.work
    assert same_results(SKIPS, fewer.written.program)
    assert fewer.written.program.vars.keys() == SKIPS.vars.keys()
    assert len(fewer.written.places) == len(fewer.written.program.body.ops)


@pytest.mark.parametrize("budget", [0, 270, 300, 340])
def test_the_peak_stays_under_its_limit(budget: int) -> None:
    full = with_every_copy()
    fewer = without_needless_copies(full, terms(SKIPS), budget)
    assert fewer.peak <= max(full.peak, budget)
    assert len(fewer.written.copies) <= len(full.written.copies)
    assert same_results(SKIPS, fewer.written.program)


def test_copies_that_the_peak_needs_are_kept() -> None:
    full = with_every_copy()
    assert without_needless_copies(full, terms(SKIPS), 0).written.copies


def test_a_copy_gives_way_to_its_own_original_even_if_two_ops_stem_from_one_node() -> None:
    """Chunks of one node have its index, and all inserted slices have the index -1."""
    base = SKIPS.with_ops(op._replace(source=-1) for op in SKIPS.body.ops)
    full = with_every_copy(base)
    assert full.written.copies
    fewer = without_needless_copies(full, terms(base), 10_000)
    assert not fewer.written.copies
    assert same_results(base, fewer.written.program)
