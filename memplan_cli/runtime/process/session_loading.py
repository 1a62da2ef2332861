"""A simulation of session creation: the blocks that ONNX Runtime allocates and frees, in order.

The order was measured by a log of all blocks of 16 KiB or more. A file is parsed, and the weights in
it are copied from the parsed text one by one. Optimization folds constants and reorders filters into
blocked layouts, each with several copies. Then kernels pack their constant operands, node by node,
and weights without other readers are freed. The heap does not shrink below a block in use, so the
order of these steps decides what stays resident.
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

    from memplan_cli.core.program import Block, Program, VarId
    from memplan_cli.onnx_io.weights.stored import StoredModel, StoredWeight
    from memplan_cli.runtime.process.simulated_memory import MemoryBlock, SimulatedMemory
    from memplan_cli.runtime.profile.packed_weights import WeightRead

_STRING_END = 1
"""The byte behind the last one of a ``std::string``."""


@dataclass(slots=True)
class SessionLoading:
    """The simulated creation of one session.

    Attributes:
        memory: the memory of the process, which is changed.
        stored: the model file.
        program: the graph that the session will run.
        dims: the numbers of its symbolic dims.
        packs: whether kernels pack their weights.
        heap_weights: blocks of weights on the heap, by name.
        stored_weights: the weights of the file, by name.
        sizes: bytes of each variable.
        _packed_before: weights that were packed, each with the operator of the kernel.
        _mapped_weights: weights in mapped files that a kernel has read to pack them, until `_unmap_weight`
            drops their pages.
    """

    memory: SimulatedMemory
    stored: StoredModel
    program: Program
    dims: Mapping[str, int]
    packs: bool
    heap_weights: dict[str, MemoryBlock] = field(default_factory=dict)
    stored_weights: Mapping[str, StoredWeight] = field(default_factory=dict)
    sizes: Mapping[VarId, int] = field(default_factory=dict)
    _packed_before: set[tuple[str, str, VarId]] = field(default_factory=set)
    _mapped_weights: set[VarId] = field(default_factory=set)

    def run(self) -> None:
        """Simulate all steps of session creation, in order."""
        self.stored_weights = {weight.name: weight for weight in self.stored.weights}
        self.sizes = tensor_bytes(self.program, self.dims)
        self.memory.map_file(RUNTIME_CODE, PROFILE.loaded_code)
        node_bytes = PROFILE.node_heap * self.stored.nodes
        weight_bytes = PROFILE.weight_heap * len(self.stored.weights)
        graph_bytes = PROFILE.session_heap + node_bytes + weight_bytes
        self.memory.add_objects(SESSION_GRAPH, graph_bytes)
        self._parse()
        self._optimize()
        if self.packs:
            self._pack()

    def _optimize(self) -> None:
        """Simulate how optimization folds constants, then reorders filters, and frees the weights that they replace.

        Filters are the new weights that nodes in the blocked layout of convolutions (NCHWc) read.
        """
        variables, new_weights = self.program.vars, self._new_weights()
        blocked_ops = [op for _, op in walk(self.program.body) if op.domain == NCHWC]
        read_in_blocks = {
            variables[var].name for op in blocked_ops for var in op.inputs if var
        }
        filters = [name for name in new_weights if name in read_in_blocks]
        for name, size in new_weights.items():
            if name not in filters:
                self._fold_constant(name, size)
        # The numbers in names of filters show in which order the runtime makes the filters.
        for name in sorted(filters, key=_generated_number):
            self._reorder_filter(name, new_weights[name])
        weights = {var.name for var in variables.values() if var.origin is Origin.WEIGHT}
        for name in [name for name in self.heap_weights if name not in weights]:
            self.memory.free(self.heap_weights.pop(name))

    def _parse(self) -> None:
        """Simulate how the file is parsed, and its inline weights copied out of the parsed text."""
        memory = self.memory
        buffer_size = min(self.stored.size, PROFILE.read_buffer)  # the file is read in pieces
        buffer = memory.allocate(PARSED_FILE, buffer_size, SMALL_ALIGNMENT)
        inside = [weight for weight in self.stored.weights if weight.inside]
        # A smaller weight is not copied: it stays where it was parsed (measured).
        copied = [weight for weight in inside if weight.size > PROFILE.inline_weight]
        text_blocks = [self._read_text(weight.size) for weight in copied]
        memory.free(buffer)
        for weight, text_block in zip(copied, text_blocks, strict=True):
            self.heap_weights[weight.name] = memory.allocate(INLINE_WEIGHTS, weight.size)
            memory.free(text_block)

    def _read_text(self, size: int) -> MemoryBlock:
        """Return the block into which protobuf reads the bytes of a weight, a ``std::string``.

        The block of a long string grows by doubling. The string is copied into each larger block before
        the smaller one is freed. Bytes of the last block behind the end of the string are never written.
        """
        capacity = min(size, PROFILE.reserved_text)
        text = self.memory.allocate(PARSED_FILE, capacity + _STRING_END, SMALL_ALIGNMENT)
        while capacity < size:
            capacity, smaller_block = 2 * capacity, text
            text = self.memory.reserve(PARSED_FILE, capacity + _STRING_END, SMALL_ALIGNMENT)
            self.memory.touch(text, 0, min(capacity, size))
            self.memory.free(smaller_block)
        return text

    def _new_weights(self) -> dict[str, int]:
        """Return the bytes of the weights that optimization makes, by name, in the order of their reads.

        The file does not have them. Small ones are left out.
        """
        sizes: dict[str, int] = {}
        for read in weight_reads(self.program):
            name = self.program.vars[read.weight].name
            size = self.sizes.get(read.weight, 0)
            if name not in self.stored_weights and size > PROFILE.inline_weight:
                sizes.setdefault(name, size)
        return sizes

    def _fold_constant(self, name: str, size: int) -> None:
        """Simulate how a constant is folded. Large external operands are copied to the heap meanwhile.

        Operands in the model file are on the heap already, since it was parsed.
        """
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
        self.heap_weights[name] = self.memory.allocate(FOLDED_CONSTANTS, size)
        for copy in copies:
            self.memory.free(copy)

    def _reorder_filter(self, name: str, size: int) -> None:
        """Simulate how a filter is reordered into a blocked layout.

        Four copies exist at once: the source, the reordered filter, its serialized form, and the
        new weight, which stays. Source and new weight are tensors, with the alignment of tensors; the others
        are a vector and a ``std::string``. The three are freed in reverse order.
        """
        memory = self.memory
        source = memory.allocate(BLOCKED_FILTERS, size)
        reordered = memory.allocate(BLOCKED_FILTERS, size, SMALL_ALIGNMENT)
        serialized = memory.allocate(BLOCKED_FILTERS, size + _STRING_END, SMALL_ALIGNMENT)
        self.heap_weights[name] = memory.allocate(BLOCKED_FILTERS, size)
        for block in (serialized, reordered, source):
            memory.free(block)

    def _pack(self) -> None:
        """Simulate how kernels pack weights, node by node, and free weights that all readers have packed."""
        reads_of_op: dict[int, list[WeightRead]] = {}  # by the id of the op object
        readers: Counter[VarId] = Counter()
        for read in weight_reads(self.program):
            reads_of_op.setdefault(id(read.op), []).append(read)
            readers[read.weight] += 1
        self._pack_block(self.program.body, reads_of_op, readers)

    def _pack_block(
        self,
        block: Block,
        reads_of_op: Mapping[int, Sequence[WeightRead]],
        readers: Counter[VarId],
    ) -> None:
        """Simulate how ONNX Runtime packs weights for the ops of a block, and then for the ops in their bodies.

        A weight is freed once its last reader has packed it, if that reader is in the block of the weight. If the
        reader is in an inner body, a weight in a mapped file is freed too, but a weight on the heap never (measured).

        Args:
            block: the main graph or a body.
            reads_of_op: the weights that an op reads, by the id of the op object.
            readers: the number of readers of each weight that have not packed it, which is counted down.
        """
        for op in block.ops:
            for read in reads_of_op.get(id(op), ()):
                if read.packed_bytes == 0:
                    continue  # this reader needs the weight itself in each run: its count never gets to 0
                self._pack_operand(read)
                readers[read.weight] -= 1
                is_own_weight = self.program.vars[read.weight].block == block.path
                if is_own_weight and not readers[read.weight]:
                    self._free_weight(read.weight)
        for op in [op for op in block.ops if op.bodies]:
            for body in op.bodies:
                self._pack_block(body, reads_of_op, readers)
            # Weights whose last reader was in one of these bodies: only mapped ones are freed.
            for var in [var for var in self._mapped_weights if readers[var] == 0]:
                self._unmap_weight(var)

    def _pack_operand(self, read: WeightRead) -> None:
        """Simulate how a kernel packs a weight that its op reads, with ``packed_bytes`` above 0."""
        op, var = read.op, read.weight
        memory, name = self.memory, self.program.vars[var].name
        is_on_heap = name in self.heap_weights
        if not is_on_heap and var not in self._mapped_weights:  # the file is mapped to read it
            self._mapped_weights.add(var)
            memory.map_file(MAPPED_WEIGHTS, self.sizes.get(var, 0))
        packed_copy = memory.allocate(f"{PACKED_WEIGHTS} {op.type}", read.packed_bytes)
        kernel_weight = (op.domain, op.type, var)
        weight = self.stored_weights.get(name)
        is_in_file = weight is not None and weight.packed_in_file
        # A kernel frees its copy if it finds another one: in the file, or from an earlier kernel of the same operator.
        if is_in_file or kernel_weight in self._packed_before:
            memory.free(packed_copy)
        self._packed_before.add(kernel_weight)

    def _free_weight(self, var: VarId) -> None:
        """Free a weight that was packed, on the heap or mapped."""
        value = self.heap_weights.pop(self.program.vars[var].name, None)
        if value is not None:
            self.memory.free(value)
        else:
            self._unmap_weight(var)

    def _unmap_weight(self, var: VarId) -> None:
        """Drop the resident pages of a mapped weight, and take it out of ``_mapped_weights``."""
        self._mapped_weights.discard(var)
        self.memory.unmap_file(MAPPED_WEIGHTS, self.sizes.get(var, 0))


def _generated_number(name: str) -> int:
    """Return the number in a generated name, in the order of which weights were created; -1 if it has none."""
    number = name.rpartition("_token_")[2]
    return int(number) if number.isdigit() else -1
