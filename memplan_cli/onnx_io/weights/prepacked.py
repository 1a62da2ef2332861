"""Prepacked weights: every blob on pages of its own.

ONNX Runtime writes prepacked weights behind one another and reads them from the mapped file with
aligned vector loads: a small blob in front of a larger one crashes it (22 of 52 blobs of a swin
transformer). `write_on_pages` writes the file again, each blob on its own pages.

The external data entries of a tensor are ``location``, ``offset``, ``length`` and, for packed weights,
``prepacked_<n>``, whose value is ``key|offset;length;checksum``, with a further
``|offset;length;checksum`` for each more blob.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan_cli.errors import ModelError
from memplan_cli.onnx_io.weights.external_data import (
    data_range,
    entries_of,
    external_tensors,
    parse_number,
)
from memplan_cli.onnx_io.weights.tensor_data import fill_to_boundary, is_small

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path
    from typing import BinaryIO

    from onnx import ModelProto, TensorProto

_BLOCK = 1 << 20
"""Bytes that are copied at a time."""

_PREPACKED = "prepacked_"
"""The prefix of external data entries that refer to packed blobs."""


@dataclass(frozen=True, slots=True, order=True)
class Blob:
    """A range of bytes of a data file: a weight's own data, or a packed form of it."""

    location: str
    offset: int
    length: int


def packed_blobs(tensor: TensorProto) -> Iterator[Blob]:
    """Yield the blobs of all packed forms of a weight.

    For example, the entry ``prepacked_0`` with the value ``MatMul+12|4096;512;77`` has one blob: 512 bytes at
    offset 4096 of the data file, with the checksum 77.

    Raises:
        ModelError: an entry does not have the form that ONNX Runtime writes.
    """
    entries = entries_of(tensor)
    data_file = entries.get("location", "")
    for name, value in entries.items():
        if name.startswith(_PREPACKED):
            _key, *blob_texts = value.split("|")
            blobs = (_parse_blob(data_file, text, tensor) for text in blob_texts)
            yield from (blob for blob, _checksum in blobs)


def write_on_pages(model: ModelProto, data: Path) -> None:
    """Write all external data into one file, each blob on a page; equal blobs are stored once.

    The model's tensors then refer to the file ``data``, which is in the folder of the present data files
    and may be one of them.

    Raises:
        ModelError: an entry is invalid, or data is missing.
        OSError: the file cannot be written; an existing one is unchanged.
    """
    tensors = tuple(external_tensors(model))
    blobs = dict.fromkeys(blob for tensor in tensors for blob in _blobs(tensor))
    temporary = data.with_name(f"{data.name}.pages")
    try:
        with temporary.open("wb") as file:
            offsets = _copy_blobs(blobs, data.parent, file)
        temporary.replace(data)
    finally:
        temporary.unlink(missing_ok=True)
    for tensor in tensors:
        _refer_to_copies(tensor, offsets, data.name)


def _blobs(tensor: TensorProto) -> Iterator[Blob]:
    """Yield the blob of a tensor's own data, then its packed blobs."""
    yield _own_blob(tensor)
    yield from packed_blobs(tensor)


def _own_blob(tensor: TensorProto) -> Blob:
    """Return the range of a tensor's own data; ONNX Runtime always writes its offset and length."""
    return Blob(entries_of(tensor)["location"], *data_range(tensor))


def _copy_blobs(blobs: Collection[Blob], folder: Path, file: BinaryIO) -> Mapping[Blob, int]:
    """Write each distinct blob on pages of its own, large ones first (see `is_small`); return the new offset of each."""
    lengths = Counter(blob.length for blob in blobs)
    offsets: dict[Blob, int] = {}
    offset_by_content: dict[tuple[int, bytes], int] = {}
    for blob in sorted(blobs, key=lambda blob: is_small(blob.length)):
        # Only blobs of equal length can be equal: others are not hashed.
        digest = _digest(folder, blob) if lengths[blob.length] > 1 else b""
        content = blob.length, digest
        if content not in offset_by_content:
            offset_by_content[content] = fill_to_boundary(file, blob.length)
            file.writelines(_read_blob(folder, blob))
        offsets[blob] = offset_by_content[content]
    return offsets


def _digest(folder: Path, blob: Blob) -> bytes:
    """Return a hash of a blob's bytes."""
    digest = hashlib.blake2b(digest_size=32)
    for block in _read_blob(folder, blob):
        digest.update(block)
    return digest.digest()


def _read_blob(folder: Path, blob: Blob) -> Iterator[bytes]:
    """Yield the bytes of a blob, a block at a time.

    Raises:
        ModelError: its file is missing or too short.
    """
    path = folder / blob.location
    try:
        with path.open("rb") as file:
            file.seek(blob.offset)
            remaining = blob.length
            while remaining:
                block = file.read(min(remaining, _BLOCK))
                if not block:
                    raise ModelError(f"{path} ends {remaining} bytes before its weights do")
                remaining -= len(block)
                yield block
    except FileNotFoundError:
        raise ModelError(f"{path} is missing: it holds weights of the model") from None


def _refer_to_copies(tensor: TensorProto, offsets: Mapping[Blob, int], location: str) -> None:
    """Let a tensor refer to the copies of its data and packed blobs in the file ``location``, in place.

    ``offsets`` are those of the copies. In an entry ``key|offset;length;checksum|...`` of packed blobs, only
    the offsets change: each copy has the bytes, and so the checksum, of its blob.
    """
    old = entries_of(tensor)
    data = _own_blob(tensor)
    new = {
        **old,
        "location": location,
        "offset": str(offsets[data]),
        "length": str(data.length),
    }
    new.pop("checksum", None)  # of the old file as a whole
    for name, value in old.items():
        if name.startswith(_PREPACKED):
            key, *blob_texts = value.split("|")
            new_texts = []
            for text in blob_texts:
                blob, checksum = _parse_blob(old["location"], text, tensor)
                new_texts.append(f"{offsets[blob]};{blob.length};{checksum}")
            new[name] = "|".join([key, *new_texts])
    del tensor.external_data[:]
    for name, value in new.items():
        tensor.external_data.add(key=name, value=value)


def _parse_blob(location: str, text: str, tensor: TensorProto) -> tuple[Blob, str]:
    """Parse ``offset;length;checksum``; return the blob and the checksum."""
    offset, _, rest = text.partition(";")
    length, _, checksum = rest.partition(";")
    return Blob(location, parse_number(offset, tensor), parse_number(length, tensor)), checksum
