"""The metadata of a model file, without reading its graph.

A process that loads a model to run it shall not parse its weights a second time: the fields of
the outermost message are gone through, and what is no metadata is skipped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.untrusted_files import refuse_endless
from memplan_cli.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedIOBase
    from pathlib import Path

METADATA = 14
"""``ModelProto.metadata_props``."""

_KEY, _VALUE = 1, 2
"""``StringStringEntryProto``."""

_BYTES = 2
_FIXED = {1: 8, 5: 4}
"""Wire types of protobuf: bytes after their length, and numbers of eight and four bytes."""

_MOST = 1 << 24
"""Bytes of an entry that is read; of a longer one the key alone."""

_MOST_FIELDS = 1 << 20
"""Fields of a message; a model's own has a graph, and its functions and entries."""


def scanned_metadata(path: Path) -> dict[str, str]:
    """Return the entries of a model's own metadata; of equal keys the last one.

    Raises:
        ModelError: the file is missing, or is no protobuf message.
    """
    found: dict[str, str] = {}
    refuse_endless(path, ModelError)
    try:
        with path.open("rb") as file:
            end = file.seek(0, 2)
            file.seek(0)
            for number, length in _fields(file, end):
                if number == METADATA:
                    key, value = _entry(file, file.tell() + length)
                    found[key] = value
                else:
                    file.seek(length, 1)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, UnicodeDecodeError) as error:
        raise ModelError(f"{path} is no ONNX model: {error}") from error
    return found


def _entry(file: BufferedIOBase, end: int) -> tuple[str, str]:
    texts = {_KEY: "", _VALUE: ""}
    for number, length in _fields(file, end):
        if length <= _MOST:
            texts[number] = file.read(length).decode()
        else:
            file.seek(length, 1)
    if file.tell() != end:
        raise ValueError("a field ends behind its message")
    return texts[_KEY], texts[_VALUE]


def _fields(file: BufferedIOBase, end: int) -> Iterator[tuple[int, int]]:
    """Yield number and length of each field of bytes up to ``end``; who asks goes past it."""
    for _ in range(_MOST_FIELDS):
        if file.tell() >= end:
            return
        tag = _varint(file)
        number, kind = tag >> 3, tag & 7
        if number == 0:
            raise ValueError("there is no field 0")
        if kind == 0:
            _varint(file)
        elif kind in _FIXED:
            file.seek(_FIXED[kind], 1)
        elif kind == _BYTES:
            length = _varint(file)
            if file.tell() + length > end:
                raise ValueError("it ends within a field")
            yield number, length
        else:
            raise ValueError(f"there is no wire type {kind}")
    raise ValueError(f"it has more than {_MOST_FIELDS} fields")


def _varint(file: BufferedIOBase) -> int:
    value = 0
    for shift in range(0, 70, 7):
        byte = file.read(1)
        if not byte:
            raise ValueError("it ends within a number")
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
    raise ValueError("a number has no end")
