"""The rows of a plan: its arenas, and the placements, orders and releases of tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.core.json_types import Natural, Positive  # noqa: TC001 - types to read by
from memplan_cli.core.program import var_id

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class PlannedArena:
    """One contiguous region of memory of a plan.

    Attributes:
        id: its number.
        unit: ``1``, or a product of symbols by which all integers are multiplied.
        height: its size.
        lower_bound: a size that no layout is below.
        alignment: every offset is a multiple of this number.
    """

    id: Natural
    unit: str
    height: Natural
    lower_bound: Natural
    alignment: Positive


class Placement(NamedTuple):
    """One tensor's place: bytes ``[offset, offset + bytes)`` for ticks ``[first, last)``.

    Attributes:
        name: the tensor.
        block: the path of the block that produces it; empty: the main graph.
        dtype: its element type.
        shape: its dimensions, numbers or symbols.
        bytes: its size.
        arena: the arena that it lies in.
        offset: its first byte in the arena.
        slot: its slot at levels 0 and 1; None at level 2.
        first: the tick of its producer; 0 if it is pinned.
        last: the tick after its last use.
        alias_of: the tensor whose bytes it shares: ``block/name``, or a name of the same block.
        pinned: why it has storage of its own for the whole run; None: it has not.
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
        """The id of the var: ``block/name``, or the name in the main graph."""
        return var_id(self.block, self.name)


def in_words(row: Placement, units: Mapping[int, str]) -> str:
    """Return the placement of a tensor as text, for graph viewers.

    For example ``x: 256 bytes at 0, steps 2 to 5``.

    Args:
        row: the placement.
        units: id of each arena -> its unit.
    """
    unit = units.get(row.arena, "1")
    times = "" if unit == "1" else f"*{unit}"
    where = f" of arena {row.arena}" if len(units) > 1 else ""
    # `last` is exclusive, the text names the last step itself.
    when = f"steps {row.first} to {max(row.first, row.last - 1)}"
    shared = "" if row.alias_of is None else f", the memory of {row.alias_of}"
    place = f"{row.bytes}{times} bytes at {row.offset}{times}{where}, {when}{shared}"
    return f"{row.name}: {place}"


@dataclass(frozen=True, slots=True)
class BlockOrder:
    """The planned order of one block.

    Attributes:
        block: the path of the block; empty: the main graph.
        nodes: node names, or ``#index`` in the file for nodes without one.
    """

    block: str
    nodes: Sequence[str]


class Release(NamedTuple):
    """Tensors that are dead after a node.

    Attributes:
        step: the tick of the node.
        node: its name, or ``#index`` if it has none.
        tensors: the names of the tensors.
    """

    step: Natural
    node: str
    tensors: tuple[str, ...]
