"""A gradient rule: Compress, which keeps the slices of a tensor that a condition selects."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from onnx import parser
from onnx.reference import ReferenceEvaluator

from memplan_cli.features.training.train_step import Recipe, make_train_step

if TYPE_CHECKING:
    from memplan_cli.features.training.tape import Call

MODEL = parser.parse_model("""
    <ir_version: 9, opset_import: ["": 18]>
    kept (double[4, 3] x, bool[4] condition) => (double loss) {
        kept = Compress <axis = 0> (x, condition)
        square = Mul(kept, kept)
        loss = ReduceSum <keepdims = 0> (square)
    }
""")


def compress(call: Call) -> tuple[str, ...]:
    """Y = X[C]: dX = dY at the positions that C selects, 0 elsewhere."""
    tape, x, axis = call.tape, call.input(0), call.attribute("axis")
    positions = tape.emit("Transpose", tape.emit("NonZero", call.input(1)), perm=[1, 0])
    zeros = tape.zeros_like(x)
    if axis is None:  # the elements of the whole tensor, in one row
        row = tape.emit("Reshape", zeros, tape.ints(-1))
        return (tape.reshape_like(tape.emit("ScatterND", row, positions, call.dy), x), "")
    swapped = list(range(tape.rank(x)))
    swapped[0], swapped[axis] = swapped[axis], swapped[0]
    first, dy = (tape.emit("Transpose", t, perm=swapped) for t in (zeros, call.dy))
    filled = tape.emit("ScatterND", first, positions, dy)
    return (tape.emit("Transpose", filled, perm=swapped), "")


EXTENDED = {"Compress": compress}


def main() -> None:
    """Compute the gradient of a sum of squares: twice the kept elements, and 0 elsewhere."""
    step = make_train_step(MODEL, Recipe("loss", None, ("x",), rules=EXTENDED))
    x = np.arange(12.0).reshape(4, 3)
    feeds = {step.parameters[0].input: x, "condition": np.array([True, False, False, True])}
    loss, gradient = ReferenceEvaluator(step.model).run(["loss", step.gradients["x"]], feeds)
    print(f"loss {loss}\n{gradient}")


if __name__ == "__main__":
    main()
