"""A model's metadata, read from its file without parsing the graph.

ONNX Runtime returns the metadata of a session, but most settings in it must be known before the session
exists: the options, the arena and the provider. A process that loads a model into ONNX Runtime should not
parse its weights a second time, so this module reads protobuf's wire format itself
(protobuf.dev/programming-guides/encoding). A message is a sequence of fields. A field that holds a string
or a message is a tag (its number and wire type), the length of its content, and the content.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.errors import ModelError, not_a_model, refuse_endless, unreadable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from io import BufferedIOBase
    from pathlib import Path

METADATA = 14
"""The field number of ``ModelProto.metadata_props``."""

_EXTERNAL_DATA = (7, 5, 13)
"""The field numbers of ``ModelProto.graph``, ``GraphProto.initializer`` and ``TensorProto.external_data``."""

KEY, VALUE = 1, 2
"""The field numbers of ``StringStringEntryProto``."""

_VARINT, DELIMITED = 0, 2
_FIXED = {1: 8, 5: 4}
"""Wire types: ints, strings and messages, and numbers of fixed size (wire type -> bytes)."""

_MAX_ENTRY_BYTES = 1 << 24
"""A longer metadata key or value is skipped, to save memory."""

_MAX_FIELDS = 1 << 20
"""Most fields that are read of one message; a ModelProto has few beside its functions."""


def scanned_metadata(path: Path) -> dict[str, str]:
    """Return the metadata of a model file by key; the last of equal keys counts.

    Raises:
        ModelError: the file is missing, or is no protobuf message.
    """
    metadata: dict[str, str] = {}
    refuse_endless(path, ModelError)
    try:
        with path.open("rb") as file:
            end = file.seek(0, 2)
            file.seek(0)
            for number, length in _delimited_fields(file, end):
                if number == METADATA:
                    key, value = _read_entry(file, file.tell() + length)
                    metadata[key] = value
                else:
                    file.seek(length, 1)
    except OSError as error:
        raise unreadable(path, error, ModelError) from None
    except ValueError as error:
        raise not_a_model(path, error) from error
    return metadata


def missing_data_files(path: Path) -> list[Path]:
    """Return the files of external data that do not exist, of the weights of a model's main graph.

    Empty if the model cannot be read, or is no protobuf message.
    """
    try:
        with path.open("rb") as file:
            end = file.seek(0, 2)
            file.seek(0)
            names = set(_data_locations(file, end, _EXTERNAL_DATA))
    except (OSError, ValueError):
        return []
    return sorted(data for name in names if not (data := path.parent / name).exists())


def _data_locations(file: BufferedIOBase, end: int, fields: Sequence[int]) -> Iterator[str]:
    """Yield the value of each entry ``location`` up to position ``end``.

    ``fields`` are the numbers of the fields on the way from this message to the entries.
    """
    for number, length in _delimited_fields(file, end):
        field_end = file.tell() + length
        if number != fields[0]:
            file.seek(field_end)
        elif len(fields) > 1:
            yield from _data_locations(file, field_end, fields[1:])
        else:
            key, value = _read_entry(file, field_end)
            if key == "location":
                yield value


def _read_entry(file: BufferedIOBase, end: int) -> tuple[str, str]:
    """Read a StringStringEntryProto that ends at position ``end``; return key and value.

    A key or value of more than `_MAX_ENTRY_BYTES`, which memplan never writes, is returned as empty.

    Raises:
        ValueError: the message is invalid.
    """
    texts = {KEY: "", VALUE: ""}
    for number, length in _delimited_fields(file, end):
        if length <= _MAX_ENTRY_BYTES:
            texts[number] = file.read(length).decode()
        else:
            file.seek(length, 1)
    return texts[KEY], texts[VALUE]


def _delimited_fields(file: BufferedIOBase, end: int) -> Iterator[tuple[int, int]]:
    """Yield field number and content length of each length-delimited field up to position ``end``.

    The file then stands at the content: the caller must read or skip it before the next field.
    Fields of other wire types, which hold ints and floats, are skipped.

    Raises:
        ValueError: the message is invalid, ends early, or has more than `_MAX_FIELDS` fields.
    """
    for _ in range(_MAX_FIELDS + 1):  # once more than there are fields, to see the end
        position = file.tell()
        if position == end:
            return
        if position > end:
            raise ValueError("a field ends after its message")
        tag = _read_varint(file)
        number, wire_type = tag >> 3, tag & 7
        if number == 0:
            raise ValueError("there is no field 0")
        if wire_type == _VARINT:
            _read_varint(file)
        elif wire_type in _FIXED:
            file.seek(_FIXED[wire_type], 1)
        elif wire_type == DELIMITED:
            length = _read_varint(file)
            if file.tell() + length > end:
                raise ValueError("it ends within a field")
            yield number, length
        else:
            raise ValueError(f"there is no wire type {wire_type}")
    raise ValueError(f"it has more than {_MAX_FIELDS} fields")


def _read_varint(file: BufferedIOBase) -> int:
    """Read an int of seven bits a byte, the lowest first: at most ten bytes, enough for 64 bits.

    Raises:
        ValueError: the file ends first, or ten bytes do not end the number.
    """
    value = 0
    for shift in range(0, 70, 7):
        byte = file.read(1)
        if not byte:
            raise ValueError("it ends within a number")
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
    raise ValueError("a number has no end")
