"""Caffe's dry run, against slots counted by hand."""

from __future__ import annotations

from memplan_cli.analysis.dry_run import DryRun, dry_run
from memplan_cli.core.program import Block, Op, Origin, Program, Var, VarId
from memplan_cli.core.symbolic.sizes import Size

WEIGHT = ("w1", "w2", "w3")


def network(*ops: tuple[str, str, str], outputs: str) -> tuple[Program, dict[VarId, Size]]:
    """Return a program of ``(type, inputs, outputs)``; every var ``name4`` has 4 bytes."""
    nodes = tuple(
        Op(
            "", kind, tuple(map(VarId, reads.split())), tuple(map(VarId, writes.split())),
            source=at,
        )
        for at, (kind, reads, writes) in enumerate(ops)
    )  # fmt: skip
    made = [var for op in nodes for var in op.outputs]
    read = [var for op in nodes for var in op.inputs if var not in made]
    table = {
        var: Var(var, "float32", (2, 2), Origin.WEIGHT if var in WEIGHT else origin)
        for origin, variables in ((Origin.INPUT, read), (Origin.OP, made))
        for var in variables
    }
    results = tuple(map(VarId, outputs.split()))
    program = Program("net", Block((VarId("x"),), results, nodes), table)
    return program, {var: Size(int(var.lstrip("abcdefghijklmnopqrstuvyz"))) for var in made}


def test_a_chain_keeps_its_data_and_reuses_memory_for_gradients() -> None:
    program, sizes = network(
        ("Conv", "x w1", "a100"),
        ("Conv", "a100 w2", "b80"),
        ("Conv", "b80 w3", "c10"),
        outputs="c10",
    )
    # Forward: a, b, c in slots of 100, 80, 10. Backward: the gradients of c (its own, the
    # result keeps both) and b in new slots; b's data is done, and a's gradient makes its
    # slot grow to 100.
    assert dry_run(program, sizes) == DryRun(
        raw=2 * (100 + 80 + 10),
        optimised=100 + 100 + 10 + 10 + 80,
        slots=5,
    )


def test_data_that_no_backward_step_reads_is_released_forward() -> None:
    program, sizes = network(
        ("Conv", "x w1", "a100"),
        ("Add", "a100 a100", "b90"),
        ("Add", "b90 b90", "c80"),
        outputs="c80",
    )
    # c's data takes the slot of a, and its gradient that of b; both are results and stay.
    # The gradients of b and a meet in the addition and need slots of their own.
    assert dry_run(program, sizes).optimised == 100 + 90 + 90 + 100


def test_what_depends_on_no_weight_has_no_gradient() -> None:
    program, sizes = network(("Relu", "x", "a100"), ("Relu", "a100", "b90"), outputs="b90")
    assert dry_run(program, sizes) == DryRun(190, 190, 2)


def test_views_are_one_blob() -> None:
    program, sizes = network(
        ("Conv", "x w1", "a100"),
        ("Reshape", "a100 shape", "b100"),
        ("Conv", "b100 w2", "c10"),
        outputs="c10",
    )
    assert dry_run(program, sizes).raw == 2 * (100 + 10)


def test_an_in_place_layer_holds_the_slot_once_more() -> None:
    program, sizes = network(
        ("Conv", "x w1", "a100"),
        ("Relu", "a100", "b100"),
        ("Conv", "b100 w2", "c10"),
        outputs="c10",
    )
    assert dry_run(program, sizes).raw == 2 * (100 + 10)


def test_a_layer_that_reads_its_input_again_does_not_overwrite_it() -> None:
    program, sizes = network(
        ("Conv", "x w1", "a100"),
        ("Mul", "a100 w2", "b100"),
        ("Conv", "b100 w3", "c10"),
        outputs="c10",
    )
    assert dry_run(program, sizes).raw == 2 * (100 + 100 + 10)


def test_a_result_that_its_own_layer_reads_again_is_not_overwritten() -> None:
    program, sizes = network(
        ("Conv", "x w1", "a10"),
        ("Sigmoid", "a10", "b100"),
        ("Relu", "b100", "c100"),
        ("Conv", "c100 w2", "d10"),
        outputs="d10",
    )
    assert dry_run(program, sizes).raw == 2 * (10 + 100 + 100 + 10)


def test_no_gradient_flows_through_a_comparison() -> None:
    program, sizes = network(("Conv", "x w1", "a100"), ("Sign", "a100", "b90"), outputs="b90")
    assert dry_run(program, sizes).raw == 2 * 100 + 90


def test_sizes_with_symbols_count_nothing() -> None:
    program, sizes = network(("Conv", "x w1", "a100"), outputs="a100")
    symbolic = {var: Size(size.coefficient, ("batch",)) for var, size in sizes.items()}
    assert dry_run(program, symbolic).raw == 0
