"""The repr of results: one line, without the rows of their tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_MAX_CHARACTERS = 60
"""Characters up to which the repr of a record or a collection is printed."""


def one_line_repr(record: DataclassInstance) -> str:
    """Return the ``__repr__`` of a record, such as ``<Soak: model='a.onnx', service=Service(...), runs=<4>>``.

    A long collection is shown by its length, a long record by its type. Empty fields are left out.
    """
    texts = []
    for field in fields(record):
        value = getattr(record, field.name)
        text = repr(value)
        if len(text) > _MAX_CHARACTERS and not isinstance(value, str):
            is_collection = type(value) is tuple or isinstance(value, Mapping)
            text = f"<{len(value)}>" if is_collection else f"{type(value).__name__}(...)"
        if text not in {"None", "''", "()", "{}"}:
            texts.append(f"{field.name}={text}")
    return f"<{type(record).__name__}: {', '.join(texts)}>"
