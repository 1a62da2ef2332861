"""Each formula of the cost table, on shapes small enough to count."""

from __future__ import annotations

import pytest

from memplan_cli.analysis.cost import (
    FLOPS_PER_BYTE,
    KERNEL_LAUNCH,
    Cost,
    node_work,
    op_cost,
    total_cost,
)
from memplan_cli.core.operators import OPERATORS
from memplan_cli.core.program import Block, Op, Origin, Program, Shape, Var, VarId

Case = tuple[Op, dict[VarId, Var]]
"""An op and the vars that it reads and writes."""


def case(
    kind: str,
    *shapes: Shape | None,
    domain: str = "",
    **attributes: int | str | tuple[int, ...],
) -> Case:
    """Return an op whose last shape is its result's."""
    names = tuple(VarId(f"t{at}") for at in range(len(shapes)))
    table = {
        name: Var(name, "float32", shape, Origin.OP)
        for name, shape in zip(names, shapes, strict=True)
    }
    op = Op("", kind, names[:-1], names[-1:], domain=domain, attributes=attributes)
    return op, table


def cost(kind: str, *shapes: Shape | None, domain: str = "") -> Cost:
    """Return the cost of an op whose last shape is its result's."""
    return op_cost(*case(kind, *shapes, domain=domain))


@pytest.mark.parametrize(
    ("op", "flops"),
    [
        (case("MatMul", (2, 3, 5), (2, 5, 7), (2, 3, 7)), 2 * 2 * 3 * 7 * 5),
        (case("Gemm", (3, 5), (5, 7), (3, 7)), 2 * 3 * 7 * 5),
        (case("Gemm", (5, 3), (5, 7), (7,), (3, 7), transA=1), 2 * 3 * 7 * 5 + 3 * 7),
        (case("Conv", (1, 8, 6, 6), (4, 2, 3, 3), (1, 4, 4, 4)), 2 * 4 * 16 * 2 * 9),
        (case("ConvTranspose", (1, 8, 4, 4), (8, 2, 3, 3), (1, 2, 6, 6)), 2 * 128 * 2 * 9),
        (case("Einsum", (2, 3), (3, 4), (2, 4), equation="ij, jk -> ik"), 2 * 2 * 3 * 4),
        (
            case(
                "Einsum", (2, 1, 4, 5), (3, 5, 6), (2, 3, 4, 6), equation="...ij,...jk->...ik"
            ),
            2 * (2 * 3) * 4 * 5 * 6,
        ),
        (
            case("Einsum", (4, 2, 3, 5), (4, 2, 3, 5), equation="i...j->i...j"),
            2 * 4 * 2 * 3 * 5,
        ),
        (
            case("LSTM", (5, 2, 3), (1, 16, 3), (1, 16, 4), (5, 1, 2, 4)),
            2 * 5 * 2 * 16 * (3 + 4),
        ),
        (
            case("Attention", (1, 2, 4, 8), (1, 2, 6, 8), (1, 2, 6, 8), (1, 2, 4, 8)),
            4 * 64 * 6,
        ),
        (case("MaxPool", (1, 2, 4, 4), (1, 2, 2, 2), kernel_shape=(2, 2)), 8 * 4),
        (case("ReduceSum", (3, 4), (3, 1)), 12),
        (case("Softmax", (3, 4), (3, 4)), 60),
        (case("LayerNormalization", (3, 4), (4,), (4,), (3, 4)), 96),
        (case("BatchNormalization", (3, 4), (4,), (3, 4)), 24),
        (case("Tanh", (3, 4), (3, 4)), 120),
        (case("Sqrt", (3, 4), (3, 4)), 48),
        (case("Resize", (1, 1, 2, 2), (1, 1, 4, 4)), 128),
        (case("TopK", (16,), (4,)), 64),
        (case("Add", (3, 4), (4,), (3, 4)), 12),
        (case("NobodyKnows", (3, 4), (2, 4)), 8),
        (case("Cast", (3, 4), (3, 4)), 0),
        (case("CastLike", (3, 4), (1,), (3, 4)), 0),
        (case("MatMul", (2, 3), (3, 4), (2, 4), domain="somewhere.else"), 8),
        (case("FusedMatMul", (2, 3), (3, 4), (2, 4), domain="com.microsoft"), 48),
    ],
)
def test_flops_follow_the_formula(op: Case, flops: int) -> None:
    assert op_cost(*op).flops == flops


def test_bytes_are_what_is_read_and_written() -> None:
    assert cost("Add", (3, 4), (4,), (3, 4)) == Cost(12, 4 * (12 + 4 + 12))


def test_a_pick_moves_its_result_twice_and_a_scatter_its_data() -> None:
    assert cost("Gather", (1000, 4), (2,), (2, 4)) == Cost(0, 2 * 4 * 8)
    assert cost("ScatterND", (9,), (1,), (1,), (9,)) == Cost(0, 4 * (9 + 1 + 1 + 2 * 9))


def test_a_view_and_a_shape_cost_nothing() -> None:
    assert cost("Reshape", (3, 4), (2,), (12,)) == Cost(0, 0)
    assert cost("Shape", (3, 4), (2,)) == Cost(0, 0)


def test_an_unknown_dim_counts_as_one() -> None:
    assert cost("Relu", ("batch", 4), ("batch", 4)).flops == 4
    assert cost("Relu", None, None).flops == 1


def test_an_op_that_sums_up_its_input_costs_what_its_input_has() -> None:
    assert cost("GlobalAveragePool", (2, 3, 5, 7), (2, 3, 1, 1)).flops == 2 * 3 * 5 * 7
    assert cost("SoftmaxCrossEntropyLoss", (6, 10), (6,), ()).flops == 8 * 6 * 10


def test_a_cast_computes_nothing() -> None:
    assert cost("Cast", (3, 4), (3, 4)) == Cost(0, 96)


def test_a_move_costs_its_bytes() -> None:
    assert cost("Transpose", (3, 4), (4, 3)) == Cost(0, 96)


def test_work_adds_bytes_to_flops() -> None:
    assert Cost(5, 2).work == 5 + 2 * FLOPS_PER_BYTE


def test_a_control_flow_op_costs_what_they_cost_once() -> None:
    x, y, z = VarId("x"), VarId("y"), VarId("z")
    table = {var: Var(var, "float32", (4,), Origin.OP) for var in (x, y, z)}
    inner = Op("", "Add", (x, x), (y,))
    loop = Op("", "Loop", (x,), (z,), bodies=(Block((), (y,), (inner, inner), "loop"),))
    program = Program("p", Block((x,), (z,), (loop, inner)), table)
    assert total_cost(program) == Cost(12, 3 * 32)


def test_a_node_takes_the_time_of_its_calls_and_of_each_op_inside() -> None:
    add, table = case("Add", (4,), (4,), (4,))
    loop = Op("", "Loop", add.inputs, (), bodies=(Block((), (), (add, add), "loop"),))
    call = op_cost(add, table).work + KERNEL_LAUNCH
    assert node_work(add, table) == call
    assert node_work(loop, table) == 2 * call + KERNEL_LAUNCH


def test_every_operator_has_a_cost_without_shapes() -> None:
    for each in OPERATORS:
        assert cost(each.name, None, None, None, None, domain=each.domain).flops >= 0
