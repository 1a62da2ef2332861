"""How the tables of forms are written: an operator's attributes and shapes, one line a form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from features.training.gradient_checks import Case, narrowed
from features.training.gradient_values import positive, values

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Array = NDArray[Any]
    Forms = Mapping[str, Case]


def form(body: str, **given: Any) -> Case:  # noqa: ANN401 - shapes, arrays, numbers
    """Return a case with fixed values.

    Args:
        body: Nodes in ONNX text that make ``y``.
        given: What the body reads: a tuple is the shape of an input to vary, an array an
            input, a list or a number a constant of int64 or, for numbers with a point, of
            float64, or float32 beside an input of that. ``how`` holds fields of the case: ``opset``, ``outputs``, ``wanted``.
    """
    how = given.pop("how", {})
    inputs: dict[str, Array] = {}
    constants: dict[str, Array] = {}
    for seed, (name, value) in enumerate(given.items()):
        if isinstance(value, tuple):
            inputs[name] = fixed(*value, seed=seed)
        elif isinstance(value, np.ndarray):
            inputs[name] = value
        else:
            constants[name] = np.array(value, np.int64 if value == [] else None)
    if any(value.dtype == np.float32 for value in inputs.values()):
        constants = {name: narrowed(value) for name, value in constants.items()}
    return Case(body, inputs, constants=constants, **how)


def fixed(*dims: int, seed: int = 0) -> Array:
    """Return distinct values, none of them 0 or a multiple of a tenth."""
    return values(lambda _: seed + 1, *dims)


def above(*dims: int, seed: int = 0) -> Array:
    """Return distinct values between 0.5 and 2.5."""
    return positive(lambda _: seed + 1, *dims)


def single(*dims: int, seed: int = 0) -> Array:
    """Return values as `fixed` does, in float32."""
    return fixed(*dims, seed=seed).astype(np.float32)


def half(*dims: int, seed: int = 0) -> Array:
    """Return values as `fixed` does, in float16."""
    return fixed(*dims, seed=seed).astype(np.float16)
