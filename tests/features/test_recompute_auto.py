"""Fitting a budget on programs small enough to see the answer."""

from __future__ import annotations

import pytest

from features.recompute_programs import fitted, program, terms
from memplan_cli.core.program import Program
from memplan_cli.features.recompute.values import find_values


def skip_connection() -> Program:
    """A large value that waits while a larger pair passes, and is cheap to make again."""
    return program(
        "x",
        "z",
        ("Tanh", "x", "a100"),
        ("MatMul", "a100 x", "b200"),
        ("MatMul", "b200 x", "c200"),
        ("MatMul", "c200 x", "d1"),
        ("Mul", "a100 d1", "e1"),
        ("Tanh", "e1", "z"),
    )


def test_a_long_skip_connection_is_computed_again() -> None:
    result = fitted(skip_connection(), 400)
    assert result.met
    assert result.chosen.peak == 400
    assert [op.outputs for op in result.copies] == [("a100__recompute",)]
    assert result.chosen.nodes == 1


@pytest.mark.parametrize("budget", [205, 1000])
def test_a_budget_that_an_order_keeps_costs_no_memory(budget: int) -> None:
    # In the file's order both large values wait for the end.
    tested = program(
        "x",
        "z",
        ("MatMul", "x x", "a200"),
        ("MatMul", "x x", "b200"),
        ("MatMul", "a200 x", "c1"),
        ("MatMul", "b200 x", "d1"),
        ("MatMul", "c1 d1", "z"),
    )
    result = fitted(tested, budget)
    assert result.met
    assert result.copies == ()
    assert result.chosen.peak == 202


def test_a_copy_stands_for_the_node_of_its_twin() -> None:
    result = fitted(skip_connection(), 400)
    (copy,) = result.copies
    assert (copy.type, copy.source, copy.name) == ("Tanh", 0, "n0__recompute")
    assert result.program.vars[copy.outputs[0]].name == "a100__recompute"
    assert result.sizes[copy.outputs[0]].coefficient == 100


def test_a_copy_takes_no_name_that_the_model_has() -> None:
    tested = skip_connection()
    lines = [(op.type, " ".join(op.inputs), " ".join(op.outputs)) for op in tested.body.ops]
    lines[-1] = ("Tanh", "e1", "a100__recompute")
    result = fitted(program("x", "a100__recompute", *lines), 400)
    assert [op.outputs for op in result.copies] == [("a100__recompute2",)]


def test_copies_that_turn_out_not_to_be_needed_are_taken_back() -> None:
    # Either of two values is enough; the first one taken is not the better one.
    tested = program(
        "x",
        "z",
        ("Tanh", "x", "a60"),
        ("Tanh", "x", "b100"),
        ("MatMul", "a60 b100", "c1"),
        ("MatMul", "c1 x", "d200"),
        ("MatMul", "d200 x", "e1"),
        ("MatMul", "a60 e1", "f1"),
        ("MatMul", "b100 f1", "z"),
    )
    assert fitted(tested, 265).chosen.nodes == 1
    assert fitted(tested, 300).chosen.nodes == 1


def test_an_op_of_which_another_result_is_read_at_once_is_no_move() -> None:
    tested = program(
        "x",
        "z",
        ("Split", "x", "a100 b1"),
        ("MatMul", "b1 x", "c200"),
        ("MatMul", "c200 x", "d200"),
        ("MatMul", "d200 x", "e1"),
        ("MatMul", "a100 e1", "z"),
    )
    result = fitted(tested, 402)
    assert result.met
    assert [op.outputs[0] for op in result.copies] == ["a100__recompute"]
    assert result.chosen.flops_increase > 0


def test_nothing_is_computed_again_within_the_budget() -> None:
    result = fitted(skip_connection(), 500)
    assert result.met
    assert not result.copies
    assert result.chosen.flops_increase == 0


def test_an_order_that_fits_is_taken_before_any_copy() -> None:
    tested = program(
        "x",
        "z",
        ("Tanh", "x", "a100"),
        ("MatMul", "x x", "b100"),
        ("MatMul", "b100 x", "c1"),
        ("MatMul", "a100 x", "d1"),
        ("MatMul", "c1 d1", "z"),
    )
    result = fitted(tested, 110)
    assert result.met
    assert not result.copies


