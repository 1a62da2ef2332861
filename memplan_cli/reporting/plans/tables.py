"""A table of the plan for other programs: CSV of tensors, MiniMalloc's CSV of the problem."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.problem import align
from memplan_cli.errors import PlanError
from memplan_cli.reporting.escape import csv_row
from memplan_cli.reporting.findings.hints import bind, symbols_in

if TYPE_CHECKING:
    from memplan_cli.core.problem import Problem
    from memplan_cli.core.results.placements import ArenaFacts
    from memplan_cli.core.results.plan import Plan

_COLUMNS = (
    "name", "block", "dtype", "shape", "bytes", "unit", "arena", "offset", "slot",
    "first", "last", "alias_of", "pinned",
)  # fmt: skip


def tensors_csv(plan: Plan) -> str:
    """Return one line a tensor: what it is, where it lies, when it lives."""
    units = {arena.id: arena.unit for arena in plan.arenas}
    lines = [csv_row(_COLUMNS)]
    for tensor in plan.tensors:
        facts = tensor._asdict()
        facts["shape"] = "x".join(str(dim) for dim in tensor.shape)
        facts["unit"] = units[tensor.arena]
        lines.append(csv_row([facts[column] for column in _COLUMNS]))
    return "".join(lines)


def minimalloc(plan: Plan) -> str:
    """Return the plan's packing problem; sizes are rounded up to the arena's alignment.

    Raises:
        PlanError: sizes depend on symbols.
    """
    found = fixed_arena(plan)
    lines = ["id,lower,upper,size\n"]
    if found is not None:
        arena, problem = found
        lines += [
            csv_row([b.id, b.live.start, b.live.end, align(b.size, arena.alignment)])
            for b in problem.buffers
        ]
    return "".join(lines)


def fixed_arena(plan: Plan) -> tuple[ArenaFacts, Problem] | None:
    """Return the one arena of fixed sizes, None where nothing is planned.

    Raises:
        PlanError: there are others, whose sizes are no numbers.
    """
    open_units = sorted({arena.unit for arena in plan.arenas} - {"1"})
    if open_units:
        raise PlanError(
            f"this format holds numbers, but sizes depend on {', '.join(open_units)[:200]}",
            hint=bind(symbols_in(open_units)),
        )
    pairs = zip(plan.arenas, plan.problems, strict=True)
    return next(((arena, problem) for arena, (problem, _) in pairs), None)
