"""Where a replay puts one tensor of a plan: every number bound."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """Bytes ``[offset, offset + bytes)`` of an arena.

    Attributes:
        name, block: which tensor.
        dtype, shape: what it holds.
        bytes, arena, offset: where.
        dies: the index of the node at the top after which nothing needs it; -1 never.
        pinned: it must be what it was when the run is over.
        buffer: the tensor whose bytes it shares, itself included.
    """

    name: str
    block: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    arena: str
    offset: int
    dies: int
    pinned: bool
    buffer: str
