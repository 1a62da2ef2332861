"""Simulation of how a session is made: the blocks that it allocates and frees, in order.

Measured by a log of all blocks from 16 KiB on. A file is parsed, and the weights in it are copied
from the parsed text one by one. Optimisation computes constants and brings filters into blocked
layouts, each with several copies. Then kernels pack their constant operands, node by node, and
weights without other readers are freed. The heap does not shrink below a block in use, so the order
decides what stays resident.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memplan_cli.core.operators import NCHWC
from memplan_cli.core.program import Origin, walk
from memplan_cli.runtime.process.parts import (
    BLOCKED_FILTERS,
    FOLDED_CONSTANTS,
    INLINE_WEIGHTS,
    MAPPED_WEIGHTS,
    PACKED_WEIGHTS,
    PARSED_FILE,
    RUNTIME_CODE,
    SESSION_GRAPH,
)
from memplan_cli.runtime.process.simulated_memory import SMALL_ALIGNMENT
from memplan_cli.runtime.profile.packed_weights import weight_reads
from memplan_cli.runtime.profile.record import PROFILE
from memplan_cli.runtime.simulate.trace import tensor_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memplan_cli.core.program import Block, Op, Program, VarId
    from memplan_cli.onnx_io.weights.stored import StoredModel, StoredWeight
    from memplan_cli.runtime.process.simulated_memory import MemoryBlock, SimulatedMemory


@dataclass(slots=True)
class SessionLoading:
    """The simulation of one session being made.

    Attributes:
        memory: the process.
        stored: the model file.
        program: the graph that the session will run.
        values: blocks of weights on the heap, by name.
        stored_weights: the weights of the file, by name.
        sizes: bytes of each variable.
    """

    memory: SimulatedMemory
    stored: StoredModel
    program: Program
    values: dict[str, MemoryBlock] = field(default_factory=dict)
    stored_weights: Mapping[str, StoredWeight] = field(default_factory=dict)
    sizes: Mapping[VarId, int] = field(default_factory=dict)
    _packed_before: set[tuple[str, str, VarId]] = field(default_factory=set)
    _mapped: set[VarId] = field(default_factory=set)

    def run(self) -> None:
        """Simulate all steps in order."""
        self.stored_weights = {weight.name: weight for weight in self.stored.weights}
        self.sizes = tensor_bytes(self.program, {})
        self.memory.map_file(RUNTIME_CODE, PROFILE.loaded_code)
        nodes = PROFILE.node_heap * self.stored.nodes
        weights = PROFILE.weight_heap * len(self.stored.weights)
        self.memory.add_objects(SESSION_GRAPH, PROFILE.session_heap + nodes + weights)
        self._parse()
        new_weights, blocked = self._new_weights(), self._blocked_names()
        for name, size in new_weights:
            if name not in blocked:
                self._fold_constant(name, size)
        for name, size in sorted(
            (w for w in new_weights if w[0] in blocked), key=_name_number
        ):
            self._reorder_filter(name, size)
        kept = {var.name for var in self.program.vars.values() if var.origin is Origin.WEIGHT}
        for name in [name for name in self.values if name not in kept]:
            self.memory.free(self.values.pop(name))
        self._pack()

    def _parse(self) -> None:
        """Parse the file, and copy the weights that lie in it out of the parsed text."""
        memory = self.memory
        buffer = memory.allocate(
            PARSED_FILE, min(self.stored.size, PROFILE.read_buffer), SMALL_ALIGNMENT
        )
        inside = [
            weight
            for weight in self.stored.weights
            if weight.inside and weight.size > PROFILE.inline_weight
        ]
        texts = [self._read_text(weight.size) for weight in inside]
        memory.free(buffer)
        for weight, text in zip(inside, texts, strict=True):
            self.values[weight.name] = memory.allocate(INLINE_WEIGHTS, weight.size)
            memory.free(text)

    def _read_text(self, size: int) -> MemoryBlock:
        """Read the text of a weight. A long one is copied into twice the room until it fits."""
        room = min(size, PROFILE.reserved_text)
        text = self.memory.allocate(PARSED_FILE, room + 1, SMALL_ALIGNMENT)
        while room < size:
            room, before = 2 * room, text
            text = self.memory.reserve(PARSED_FILE, room + 1, SMALL_ALIGNMENT)
            self.memory.touch(text, 0, min(room, size))
            self.memory.free(before)
        return text

    def _blocked_names(self) -> set[str]:
        """Return the names of the inputs of kernels with blocked layouts."""
        variables = self.program.vars
        return {
            variables[var].name
            for _, op in walk(self.program.body)
            if op.domain == NCHWC
            for var in op.inputs
            if var
        }

    def _new_weights(self) -> list[tuple[str, int]]:
        """Return name and size of weights that the file does not have, in the order of reads."""
        sizes: dict[str, int] = {}
        for _, var, _ in weight_reads(self.program):
            name = self.program.vars[var].name
            size = self.sizes.get(var, 0)
            if name not in self.stored_weights and size > PROFILE.inline_weight:
                sizes.setdefault(name, size)
        return list(sizes.items())

    def _fold_constant(self, name: str, size: int) -> None:
        """Compute a constant. Operands that lie beside the file are copied meanwhile."""
        operands = [
            self.stored_weights[operand]
            for operand in self.stored.operands.get(name, ())
            if operand in self.stored_weights
        ]
        copies = [
            self.memory.allocate(FOLDED_CONSTANTS, weight.size)
            for weight in operands
            if not weight.inside and weight.size > PROFILE.inline_weight
        ]
        self.values[name] = self.memory.allocate(FOLDED_CONSTANTS, size)
        for copy in copies:
            self.memory.free(copy)

    def _reorder_filter(self, name: str, size: int) -> None:
        """Bring a filter into a blocked layout: read, reordered, as text, and as a value."""
        memory = self.memory
        source = memory.allocate(BLOCKED_FILTERS, size)
        reordered = memory.allocate(BLOCKED_FILTERS, size, SMALL_ALIGNMENT)
        text = memory.allocate(BLOCKED_FILTERS, size + 1, SMALL_ALIGNMENT)
        self.values[name] = memory.allocate(BLOCKED_FILTERS, size)
        for block in (text, reordered, source):
            memory.free(block)

    def _pack(self) -> None:
        """Pack constant operands, node by node, and free those without other readers."""
        reads: dict[int, list[tuple[VarId, int]]] = {}
        for op, var, size in weight_reads(self.program):
            reads.setdefault(id(op), []).append((var, size))
        readers = Counter(var for operands in reads.values() for var, _ in operands)
        self._pack_block(self.program.body, reads, readers)

    def _pack_block(
        self,
        block: Block,
        reads: Mapping[int, Sequence[tuple[VarId, int]]],
        readers: Counter[VarId],
    ) -> None:
        """Pack the operands of the nodes of a block, then those of their bodies.

        The pages of a mapped weight stay until its last reader has packed it. Pages that bodies
        read of the block around them stay until all bodies of the node have packed theirs.
        """
        for op in block.ops:
            for var, size in reads.get(id(op), ()):
                if size:
                    readers[var] -= 1
                    is_outer = self.program.vars[var].block != block.path
                    self._pack_operand(op, var, size, readers[var] + is_outer)
        for op in block.ops:
            for body in op.bodies:
                self._pack_block(body, reads, readers)
            if op.bodies:
                for var in sorted(self._mapped):
                    if not readers[var]:
                        self._unmap(var)

    def _pack_operand(self, op: Op, var: VarId, size: int, remaining_readers: int) -> None:
        """Pack an operand, and free the weight if no readers remain.

        Kernels of one operator share the packed copy of a weight. A later kernel packs it too,
        finds the copy, and frees its own; likewise if the file has the packed copy.
        """
        memory, name = self.memory, self.program.vars[var].name
        value = self.values.get(name)
        if value is None and var not in self._mapped:
            self._mapped.add(var)
            memory.map_file(MAPPED_WEIGHTS, self.sizes.get(var, 0))
        packed = memory.allocate(f"{PACKED_WEIGHTS} {op.type}", size)
        weight = self.stored_weights.get(name)
        key = (op.domain, op.type, var)
        if key in self._packed_before or (weight is not None and weight.packed):
            memory.free(packed)
        self._packed_before.add(key)
        if remaining_readers:
            return
        if value is not None:
            memory.free(self.values.pop(name))
        else:
            self._unmap(var)

    def _unmap(self, var: VarId) -> None:
        self._mapped.discard(var)
        self.memory.unmap_file(MAPPED_WEIGHTS, self.sizes.get(var, 0))


def _name_number(weight: tuple[str, int]) -> int:
    """Return when a weight was made: the runtime numbers the names that it makes up."""
    number = weight[0].rpartition("_token_")[2]
    return int(number) if number.isdigit() else -1
