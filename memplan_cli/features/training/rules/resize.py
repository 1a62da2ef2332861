"""Gradients of Resize and AffineGrid, which are linear in what they are given.

Along one axis Y = R X with a matrix R of [outputs, inputs] that holds each output's weights,
so dX = R^T dY: one product of matrices an axis, whatever the mode.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor
from typing import TYPE_CHECKING

import numpy as np

from memplan_cli.errors import ModelError
from memplan_cli.features.training.tape import UnknownShapeError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from memplan_cli.features.training.tape import Call, Rule

    Gradients = tuple[str, ...]
    Matrix = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Axis:
    """How one axis is resized: lengths before and after, and their ratio as it was given.

    The length after is that of the result, rounded down where the ratio gives a fraction.
    Runtimes reckon places in float32: where one falls between two inputs, the last digit
    decides which is the nearest.
    """

    size: int
    steps: int
    scale: np.float32


def resize(call: Call) -> Gradients:
    """Y = R X along each resized axis: dX = R^T dY."""
    tape, x = call.tape, call.input(0)
    why = "the weights of a resize are computed beforehand"
    sizes, steps = tape.sizes(x, why), tape.sizes(call.output(), why)
    scales = _scales(call, sizes, steps)
    rank, result = len(sizes), call.dy
    for axis in reversed(range(rank)):
        spec = Axis(sizes[axis], steps[axis], np.float32(scales[axis]))
        if spec.size == spec.steps and spec.scale == 1.0:
            continue
        matrix = _weights(call, spec)
        if axis == rank - 1:
            result = tape.emit("MatMul", result, tape.constant(matrix, tape.dtype(x)))
            continue
        turned = tape.constant(matrix.T, tape.dtype(x))
        if axis == rank - 2:
            result = tape.emit("MatMul", turned, result)
            continue
        swap = [*range(rank)]
        swap[axis], swap[rank - 2] = swap[rank - 2], swap[axis]
        moved = tape.emit("Transpose", result, perm=swap)
        product = tape.emit("MatMul", turned, moved)
        result = tape.emit("Transpose", product, perm=swap)
    return (result,)


def _scales(call: Call, sizes: tuple[int, ...], steps: tuple[int, ...]) -> list[float]:
    if call.attribute("antialias", 0) or call.attribute("keep_aspect_ratio_policy") in (
        "not_larger",
        "not_smaller",
    ):
        raise ModelError(
            f"Resize {call.node.name!r} antialiases or keeps the aspect ratio:"
            " it has no gradient rule for that"
        )
    found = [after / before for before, after in zip(sizes, steps, strict=True)]
    if not call.input(2):
        return found
    given = call.constant_input(2)
    if given is None:
        raise UnknownShapeError(f"the scales of Resize {call.node.name!r} are not constant")
    axes = call.attribute("axes", range(len(sizes)))
    for axis, scale in zip(axes, given.ravel().tolist(), strict=True):
        found[axis] = scale
    return found


_HALF = np.float32(0.5)
"""Of its own type: beside Python's numbers, numpy 1 makes a float32 a float64."""


def _half_pixel(spec: Axis, step: np.float32) -> np.float32:
    return (step + _HALF) / spec.scale - _HALF


def _pytorch_half_pixel(spec: Axis, step: np.float32) -> np.float32:
    return _half_pixel(spec, step) if spec.steps > 1 else np.float32(0)


def _symmetric(spec: Axis, step: np.float32) -> np.float32:
    size, steps = np.float32(spec.size), np.float32(spec.steps)
    offset = size * _HALF * (np.float32(1) - steps / (spec.scale * size))
    # ONNX Runtime adds in float64 here and rounds once, in all other modes at each step.
    return np.float32(float(offset) + (float(step) + 0.5) / float(spec.scale) - 0.5)


def _align_corners(spec: Axis, step: np.float32) -> np.float32:
    if spec.steps == 1:
        return np.float32(0)
    return step * np.float32(spec.size - 1) / np.float32(spec.steps - 1)


def _asymmetric(spec: Axis, step: np.float32) -> np.float32:
    return step / spec.scale


_PLACES: Mapping[str, Callable[[Axis, np.float32], np.float32]] = {
    "half_pixel": _half_pixel,
    "half_pixel_symmetric": _symmetric,
    "pytorch_half_pixel": _pytorch_half_pixel,
    "align_corners": _align_corners,
    "asymmetric": _asymmetric,
}

_ROUNDINGS: Mapping[str, Callable[[float], int]] = {
    "round_prefer_floor": lambda place: ceil(place - 0.5),
    "round_prefer_ceil": lambda place: floor(place + 0.5),
    "floor": floor,
    "ceil": ceil,
}


def _weights(call: Call, spec: Axis) -> Matrix:
    """Return R: the weight of each input in each output."""
    transform = call.attribute("coordinate_transformation_mode", "half_pixel")
    mode = call.attribute("mode", "nearest")
    if transform not in _PLACES:
        raise ModelError(f"Resize {call.node.name!r}: {transform} has no gradient rule")
    matrix = np.zeros((spec.steps, spec.size))
    rounding = _ROUNDINGS[call.attribute("nearest_mode", "round_prefer_floor")]
    sharpness = call.attribute("cubic_coeff_a", -0.75)
    for step in range(spec.steps):
        place = float(_PLACES[transform](spec, np.float32(step)))
        if mode == "nearest":
            taps = {rounding(place): 1.0}
        else:
            low = floor(place)
            share = place - low
            if mode == "linear":
                taps = {low: 1 - share, low + 1: share}
            else:
                taps = _cubic_taps(low, share, sharpness)
        if call.attribute("exclude_outside", 0) and mode == "cubic":
            taps = {tap: w for tap, w in taps.items() if 0 <= tap < spec.size}
            taps = {tap: w / sum(taps.values()) for tap, w in taps.items()}
        for tap, weight in taps.items():
            matrix[step, min(max(tap, 0), spec.size - 1)] += weight
    return matrix


def _cubic_taps(low: int, share: float, a: float) -> dict[int, float]:
    def near(x: float) -> float:
        return ((a + 2) * x - (a + 3)) * x * x + 1

    def far(x: float) -> float:
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    return {
        low - 1: far(1 + share),
        low: near(share),
        low + 1: near(1 - share),
        low + 2: far(2 - share),
    }


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


RULES: Mapping[str, Rule] = {
    "AffineGrid": affine_grid,
    "Resize": resize,
}
"""The rule of each operator of this family."""
