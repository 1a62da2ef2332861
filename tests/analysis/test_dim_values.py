"""What ops demand of dims, met by the least numbers."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import parse
from memplan_cli.analysis.dim_constraints import (
    COMMON_LENGTHS,
    STRIDES,
    DimConstraint,
    UnboundDims,
    dim_constraints,
    smallest_satisfying_dims,
)
from memplan_cli.onnx_io.shapes.reading import read_program


def agreed(text: str, **fixed: int) -> dict[str, int]:
    """Return what is assumed of the dims of a model that nobody bound."""
    model = parse(text)
    first = {
        str(dim.dim_param): position == 0
        for value in model.graph.input
        for position, dim in enumerate(value.type.tensor_type.shape.dim)
        if dim.dim_param and dim.dim_param not in fixed
    }
    program = read_program(model).program
    return smallest_satisfying_dims(dim_constraints(program), UnboundDims(first, fixed))


def test_dims_without_constraints_are_one() -> None:
    assert agreed("g (float[b,s,8] x) => (y) { y = Relu(x) }") == {"b": 1, "s": 1}


def test_a_table_of_positions_decides_the_side_of_an_image() -> None:
    text = """g (float[b,3,h,h] x, float[8,3,16,16] k, float[1,196,8] p) => (y)
        <int64[3] to = {0, 8, -1}>
        { c = Conv<strides = [16,16]>(x, k) r = Reshape(c, to)
          t = Transpose<perm = [0,2,1]>(r) y = Add(t, p) }"""
    assert agreed(text) in ({"b": 1, "h": 224}, {"b": 1, "h": 16}), "or one patch for all"


def test_both_sides_of_a_product_agree() -> None:
    text = "g (float[b,n] x, float[8,4] w) => (y) { y = MatMul(x, w) }"
    assert agreed(text) == {"b": 1, "n": 8}


def test_a_dim_that_was_bound_decides_the_one_tied_to_it() -> None:
    text = """g (float[b,n] x, float[b,m] z) => (y)
        { e = Exp(x) f = Exp(z) c = Concat<axis = 0>(e, f) y = Neg(c) }"""
    assert agreed(text, n=5) == {"b": 1, "m": 5}


def test_a_length_is_never_below_one() -> None:
    text = """g (float[b,1,t] x, float[4,1,5] k) => (y) { c = Conv(x, k) y = Relu(c) }"""
    assert agreed(text) == {"b": 1, "t": 5}


def test_a_demand_that_nothing_meets_leaves_the_others_met() -> None:
    never = DimConstraint("equal", ((2,), ("2*a + 1",)))
    other = DimConstraint("equal", (("a",), (7,)))
    dims = UnboundDims({"a": False}, {})
    assert smallest_satisfying_dims((never, other), dims) == {"a": 7}


def test_tokens_of_square_images_are_common_lengths() -> None:
    """The patches of an image in a square, and with the class token of a vision transformer."""
    assert {side**2 for side in (16, 24, 32)} <= {*COMMON_LENGTHS}
    assert {side**2 + 1 for side in (14, 16, 24, 32)} <= {*COMMON_LENGTHS}


DIM = st.sampled_from(["a", "b", "a + b", "2*a", "floor(a/4)", "floor((b + 3)/4) + 1", "a*b"])


@given(
    pairs=st.lists(st.tuples(DIM, st.sampled_from(COMMON_LENGTHS[:30])), max_size=2),
    kind=st.sampled_from(["equal", "broadcastable"]),
)
def test_constraints_that_one_dim_can_satisfy_are_satisfied(
    pairs: list[tuple[str, int]], kind: str
) -> None:
    lengths = [DimConstraint("positive", ((text,),)) for text, _ in pairs]
    asked = [*lengths, *(DimConstraint(kind, ((text,), (size,))) for text, size in pairs[:1])]
    found = smallest_satisfying_dims(asked, UnboundDims({"a": True, "b": False}, {}))
    assert all(value >= 1 for value in found.values())
    single = [{"a": 1, "b": 1, name: value} for name in "ab" for value in COMMON_LENGTHS]
    if any(all(demand.is_satisfied(dims) for demand in asked) for dims in single):
        assert all(demand.is_satisfied(found) for demand in asked)


@pytest.mark.parametrize("kind", ["equal", "broadcastable"])
def test_what_is_not_known_is_no_reason_to_refuse(kind: str) -> None:
    assert DimConstraint(kind, (("u0",), (4,))).is_satisfied({"a": 1})


def test_lengths_rise_and_hold_what_models_are_made_for() -> None:
    assert all(low < high for low, high in pairwise(COMMON_LENGTHS))
    assert all(1 << power in COMMON_LENGTHS for power in range(15))
    assert all(side in COMMON_LENGTHS for side in range(64, 641, 64))
    assert set(range(1, 9)) <= set(COMMON_LENGTHS)
    # Images of classifiers, and their patches with a class token; of detectors; sounds of Whisper.
    assert {224, 197, 384, 577, 257, 800, 1500, 3000, 16000, 48000} <= set(COMMON_LENGTHS)
    assert all(224 % stride == 0 for stride in STRIDES)
