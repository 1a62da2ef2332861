"""Check the bounds of slots and the symbolic live peak of a plan file.

The independent checker only limits these two numbers: the least bytes of slots, and the
maximum of sums of symbols, which has no canonical form. So the planner's own functions are
applied to the plan that was read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.problem import Buffer, BufferId, LiveRange, Problem, lower_bound
from memplan_cli.errors import PlanError
from memplan_cli.packing.pools import KINDS
from memplan_cli.packing.slots import slot_bound
from memplan_cli.planning.maxima import live_peak_text
from memplan_cli.planning.print_log import is_left_alone
from memplan_cli.planning.totals import number

if TYPE_CHECKING:
    from memplan_cli.core.results.placements import ArenaFacts
    from memplan_cli.core.results.plan import Plan


def check_bounds(plan: Plan) -> None:
    """Refuse a plan whose slot bounds or symbolic live peak are not what its tensors need.

    Raises:
        PlanError: naming the number, its value in the file and the value counted.
    """
    _check_slot_bounds(plan)
    _check_symbolic_peak(plan)


def _check_slot_bounds(plan: Plan) -> None:
    report = plan.report
    if report.level == 2:
        _require("slot_bound", report.slot_bound, None)
        return
    if is_left_alone(plan):
        bounds = {arena.id: 0 for arena in plan.arenas}
    else:
        bounds = {arena.id: _slot_bound(plan, arena) for arena in plan.arenas}
    for arena, (problem, _) in zip(plan.arenas, plan.problems, strict=True):
        bound = bounds[arena.id]
        if arena.lower_bound < bound:
            bound = lower_bound(problem)  # files of older versions have this bound
        _require(f"lower_bound of arena {arena.id}", arena.lower_bound, bound)
    if report.slot_bound is not None:
        total = number({arena.unit: bounds[arena.id] for arena in plan.arenas})
        _require("slot_bound", report.slot_bound, total)


def _slot_bound(plan: Plan, arena: ArenaFacts) -> int:
    """Return the least bytes of slots in which an arena's tensors fit at the plan's level."""
    buffers = tuple(
        Buffer(
            BufferId(tensor.id),
            tensor.bytes,
            LiveRange(tensor.first, tensor.last),
            tensor.dtype,
            tensor.shape,
        )
        for tensor in plan.tensors
        if tensor.arena == arena.id
    )
    return slot_bound(Problem(buffers, arena.alignment), KINDS[plan.report.level])


def _check_symbolic_peak(plan: Plan) -> None:
    said = plan.report.symbolic.get("live_peak")
    has_slots = any(tensor.slot is not None for tensor in plan.tensors)
    if said is None or (plan.report.level == 2 and has_slots):
        return
    pairs = zip(plan.arenas, plan.problems, strict=True)
    counted = live_peak_text({arena.unit: problem.buffers for arena, (problem, _) in pairs})
    _require("live_peak in symbols", said, counted)


def _require(name: str, said: object, counted: object) -> None:
    if said != counted:
        raise PlanError(f"{name} is recorded as {said}, it is {counted}")
