"""When is each var needed? One clock over all blocks, half-open ranges.

Every op takes one tick; an op with bodies takes a first tick, then its bodies' ticks one
body after the other, then a last tick at which its results are made. So nested blocks are
flat in time, branches that exclude one another lie at different ticks (and may share
memory), and nobody behind this module hears of If, Loop or Scan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan_cli.ir import captures
from memplan_cli.problem import LiveRange

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from memplan_cli.ir import Block, Op, Program, VarId


@dataclass(frozen=True, slots=True)
class Step:
    """One op on the clock: ``start`` is its tick, ``end`` its last one.

    They differ only for an op with bodies.
    """

    start: int
    end: int
    block: Block
    op: Op


def steps(program: Program) -> tuple[Step, ...]:
    """Return every op of every block with its ticks, in order of their start."""
    return tuple(sorted(_steps(program.body, 0), key=lambda step: step.start))


def _steps(block: Block, tick: int) -> Iterator[Step]:
    for op in block.ops:
        end = tick
        for body in op.bodies:
            inner = tuple(_steps(body, end + 1))
            yield from inner
            end = max((step.end for step in inner), default=end)
        end = end + 1 if op.bodies else end
        yield Step(tick, end, block, op)
        tick = end + 1


def duration(program: Program) -> int:
    """Return the number of ticks of the whole run."""
    return _duration(program.body)


def _duration(block: Block) -> int:
    return sum(
        1 + bool(op.bodies) + sum(_duration(body) for body in op.bodies) for op in block.ops
    )


def live_ranges(program: Program) -> dict[VarId, LiveRange]:
    """Return the half-open live range of every var that the program touches.

    A var lives from the tick of its producer to behind the tick of its last reader, the
    producer's own tick if nobody reads it. What the graph is given lives from tick 0 or
    earlier, what it gives lives to the end.
    """
    first: dict[VarId, int] = dict.fromkeys(program.body.inputs, 0)
    last = first.copy()
    end = 0
    for step in steps(program):
        end = max(end, step.end)
        if step.op.bodies:
            accesses: Iterable[tuple[int, VarId]] = _step_accesses(step)
        else:  # nearly every op: reads and writes at one tick
            tick = step.start
            accesses = [(tick, var) for var in (*step.op.inputs, *step.op.outputs)]
        for tick, var in accesses:
            if first.setdefault(var, tick) > tick:
                first[var] = tick
            if last.setdefault(var, tick) < tick:
                last[var] = tick
    for var in program.body.outputs:
        first.setdefault(var, end)
        last[var] = max(last.get(var, 0), end)
    return {var: LiveRange(first[var], last[var] + 1) for var in first if var}


def _step_accesses(step: Step) -> Iterator[tuple[int, VarId]]:
    """Yield (tick, var) for every read and write of one op, its bodies' edges included.

    A body that repeats reads its captures and inputs again on the next turn, and may
    append to the op's outputs on every turn: all of them last the whole op.
    """
    op, start, end = step.op, step.start, step.end
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


def deaths(program: Program) -> Mapping[VarId, Step]:
    """Return the op after which each var can be released, in the var's own block.

    That is later than the end of its live range only where the last reader is inside a
    branch that may not be taken: releasing there would leak the var on the other branch.
    A var that the graph gives, or that crosses the end of its body, is not in the table.
    """
    owners: dict[str, Step] = {}
    last: dict[VarId, Step] = {}
    home: dict[VarId, str] = {}
    for step in steps(program):
        for body in step.op.bodies:
            owners[body.path] = step
            home.update(dict.fromkeys(body.inputs, body.path))
        home.update(dict.fromkeys(step.op.outputs, step.block.path))
        for var in (*step.op.outputs, *step.op.inputs):
            _release_after(var, step, owners, home, last)
        for body in step.op.bodies:
            for var in body.outputs:
                _release_after(var, step, owners, home, last)
    kept = set(program.body.outputs)
    for step in owners.values():
        for body in step.op.bodies:
            # What a body hands out without having made it is still its maker's.
            kept.update(var for var in body.outputs if home.get(var) == body.path)
            kept.update(body.inputs)
    return {var: step for var, step in last.items() if var and var not in kept}


def _release_after(
    var: VarId,
    step: Step,
    owners: Mapping[str, Step],
    home: Mapping[VarId, str],
    last: dict[VarId, Step],
) -> None:
    if var not in home:
        return
    while step.block.path != home[var]:
        if step.block.path not in owners:
            return
        step = owners[step.block.path]
    if var not in last or last[var].start <= step.start:
        last[var] = step
