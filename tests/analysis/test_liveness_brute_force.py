"""Live ranges and peaks agree with what a run of the program really needs."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from builders import var_sizes
from memplan_cli.analysis.aliasing import SHARE_NOTHING, SHARE_SAFELY, share_storage
from memplan_cli.analysis.liveness import Timeline, duration, last_uses, live_ranges, steps
from memplan_cli.analysis.storage import live_peak
from memplan_cli.core.program import walk
from programs import programs

if TYPE_CHECKING:
    from memplan_cli.analysis.liveness import Step
    from memplan_cli.core.program import Block, Op, Program, VarId

quick = settings(max_examples=24, deadline=None)


class Trace:
    """The ticks of one run, and for each value the moments of its making and reading."""

    def __init__(self, made: Program, rng: random.Random) -> None:
        self.clock: dict[str, Step] = {step.op.name: step for step in steps(made)}
        self.rng = rng
        self.ticks: list[int] = []
        self.spans: list[list[object]] = []  # [var, first moment, last moment]
        self.current: dict[VarId, int] = {}
        self.run(made.body)

    def at(self, tick: int) -> None:
        self.ticks.append(tick)

    def made(self, var: VarId) -> None:
        if var:
            self.current[var] = len(self.spans)
            self.spans.append([var, len(self.ticks) - 1, len(self.ticks) - 1])

    def read(self, var: VarId) -> None:
        if var in self.current:
            self.spans[self.current[var]][2] = len(self.ticks) - 1

    def run(self, block: Block) -> None:
        for op in block.ops:
            step = self.clock[op.name]
            self.at(step.start)
            for var in op.inputs:
                self.read(var)
            if op.repeats:
                self.repeat(op)
            elif op.bodies:
                body = self.rng.choice(op.bodies)
                self.run(body)
                self.at(step.end)
                for var in body.outputs:
                    self.read(var)
            for var in op.outputs:
                self.made(var)

    def repeat(self, op: Op) -> None:
        (body,) = op.bodies
        for var in body.inputs:
            self.made(var)
        for _ in range(self.rng.randint(0, 3)):
            self.run(body)
            for var in body.outputs:
                self.read(var)
            for var in body.inputs:
                self.made(var)
        self.at(self.clock[op.name].end)
        for var in (*op.inputs, *body.inputs):
            self.read(var)


@quick
@given(made=programs(), seed=st.integers(0, 100))
def test_no_value_is_needed_outside_of_its_vars_range(made: Program, seed: int) -> None:
    live = live_ranges(made)
    trace = Trace(made, random.Random(seed))
    for var, first, last in trace.spans:
        needed = trace.ticks[first : last + 1]  # type: ignore[index, operator]
        assert live[var].start <= min(needed)  # type: ignore[index]
        assert max(needed) < live[var].end  # type: ignore[index]


@quick
@given(made=programs())
def test_without_loops_no_tick_of_a_range_is_wasted(made: Program) -> None:
    if any(op.repeats for _, op in walk(made.body)):
        return
    live = live_ranges(made)
    touched: dict[VarId, set[int]] = {}
    for step in steps(made):
        for var in step.op.inputs:
            touched.setdefault(var, set()).add(step.start)
        for body in step.op.bodies:
            for var in body.outputs:
                touched.setdefault(var, set()).add(step.end)
        for var in step.op.outputs:
            touched.setdefault(var, set()).add(step.end)
    inner = set(touched) - {*made.body.inputs, *made.body.outputs, ""}
    for var in inner:
        assert (live[var].start, live[var].end) == (min(touched[var]), max(touched[var]) + 1)


@quick
@given(made=programs(), shared=st.booleans())
def test_live_peak_is_the_largest_sum_over_all_ticks(made: Program, *, shared: bool) -> None:
    aliasing = SHARE_SAFELY if shared else SHARE_NOTHING
    sizes, live = var_sizes(made), live_ranges(made)
    buffer_of = share_storage(made, sizes, aliasing)
    spans: dict[str, tuple[int, int]] = {}
    for var, buffer in buffer_of.items():
        low, high = spans.get(buffer, (live[var].start, live[var].end))
        spans[buffer] = (min(low, live[var].start), max(high, live[var].end))
    weight = {buffer_of[var]: size.coefficient for var, size in sizes.items()}
    sums = [
        sum(weight[buffer] for buffer, (low, high) in spans.items() if low <= tick < high)  # type: ignore[index, misc]
        for tick in range(duration(made))
    ]
    assert live_peak(made, sizes, aliasing=aliasing) == max(sums, default=0)


@quick
@given(made=programs())
def test_every_tick_belongs_to_one_op(made: Program) -> None:
    found = [tick for step in steps(made) for tick in {step.start, step.end}]
    assert sorted(found) == list(range(duration(made)))


@quick
@given(made=programs(), seed=st.integers(0, 100))
def test_nothing_is_read_after_its_release(made: Program, seed: int) -> None:
    """And on every path: a var that is released was made, whichever branch was taken."""
    after: dict[str, list[VarId]] = {}
    timeline = Timeline(made)
    for var, step in last_uses(timeline).items():
        after.setdefault(step.op.name, []).append(var)
    there = {var for var in made.vars if not made.vars[var].origin.value.endswith("op")}
    _release(made.body, after, there, random.Random(seed))
    assert there >= set(made.body.outputs)


@quick
@given(made=programs())
def test_without_subgraphs_a_var_is_released_by_the_last_op_that_mentions_it(
    made: Program,
) -> None:
    flat = [op._replace(bodies=()) for op in made.body.ops]
    top = replace(made.body, ops=tuple(flat))
    there = {*made.body.inputs, *(var for op in flat for var in op.outputs)}
    last = {var: op.name for op in flat for var in (*op.inputs, *op.outputs) if var in there}
    for var in (*made.body.inputs, *made.body.outputs):
        last.pop(var, None)
    timeline = Timeline(replace(made, body=top))
    found = last_uses(timeline).items()
    assert {var: step.op.name for var, step in found} == last


def _release(
    block: Block, after: dict[str, list[VarId]], there: set[VarId], rng: random.Random
) -> None:
    for op in block.ops:
        assert there >= {var for var in op.inputs if var}
        if op.bodies:
            turns = rng.randint(0, 3) if op.repeats else 1
            for _ in range(turns):
                body = rng.choice(op.bodies)
                _release(body, after, there, rng)
                assert there >= set(body.outputs)
        there.update(var for var in op.outputs if var)
        for var in after.get(op.name, ()):
            assert var in there, "released twice, or never made on this path"
            there.discard(var)
