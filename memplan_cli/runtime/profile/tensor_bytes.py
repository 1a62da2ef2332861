"""The bytes that ONNX Runtime requests for a tensor of some type and shape."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.program import Origin
from memplan_cli.core.symbolic.sizes import size_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.core.program import Program, Shape, VarId

_STRING = 32
"""Bytes of a ``std::string`` where the wheels are built."""


def bytes_of(dtype: str, shape: Shape | None, dims: Mapping[str, int]) -> int | None:
    """Return the bytes of one tensor; None where they are not known."""
    is_text = dtype == "string"
    size = size_of(shape, "uint8" if is_text else dtype)
    if size is None:
        return None
    bound = size.bind(dims) if size.symbols else size
    return None if bound.symbols else bound.coefficient * (_STRING if is_text else 1)


def tensor_bytes(program: Program, dims: Mapping[str, int]) -> dict[VarId, int]:
    """Return the bytes of each var whose size is known before the run."""
    found = {}
    for var in program.vars.values():
        size = bytes_of(var.dtype, var.shape, dims)
        if size is not None:
            found[var.id] = size
    return found


def weight_bytes(program: Program, dims: Mapping[str, int]) -> int:
    """Return the bytes of initializers and Constants, as far as they are known."""
    return sum(
        size
        for var, size in tensor_bytes(program, dims).items()
        if program.vars[var].origin is Origin.WEIGHT
    )
