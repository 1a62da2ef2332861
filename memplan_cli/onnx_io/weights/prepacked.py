"""Prepacked weights."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memplan_cli.errors import ModelError
from memplan_cli.onnx_io.traversal import captures, defined, graphs, subgraphs
from memplan_cli.onnx_io.weights.external_data import external_tensors

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path
    from typing import BinaryIO

    from onnx import GraphProto, ModelProto, TensorProto

PAGE = 4096
"""Bytes of a page: data is mapped from where one begins."""

_BLOCK = 1 << 20
"""Bytes that are in memory at a time."""

_PACKED = "prepacked_"


@dataclass(frozen=True, slots=True, order=True)
class Blob:
    """Bytes of a data file: a weight's own, or those that a kernel packed for itself."""

    location: str
    offset: int
    length: int


def packed_blobs(tensor: TensorProto) -> Iterator[tuple[str, tuple[Blob, ...]]]:
    """Yield the key under which a kernel looks for its packed blobs, and these.

    Raises:
        ModelError: an entry is not of the form that the runtime writes.
    """
    location = _entries(tensor).get("location", "")
    for entry in tensor.external_data:
        if entry.key.startswith(_PACKED):
            key, *parts = entry.value.split("|")
            yield key, tuple(_blob(location, part, tensor.name)[0] for part in parts)


def write_on_pages(model: ModelProto, data: Path) -> None:
    """Write all external data into one file, and say in the model where it lies now.

    Args:
        model: changed in place: its tensors refer to ``data`` by its name.
        data: the file to write, in the folder of the files that the model has now; it may
            be one of them.

    Raises:
        ModelError: an entry makes no sense, or data is missing.
        OSError: the file cannot be written; what was there is as it was.
    """
    tensors = tuple(external_tensors(model))
    wanted = dict.fromkeys(blob for tensor in tensors for blob in _blobs(tensor))
    fresh = data.with_name(f"{data.name}.pages")
    try:
        with fresh.open("wb") as file:
            places = _written(wanted, data.parent, file)
        fresh.replace(data)
    finally:
        fresh.unlink(missing_ok=True)
    for tensor in tensors:
        _moved(tensor, places, data.name)


def _blobs(tensor: TensorProto) -> Iterator[Blob]:
    """Yield a tensor's own bytes, then what is packed of them."""
    yield _own(tensor)
    for _, blobs in packed_blobs(tensor):
        yield from blobs


def _own(tensor: TensorProto) -> Blob:
    entries = _entries(tensor)
    offset = _number(entries.get("offset", "0"), tensor.name)
    return Blob(entries["location"], offset, _number(entries.get("length", "0"), tensor.name))


def _entries(tensor: TensorProto) -> Mapping[str, str]:
    return {entry.key: entry.value for entry in tensor.external_data}


def _written(wanted: Collection[Blob], folder: Path, file: BinaryIO) -> Mapping[Blob, int]:
    """Copy blobs to pages of their own; those with the same bytes to the same one."""
    sizes = Counter(blob.length for blob in wanted)
    places: dict[Blob, int] = {}
    known: dict[tuple[int, bytes], int] = {}
    for blob in wanted:
        # Only what is as long as another can be its equal.
        same = (blob.length, _digest(folder, blob)) if sizes[blob.length] > 1 else None
        if same in known:
            places[blob] = known[same]
            continue
        file.write(b"\0" * (-file.tell() % PAGE))
        places[blob] = file.tell()
        if same is not None:
            known[same] = places[blob]
        file.writelines(_pieces(folder, blob))
    return places


def _digest(folder: Path, blob: Blob) -> bytes:
    digest = hashlib.blake2b(digest_size=32)
    for piece in _pieces(folder, blob):
        digest.update(piece)
    return digest.digest()


def _pieces(folder: Path, blob: Blob) -> Iterator[bytes]:
    path = folder / blob.location
    try:
        with path.open("rb") as file:
            file.seek(blob.offset)
            left = blob.length
            while left:
                piece = file.read(min(left, _BLOCK))
                if not piece:
                    raise ModelError(f"{path} ends {left} bytes before its weights do")
                left -= len(piece)
                yield piece
    except FileNotFoundError:
        raise ModelError(f"{path} is not there: the model's weights lie in it") from None


def _moved(tensor: TensorProto, places: Mapping[Blob, int], location: str) -> None:
    """Say where a tensor's data lies now."""
    old = _entries(tensor)
    own = _own(tensor)
    new = {**old, "location": location, "offset": str(places[own]), "length": str(own.length)}
    new.pop("checksum", None)
    for key, value in old.items():
        if key.startswith(_PACKED):
            name, *parts = value.split("|")
            blobs = (_blob(old["location"], part, tensor.name) for part in parts)
            moved = ((replace(b, offset=places[b]), rest) for b, rest in blobs)
            new[key] = "|".join([name, *(f"{b.offset};{b.length};{r}" for b, r in moved)])
    del tensor.external_data[:]
    for key, value in new.items():
        tensor.external_data.add(key=key, value=value)


def _blob(location: str, text: str, name: str) -> tuple[Blob, str]:
    """Return a packed blob, and what follows its length."""
    offset, _, rest = text.partition(";")
    length, _, rest = rest.partition(";")
    return Blob(location, _number(offset, name), _number(length, name)), rest


def _number(text: str, name: str) -> int:
    if not text.isdecimal() or len(text) > 19:
        raise ModelError(f"tensor {name[:120]!r} has {text[:40]!r} where a number is expected")
    return int(text)


def hoist_packed(model: ModelProto) -> tuple[str, ...]:
    """Move packed weights from subgraphs of the main graph into it, in place, and name them.

    One stays where it is if its name is another value's too, if it is the subgraph's input or
    output, and if a subgraph within reads it: there it would not be packed.
    """
    found = [
        (inner, tensor)
        for node in model.graph.node
        for _, inner in subgraphs(node)
        for tensor in _packed(inner)
    ]
    if not found:
        return ()
    values = Counter(name for graph in graphs(model.graph) for name in defined(graph))
    moved = [(graph, tensor) for graph, tensor in found if values[tensor.name] == 1]
    for graph, tensor in moved:
        model.graph.initializer.append(tensor)
        graph.initializer.remove(tensor)
    return tuple(tensor.name for _, tensor in moved)


def _packed(graph: GraphProto) -> list[TensorProto]:
    """Return the weights of a subgraph that are packed, and are read by its own nodes alone."""
    packed = [tensor for tensor in graph.initializer if any(packed_blobs(tensor))]
    if not packed:
        return []
    others = {value.name for value in graph.output}
    others.update(name for node in graph.node for name in captures(node))
    return [tensor for tensor in packed if tensor.name not in others]
