"""Gradient of AffineGrid: its result is linear in the matrices that it is given."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memplan_cli.onnx_io.gradients.tape import UnknownShapeError

if TYPE_CHECKING:
    from memplan_cli.onnx_io.gradients.tape import Call

    Gradients = tuple[str, ...]


def affine_grid(call: Call) -> Gradients:
    """Y[n, p] = theta[n] (B[p], 1) at every place p: dtheta[n] = dY[n]^T (B, 1).

    B, the places themselves, is the grid of the identity: whatever the runtime takes for
    them where an axis has one place, the gradient takes too.

    Raises:
        UnknownShapeError: theta [N, 2, 3] or [N, 3, 4] does not say which of both it is.
    """
    tape, theta, size = call.tape, call.input(0), call.input(1)
    rows = tape.shape(theta)[1]
    if not isinstance(rows, int):
        raise UnknownShapeError(
            f"the rank of the grid that {theta!r} makes is not known, and its gradient"
            " depends on it",
            hint="export the model with fixed sizes for its last two dimensions",
        )
    identity = tape.constant(np.eye(rows, rows + 1)[None], tape.dtype(theta))
    extent = tape.emit("Slice", size, tape.ints(1), tape.ints(rows + 2), tape.ints(0))
    one = tape.emit("Concat", tape.ints(1), extent, axis=0)
    corners = call.attribute("align_corners", 0)
    grid = tape.emit("AffineGrid", identity, one, align_corners=corners)
    places = tape.emit("Reshape", grid, tape.ints(-1, rows))
    flat = tape.emit("Reshape", call.dy, tape.ints(0, -1, rows))
    turned = tape.emit("Transpose", flat, perm=[0, 2, 1])
    linear = tape.emit("MatMul", turned, places)
    shift = tape.emit("ReduceSum", turned, tape.ints(2), keepdims=1)
    return (tape.emit("Concat", linear, shift, axis=2), "")
