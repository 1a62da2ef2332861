"""Resize by its definition: each axis a matrix of weights, places in the runtime's precision.

onnx's own takes the fractional product of scale and length for the length of the result, and
gives a result of one the place -0.5 instead of 0. It reckons places in float64, where the
nearest input may be another one than in float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from onnx.reference.op_run import OpRun

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    Array = NDArray[Any]

_ROUNDINGS: Mapping[str, Callable[[Array], Array]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round_prefer_floor": lambda places: np.ceil(places - 0.5),
    "round_prefer_ceil": lambda places: np.floor(places + 0.5),
}


class Resize(OpRun):  # type: ignore[misc]  # onnx has no types
    """The modes that have a gradient rule: no antialiasing, no crops, no kept aspect ratio."""

    op_domain = ""

    def _run(
        self,
        x: Array,
        _roi: Array | None = None,
        scales: Array | None = None,
        sizes: Array | None = None,
        **how: Any,  # noqa: ANN401 - attributes
    ) -> tuple[Array]:
        y = x
        for at, axis in enumerate(how["axes"] or range(x.ndim)):
            size = x.shape[axis]
            if sizes is None:
                assert scales is not None
                scale = np.float32(scales[at])
                steps = int(scale * np.float32(size))
            else:
                steps = int(sizes[at])
                scale = np.float32(steps) / np.float32(size)
            if steps != size or scale != 1:
                places = _places(how["coordinate_transformation_mode"], steps, size, scale)
                weights = _weights(places, size, how)
                y = np.moveaxis(np.tensordot(weights, y, (1, axis)), 0, axis)
        return (y.astype(x.dtype),)


def _places(mode: str, steps: int, size: int, scale: np.float32) -> Array:
    """Return where each result is among the inputs, which are at 0, 1, 2 ..."""
    single = np.float32
    at = np.arange(steps, dtype=single)
    if mode == "asymmetric":
        return at / scale
    if mode == "align_corners":
        return at * single(size - 1) / single(max(steps - 1, 1))
    if mode == "pytorch_half_pixel" and steps == 1:
        return np.zeros(1, single)
    assert mode in {"half_pixel", "pytorch_half_pixel"}, mode
    return (at + single(0.5)) / scale - single(0.5)


def _weights(places: Array, size: int, how: Mapping[str, Any]) -> Array:
    """Return the weight of each input in each result; beyond the edges the edge repeats."""
    taps = np.arange(-2, size + 2)
    if how["mode"] == "nearest":
        nearest = _ROUNDINGS[how["nearest_mode"]](places.astype(np.float64))
        weights = (nearest[:, None] == taps).astype(np.float64)
    else:
        apart = abs(places.astype(np.float64)[:, None] - taps)
        weights = np.maximum(0, 1 - apart)
    inside = np.clip(taps, 0, size - 1)
    found = np.zeros((len(places), size))
    for tap, column in zip(inside, weights.T, strict=True):
        found[:, tap] += column
    return found
