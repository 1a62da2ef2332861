"""The tables of views and in-place operators against what the standard's evaluator computes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from memplan_cli.analysis.aliasing import IN_PLACE, VIEWS

if TYPE_CHECKING:
    from numpy.typing import NDArray

_X = (np.arange(12, dtype=np.float32).reshape(1, 3, 4) - 5.25) / 7

EXAMPLES: dict[str, dict[str, Any]] = {
    "Flatten": {},
    "Identity": {},
    "Reshape": {"shape": [4, 3]},
    "Squeeze": {"axes": [0]},
    "Unsqueeze": {"axes": [1]},
    "Cast": {"to": TensorProto.INT32},
    "Neg": {},
    "Not": {},
    "Transpose": {},
    "Relu": {},
    "Round": {},
    "Expand": {"shape": [2, 3, 4]},
    "Tile": {"repeats": [2, 1, 1]},
    "CumSum": {"axis": 1},
    "Slice": {"starts": [1], "ends": [3], "axes": [1]},
    "Trilu": {},
}
"""Attributes, and constant inputs, which are lists or the axis of CumSum."""


def first_result(kind: str, x: NDArray[Any]) -> NDArray[Any]:
    """Run one operator by itself."""
    told = EXAMPLES[kind]
    constants = {
        name: np.array(value, np.int64) for name, value in told.items() if name != "to"
    }
    attributes = {name: value for name, value in told.items() if name == "to"}
    node = helper.make_node(kind, ["x", *constants], ["y"], **attributes)
    dtype = helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info("x", dtype, x.shape)],
        [helper.make_empty_tensor_value_info("y")],
        [
            helper.make_tensor(name, TensorProto.INT64, value.shape, value.ravel())
            for name, value in constants.items()
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    (found,) = ReferenceEvaluator(model).run(None, {"x": x})
    return np.asarray(found)


@pytest.mark.parametrize("kind", sorted({*EXAMPLES, *VIEWS}))
def test_a_view_is_an_operator_that_keeps_every_byte(kind: str) -> None:
    """A cast is none, though its result may have as many bytes as its input."""
    x = _X > 0 if kind == "Not" else _X
    assert (first_result(kind, x).tobytes() == x.tobytes()) == (kind in VIEWS)


@pytest.mark.parametrize("kind", ["Transpose", "Expand", "Tile", "CumSum", "Slice"])
def test_what_reads_elements_elsewhere_is_in_no_table(kind: str) -> None:
    """The first element of the result, or a later one, rests on another place of the input."""
    usual = first_result(kind, _X)
    moved = False
    for place in range(_X.size):
        other = _X.copy()
        other.flat[place] += 1
        changed = first_result(kind, other)
        at = np.flatnonzero((changed != usual).ravel())
        moved |= changed.size != _X.size or list(at) not in ([], [place])
    assert moved
    assert kind not in IN_PLACE
    assert kind not in VIEWS
