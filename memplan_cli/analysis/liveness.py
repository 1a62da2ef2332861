"""Liveness: the live range of each var, on one clock over all blocks, half-open.

Every op takes one tick; a control-flow op takes a first tick, then its subgraphs' ticks one
subgraph after the other, then a last tick at which its results are made. So nested blocks are
flat in time, branches that exclude one another are at different ticks (and may share
memory), and no code after this module knows of If, Loop or Scan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple, overload

from memplan_cli.core.problem import LiveRange, rows
from memplan_cli.core.program import VarId, captures

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from memplan_cli.core.program import Block, Op, Program

_OMITTED = VarId("")
"""What an op reads or makes where the file leaves an input or output out."""


class Step(NamedTuple):
    """One op on the clock: ``start`` is its tick, ``end`` its last one.

    They differ only for a control-flow op.
    """

    start: int
    end: int
    block: Block
    op: Op


@dataclass(frozen=True)
class Timeline:
    """A program on the clock: what several analyses ask of it, each worked out once."""

    program: Program

    @cached_property
    def steps(self) -> Sequence[Step]:
        """Every op of every block with its ticks, in order of their start."""
        return steps(self.program)

    @cached_property
    def live(self) -> Mapping[VarId, LiveRange]:
        """The live range of every var."""
        return live_ranges(self.program, self.steps)

    @cached_property
    def ending(self) -> Mapping[int, Op] | Sequence[Op]:
        """The op whose last tick a tick is: no two end at one."""
        if isinstance(self.steps, _Straight):
            return self.program.body.ops
        return {step.end: step.op for step in self.steps}


class _Straight(Sequence[Step]):
    """The steps of a block without subgraphs: an op's tick is its place; nothing is stored."""

    def __init__(self, block: Block) -> None:
        self._block, self.ops = block, block.ops

    def __len__(self) -> int:
        return len(self.ops)

    @overload
    def __getitem__(self, at: int) -> Step: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Step]: ...
    def __getitem__(self, at: int | slice) -> Step | Sequence[Step]:
        if isinstance(at, slice):
            return tuple(self)[at]
        tick = range(len(self))[at]
        return Step(tick, tick, self._block, self.ops[at])

    def __iter__(self) -> Iterator[Step]:
        ticks = range(len(self))
        return rows(Step, zip(ticks, ticks, repeat(self._block), self.ops, strict=False))


def timed(clock: Sequence[Step]) -> Iterable[tuple[int, int, Op]]:
    """Yield the first and the last tick of each step, and its op."""
    if isinstance(clock, _Straight):
        ticks = range(len(clock))
        return zip(ticks, ticks, clock.ops, strict=True)
    return ((start, end, op) for start, end, _, op in clock)


def steps(program: Program) -> Sequence[Step]:
    """Return every op of every block with its ticks, in order of their start."""
    if not any(op.bodies for op in program.body.ops):  # nearly all large programs
        return _Straight(program.body)
    found: list[Step] = []
    _collect(program.body, 0, found)
    return tuple(found)


def _collect(block: Block, tick: int, found: list[Step]) -> int:
    """Append the steps of a block that begins at a tick, and return the tick after it."""
    if not any(op.bodies for op in block.ops):  # most blocks, and all large ones
        end = tick + len(block.ops)
        ticks = range(tick, end)
        found += rows(Step, zip(ticks, ticks, repeat(block), block.ops, strict=False))
        return end
    for op in block.ops:
        if not op.bodies:
            found.append(Step(tick, tick, block, op))
            tick += 1
            continue
        place, start = len(found), tick
        found.append(Step(tick, tick, block, op))
        tick += 1
        for body in op.bodies:
            tick = _collect(body, tick, found)
        found[place] = Step(start, tick, block, op)
        tick += 1
    return tick


def duration(program: Program) -> int:
    """Return the number of ticks of the whole run."""
    return _duration(program.body)


def _duration(block: Block) -> int:
    control_flow = [op for op in block.ops if op.bodies]
    inside = sum(_duration(body) for op in control_flow for body in op.bodies)
    return len(block.ops) + len(control_flow) + inside


