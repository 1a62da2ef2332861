"""The blocks that a session asks for and frees while it is made, in their order.

Measured on ONNX Runtime 1.31.1 by a log of all blocks from 16 KiB on. A file is parsed, and
weights that lie in it are copied from the parsed text, one by one. Optimisation computes
constants and puts filters into blocked layouts, each by way of several copies. Then kernels
pack their constant operands, node by node, and what nobody else reads is freed. The heap
does not shrink below a block in use, so the order decides what stays resident.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memplan_cli.core.program import Origin, walk
from memplan_cli.runtime.process.packing import read_weights
from memplan_cli.runtime.process.parts import (
    BLOCKED,
    CODE,
    FOLDED,
    GRAPH,
    INSIDE,
    PACKED,
    PARSE,
    WEIGHT_FILES,
)
from memplan_cli.runtime.simulation.tensor_bytes import tensor_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memplan_cli.core.program import Block as Graph
    from memplan_cli.core.program import Op, Program, VarId
    from memplan_cli.onnx_io.weights.stored import StoredModel, StoredWeight
    from memplan_cli.runtime.process.space import Block, Space

NCHWC = "com.microsoft.nchwc"
"""The domain of kernels with blocked layouts."""

_SMALL = 127
"""Bytes up to which a weight stays where it was parsed."""

_READ_AT_ONCE = 4 << 20
"""Bytes of a file that are read at a time."""

_RESERVED = 50_000_000
"""Bytes of a text up to which protobuf reserves all of it; a longer one doubles."""

_LOADED_CODE = 7_850_000
"""Bytes of the runtime's library that are touched until a session stands."""

_SESSION = 1_300_000
_NODE = 3_700
_WEIGHT = 4_500
"""Bytes on the heap of any session, and of each node and each weight of its file."""


