"""Small TFLite models, written field by field as their schema numbers them."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import flatbuffers  # type: ignore[import-untyped]

NEG, EXP = 59, 47
FLOAT32 = 0

Operator = tuple[int, Sequence[int], Sequence[int]]
"""Its builtin code, and the indices of the tensors it reads and makes."""


def tflite(
    names: Sequence[str], operators: Sequence[Operator], words: Sequence[int] = ()
) -> bytes:
    """Return a model whose tensors have 1x64 floats; the first goes in, the last comes out.

    Words are its ``OfflineMemoryAllocation``.
    """
    make = flatbuffers.Builder(1024)
    codes = sorted({code for code, _, _ in operators})
    tensors = [
        _table(make, 4, {0: _ints(make, [1, 64]), 3: make.CreateString(name)})
        for name in names
    ]
    nodes = [
        _table(make, 9, {1: _ints(make, reads), 2: _ints(make, made)}, {0: codes.index(code)})
        for code, reads, made in operators
    ]
    graph = _table(make, 5, {
        0: _offsets(make, tensors), 1: _ints(make, [0]), 2: _ints(make, [len(names) - 1]),
        3: _offsets(make, nodes),
    })  # fmt: skip
    kinds = []
    for code in codes:
        make.StartObject(4)
        make.PrependInt8Slot(0, code, 0)
        make.PrependInt32Slot(3, code, 0)
        kinds.append(make.EndObject())
    data = make.CreateByteVector(struct.pack(f"<{len(words)}i", *words))
    buffers = [_table(make, 3, {}), *([_table(make, 3, {0: data})] if words else [])]
    metadata = []
    if words:
        name = make.CreateString("OfflineMemoryAllocation")
        metadata = [_table(make, 2, {0: name}, {1: 1})]
    fields = {
        1: _offsets(make, kinds), 2: _offsets(make, [graph]), 4: _offsets(make, buffers),
        6: _offsets(make, metadata),
    }  # fmt: skip
    make.Finish(_table(make, 8, fields, {0: 3}), b"TFL3")
    return bytes(make.Output())


def _table(
    make: flatbuffers.Builder,
    fields: int,
    offsets: dict[int, int],
    numbers: dict[int, int] | None = None,
) -> int:
    make.StartObject(fields)
    for slot, offset in offsets.items():
        make.PrependUOffsetTRelativeSlot(slot, offset, 0)
    for slot, number in (numbers or {}).items():
        make.PrependUint32Slot(slot, number, 0)
    return int(make.EndObject())


def _ints(make: flatbuffers.Builder, values: Sequence[int]) -> int:
    make.StartVector(4, len(values), 4)
    for value in reversed(values):
        make.PrependInt32(value)
    return int(make.EndVector())


def _offsets(make: flatbuffers.Builder, values: Sequence[int]) -> int:
    make.StartVector(4, len(values), 4)
    for value in reversed(values):
        make.PrependUOffsetTRelative(value)
    return int(make.EndVector())
