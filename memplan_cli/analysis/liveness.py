"""Live ranges of all vars on one clock that runs through all blocks.

An op takes one tick. An op with subgraphs takes a first tick, then the ticks of its subgraphs,
one subgraph after the other, then a last tick at which its results are written:

    tick   0     1    2       3      4    5
    op     Relu  If   then:0  else:0 If   Add

So the branches of an If are at different ticks and may share memory, and allocators need not
know about If, Loop or Scan.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.core.problem import LiveRange
from memplan_cli.core.program import VarId, blocks, captures

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from memplan_cli.core.program import Block, Op, Program

_OMITTED = VarId("")
"""Stands for an optional input or output that a node leaves out."""


class Step(NamedTuple):
    """One op on the clock: its first tick ``start`` and its last tick ``end``, inclusive.

    They differ for ops with subgraphs only.
    """

    start: int
    end: int
    block: Block
    op: Op


@dataclass(frozen=True)
class Timeline:
    """The ticks of a program's ops and the live ranges of its vars, computed on first use."""

    program: Program

    @cached_property
    def steps(self) -> Sequence[Step]:
        """Every op of every block with its ticks, ascending by first tick."""
        return tuple(steps(self.program))

    @cached_property
    def live(self) -> Mapping[VarId, LiveRange]:
        """The live range of every var."""
        return live_ranges(self.program, self.steps)


def steps(program: Program) -> Iterator[Step]:
    """Yield every op of every block with its ticks, ascending by first tick."""
    return _block_steps(program.body, 0)


def _block_steps(block: Block, tick: int) -> Iterator[Step]:
    """Yield the steps of a block whose first op runs at ``tick``, and of its subgraphs.

    The first tick of an op with subgraphs is before those of the subgraphs, its last tick after them.
    """
    for op in block.ops:
        # Nearly every op: one int object for both ticks saves memory in plans.
        if not op.bodies:
            yield Step(tick, tick, block, op)
            tick += 1
            continue
        end = tick + _op_duration(op) - 1
        yield Step(tick, end, block, op)
        tick += 1
        for body in op.bodies:
            yield from _block_steps(body, tick)
            tick += _block_duration(body)
        tick = end + 1


def duration(program: Program) -> int:
    """Return the number of ticks that a run of the program takes."""
    return _block_duration(program.body)


def _block_duration(block: Block) -> int:
    """Return the number of ticks of a block, its subgraphs included."""
    return sum(map(_op_duration, block.ops))


def _op_duration(op: Op) -> int:
    """Return the number of ticks of an op: 1, or with subgraphs 2 and those of the subgraphs."""
    return 2 + sum(map(_block_duration, op.bodies)) if op.bodies else 1


def live_ranges(
    program: Program, clock: Iterable[Step] | None = None
) -> dict[VarId, LiveRange]:
    """Return the half-open live range of every var that an op or the graph's interface names.

    A var is live from the tick of its producer to the tick after its last consumer, or after
    the producer if it has no consumer. Graph inputs are live from tick 0, initializers from their
    first consumer, graph outputs to the end of the run.

    ``clock`` is ``steps(program)``, if the caller has it already.
    """
    # The first and the last tick at which each var is accessed. An op with subgraphs precedes the
    # ops inside in the clock, but accesses their results at its last tick, after them. So the
    # accesses of a var are not always met in the order of their ticks.
    first: dict[VarId, int] = dict.fromkeys(program.body.inputs, 0)
    last = first.copy()
    for start, end, _, op in steps(program) if clock is None else clock:
        # Nearly every op: the loop below without calls, as all is at one tick.
        if not op.bodies:
            for var in (*op.inputs, *op.outputs):
                if first.setdefault(var, start) > start:
                    first[var] = start
                if last.get(var, -1) < start:
                    last[var] = start
            continue
        for tick, var in _accesses(op, start, end):
            first[var] = min(first.get(var, tick), tick)
            last[var] = max(last.get(var, tick), tick)
    final = max(duration(program) - 1, 0)
    for var in program.body.outputs:
        first.setdefault(var, final)  # an initializer that no op reads
        last[var] = final
    return {
        var: LiveRange(start, last[var] + 1) for var, start in first.items() if var != _OMITTED
    }


def _accesses(op: Op, start: int, end: int) -> Iterator[tuple[int, VarId]]:
    """Yield (tick, var) for the vars that an op accesses at its first tick ``start`` or its last tick ``end``.

    Inputs and outputs of its subgraphs are among these vars.
    """
    yield from ((start, var) for var in op.inputs)
    yield from ((end, var) for var in op.outputs)
    for body in op.bodies:
        yield from ((start, var) for var in body.inputs)
        yield from ((end, var) for var in body.outputs)
    if op.repeats:
        # Each iteration may read the inputs and append to the outputs: all are live for the whole op.
        yield from ((end, var) for var in op.inputs)
        yield from ((start, var) for var in op.outputs)
        yield from ((end, var) for body in op.bodies for var in body.inputs)
        # Ops of the body read captures at ticks of their own, and read them again in the last iteration.
        yield from ((end, var) for body in op.bodies for var in captures(body))


def last_uses(timeline: Timeline) -> Mapping[VarId, Step]:
    """Return, per var that an op computes, the last op that uses it, after which it can be freed.

    The op is one of the block that defines the var. It uses the var itself, or a subgraph of it does:

        x = Relu(a)
        y = If(c) then: Neg(x), else: Abs(a)     last use of x: If

    Freed at its last consumer, Neg, ``x`` would leak in runs of the other branch. Results of blocks
    are left out: they are not freed.
    """
    defining_path = {
        var: step.block.path for step in timeline.steps for var in step.op.outputs
    }
    last_use: dict[VarId, Step] = {}
    for step in timeline.steps:  # a later use in the block replaces an earlier one
        for var in (*step.op.outputs, *step.op.reads):
            if defining_path.get(var) == step.block.path:
                last_use[var] = step
    not_freed = {_OMITTED}
    for block in blocks(timeline.program.body):
        # A subgraph may also return a var of a block around it, which that block frees.
        not_freed.update(var for var in block.outputs if defining_path.get(var) == block.path)
    return {var: step for var, step in last_use.items() if var not in not_freed}
