"""The buffers that ONNX Runtime's planner makes, shares and frees in one block.

It walks the ops once. An output takes, in this order: memory of its own if it is a graph
output; an input's buffer, if the kernel declares an alias, or declares in-place and is the
buffer's last reader; the buffer freed last that has its element size and shape; new memory.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from memplan_cli.core.program import Origin
from memplan_cli.core.symbolic.sizes import BITS
from memplan_cli.runtime.simulation.order import reads

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from memplan_cli.core.program import Block, Op, Program, Var, VarId
    from memplan_cli.runtime.probe import InPlaceTable
    from memplan_cli.runtime.simulation.order import Order


class Kind(Enum):
    """Where a var's bytes come from."""

    GIVEN = "given"
    """From outside: an input, a capture, a weight."""
    OUTPUT = "output"
    """A result of the block: never shared, never freed by it."""
    NEW = "new"
    """Memory of its own; others may follow in it."""
    SHARED = "shared"
    """In the buffer of another var."""


class Reuse(Enum):
    """``enable_mem_reuse``: whether dead buffers are reused."""

    ON = "on"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """The planner's decisions for one block.

    Attributes:
        order: the ops as they run.
        kind: for each var an op of this block writes.
        buffer: the var in whose buffer each var lies.
        freed: for each op the buffers whose last reader it is, in order.
    """

    order: Order
    kind: Mapping[VarId, Kind]
    buffer: Mapping[VarId, VarId]
    freed: tuple[tuple[VarId, ...], ...]


@dataclass(slots=True)
class _Walk:
    program: Program
    block: Block
    table: InPlaceTable
    reuse: Reuse
    in_loop: bool
    uses: Counter[VarId] = field(default_factory=Counter)
    kind: dict[VarId, Kind] = field(default_factory=dict)
    buffer: dict[VarId, VarId] = field(default_factory=dict)
    free: list[VarId] = field(default_factory=list)

    def count(self, order: Order) -> None:
        """Count each read; what the block does not own, or gives, is never down to zero."""
        named = [
            var for op in order for vars_ in (reads(op), op.outputs) for var in vars_ if var
        ]
        self.uses.update((*named, *self.block.outputs))
        written = {var for op in order for var in op.outputs}
        for var in list(self.uses):
            if var not in written:
                self.uses[var] += 1
                self.kind[var] = Kind.GIVEN
            self.buffer[var] = var

    def place(self, op: Op, results: frozenset[VarId]) -> None:
        """Decide where the outputs of one op lie."""
        for position, var in enumerate(op.outputs):
            if not var:
                continue
            if var in results:
                self.kind[var] = Kind.OUTPUT
                self._pass_through(op, var)
                continue
            shared = self._over_input(op, position, var) or self._dead_twin(var)
            if shared:
                self._share(shared, var)
            else:
                self.kind[var] = Kind.NEW

    def _pass_through(self, op: Op, var: VarId) -> None:
        """Share what a Loop's subgraph passes on unchanged, less the turn's number."""
        given = op.inputs[0] if op.type == "Identity" else None
        if not self.in_loop or given is None or given == self.block.inputs[0]:
            return
        if self.kind.get(given) is Kind.GIVEN and self._is_input(given):
            self._share(given, var)

    def _is_input(self, var: VarId) -> bool:
        return self.program.vars[var].origin is not Origin.WEIGHT

    def _share(self, other: VarId, var: VarId) -> None:
        original = self.buffer[other]
        self.buffer[var] = original
        self.uses[original] += self.uses[var]
        self.kind[var] = Kind.SHARED

    def _over_input(self, op: Op, position: int, var: VarId) -> VarId | None:
        key = f"{op.domain}.{op.type}" if op.domain else op.type
        if position:
            pairs = {out: at for at, out in self.table.later.get(key, ())}
            at = pairs.get(position, len(op.inputs))
            return op.inputs[at] if at < len(op.inputs) and op.inputs[at] else None
        for at in self.table.alias.get(key, ()):
            if at < len(op.inputs) and op.inputs[at]:
                return op.inputs[at]
        allocates = self.table.allocates.get(key, ())
        for at in self.table.in_place.get(key, ()):
            given = op.inputs[at] if at < len(op.inputs) else None
            if not given or self.program.vars[given].dtype in allocates:
                continue
            if self.uses[self.buffer[given]] == 1 and self._twins(given, var):
                return given
        return None

    def _dead_twin(self, var: VarId) -> VarId | None:
        # Measured on 1.31.1: what nobody reads takes no dead buffer (but leaves one).
        if self.reuse is Reuse.OFF or not self.program.vars[var].shape or self.uses[var] < 2:
            return None
        for index in range(len(self.free) - 1, -1, -1):
            if self._twins(self.free[index], var):
                return self.free.pop(index)
        return None

    def _twins(self, one: VarId, other: VarId) -> bool:
        """Whether element size and shape are the same, as far as known before the run."""
        a, b = self.program.vars[one], self.program.vars[other]
        if a.shape is None or b.shape is None or None in a.shape:
            return False
        bits = _bits(a)
        return bits is not None and bits == _bits(b) and a.shape == b.shape

    def release(self, op: Op) -> None:
        """Put what this op was the last to need on the free list."""
        for var in (*reads(op), *op.outputs):
            if not var:
                continue
            original = self.buffer[var]
            self.uses[original] -= 1
            if not self.uses[original]:
                self.free.append(original)


def _bits(var: Var) -> int | None:
    return None if var.dtype == "string" else BITS.get(var.dtype)


@dataclass(frozen=True, slots=True)
class Rules:
    """What the planner goes by: the kernels' declarations, the order, the reuse switch."""

    table: InPlaceTable
    order: Callable[[Block], Order]
    reuse: Reuse


def plan_block(program: Program, block: Block, node: Op | None, rules: Rules) -> BlockPlan:
    """Return what the planner decides for a block; ``node`` is the op whose subgraph it is."""
    order = rules.order(block)
    in_loop = node is not None and node.type == "Loop"
    walk = _Walk(program, block, rules.table, rules.reuse, in_loop)
    walk.count(order)
    results = frozenset(block.outputs)
    for op in order:
        walk.place(op, results)
        walk.release(op)
    return BlockPlan(order, walk.kind, walk.buffer, _freed(order, walk))


def _freed(order: Order, walk: _Walk) -> tuple[tuple[VarId, ...], ...]:
    """Return the buffers that each op frees: only reads count, so what nobody reads stays."""
    last: dict[VarId, int] = {}
    for index, op in enumerate(order):
        for var in reads(op):
            if var and walk.kind.get(walk.buffer[var]) is Kind.NEW:
                last[walk.buffer[var]] = index
    freed: dict[int, list[VarId]] = defaultdict(list)
    for buffer, index in last.items():
        freed[index].append(buffer)
    return tuple(tuple(freed.get(index, ())) for index in range(len(order)))
