"""Lower bounds on what intermediates and outputs take together: valid, and at times reached."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from features.recompute_programs import bytes_of, program, terms
from memplan_cli.analysis.storage import live_peak
from memplan_cli.core.symbolic.sizes import Size
from memplan_cli.features.recompute.bound import resident_bound

if TYPE_CHECKING:
    from memplan_cli.core.program import Program
    from memplan_cli.ordering.records import PlannedVars


def counted(tested: Program) -> PlannedVars:
    """Return terms in which what the graph gives has bytes too."""
    results = {var: Size(bytes_of(var)) for var in tested.body.outputs}
    return replace(terms(tested), results=results)


def bound_of(tested: Program) -> int:
    return resident_bound(tested, counted(tested))


def resident(tested: Program) -> int:
    plan = counted(tested).resident
    return live_peak(tested, plan.sizes, plan.pinned, plan.aliasing)


def test_whoever_makes_the_last_output_has_all_of_them_beside_what_it_reads() -> None:
    tested = program(
        "x", "y40 z50", ("MatMul", "x x", "a10"), ("MatMul", "a10 x", "y40"),
        ("MatMul", "a10 x", "z50"),
    )  # fmt: skip
    assert bound_of(tested) == 100 == resident(tested)


def test_whoever_makes_an_output_has_it_beside_what_it_reads() -> None:
    tested = program(
        "x", "y40 z1", ("MatMul", "x x", "a100"), ("MatMul", "a100 x", "y40"),
        ("MatMul", "x x", "z1"),
    )  # fmt: skip
    assert bound_of(tested) == 140


def test_an_output_that_shows_a_value_takes_nothing_beside_it() -> None:
    tested = program("x", "y40", ("MatMul", "x x", "a40"), ("Flatten", "a40", "y40"))
    assert bound_of(tested) <= resident(tested)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Draw a few ops, each reading what is there, some of whose results the graph gives."""
    names, lines = ["x"], []
    for at in range(draw(st.integers(1, 7))):
        reads = draw(st.lists(st.sampled_from(names), min_size=1, max_size=3))
        kind = draw(st.sampled_from(("MatMul", "Relu", "Flatten")))
        made = f"{'abcdefgh'[at]}{10 * draw(st.integers(1, 9))}"
        lines.append((kind, " ".join(reads), made))
        names.append(made)
    outputs = draw(st.lists(st.sampled_from(names[1:]), min_size=1, unique=True))
    return program("x", " ".join(outputs), *lines)


@settings(max_examples=120)
@given(programs())
def test_no_order_of_the_file_is_below_the_bound(tested: Program) -> None:
    assert bound_of(tested) <= resident(tested)
