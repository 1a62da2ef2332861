"""Rows of a plan: arenas, the placement of each tensor, orders and releases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, NamedTuple

from memplan_cli.core.deserialization import Range
from memplan_cli.core.program import var_id

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAX_BYTES = 1 << 62
"""Sizes and offsets from here on are no memory of any machine."""

Natural = Annotated[int, Range(0, MAX_BYTES - 1)]
Positive = Annotated[int, Range(1, MAX_BYTES - 1)]


@dataclass(frozen=True, slots=True)
class ArenaFacts:
    """One contiguous region; the integers are multiples of ``unit``."""

    id: Natural
    unit: str
    height: Natural
    lower_bound: Natural
    alignment: Positive


class Placement(NamedTuple):
    """One tensor's place: bytes ``[offset, offset + bytes)`` for ticks ``[first, last)``.

    ``slot`` is its slot's number at levels 0 and 1. ``alias_of`` names the tensor whose
    bytes it shares, in the same block unless given as ``block/name``. ``pinned`` is why
    it keeps storage of its own for the whole run.
    """

    name: str
    block: str
    dtype: str
    shape: tuple[Natural | str, ...]
    bytes: Natural
    arena: Natural
    offset: Natural
    slot: Natural | None
    first: Natural
    last: Natural
    alias_of: str | None = None
    pinned: str | None = None

    @property
    def id(self) -> str:
        """Return ``block/name``, or the name at the top."""
        return var_id(self.block, self.name)


def in_words(row: Placement, units: Mapping[int, str]) -> str:
    """Say where a tensor lies and when, for viewers that show what is written at a node.

    Args:
        row: the tensor.
        units: what the integers of each arena are multiples of.
    """
    unit = units.get(row.arena, "1")
    times = "" if unit == "1" else f"*{unit}"
    where = f" of arena {row.arena}" if len(units) > 1 else ""
    when = f"steps {row.first} to {max(row.first, row.last - 1)}"
    shared = "" if row.alias_of is None else f", the memory of {row.alias_of}"
    said = f"{row.bytes}{times} bytes at {row.offset}{times}{where}, {when}{shared}"
    return f"{row.name}: {said}"


@dataclass(frozen=True, slots=True)
class BlockOrder:
    """The nodes of one block in the planned order: names, or ``#index`` in the file."""

    block: str
    nodes: Sequence[str]


class Release(NamedTuple):
    """Tensors that nothing needs after this node: the ancestor's delete op."""

    step: Natural
    node: str
    tensors: tuple[str, ...]