@dataclass(slots=True)
class Loading:
    """One session being made.

    Attributes:
        space: the process.
        stored: the model file.
        program: the graph that the session will run.
        values: what lies on the heap, by the name of the value.
    """

    space: Space
    stored: StoredModel
    program: Program
    values: dict[str, Block] = field(default_factory=dict)
    known: Mapping[str, StoredWeight] = field(default_factory=dict)
    sizes: Mapping[VarId, int] = field(default_factory=dict)
    _shared: set[tuple[str, str, VarId]] = field(default_factory=set)
    _mapped: set[VarId] = field(default_factory=set)

    def run(self) -> None:
        """Do all of it."""
        self.known = {weight.name: weight for weight in self.stored.weights}
        self.sizes = tensor_bytes(self.program, {})
        self.space.map(CODE, _LOADED_CODE)
        objects = _NODE * self.stored.nodes + _WEIGHT * len(self.stored.weights)
        self.space.add(GRAPH, _SESSION + objects)
        self._parse()
        made, blocked = self._made(), self._blocked()
        for name, size in made:
            if name not in blocked:
                self._fold(name, size)
        for name, size in sorted((each for each in made if each[0] in blocked), key=_number):
            self._block(name, size)
        kept = {var.name for var in self.program.vars.values() if var.origin is Origin.WEIGHT}
        for name in [name for name in self.values if name not in kept]:
            self.space.give(self.values.pop(name))
        self._pack()

    def _parse(self) -> None:
        space = self.space
        buffer = space.take(PARSE, min(self.stored.size, _READ_AT_ONCE), 16)
        inside = [w for w in self.stored.weights if w.inside and w.size > _SMALL]
        texts = [self._text(weight.size) for weight in inside]
        space.give(buffer)
        for weight, text in zip(inside, texts, strict=True):
            self.values[weight.name] = space.take(INSIDE, weight.size)
            space.give(text)

    def _text(self, size: int) -> Block:
        """Read a weight's text; a long one is copied into twice the room until it fits."""
        room = min(size, _RESERVED)
        text = self.space.take(PARSE, room + 1, 16)
        while room < size:
            room, before = 2 * room, text
            text = self.space.reserve(PARSE, room + 1, 16)
            self.space.touch(text, 0, min(room, size))
            self.space.give(before)
        return text

    def _blocked(self) -> set[str]:
        names = self.program.vars
        return {
            names[var].name
            for _, op in walk(self.program.body)
            if op.domain == NCHWC
            for var in op.inputs
            if var
        }

    def _made(self) -> list[tuple[str, int]]:
        """Return weights that the file does not have, in the order of their readers."""
        found: dict[str, int] = {}
        for _, var, _ in read_weights(self.program):
            name = self.program.vars[var].name
            size = self.sizes.get(var, 0)
            if name not in self.known and size > _SMALL:
                found.setdefault(name, size)
        return list(found.items())

    def _fold(self, name: str, size: int) -> None:
        """Compute a constant: what it is computed from is read from beside the file."""
        read = [
            self.known[each]
            for each in self.stored.operands.get(name, ())
            if each in self.known
        ]
        copies = [
            self.space.take(FOLDED, weight.size)
            for weight in read
            if not weight.inside and weight.size > _SMALL
        ]
        self.values[name] = self.space.take(FOLDED, size)
        for copy in copies:
            self.space.give(copy)

    def _block(self, name: str, size: int) -> None:
        """Put a filter into a blocked layout: read, reordered, as a text, and as a value."""
        space = self.space
        read = space.take(BLOCKED, size)
        reordered = space.take(BLOCKED, size, 16)
        text = space.take(BLOCKED, size + 1, 16)
        self.values[name] = space.take(BLOCKED, size)
        for block in (text, reordered, read):
            space.give(block)

    def _pack(self) -> None:
        """Pack constant operands, node by node; free what has no other reader.

        Kernels of one operator share what they pack of one weight: whoever comes later packs it
        too, finds it there, and drops its own.
        """
        reads: dict[int, list[tuple[Op, VarId, int]]] = {}
        for each in read_weights(self.program):
            reads.setdefault(id(each[0]), []).append(each)
        readers = Counter(var for found in reads.values() for _, var, _ in found)
        self._pack_graph(self.program.body, reads, readers)

    def _pack_graph(
        self,
        graph: Graph,
        reads: Mapping[int, Sequence[tuple[Op, VarId, int]]],
        readers: Counter[VarId],
    ) -> None:
        """Pack what the nodes of a graph read, then what their subgraphs do.

        Pages of a file that are read to be packed stay until the last reader has packed them, and
        those that subgraphs read of the graph around them until all subgraphs of the node have.
        """
        for op in graph.ops:
            for _, var, size in reads.get(id(op), ()):
                if size:
                    readers[var] -= 1
                    around = self.program.vars[var].block != graph.path
                    self._packed(op, var, size, readers[var] + around)
        for op in graph.ops:
            for body in op.bodies:
                self._pack_graph(body, reads, readers)
            if op.bodies:
                for var in sorted(self._mapped):
                    if not readers[var]:
                        self._let_go(var)

    def _packed(self, op: Op, var: VarId, size: int, left: int) -> None:
        space, name = self.space, self.program.vars[var].name
        here = self.values.get(name)
        if here is None and var not in self._mapped:
            self._mapped.add(var)
            space.map(WEIGHT_FILES, self.sizes.get(var, 0))
        block = space.take(f"{PACKED} {op.type}", size)
        weight = self.known.get(name)
        there = (op.domain, op.type, var) in self._shared
        self._shared.add((op.domain, op.type, var))
        if there or (weight is not None and weight.packed):
            # It was packed beforehand: the copy is compared by its key, and goes.
            space.give(block)
        if left:
            return
        if here is not None:
            space.give(self.values.pop(name))
        else:
            self._let_go(var)

    def _let_go(self, var: VarId) -> None:
        """End the mapping of a weight's pages."""
        self._mapped.discard(var)
        self.space.unmap(WEIGHT_FILES, self.sizes.get(var, 0))


def _number(made: tuple[str, int]) -> int:
    """Return when a value was made: the runtime counts the names that it makes up."""
    number = made[0].rpartition("_token_")[2]
    return int(number) if number.isdigit() else -1
