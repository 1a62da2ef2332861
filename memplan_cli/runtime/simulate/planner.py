"""ONNX Runtime's allocation planner: execution order, buffer reuse, and the memory pattern.

The planner orders the ops of a block and walks them once. An output is placed, in this order: in
memory of its own if it is a graph output; in the buffer of an input if the kernel declares an
alias, or declares in-place and is the buffer's last reader; in the buffer that was freed last
among those of its element size and shape; in new memory.

The memory pattern is a layout of one block for all tensors of a run. The first run with given
input shapes traces it, later runs allocate the block at once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.analysis.precedence import nearest_order, successors
from memplan_cli.core.problem import align
from memplan_cli.core.program import Block, Origin, captures
from memplan_cli.core.symbolic.sizes import BITS
from memplan_cli.runtime.profile.record import PROFILE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from memplan_cli.core.program import Op, Program, Var, VarId
    from memplan_cli.runtime.profile.in_place import InPlaceTable

Order = tuple["Op", ...]


def variables_read(op: Op) -> tuple[VarId, ...]:
    """Return the variables that an op reads from its own block: inputs, then captures of its bodies."""
    if not op.bodies:
        return op.inputs
    implicit = dict.fromkeys(var for body in op.bodies for var in captures(body))
    return (*op.inputs, *implicit)


def _producers(block: Block) -> list[tuple[int, ...]]:
    """Return for each op the indices of the ops that it reads from, ascending.

    The index of an op is its place in the file, as long as the graph is loaded as it is.
    """
    producer = block.dataflow.producer
    return [
        tuple(sorted({producer[var] for var in read if var in producer}))
        for read in block.dataflow.reads
    ]


def default_order(block: Block) -> Order:
    """Return the order of ``ExecutionOrder.DEFAULT``: depth first, backwards from the last leaf.

    Among the producers of an op, the one with the highest index is visited first.
    """
    producers = _producers(block)
    read = {index for indices in producers for index in indices}
    # The ops to visit. True: the producers of the op were visited, so that the op is next in the order.
    stack = [(index, False) for index in range(len(producers)) if index not in read]
    visited: set[int] = set()
    order: list[int] = []
    while stack:
        index, is_next = stack.pop()
        if is_next:
            order.append(index)
            continue
        if index in visited:
            continue
        visited.add(index)
        stack.append((index, True))
        stack += [(other, False) for other in producers[index] if other not in visited]
    return tuple(block.ops[index] for index in order)


def priority_order(block: Block) -> Order:
    """Return the order of ``PRIORITY_BASED``: of ops that are ready, Shape and Size first, then by file order."""
    ops = block.ops

    def rank(index: int) -> int:  # the lowest runs next, of equal ones the first in the file
        is_eager = ops[index].type in PROFILE.eager_operators and not ops[index].domain
        return 0 if is_eager else 1

    order = nearest_order(successors(_producers(block)), rank)
    return tuple(ops[index] for index in order)


def file_order(block: Block) -> Order:
    """Return the ops as they stand in the file. A dump of the runtime stands in executed order."""
    return block.ops


ORDERS: Mapping[str, Callable[[Block], Order]] = {
    "DEFAULT": default_order,
    "PRIORITY_BASED": priority_order,
}
"""Values of ``SessionOptions.execution_order``."""


class BufferKind(Enum):
    """Where the bytes of a variable are."""

    GIVEN = "given"
    """Outside the block: an input, a capture or an initializer."""
    OUTPUT = "output"
    """In memory of its own, as an output of the block: not reused, not freed by the block."""
    NEW = "new"
    """In memory of its own, which later variables may reuse."""
    SHARED = "shared"
    """In the buffer of another variable."""


@dataclass(frozen=True, slots=True)
class PlannerSettings:
    """What the planner depends on.

    Attributes:
        table: which kernels work in place.
        order: returns the ops of a block in execution order.
        reuses_buffers: whether the buffers of dead variables are reused (``enable_mem_reuse``).
    """

    table: InPlaceTable
    order: Callable[[Block], Order]
    reuses_buffers: bool


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """The decisions of the planner for one block.

    Attributes:
        order: the ops in execution order.
        kind: where the bytes of each variable are that an op of this block reads or writes.
        buffer: the variable in whose buffer each variable lies.
        freed: for each op, the buffers of which it is the last reader.
    """

    order: Order
    kind: Mapping[VarId, BufferKind]
    buffer: Mapping[VarId, VarId]
    freed: tuple[tuple[VarId, ...], ...]


def plan_block(
    program: Program, block: Block, owner: Op | None, settings: PlannerSettings
) -> BlockPlan:
    """Return the planner's order, buffers and frees for a block.

    ``owner`` is the op of which the block is a body; None for the main graph.
    """
    order = settings.order(block)
    # The planner shares unchanged states in bodies of Loop, and not of Scan (`_share_passed_state`).
    is_loop_body = owner is not None and owner.type == "Loop"
    walk = _Walk(program, block, settings, is_loop_body)
    walk.count_uses(order)
    results = frozenset(block.outputs)
    for op in order:
        walk.place(op, results)
        walk.release(op)
    return BlockPlan(order, walk.kind, walk.buffer, _freed(order, walk))


@dataclass(slots=True)
class _Walk:
    """The planner's walk over the ops of a block, and its decisions so far.

    A buffer is named by the variable that it was allocated for.

    Attributes:
        is_loop_body: whether the block is the body of a Loop.
        uses: remaining reads and writes of each buffer. Those of outputs of the block, and of values
            from outside, never reach 0.
        kind: where the bytes of each variable are.
        buffer: the buffer of each variable.
        free: buffers that may be reused, the last one freed at the end.
    """

    program: Program
    block: Block
    settings: PlannerSettings
    is_loop_body: bool
    uses: Counter[VarId] = field(default_factory=Counter)
    kind: dict[VarId, BufferKind] = field(default_factory=dict)
    buffer: dict[VarId, VarId] = field(default_factory=dict)
    free: list[VarId] = field(default_factory=list)

    def count_uses(self, order: Order) -> None:
        """Count the uses of all variables, give each its own buffer, and mark those from outside.

        Reads and writes are uses, and end when the op has run (`release`): a value that no op reads is free
        after the op that writes it. The block's outputs, and variables from outside, have one use more,
        which no op of the block ends.
        """
        for op in order:
            self.uses.update(var for var in (*variables_read(op), *op.outputs) if var)
        self.uses.update(self.block.outputs)
        written = {var for op in order for var in op.outputs}
        for var in list(self.uses):
            if var not in written:
                self.uses[var] += 1
                self.kind[var] = BufferKind.GIVEN
            self.buffer[var] = var

    def place(self, op: Op, results: frozenset[VarId]) -> None:
        """Give each output of an op its kind, and let it share a buffer if the runtime does.

        ``results`` are the outputs of the block. They have memory of their own, except states that a Loop
        passes on unchanged. Any other output uses the buffer of an input, a buffer that is free, or a new
        one.
        """
        for position, var in enumerate(op.outputs):
            if not var:
                continue
            if var in results:
                self.kind[var] = BufferKind.OUTPUT
                self._share_passed_state(op, var)
                continue
            shared = self._shared_input(op, position, var) or self._reusable_buffer(var)
            if shared:
                self._share(shared, var)
            else:
                self.kind[var] = BufferKind.NEW

    def release(self, op: Op) -> None:
        """Count the uses of an op as done, and add buffers without further uses to the free list."""
        for var in (*variables_read(op), *op.outputs):
            if not var:
                continue
            buffer = self.buffer[var]
            self.uses[buffer] -= 1
            if not self.uses[buffer]:
                self.free.append(buffer)

    def _share_passed_state(self, op: Op, var: VarId) -> None:
        """Let an output of a Loop's body share the value from outside that an Identity passes on to it.

        That is usually a state that does not change. ``var`` is an output of the block. Nothing is done if
        the block is no body of a Loop, or if the op is no Identity of a body input or a capture.

        The iteration number and weights are copied instead, as in ONNX Runtime: its Loop writes the next
        number over the last one, and its planner shares only values that a run provides, not weights.
        """
        if not self.is_loop_body or op.type != "Identity":
            return
        source, iteration_number = op.inputs[0], self.block.inputs[0]
        is_from_outside = self.kind.get(source) is BufferKind.GIVEN
        is_weight = self.program.vars[source].origin is Origin.WEIGHT
        if is_from_outside and not is_weight and source != iteration_number:
            self._share(source, var)

    def _share(self, other: VarId, var: VarId) -> None:
        """Place a variable into the buffer of another one, which gets its uses too."""
        buffer = self.buffer[other]
        self.buffer[var] = buffer
        self.uses[buffer] += self.uses[var]
        self.kind[var] = BufferKind.SHARED

    def _shared_input(self, op: Op, position: int, var: VarId) -> VarId | None:
        """Return the input whose buffer the kernel uses for an output, or None.

        The first output may be an alias of an input, or overwrite an input that has no other use left
        and the same element size and shape, unless the kernel allocates for its dtype. Later outputs may be
        aliases only. ``position`` is that of the output ``var`` among the op's outputs.
        """
        table = self.settings.table
        key = f"{op.domain}.{op.type}" if op.domain else op.type
        if position > 0:
            pairs = table.later_aliases.get(key, ())
            sources = [source for source, output in pairs if output == position]
            return next(_inputs_at(op, sources), None)
        if alias := next(_inputs_at(op, table.alias.get(key, ())), None):
            return alias
        allocating_dtypes = table.allocates.get(key, ())
        for source in _inputs_at(op, table.in_place.get(key, ())):
            can_overwrite = self.program.vars[source].dtype not in allocating_dtypes
            is_last_use = self.uses[self.buffer[source]] == 1
            if can_overwrite and is_last_use and self._is_interchangeable(source, var):
                return source
        return None

    def _reusable_buffer(self, var: VarId) -> VarId | None:
        """Remove the buffer that a variable reuses from the free list and return it; None if none fits.

        An unused output reuses no buffer, although its own buffer is reused later (measured). Its one
        use is that of the op that writes it. Scalars and outputs of unknown shape reuse none either.
        """
        shape = self.program.vars[var].shape
        if not self.settings.reuses_buffers or not shape or self.uses[var] < 2:
            return None
        for index in range(len(self.free) - 1, -1, -1):
            if self._is_interchangeable(self.free[index], var):
                return self.free.pop(index)
        return None

    def _is_interchangeable(self, first: VarId, second: VarId) -> bool:
        """Return whether two variables are known to have the same element size and shape."""
        first_var, second_var = self.program.vars[first], self.program.vars[second]
        shape = first_var.shape
        if shape is None or None in shape or shape != second_var.shape:
            return False
        bits = _element_bits(first_var)
        return bits is not None and bits == _element_bits(second_var)


def _inputs_at(op: Op, positions: Iterable[int]) -> Iterator[VarId]:
    """Yield the inputs of an op at these positions; optional inputs that are left out are skipped."""
    return (
        op.inputs[index] for index in positions if index < len(op.inputs) and op.inputs[index]
    )


def _element_bits(var: Var) -> int | None:
    """Return the bits of one element; None for strings and unknown types."""
    return None if var.dtype == "string" else BITS.get(var.dtype)


def _freed(order: Order, walk: _Walk) -> tuple[tuple[VarId, ...], ...]:
    """Return the buffers that each op frees: those of which it is the last reader.

    A buffer that is never read is not freed before the end of the block.
    """
    last_reader: dict[VarId, int] = {}
    for index, op in enumerate(order):
        for var in variables_read(op):
            if var and walk.kind.get(walk.buffer[var]) is BufferKind.NEW:
                last_reader[walk.buffer[var]] = index
    freed: dict[int, list[VarId]] = defaultdict(list)
    for buffer, index in last_reader.items():
        freed[index].append(buffer)
    return tuple(tuple(freed.get(index, ())) for index in range(len(order)))


class _PlacedTensor(NamedTuple):
    """A tensor at ``[offset, offset + size)`` in the block of a memory pattern."""

    offset: int
    size: int
    name: str


@dataclass(slots=True)
class MemoryPattern:
    """The layout of a run's tensors in one block, traced while the run allocates and frees them.

    An online best fit: each tensor is placed in the tightest gap between live tensors, or
    between the last of them and the height reached so far, else on top.

    Attributes:
        height: bytes of the block so far.
        sizes: rounded bytes of each tensor placed.
        _live: the tensors that are not freed, sorted.
        _placed: the same, by name.
    """

    height: int = 0
    sizes: dict[str, int] = field(default_factory=dict)
    _live: list[_PlacedTensor] = field(default_factory=list)
    _placed: dict[str, _PlacedTensor] = field(default_factory=dict)

    def allocate(self, name: str, size: int) -> None:
        """Place a tensor of ``size`` bytes."""
        size = self.sizes[name] = _aligned(size)
        if not size:
            return
        offset, index = self._tightest_gap(size)
        tensor = self._placed[name] = _PlacedTensor(offset, size, name)
        self._live.insert(index, tensor)
        self.height = max(self.height, offset + size)

    def free(self, name: str) -> None:
        """Remove a tensor, if it was placed."""
        tensor = self._placed.pop(name, None)
        if tensor is not None:
            del self._live[bisect_left(self._live, tensor)]

    def holds(self, name: str, size: int) -> bool:
        """Return whether the block has a place for a tensor of exactly this size."""
        return self.sizes.get(name) == _aligned(size)

    def _tightest_gap(self, size: int) -> tuple[int, int]:
        """Return where ONNX Runtime puts a tensor: an offset, and the index in ``_live`` at that place.

        That is the smallest gap that fits, of equal ones the first. If none fits, the tensor is put behind
        the last one, and may raise the height.
        """
        end = 0  # of the tensor before the gap
        best: tuple[int, int] | None = None
        smallest = 0  # bytes of the gap at `best`
        for index, tensor in enumerate(self._live):
            gap = tensor.offset - end
            if gap >= size and (best is None or gap < smallest):
                best, smallest = (end, index), gap
            end = tensor.offset + tensor.size
        # ONNX Runtime counts the space between the last tensor and the height as a gap too.
        gap = self.height - end
        if best is None or size <= gap < smallest:
            return end, len(self._live)
        return best


def _aligned(size: int) -> int:
    return align(size, PROFILE.pattern_alignment)
