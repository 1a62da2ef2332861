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
from memplan_cli.core.program import VarId, captures

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
    """Yield the steps of a block whose first op runs at ``tick``, and of its subgraphs."""
    for op in block.ops:
        if not op.bodies:  # nearly every op: one number for both ticks, which plans keep
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
    the producer if it has no consumer. Graph inputs are live from tick 0, graph outputs to the
    end of the run.

    ``clock`` is ``steps(program)``, if the caller has it already.
    """
    # The first and the last tick at which each var is accessed.
    first: dict[VarId, int] = dict.fromkeys(program.body.inputs, 0)
    last = first.copy()
    for start, end, _, op in steps(program) if clock is None else clock:
        if not op.bodies:  # nearly every op: all of its accesses are at one tick
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
    """Yield (tick, var) for every read and write of an op.

    Inputs and outputs of the subgraphs count as accesses of the op. A body that repeats reads
    its captures and inputs again in the next iteration and may append to the op's outputs in
    each, so all of these are live for the whole op.
    """
    yield from ((start, var) for var in op.inputs)
    yield from ((end, var) for var in op.outputs)
    for body in op.bodies:
        yield from ((start, var) for var in body.inputs)
        yield from ((end, var) for var in body.outputs)
    if op.repeats:
        yield from ((end, var) for var in op.inputs)
        yield from ((start, var) for var in op.outputs)
        yield from ((end, var) for body in op.bodies for var in body.inputs)
        yield from ((end, var) for body in op.bodies for var in captures(body))


def last_uses(timeline: Timeline) -> Mapping[VarId, Step]:
    """Return, per var, the last op that uses it, after whose last tick the var can be freed.

    The op is one of the block that defines the var. It uses the var itself, or has a subgraph that
    does. So the tick is later than the end of the live range if the last consumer is inside a
    subgraph: a branch may not be taken, and freeing the var there would leak it on the other
    branch. Graph outputs and vars that enter or leave a subgraph are left out: they are not freed.
    """
    # By path of a subgraph, the step of the op that has it.
    outer_step = {body.path: step for step in timeline.steps for body in step.op.bodies}
    defining_path = _defining_paths(timeline.steps)
    # By var, the last step that uses it, in the block that defines it.
    last_use: dict[VarId, Step] = {}
    for step in timeline.steps:  # by ascending first tick: a later use replaces an earlier one
        op = step.op
        last_use.update(dict.fromkeys(op.outputs, step))
        for var in (*op.inputs, *(var for body in op.bodies for var in body.outputs)):
            if var in defining_path:  # no graph input and no initializer
                use = _step_in_block(defining_path[var], step, outer_step)
                # None: the var is a body's own and the body returns it, to this op outside of the
                # body. It is among ``not_freed`` below.
                if use is not None:
                    last_use[var] = use
    not_freed = {_OMITTED, *timeline.program.body.outputs}
    for step in timeline.steps:
        for body in step.op.bodies:
            not_freed.update(body.inputs)
            # A body may also return a capture. That is freed by the block that defines it.
            not_freed.update(
                var for var in body.outputs if defining_path.get(var) == body.path
            )
    return {var: step for var, step in last_use.items() if var not in not_freed}


def _defining_paths(steps: Sequence[Step]) -> Mapping[VarId, str]:
    """Return the path of the block that defines each var: as an op's output, or as a body's input."""
    paths: dict[VarId, str] = {}
    for step in steps:
        paths.update(dict.fromkeys(step.op.outputs, step.block.path))
        for body in step.op.bodies:
            paths.update(dict.fromkeys(body.inputs, body.path))
    return paths


def _step_in_block(path: str, step: Step, outer_step: Mapping[str, Step]) -> Step | None:
    """Return the step of the block at ``path`` that is ``step`` or has it in a subgraph.

    None if ``step`` is neither in that block nor below it: a result of a subgraph is used by the op around.
    """
    while step.block.path != path:
        if step.block.path not in outer_step:  # the main graph
            return None
        step = outer_step[step.block.path]
    return step
