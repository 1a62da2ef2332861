"""Gradient of Resize, which is a linear function of its first input.

Along one axis Y = R X, where the matrix R, [outputs, inputs], holds the weight of each input in each
output. So dX = R^T dY: one matrix product per axis, whatever the mode.
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
class ResizedAxis:
    """How one axis is resized.

    Attributes:
        input_size: its length in X.
        output_size: its length in Y, rounded down if input_size * scale is a fraction.
        scale: the ratio as the node gives it. It is float32 because runtimes compute coordinates in
            float32: the last digit may decide which input is the nearest.
    """

    input_size: int
    output_size: int
    scale: np.float32


def resize(call: Call) -> Gradients:
    """Y = R X along each resized axis: dX = R^T dY.

    Raises:
        ModelError: the mode or the coordinate transformation mode is not supported.
    """
    tape, x = call.tape, call.input(0)
    transformation = call.attribute("coordinate_transformation_mode", "half_pixel")
    if transformation not in _COORDINATES:
        raise ModelError(f"Resize {call.label!r}: {transformation} has no gradient rule")
    why = "the weights of a resize are computed beforehand"
    input_sizes, output_sizes = tape.sizes(x, why=why), tape.sizes(call.output(), why=why)
    scales = _scales(call, input_sizes, output_sizes)
    dx = call.dy
    for axis in reversed(range(len(input_sizes))):
        resized = ResizedAxis(input_sizes[axis], output_sizes[axis], np.float32(scales[axis]))
        if resized.input_size == resized.output_size and resized.scale == 1.0:
            continue  # R is the identity in all supported modes
        r = _interpolation_matrix(call, resized, _COORDINATES[transformation])
        dx = _gradient_along(call, dx, r, axis)
    return (dx,)


def _gradient_along(call: Call, dy: str, r: Matrix, axis: int) -> str:
    """Return R^T dY, where R multiplies along one axis of a tensor of the rank of X."""
    tape, x = call.tape, call.input(0)
    rank, dtype = tape.rank(x), tape.dtype(x)
    # MatMul multiplies along the last two axes: dX = dY R for the last, R^T dY for the one before.
    if axis == rank - 1:
        return tape.emit("MatMul", dy, tape.constant(r, dtype))
    r_transposed = tape.constant(r.T, dtype)
    if axis == rank - 2:
        return tape.emit("MatMul", r_transposed, dy)
    # Another axis is exchanged with the last but one, and back.
    perm = [*range(rank)]
    perm[axis], perm[rank - 2] = rank - 2, axis
    moved = tape.emit("Transpose", dy, perm=perm)
    return tape.emit("Transpose", tape.emit("MatMul", r_transposed, moved), perm=perm)


def _scales(
    call: Call, input_sizes: tuple[int, ...], output_sizes: tuple[int, ...]
) -> list[float]:
    """Return the scale of each axis: the node's, or the ratio of sizes if it has none; 1 for an empty axis.

    Raises:
        ModelError: the node antialiases or keeps the aspect ratio.
        UnknownShapeError: the node's scales are not constant.
    """
    policy = call.attribute("keep_aspect_ratio_policy")
    if call.attribute("antialias", 0) or policy in ("not_larger", "not_smaller"):
        raise ModelError(
            f"Resize {call.node.name!r} antialiases or keeps the aspect ratio:"
            " it has no gradient rule for that"
        )
    sizes = zip(input_sizes, output_sizes, strict=True)
    scales = [after / before if before else 1.0 for before, after in sizes]
    if not call.input(2):
        return scales
    values = call.constant_input(2)
    if values is None:
        raise UnknownShapeError(f"the scales of Resize {call.node.name!r} are not constant")
    if not values.size:  # older exports omit the scales by an empty constant
        return scales
    axes = call.attribute("axes", range(len(input_sizes)))
    for axis, scale in zip(axes, values.ravel().tolist(), strict=True):
        scales[axis] = scale
    return scales


_HALF = np.float32(0.5)
"""A float32, because numpy 1 computes a float32 and a Python float in float64."""


def _half_pixel(axis: ResizedAxis, output: np.float32) -> np.float32:
    """Return x = (o + 1/2) / scale - 1/2 for output number o."""
    return (output + _HALF) / axis.scale - _HALF


def _pytorch_half_pixel(axis: ResizedAxis, output: np.float32) -> np.float32:
    """Return x = (o + 1/2) / scale - 1/2, but 0 if there is one output."""
    return _half_pixel(axis, output) if axis.output_size > 1 else np.float32(0)


def _align_corners(axis: ResizedAxis, output: np.float32) -> np.float32:
    """Return x = o (inputs - 1) / (outputs - 1), but 0 if there is one output."""
    if axis.output_size == 1:
        return np.float32(0)
    return output * np.float32(axis.input_size - 1) / np.float32(axis.output_size - 1)


def _asymmetric(axis: ResizedAxis, output: np.float32) -> np.float32:
    """Return x = o / scale for output number o."""
    return output / axis.scale


_COORDINATES: Mapping[str, Callable[[ResizedAxis, np.float32], np.float32]] = {
    "half_pixel": _half_pixel,
    "pytorch_half_pixel": _pytorch_half_pixel,
    "align_corners": _align_corners,
    "asymmetric": _asymmetric,
}
"""``coordinate_transformation_mode`` -> coordinate x in the input of output number o."""

_ROUNDINGS: Mapping[str, Callable[[float], int]] = {
    "round_prefer_floor": lambda coordinate: ceil(coordinate - 0.5),
    "round_prefer_ceil": lambda coordinate: floor(coordinate + 0.5),
    "floor": floor,
    "ceil": ceil,
}


def _interpolation_matrix(
    call: Call,
    axis: ResizedAxis,
    coordinate_of: Callable[[ResizedAxis, np.float32], np.float32],
) -> Matrix:
    """Return R, [outputs, inputs]: the weight of each input in each output.

    ``coordinate_of`` is an entry of `_COORDINATES`. Weights of inputs before the first or behind the last are
    added to those of the edge.
    """
    matrix = np.zeros((axis.output_size, axis.input_size))
    for output in range(axis.output_size):
        coordinate = float(coordinate_of(axis, np.float32(output)))
        for index, weight in _input_weights(call, coordinate).items():
            matrix[output, min(max(index, 0), axis.input_size - 1)] += weight
    return matrix


def _input_weights(call: Call, coordinate: float) -> dict[int, float]:
    """Return the weights of the inputs around a coordinate, by index, which may be outside of the input.

    Raises:
        ModelError: the node interpolates by cubic functions.
    """
    mode = call.attribute("mode", "nearest")
    if mode == "nearest":
        rounding = _ROUNDINGS[call.attribute("nearest_mode", "round_prefer_floor")]
        return {rounding(coordinate): 1.0}
    if mode != "linear":
        raise ModelError(f"Resize {call.label!r}: {mode} has no gradient rule")
    low = floor(coordinate)
    fraction = coordinate - low
    return {low: 1 - fraction, low + 1: fraction}


RULES: Mapping[str, Rule] = {
    "Resize": resize,
}
"""The rule of each operator of this family."""
