"""A session's runs in a simulated process: its arena, and the pages of files that are read."""

from __future__ import annotations

from bisect import bisect_right, insort
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memplan_cli.runtime.process.packing import read_weights
from memplan_cli.runtime.process.parts import ARENA, ARENA_TABLES
from memplan_cli.runtime.process.space import Space
from memplan_cli.runtime.simulation.bfc import CHUNK, Arena

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.core.program import Program, VarId
    from memplan_cli.onnx_io.weights.stored import StoredWeight
    from memplan_cli.runtime.process.space import Block

_MAPPINGS = 1 << 46
"""Addresses of mappings begin below, far above those of the heap."""

_TABLE = 32
"""The arena keeps a handle of 8 bytes for every 256 of a region."""

_ROW = 64 << 10
"""Bytes that the system maps around one row that is read; more where its cache has them in
larger pieces, which nobody can foretell (Linux 6.18, ext4)."""

_INDEX = 8
"""Bytes of the index of a row."""


@dataclass(slots=True)
class ResidentArena(Arena):
    """An arena that takes its regions from a process; what it gives out is written."""

    space: Space = field(default_factory=Space)
    _starts: list[int] = field(default_factory=list)
    _regions: dict[int, Block] = field(default_factory=dict)
    _lowest: int = _MAPPINGS

    def allocate(self, size: int) -> int | None:
        """Return the address of a chunk, all of which is written."""
        address = Arena.allocate(self, size)
        if address is not None:
            start = self._starts[bisect_right(self._starts, address) - 1]
            self.space.touch(self._regions[start], address - start, size)
        return address

    def _region(self, size: int) -> int:
        """Take a region: of two free chunks of a size the one at the lower address is taken."""
        block = self.space.reserve(ARENA, size)
        self.space.take(ARENA_TABLES, size // _TABLE, 16)
        start = block.address
        if start is None:
            # The system makes each mapping below the one before.
            self._lowest -= size + CHUNK
            start = self._lowest
        insort(self._starts, start)
        self._regions[start] = block
        return start


def mapped_bytes(
    program: Program, sizes: Mapping[VarId, int], known: Mapping[str, StoredWeight]
) -> int:
    """Return the bytes of weights in files beside the model that runs read from there.

    Of a table whose rows are looked up, only what lies around them is.
    """
    found: dict[VarId, int] = {}
    for op, var, packed in read_weights(program):
        weight = known.get(program.vars[var].name)
        if weight is None or weight.inside or (packed and not weight.packed):
            continue
        size = weight.packed or weight.size
        if op.type == "Gather" and var == op.inputs[0]:
            size = min(size, sizes.get(op.inputs[1], size) // _INDEX * _ROW)
        found[var] = max(found.get(var, 0), size)
    return sum(found.values())
