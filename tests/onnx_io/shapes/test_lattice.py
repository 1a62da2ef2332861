"""Types with holes: what is filled, what is kept, what contradicts."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import pytest
from onnx import TensorProto, helper

from memplan_cli.onnx_io.shapes.lattice import (
    agrees,
    has_holes,
    is_complete,
    merged,
    shape_in,
    slice_of,
    stack_of,
    widened,
    with_shape,
)

if TYPE_CHECKING:
    from onnx import TypeProto

    from memplan_cli.core.program import Shape

FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64
SHAPES: list[Shape | None] = [
    None,
    (),
    (2,),
    ("n",),
    (None,),
    (2, 3),
    (2, None),
    (None, "n"),
    ("n", 3),
]


def kind(shape: Shape | None, dtype: int = FLOAT) -> TypeProto:
    return with_shape(helper.make_tensor_type_proto(dtype, []), shape)


SEQUENCE = helper.make_sequence_type_proto(kind((2,)))
NOTHING = type(SEQUENCE)()


@pytest.mark.parametrize("shape", SHAPES)
def test_dims_come_back_as_they_were_given(shape: Shape | None) -> None:
    assert shape_in(kind(shape)) == shape
    assert shape_in(SEQUENCE) is None


@pytest.mark.parametrize(
    ("number", "expected"), [(2**63 - 1, 2**63 - 1), (2**63, None), (0, 0)]
)
def test_a_number_that_no_file_can_say_is_a_hole(number: int, expected: int | None) -> None:
    assert shape_in(kind((number,))) == (expected,)


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        (kind((2, "n")), True), (kind(()), True), (kind((2, None)), False), (kind(None), False),
        (kind((2,), 0), False), (SEQUENCE, True), (NOTHING, False),
    ],
)  # fmt: skip
def test_a_type_is_complete_where_each_dim_has_a_number_or_a_name(
    known: TypeProto, *, expected: bool
) -> None:
    assert is_complete(known) is expected


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (kind((2, None)), kind((5, 3)), (2, 3)), (kind(None), kind((5, 3)), (5, 3)),
        (kind((2, None)), kind((5,)), (2, None)), (kind((2, None)), kind(None), (2, None)),
        (kind(("n", None)), kind((4, "m")), ("n", "m")),
    ],
)  # fmt: skip
def test_holes_are_filled_and_nothing_else(
    one: TypeProto, other: TypeProto, expected: Shape
) -> None:
    assert shape_in(merged(one, other)) == expected


def test_a_dtype_is_filled_where_there_is_none() -> None:
    assert merged(kind((2,), 0), kind((2,), INT)).tensor_type.elem_type == INT
    assert merged(kind((2,)), kind((2,), INT)).tensor_type.elem_type == FLOAT
    assert merged(NOTHING, kind((2,))) == kind((2,))
    assert merged(SEQUENCE, kind((2,))) == SEQUENCE
    assert merged(kind((2,)), SEQUENCE) == kind((2,))


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (kind((2, None)), kind((2, 3)), True), (kind((2, 3)), kind((2, 4)), False),
        (kind((2,)), kind((2, 1)), False), (kind(None), kind((2, 1)), True),
        (kind((2, 1)), kind(None), True), (kind((2,)), kind((2,), INT), False),
        (kind((2,)), kind((2,), 0), True), (kind((2,), 0), kind((2,), INT), True),
        (kind((2,)), kind(("n",)), True), (kind(("n",)), kind(("n",)), True),
        (kind(("n",)), kind((2,)), False), (kind(("n",)), kind((None,)), True),
        (SEQUENCE, SEQUENCE, True), (SEQUENCE, kind((2,)), False), (NOTHING, SEQUENCE, True),
        (kind((2,)), NOTHING, True),
    ],
)  # fmt: skip
def test_types_agree_where_no_number_rank_or_dtype_differs(
    one: TypeProto, other: TypeProto, *, expected: bool
) -> None:
    assert agrees(one, other) is expected


@pytest.mark.parametrize(("one", "other"), list(product(SHAPES, repeat=2)))
def test_widening_keeps_the_dims_that_both_shapes_have(
    one: Shape | None, other: Shape | None
) -> None:
    found = shape_in(widened(kind(one), kind(other)))
    if one is None or other is None or len(one) != len(other):
        assert found is None
    else:
        assert found == tuple(a if a == b else None for a, b in zip(one, other, strict=True))


def test_what_is_no_tensor_or_unknown_leaves_the_other() -> None:
    assert widened(NOTHING, SEQUENCE) == SEQUENCE
    assert widened(SEQUENCE, NOTHING) == SEQUENCE


def test_the_shape_of_a_value_is_unknown_if_one_of_its_two_types_is() -> None:
    assert widened(NOTHING, kind((4,))) == widened(kind((4,)), NOTHING) == kind(None)


@pytest.mark.parametrize(
    ("shape", "axis", "expected"),
    [((2, 3, 4), 0, (3, 4)), ((2, 3, 4), 1, (2, 4)), ((2, 3, 4), -1, (2, 3)),
     ((2, 3), -2, (3,)), ((2, 3), 2, None), ((2, 3), -3, None), ((), 0, None), (None, 0, None)],
)  # fmt: skip
def test_a_slice_has_a_dim_less(
    shape: Shape | None, axis: int, expected: Shape | None
) -> None:
    assert shape_in(slice_of(kind(shape), axis)) == expected


@pytest.mark.parametrize(
    ("shape", "axis", "expected"),
    [((3, 4), 0, (7, 3, 4)), ((3, 4), 1, (3, 7, 4)), ((3, 4), -1, (3, 4, 7)), ((), 0, (7,)),
     ((3, 4), -3, (7, 3, 4)), (None, 0, None)],
)  # fmt: skip
def test_a_stack_has_a_dim_more(
    shape: Shape | None, axis: int, expected: Shape | None
) -> None:
    assert shape_in(stack_of(kind(shape), axis, 7)) == expected


@pytest.mark.parametrize(("shape", "expected"), [((2,), False), ((None,), True), (None, True)])
def test_a_graph_has_holes_where_a_result_is_not_all_known(
    shape: Shape | None, *, expected: bool
) -> None:
    value = helper.make_tensor_value_info("y", FLOAT, None)
    value.type.CopyFrom(kind(shape))
    x = helper.make_tensor_value_info("x", FLOAT, [2])
    graph = helper.make_graph(
        [helper.make_node("Dropout", ["x"], ["y", ""])], "g", [x], [value]
    )
    assert has_holes(graph) is expected
