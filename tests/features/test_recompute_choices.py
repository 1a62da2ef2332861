"""Choices of what is recomputed, each where another one would show."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from features.recompute_programs import program, same_results, terms
from memplan_cli.analysis.phase import Phases
from memplan_cli.core.program import VarId
from memplan_cli.errors import SettingsError
from memplan_cli.features.recompute.build import write_copies
from memplan_cli.features.recompute.checkpoints import recompute_segments
from memplan_cli.features.recompute.greedy import DropSchedule, GreedyChooser
from memplan_cli.features.recompute.solve import Solver

CHAIN = program(
    "x",
    "z",
    ("Tanh", "x", "a8"),
    ("Tanh", "a8", "b4"),
    ("Tanh", "b4", "c4"),
    ("Tanh", "c4", "d4"),
    ("MatMul", "d4 a8", "z"),
)


@given(
    st.lists(st.integers(0, 20), min_size=5, max_size=5),
    st.integers(0, 30),
    st.sampled_from([0, 1]),
)
def test_a_value_is_kept_again_where_all_places_of_its_gap_have_room(
    live: list[int], budget: int, start: int
) -> None:
    values = Solver(CHAIN, terms(CHAIN)).values
    state = DropSchedule(values, np.array(live, np.int64))
    a, end = values.value_of[VarId("a8")], 4
    assert state.kept_gaps(a) == [(1, 4)]
    state.accesses[a] = [0, 4] if start == 0 else [0, 1, 4]
    state.recomputed_at[a] = {end}
    fits = max(live[start + 1 : end]) + 8 <= budget
    kept = state.keep_again(budget)
    assert kept == int(fits)
    grown = [8 * (start < at < end) if kept else 0 for at in range(5)]
    assert list(state.live - live) == grown
    assert state.recomputed_at[a] == (set() if kept else {end})


def test_the_value_that_frees_most_for_its_work_is_dropped_first() -> None:
    tested = program(
        "x", "z", ("Tanh", "x", "a30"), ("Tanh", "x", "b100"), ("Sum", "a30 b100", "c1"),
        ("Tanh", "c1", "d100"), ("Tanh", "d100", "e1"), ("Sum", "a30 b100 e1", "z"),
    )  # fmt: skip
    state = Solver(tested, terms(tested)).new_schedule()
    a, b = (state.values.value_of[VarId(name)] for name in ("a30", "b100"))
    assert max(state.live) == 231
    assert GreedyChooser(state, 231).run() == 0
    assert GreedyChooser(state, 180).run() == 1
    assert (state.recomputed_at[a], state.recomputed_at[b]) == (set(), {5})


def test_a_copy_for_its_mask_alone_has_the_output_that_the_operator_must_have() -> None:
    tested = program(
        "x",
        "z",
        ("Tanh", "x", "a8"),
        ("Dropout", "a8", "b8 m8"),
        ("Tanh", "b8", "c8"),
        ("Tanh", "c8", "d8"),
        ("MatMul", "d8 m8", "z"),
    )
    own = terms(tested)
    values = Solver(tested, own).values
    copies: list[set[int]] = [set() for _ in values.accesses]
    copies[values.value_of[VarId("m8")]] = {4}
    written = write_copies(values, copies, own.sizes)
    (copy,) = written.copies
    assert all(copy.outputs)
    assert same_results(tested, written.program)


def test_outputs_that_are_left_out_have_no_name_to_be_a_checkpoint() -> None:
    tested = program(
        "x", "loss g", ("Dropout", "x", "a -"), ("Tanh", "a", "loss"), ("Mul", "a loss", "g")
    )
    phases = Phases("train", VarId("loss"), {VarId("g"): "backward"})
    with pytest.raises(SettingsError) as caught:
        recompute_segments(tested, terms(tested), ("b",), phases)
    assert "the nearest names are" in str(caught.value.hint)
    assert "_" not in str(caught.value.hint)


def test_of_two_trials_within_the_budget_the_one_with_less_work_is_better() -> None:
    unchanged = Solver(CHAIN, terms(CHAIN)).unchanged()
    small, cheap, too_large = (
        replace(unchanged, peak=peak, work=work) for peak, work in ((10, 9), (20, 5), (40, 0))
    )
    trials = sorted((small, too_large, cheap), key=lambda trial: trial.rank(30))
    assert trials == [cheap, small, too_large]
