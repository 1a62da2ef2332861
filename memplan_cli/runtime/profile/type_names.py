"""ONNX Runtime's names of element types: numpy's, but for two floats."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_NUMPY: Mapping[str, str] = {"float": "float32", "double": "float64"}

_RUNTIME: Mapping[str, str] = {ours: theirs for theirs, ours in _NUMPY.items()}


def dtype_of(word: str) -> str:
    """Return numpy's name of an element type, with or without ``tensor(..)`` around it."""
    bare = word[len("tensor(") : -1] if word.startswith("tensor(") else word
    return _NUMPY.get(bare, bare)


def word_of(dtype: str) -> str:
    """Return the runtime's word for a numpy name."""
    return _RUNTIME.get(dtype, dtype)