def live_ranges(
    program: Program, clock: Sequence[Step] | None = None
) -> dict[VarId, LiveRange]:
    """Return the half-open live range of every var that the program touches.

    A var is live from the tick of its producer to after the tick of its last consumer, the
    producer's own tick if nothing reads it. What the graph is given is live from tick 0 or
    earlier, what it gives is live to the end. ``clock`` is the program's steps, if the caller
    has them.
    """
    first: dict[VarId, int] = dict.fromkeys(program.body.inputs, 0)
    last = first.copy()
    for start, end, op in timed(steps(program) if clock is None else clock):
        if not op.bodies:  # nearly every op: reads and writes at one tick
            for var in (*op.inputs, *op.outputs):
                if var not in first:
                    first[var] = last[var] = start
                elif last[var] < start:
                    last[var] = start
                elif first[var] > start:
                    first[var] = start
            continue
        for tick, var in _accesses(op, start, end):
            first[var] = min(first.get(var, tick), tick)
            last[var] = max(last.get(var, tick), tick)
    final = max(duration(program) - 1, 0)
    for var in program.body.outputs:
        first.setdefault(var, final)
        last[var] = max(last.get(var, 0), final)
    ends = [tick + 1 for tick in last.values()]
    ranges = rows(LiveRange, zip(first.values(), ends, strict=True))
    live = dict(zip(first, ranges, strict=True))
    live.pop(_OMITTED, None)
    return live


def _accesses(op: Op, start: int, end: int) -> Iterator[tuple[int, VarId]]:
    """Yield (tick, var) for every read and write of one op, its subgraphs' edges included.

    A subgraph that repeats reads its captures and inputs again on the next turn, and may
    append to the op's outputs on every turn: all of them last the whole op.
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


def release_ticks(timeline: Timeline) -> Mapping[VarId, int]:
    """Return the last tick of the op after which each var can be released, in its own block.

    That is later than the end of its live range only where the last consumer is inside a
    branch that may not be taken: releasing there would leak the var on the other branch.
    A var that the graph gives, or that crosses the end of its subgraph, is not in the table.
    """
    if not isinstance(timeline.steps, _Straight):
        return _nested_release_ticks(timeline)
    live, kept = timeline.live, set(timeline.program.body.outputs)
    return {
        var: live[var][1] - 1
        for op in timeline.program.body.ops
        for var in op.outputs
        if var and var not in kept
    }


def _nested_release_ticks(timeline: Timeline) -> Mapping[VarId, int]:
    control_flow: dict[str, Step] = {}
    last: dict[VarId, Step] = {}
    block_of: dict[VarId, str] = {}
    for step in timeline.steps:
        _, _, block, op = step
        path = block.path
        for body in op.bodies:
            control_flow[body.path] = step
            block_of.update(dict.fromkeys(body.inputs, body.path))
        for var in op.outputs:
            block_of[var] = path
            last[var] = step
        for var in op.inputs:
            if block_of.get(var) == path:  # nearly always; steps come in order of their start
                last[var] = step
            else:
                _release_after(var, step, control_flow, block_of, last)
        for body in op.bodies:
            for var in body.outputs:
                _release_after(var, step, control_flow, block_of, last)
    kept = set(timeline.program.body.outputs)
    for step in control_flow.values():
        for body in step.op.bodies:
            # What a subgraph passes out without having made it still belongs to its producer.
            kept.update(var for var in body.outputs if block_of.get(var) == body.path)
            kept.update(body.inputs)
    return {var: step.end for var, step in last.items() if var and var not in kept}


def _release_after(
    var: VarId,
    step: Step,
    control_flow: Mapping[str, Step],
    block_of: Mapping[VarId, str],
    last: dict[VarId, Step],
) -> None:
    if var not in block_of:
        return
    while step.block.path != block_of[var]:
        if step.block.path not in control_flow:
            return
        step = control_flow[step.block.path]
    if var not in last or last[var].start <= step.start:
        last[var] = step
