"""Inputs for a model that nobody has described: shapes and values by a rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BATCH, LENGTH, IMAGE, COLORS = 1, 64, 320, 3

NAMED: Mapping[str, int] = {
    "batch": BATCH, "n": BATCH, "channel": COLORS, "height": IMAGE, "width": IMAGE,
    "h": IMAGE, "w": IMAGE, "seq": LENGTH, "time": LENGTH, "len": LENGTH,
}  # fmt: skip
"""Sizes by the first word of these that a dim's name has in it (one letter: that is it)."""

ANONYMOUS = ("", "?", "-1")
"""Names under which a model has several dims of different sizes."""

FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)


@dataclass(frozen=True)
class Drawn:
    """An input: its shape and whole numbers from ``low`` to ``high``, or ``value``."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    low: float
    high: float
    value: float | None = None
    is_free: bool = False
    """Whether the model leaves a dim of it free."""

    @property
    def option(self) -> tuple[str, str]:
        """Return the words that give the shape to a command."""
        return "--shape", f"{self.name}={','.join(map(str, self.shape))}"


def drawn(
    model: onnx.ModelProto,
    shapes: Mapping[str, tuple[int, ...]],
    values: Mapping[str, float],
    told: Mapping[str, Any],
) -> list[Drawn]:
    """Return the inputs of a model: as ``told`` beside it, as known, or by the rule."""
    constants = {tensor.name for tensor in model.graph.initializer}
    inputs = [at for at in model.graph.input if at.name not in constants]
    sizes: dict[str, int] = {}
    return [_input(at, shapes, values, told.get(at.name, {}), sizes) for at in inputs]


def _input(
    value: onnx.ValueInfoProto,
    shapes: Mapping[str, tuple[int, ...]],
    values: Mapping[str, float],
    told: Mapping[str, Any],
    sizes: dict[str, int],
) -> Drawn:
    tensor = value.type.tensor_type
    dims = tensor.shape.dim
    image = tensor.elem_type in FLOATS and len(dims) == 4
    rule = _shape(dims, sizes, image=image)
    known = shapes.get(value.name, rule)
    shape = tuple(told.get("shape", known if len(known) == len(dims) else rule))
    low, high = (-1, 1) if tensor.elem_type in FLOATS else (1, 1)
    how = str(told.get("gen", "")).split()
    if how[:1] == ["randint"]:
        low, high = int(how[1]), int(how[2]) - 1
    dtype = TensorProto.DataType.Name(tensor.elem_type).lower()
    free = not all(dim.HasField("dim_value") and dim.dim_value > 0 for dim in dims)
    return Drawn(value.name, dtype, shape, low, high, values.get(value.name), free)


def _shape(
    dims: Sequence[onnx.TensorShapeProto.Dimension], sizes: dict[str, int], *, image: bool
) -> tuple[int, ...]:
    fixed = [dim.dim_value if dim.HasField("dim_value") else 0 for dim in dims]
    last = image and fixed[3] in (1, COLORS)
    found = []
    for at, (dim, size) in enumerate(zip(dims, fixed, strict=True)):
        name = dim.dim_param
        if size > 0:
            found.append(size)
        elif name not in ANONYMOUS and name in sizes:
            found.append(sizes[name])
        else:
            chosen = _by_name(name) or _by_place(at, image=image, last=last)
            sizes[name] = chosen
            found.append(chosen)
    return tuple(found)


def _by_name(name: str) -> int:
    low = name.lower()
    return next(
        (n for word, n in NAMED.items() if low == word or (len(word) > 1 and word in low)), 0
    )


def _by_place(at: int, *, image: bool, last: bool) -> int:
    if at == 0:
        return BATCH
    if not image:
        return LENGTH
    return COLORS if at == (3 if last else 1) else IMAGE


DTYPES = {"float": "float32", "double": "float64", "string": "str"}


def arrays(inputs: Sequence[Drawn]) -> dict[str, np.ndarray]:
    """Draw the inputs, the same ones each time."""
    rng = np.random.default_rng(0)
    return {one.name: _array(one, rng) for one in inputs}


def _array(one: Drawn, rng: np.random.Generator) -> np.ndarray:
    dtype = DTYPES.get(one.dtype, one.dtype)
    if dtype == "str":
        return np.full(one.shape, "a")
    if one.value is not None:
        return np.full(one.shape, one.value, dtype=dtype)
    if dtype.startswith(("float", "bfloat")):
        return rng.uniform(one.low, one.high, one.shape).astype(dtype)
    return rng.integers(int(one.low), int(one.high) + 1, one.shape).astype(dtype)
