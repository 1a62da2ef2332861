"""Inputs in JSON: shapes and types, values as somebody typed them, or how to draw them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from memplan_cli.errors import SettingsError
from memplan_cli.onnx_io.runs.input_files.drawn import Draw, drawn
from memplan_cli.onnx_io.runs.input_files.found import (
    Array,
    Found,
    bytes_of,
    count_of,
    within_limit,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from onnx import ValueInfoProto

_LARGEST_JSON = 1 << 26


def read_json(path: Path, wanted: Sequence[ValueInfoProto]) -> Iterator[Found]:
    """Yield what a file says of each input that it names."""
    document = json.loads(bytes_of(path, _LARGEST_JSON), object_pairs_hook=_once)
    entries = document.get("inputs", document) if isinstance(document, dict) else None
    names = {value.name for value in wanted}
    if isinstance(document, dict) and "inputs" in names and "shape" in document["inputs"]:
        entries = document
    if not isinstance(entries, dict):
        raise SettingsError(f'{path} is not {{name: {{"shape": .., "dtype": ..}}}}')
    for name, entry in entries.items():
        where = f"{name[:100]!r} in {path}"
        if not isinstance(entry, dict):
            raise SettingsError(f"{where} is no table of shape, dtype and value")
        yield _entry(name, entry, where)


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON in which nothing is said twice."""
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise SettingsError(f"{twice[:100]!r} is there twice in one object of JSON")
    return found


_KEYS = frozenset({"shape", "dtype", "value", "low", "high", "gen"})

_ALIASES = {"float": "float32", "double": "float64", "string": "str", "boolean": "bool"}


_DRAWN = 8
"""Bytes of a value as it is drawn, before it takes its input's type."""


def _entry(name: str, entry: Mapping[str, Any], where: str) -> Found:
    unknown = sorted(entry.keys() - _KEYS)
    if unknown:
        raise SettingsError(
            f"{where} has an unknown key {unknown[0][:60]!r}",
            hint=f"the keys are {', '.join(sorted(_KEYS))}",
        )
    said = str(entry.get("dtype", ""))
    dtype = _ALIASES.get(said, said)
    shape = _shape(entry.get("shape"), where)
    if "value" in entry:
        literal = Found(name, where, shape, dtype, None, is_literal=True)
        return _valued(literal, array_of(entry["value"], where))
    draw = drawn(entry, where)
    if draw is None:
        if shape is None:
            raise SettingsError(f"{where} has neither a shape nor a value")
        return Found(name, where, shape, dtype, None)
    if shape is None:
        raise SettingsError(f"{where} has no shape to draw values for")
    within_limit(where, count_of(shape) * _DRAWN)
    return Found(name, where, shape, dtype, Draw(name, shape, draw))


def array_of(value: object, where: str) -> Array:
    """Return a number, a text, or lists of either, as an array of nothing else.

    Raises:
        SettingsError: numpy would change a text: it cuts off zeros at its end.
    """
    array = np.asarray(value)
    if array.dtype.kind == "U" and not isinstance(value, np.ndarray | np.generic):
        said = value if isinstance(value, str) else list(value)  # type: ignore[call-overload]
        if array.tolist() != said:
            raise SettingsError(
                f"{where}: its value is no text that a run can be given",
                hint="texts do not end in a zero, and do not stand beside numbers",
            )
    return array


def _valued(said: Found, data: Array) -> Found:
    """Return an input of which all values, or one for all, are said."""
    where, shape = said.where, said.shape
    if data.dtype.kind not in "biufU":
        raise SettingsError(f"{where}: its value is no number, text, or even list of them")
    if shape is None:
        return replace(said, shape=data.shape or None, load=lambda: (data,))
    if data.ndim and data.size != count_of(shape):
        raise SettingsError(
            f"{where} has {data.size} values for shape {list(shape)}", hint="say all or one"
        )
    whole = shape
    within_limit(where, count_of(whole) * data.itemsize)
    return replace(
        said, load=lambda: (data.reshape(whole) if data.ndim else np.full(whole, data),)
    )


def _shape(said: object, where: str) -> tuple[int, ...] | None:
    if said is None:
        return None
    match said:
        case list() if all(type(dim) is int and 0 <= dim < 2**63 for dim in said):
            within_limit(where, count_of(said))
            return tuple(said)
    raise SettingsError(f"{where}: a shape is a list of numbers, as in [1, 3, 224, 224]")