def test_a_budget_that_cannot_be_met_gives_the_nearest_and_a_bound() -> None:
    result = fitted(skip_connection(), 300)
    assert not result.met
    assert result.chosen.peak == 400
    assert result.bound == 400


def test_a_chain_is_computed_again_from_where_it_starts() -> None:
    tested = program(
        "x",
        "z",
        ("Tanh", "x", "a9"),
        ("MatMul", "a9 a9", "b90"),
        ("MatMul", "b90 b90", "c90"),
        ("MatMul", "c90 c90", "d90"),
        ("MatMul", "d90 x", "e1"),
        ("MatMul", "e1 x", "f200"),
        ("MatMul", "f200 x", "g1"),
        ("MatMul", "g1 d90", "h1"),
        ("MatMul", "h1 a9", "z"),
    )
    result = fitted(tested, 225)
    assert result.met
    assert [op.outputs[0] for op in result.copies] == [
        "b90__recompute",
        "c90__recompute",
        "d90__recompute",
    ]


def test_copies_may_be_made_from_copies_and_more_than_once() -> None:
    big = [
        line
        for at in range(3)
        for line in (
            ("MatMul", f"k_{at} x", f"f200_{at}"),
            ("MatMul", f"f200_{at} x", f"g_{at}"),
            ("MatMul", f"g_{at} b90", f"k_{at + 1}"),
        )
    ]
    tested = program(
        "x k_0",
        "z",
        ("Tanh", "x", "a90"),
        ("Tanh", "a90", "b90"),
        ("MatMul", "b90 x", "c1"),
        *big,
        ("MatMul", "k_3 c1", "z"),
    )
    result = fitted(tested, 210)
    assert result.met
    made = [op.outputs[0] for op in result.copies]
    assert {"b90__recompute", "b90__recompute2"} <= set(made)


@pytest.mark.parametrize("kind", ["RandomNormalLike", "Bernoulli", "SequenceAt"])
def test_ops_that_must_not_run_twice_are_not_recomputed(kind: str) -> None:
    tested = skip_connection()
    first = tested.body.ops[0]
    ops = (type(first)("r", kind, first.inputs, first.outputs, source=0), *tested.body.ops[1:])
    random = Program("r", type(tested.body)(("x",), ("z",), ops), tested.vars)  # type: ignore[arg-type]
    result = fitted(random, 400)
    assert not result.met
    assert not result.copies


def test_a_mask_is_kept_where_its_dropout_may_not_run_again() -> None:
    tested = program(
        "x",
        "z",
        ("RandomUniformLike", "x", "r400"),
        ("Less", "r400 x", "m10"),
        ("Mul", "m10 x", "a100"),
        ("MatMul", "a100 x", "b200"),
        ("MatMul", "b200 x", "c200"),
        ("MatMul", "c200 x", "d1"),
        ("Mul", "a100 d1", "z"),
    )
    result = fitted(tested, 410)
    assert result.met
    assert [op.outputs[0] for op in result.copies] == ["a100__recompute"]


def test_pinned_vars_are_counted_and_never_dropped() -> None:
    result = fitted(skip_connection(), 400, pinned="a100")
    assert not result.met
    assert result.bound == 500
    assert not result.copies


def test_a_result_of_the_graph_is_read_as_it_is() -> None:
    tested = skip_connection()
    body = type(tested.body)(
        tested.body.inputs,
        (*tested.body.outputs, tested.body.ops[0].outputs[0]),
        tested.body.ops,
    )
    given = Program("g", body, tested.vars)
    result = fitted(given, 400)
    assert result.met
    assert not result.copies


def test_the_curve_falls_and_rises() -> None:
    result = fitted(skip_connection(), None)
    assert result.met
    peaks = [point.peak for point in result.curve]
    extras = [point.flops_increase for point in result.curve]
    assert peaks == sorted(peaks, reverse=True)
    assert extras == sorted(extras)
    assert result.curve[0].flops_increase == 0
    assert result.chosen in result.curve


def test_pinned_tensors_and_graph_outputs_are_not_recomputed() -> None:
    tested = skip_connection()
    plan = terms(tested, "a100")
    values = find_values(tested, plan.sizes, plan.pinned, plan.aliasing)
    assert [str(var) for var in values.value_of] == ["b200", "c200", "d1", "e1"]


def test_an_empty_program_fits() -> None:
    assert fitted(program("x", "x"), 0).met
