"""Inputs for a model that nobody has described: shapes and values by a rule."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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
    return Drawn(value.name, dtype, shape, low, high, values.get(value.name))


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


def as_json(inputs: Sequence[Drawn]) -> str:
    """Return inputs in the form that ``--inputs FILE.json`` reads."""
    found = {}
    for one in inputs:
        entry: dict[str, object] = {"shape": list(one.shape), "dtype": one.dtype}
        if one.value is None:
            entry |= {"low": one.low, "high": one.high}
        else:
            entry["value"] = one.value
        found[one.name] = entry
    return json.dumps(found, indent=1)
