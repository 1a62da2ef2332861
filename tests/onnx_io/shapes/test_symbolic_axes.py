"""Results whose axes are as long as a value says, where that value has a name."""

from __future__ import annotations

import pytest

from onnx_io.shapes.test_symbolic_targets import shape_of

TOP = """g (float[a,b,8] x, float[n,4] like) => (y) <int64[1] first = {{0}}, int64[1] two = {{2}}> {{
    s = Shape<start = 0, end = 1>(like)
    k = {k}
    v, at = TopK{axis}(x, k)
    y = Neg(v)
}}"""


@pytest.mark.parametrize(
    ("axis", "expected"),
    [("", ("a", "b", "n")), ("<axis = 0>", ("n", "b", 8)), ("<axis = 1>", ("a", "n", 8)),
     ("<axis = -2>", ("a", "n", 8))],
)  # fmt: skip
def test_the_topmost_elements_are_as_many_as_is_asked(
    axis: str, expected: tuple[object, ...]
) -> None:
    text = TOP.format(k="Identity(s)", axis=axis)
    assert shape_of(text, "v") == expected
    assert shape_of(text, "y") == expected


def test_the_topmost_elements_may_be_a_product() -> None:
    assert shape_of(TOP.format(k="Mul(s, two)", axis=""), "v") == ("a", "b", "2*n")


ONE_HOT = """g (int64[a,b] x, float[n,4] like) => (y) <int64 zero = {{0}}, float[2] values = {{0, 1}}> {{
    all = Shape(like)
    depth = Gather(all, zero)
    h = OneHot{axis}(x, depth, values)
    y = Neg(h)
}}"""


@pytest.mark.parametrize(
    ("axis", "expected"),
    [("", ("a", "b", "n")), ("<axis = 0>", ("n", "a", "b")), ("<axis = 1>", ("a", "n", "b")),
     ("<axis = -2>", ("a", "n", "b")), ("<axis = -3>", ("n", "a", "b"))],
)  # fmt: skip
def test_a_code_is_as_long_as_its_depth(axis: str, expected: tuple[object, ...]) -> None:
    assert shape_of(ONE_HOT.format(axis=axis), "h") == expected


RATIO = """g (float[1,1,h,w] x, float[n,4] like) => (y) <float[1] rate = {{{rate}}}, float[2] whole = {{1, 1}}, int64[1] first = {{0}}> {{
    s = Shape<start = 2, end = 4>(x)
    f = Cast<to = 1>(s)
    scaled = Mul(f, rate)
    g = Floor(scaled)
    i = Cast<to = 7>(g)
    head = Shape<start = 0, end = 2>(x)
    to = Concat<axis = 0>(head, i)
    y = ConstantOfShape(to)
}}"""


@pytest.mark.parametrize("rate", ["2.0", "0.5", "0.25", "1.5"])
@pytest.mark.parametrize("side", [1, 2, 3, 7, 12])
def test_a_scaled_side_is_what_floats_come_to(rate: str, side: int) -> None:
    dims = {"h": side, "w": side + 1}
    found = shape_of(RATIO.format(rate=rate), "y", dims)
    assert found == (1, 1, int(side * float(rate)), int((side + 1) * float(rate)))
