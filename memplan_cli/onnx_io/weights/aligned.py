"""Packed weights moved to where the runtime's vector loads may read them.

ONNX Runtime 1.31.1 writes weights that its kernels have packed into the external file one
behind the other, and maps them there: a kernel that loads aligned vectors ends the process
where a blob before had an odd size (a swin transformer). An entry ``prepacked_<n>`` of a
tensor's external data is ``key|offset;length;checksum|..``.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from memplan_cli.onnx_io.load import load_as_written
from memplan_cli.onnx_io.weights.external_data import external_tensors

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import BinaryIO

    from onnx import TensorProto

PAGE = 4096
"""Bytes; every blob of a file that is written anew begins at a multiple of it."""

_VECTOR = 64
"""Bytes: the widest load that wants its address aligned."""

_PIECE = 1 << 22
"""Bytes that are copied at a time."""

_PACKED = "prepacked_"


def align_packed(model: Path) -> bool:
    """Write the data of a model anew if a packed blob lies where it could not be read.

    Args:
        model: a dump of the runtime, all its external data in one file.

    Returns:
        Whether anything was moved.
    """
    proto = load_as_written(model)
    tensors = list(external_tensors(proto))
    if all(start % _VECTOR == 0 for each in tensors for start, _ in _packed_in(each)):
        return False
    (name,) = {_entries(tensor)["location"] for tensor in tensors}
    source = model.with_name(name)
    draft = source.with_name(f"{name}.aligned")
    with source.open("rb") as data, draft.open("wb") as out:
        places: dict[tuple[int, int], int] = {}
        for tensor in tensors:
            _move(tensor, places, data, out)
    draft.replace(source)
    model.write_bytes(proto.SerializeToString())
    return True


def _entries(tensor: TensorProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in tensor.external_data}


def _packed_in(tensor: TensorProto) -> Iterator[tuple[int, int]]:
    """Yield offset and length of each packed blob of a tensor."""
    for key, value in _entries(tensor).items():
        if key.startswith(_PACKED):
            for blob in value.split("|")[1:]:
                offset, length, *_ = blob.split(";")
                yield int(offset), int(length)


def _move(
    tensor: TensorProto, places: dict[tuple[int, int], int], data: BinaryIO, out: BinaryIO
) -> None:
    """Copy a tensor's blobs, each once, and say in the tensor where they lie."""
    entries = _entries(tensor)
    own = int(entries.get("offset", 0)), int(entries["length"])
    for entry in tensor.external_data:
        if entry.key == "offset":
            entry.value = str(_place(own, places, data, out))
        elif entry.key.startswith(_PACKED):
            key, *blobs = entry.value.split("|")
            moved = []
            for blob in blobs:
                offset, length, *rest = blob.split(";")
                at = _place((int(offset), int(length)), places, data, out)
                moved.append(";".join((str(at), length, *rest)))
            entry.value = "|".join((key, *moved))


def _place(
    blob: tuple[int, int], places: dict[tuple[int, int], int], data: BinaryIO, out: BinaryIO
) -> int:
    if blob not in places:
        offset, length = blob
        places[blob] = -(-out.seek(0, os.SEEK_END) // PAGE) * PAGE
        out.seek(places[blob])
        data.seek(offset)
        while length > 0:
            piece = data.read(min(length, _PIECE))
            if not piece:
                break
            out.write(piece)
            length -= len(piece)
    return places[blob]
