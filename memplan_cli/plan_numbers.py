"""Do the numbers that a plan file reports agree with the tensors that it places?

A gate believes what a report says. In a file those numbers stand beside the layout that
they were taken from, and the plan's digest leaves them out, since measurements are added
later: so they are counted again here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.errors import PlanError
from memplan_cli.problem import Problem, lower_bound
from memplan_cli.sizes import size_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memplan_cli.plan import Placement, Plan


def check_numbers(plan: Plan) -> None:
    """Refuse a plan whose tensors or totals are not what they are said to be.

    Numbers that are unknown, or that depend on symbols, are left alone.

    Raises:
        PlanError: naming the number, what is said and what it comes to.
    """
    for tensor in plan.tensors:
        size = _bytes(tensor)
        if size is not None and size != tensor.bytes:
            shape = "x".join(map(str, tensor.shape)) or "scalar"
            raise PlanError(
                f"tensor {tensor.id[:120]!r} is said to take {tensor.bytes} bytes, "
                f"{shape} of {tensor.dtype[:40]} takes {size}"
            )
    for name, said, counted in _totals(plan):
        if said is not None and said != counted:
            raise PlanError(f"{name} is said to be {said}, the plan comes to {counted}")


def _bytes(tensor: Placement) -> int | None:
    """Return what a tensor of numbers takes; None where a dim is a symbol."""
    if any(isinstance(dim, str) for dim in tensor.shape):
        return None
    size = size_of(tensor.shape, tensor.dtype)
    if size is None:
        raise PlanError(f"tensor {tensor.id[:120]!r} is of no type with a size")
    return size.coefficient


def _totals(plan: Plan) -> Iterator[tuple[str, int | None, int]]:
    """Yield names of numbers, what is said and what it comes to."""
    report, memory = plan.report, plan.report.memory
    if any(arena.unit != "1" for arena in plan.arenas):
        return
    planned = sum(arena.height for arena in plan.arenas)
    yield "naive", memory.naive, sum(tensor.bytes for tensor in plan.tensors)
    yield "planned", memory.planned, planned
    yield f"the bytes of level {report.level}", report.levels[str(report.level)], planned
    if len(plan.arenas) == 1:
        ((problem, _),) = plan.problems
        yield "live_peak", memory.live_peak, lower_bound(Problem(problem.buffers))
    if memory.inputs is not None and memory.outputs is not None and memory.planned is not None:
        kept = memory.weights + memory.inputs + memory.outputs + memory.planned
        yield "total", memory.total, kept - report.donated.bytes
