"""The planner's conscience: no read of any run of any program finds another's bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import (
    allocated_at_each_level,
    block,
    op,
    plan_program,
    planned_program,
    program,
    var_sizes,
)
from memplan_cli.core.program import VarId, captures, intermediates, walk
from memplan_cli.planning.allocation import Needs
from memplan_cli.settings.settings import Settings
from programs import programs, random_program
from replay import nested_programs, replay, spans_of, tried

if TYPE_CHECKING:
    from memplan_cli.core.program import Block, Program

SWAP = block("c d", "r s", op("r <- d", kind="Identity"), op("s <- c", kind="Identity"))
LONG_SWAP = block(
    "e f", "r2 s2",
    op("u <- f", kind="Reshape"), op("r2 <- u", kind="Reshape"),
    op("v <- e", kind="Reshape"), op("s2 <- v", kind="Reshape"),
)  # fmt: skip

thorough = settings(max_examples=160, deadline=None)


@thorough
@given(made=programs(), seed=st.integers(0, 1000))
def test_no_read_is_clobbered_at_any_level(made: Program, seed: int) -> None:
    needs = Needs(made, var_sizes(made), alignment=None)
    for placed in allocated_at_each_level(needs):
        replay(made, spans_of(placed, needs), seed)


@settings(max_examples=20, deadline=None)
@given(made=programs(), seed=st.integers(0, 1000))
def test_no_read_is_clobbered_where_vars_are_pinned_and_offsets_aligned(
    made: Program, seed: int
) -> None:
    sizes = var_sizes(made)
    pinned = {var: "test" for var in sizes if (len(var) + seed) % 3 == 0}
    needs = Needs(made, sizes, pinned, alignment=4)
    for placed in allocated_at_each_level(needs):
        spans = spans_of(placed, needs)
        replay(made, spans, seed)
        owner: dict[int, VarId] = {}
        for var, (offset, size) in spans.items():
            for cell in range(offset, offset + size):
                held = owner.setdefault(cell, var)
                assert held == var or (held not in pinned and var not in pinned)


@settings(max_examples=16, deadline=None)
@given(made=programs(), seed=st.integers(0, 1000), level=st.sampled_from([0, 1, 2]))
def test_no_read_is_clobbered_in_the_plans_own_order(
    made: Program, seed: int, level: int
) -> None:
    done = planned_program(made, Settings(level=level))  # type: ignore[arg-type]
    spans = {VarId(t.id): (t.offset, t.bytes) for t in done.plan.tensors}
    replay(done.program, spans, seed)
    assert done.plan.report.memory.planned == sum(a.height for a in done.plan.arenas)


@settings(max_examples=16, deadline=None)
@given(made=programs())
def test_levels_never_get_worse(made: Program) -> None:
    for level in (0, 1, 2):
        report = plan_program(made, Settings(level=level)).report
        two, one, zero = (report.levels[each] for each in "210")
        naive, peak = report.memory.naive, report.memory.live_peak
        assert two is not None
        assert one is not None
        assert zero is not None
        assert naive is not None
        assert peak is not None
        assert two <= one <= zero <= naive
        assert peak <= (zero, one, two)[level]
        assert report.original_planned is not None
        assert (zero, one, two)[level] <= report.original_planned, "an order made it worse"


@pytest.mark.parametrize(
    "top",
    [
        block("x y", "p q", op("p q <- x y", SWAP, kind="Loop")),
        block("x y", "p q", op("p q <- x y", LONG_SWAP, kind="Loop")),
        block("x i", "z", op("a <- x"), op("b <- a i a", kind="ScatterND"), op("z <- b")),
        block("x", "z", op("a <- x"), op("b <- a x a", kind="Sum"), op("z <- b")),
    ],
    ids=["swap", "swap through a chain", "scatter into itself", "first and third term"],
)
def test_no_read_is_clobbered_in_programs_that_are_hard_to_hit(top: Block) -> None:
    made = program(top)
    needs = Needs(made, var_sizes(made))
    for placed in allocated_at_each_level(needs):
        replay(made, spans_of(placed, needs), 0)


def test_the_random_programs_have_everything_in_them() -> None:
    """A replay of programs without loops would prove little."""
    kinds: set[str] = set()
    seen: set[str] = set()
    for seed in range(60):
        made = random_program(seed)
        for inner, each in walk(made.body):
            kinds.add(each.type)
            if inner.path.count("/") > 1:
                seen.add("three deep")
            if each.repeats and any(captures(body) for body in each.bodies):
                seen.add("a loop captures")
            if len(each.outputs) > 1:
                seen.add("several outputs")
        reads = {var for _, each in walk(made.body) for var in each.inputs}
        if set(intermediates(made)) - reads:
            seen.add("unread")
    assert {"If", "Loop", "Scan", "Reshape", "Identity", "ScatterND", "Sum", "Relu"} <= kinds
    assert seen == {"three deep", "a loop captures", "several outputs", "unread"}


@pytest.mark.parametrize("seed", range(5))
def test_a_layout_that_is_not_safe_is_caught(seed: int) -> None:
    """The replay itself can fail: everything at offset 0 clobbers something."""
    from replay import ClobberedError

    made = random_program(seed)
    spans = {var: (0, size.coefficient) for var, size in var_sizes(made).items()}
    with pytest.raises(ClobberedError):
        replay(made, spans, seed)


@pytest.mark.slow
def test_a_thousand_nested_programs_are_safe_and_each_corruption_of_them_is_caught() -> None:
    found = [tried(seed, made) for seed, made in nested_programs(1000)]
    assert sum(each.caught for each in found) == sum(each.made for each in found)
    assert sum(each.made for each in found) > 2000


def test_ten_nested_programs_are_safe_and_each_corruption_of_them_is_caught() -> None:
    found = [tried(seed, made) for seed, made in nested_programs(10)]
    assert sum(each.caught for each in found) == sum(each.made for each in found) > 20
