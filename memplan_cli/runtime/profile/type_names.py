"""ONNX Runtime's names of element types: those of numpy, except for two floats."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_NUMPY_NAMES: Mapping[str, str] = {"float": "float32", "double": "float64"}

_RUNTIME_NAMES: Mapping[str, str] = {
    numpy_name: name for name, numpy_name in _NUMPY_NAMES.items()
}


def dtype_of(runtime_type: str) -> str:
    """Return numpy's name of an element type: ``float32`` of ``float`` or ``tensor(float)``."""
    is_tensor = runtime_type.startswith("tensor(")
    name = runtime_type[len("tensor(") : -1] if is_tensor else runtime_type
    return _NUMPY_NAMES.get(name, name)


def runtime_type_of(dtype: str) -> str:
    """Return ONNX Runtime's name of an element type: ``float`` of ``float32``."""
    return _RUNTIME_NAMES.get(dtype, dtype)
