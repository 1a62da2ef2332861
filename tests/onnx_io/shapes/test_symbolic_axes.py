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
