"""Other allocators on the same problems, where they are installed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from memplan_cli.core.problem import BufferId, Layout, Problem, lower_bound, violations

if TYPE_CHECKING:
    from collections.abc import Mapping

Peer = Callable[[Problem], Layout | None]

CP_SAT_SECONDS = 20.0


@dataclass(frozen=True)
class Run:
    """Height over lower bound (None: no layout) and seconds of processor time."""

    ratio: float | None
    seconds: float


def timed(problem: Problem, allocate: Peer) -> Run:
    """Run an allocator and check what it says."""
    started = time.process_time()
    layout = allocate(problem)
    seconds = time.process_time() - started
    if layout is None:
        return Run(None, seconds)
    assert violations(problem, layout) == ()
    return Run(layout.height / max(1, lower_bound(problem)), seconds)


def _layout(problem: Problem, offsets: Mapping[BufferId, int]) -> Layout:
    return Layout(offsets, max(offsets[b.id] + b.size for b in problem.buffers))


def omnimalloc(problem: Problem) -> Layout:
    """Run omnimalloc's default allocator."""
    import omnimalloc as omni

    given = [
        omni.Allocation(id=b.id, size=b.size, start=b.live.start, end=b.live.end)
        for b in problem.buffers
        if b.size
    ]
    placed = {BufferId(a.id): int(a.offset) for a in omni.allocate(given)}
    return _layout(problem, {b.id: placed.get(b.id, 0) for b in problem.buffers})


def cp_sat(problem: Problem) -> Layout | None:
    """Run OR-Tools CP-SAT with one rectangle a buffer, one worker, `CP_SAT_SECONDS`."""
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    top = sum(b.size for b in problem.buffers)
    height = model.new_int_var(lower_bound(problem), top, "height")
    offsets = {}
    across, up = [], []
    for b in problem.buffers:
        offset = model.new_int_var(0, top - b.size, b.id)
        across.append(model.new_fixed_size_interval_var(
            b.live.start, b.live.end - b.live.start, b.id))  # fmt: skip
        up.append(model.new_fixed_size_interval_var(offset, b.size, b.id))
        model.add(offset + b.size <= height)
        offsets[b.id] = offset
    model.add_no_overlap_2d(across, up)
    model.minimize(height)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = CP_SAT_SECONDS
    solver.parameters.num_workers = 1
    if solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    return _layout(problem, {name: solver.value(o) for name, o in offsets.items()})


def installed() -> Mapping[str, Peer]:
    """Return the peers that can be run here."""
    known: dict[str, tuple[str, Peer]] = {
        "omnimalloc": ("omnimalloc", omnimalloc),
        "CP-SAT": ("ortools", cp_sat),
    }
    return {name: run for name, (module, run) in known.items() if find_spec(module)}
