"""Plans as tables for other programs: CSV, MiniMalloc's CSV, TFLite Micro's words."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan_cli.core.problem import align
from memplan_cli.core.symbolic.sizes import BITS
from memplan_cli.errors import PlanError
from memplan_cli.reporting.escape import csv_row, terminal
from memplan_cli.reporting.findings.hints import how_to_know

if TYPE_CHECKING:
    from memplan_cli.core.problem import Problem
    from memplan_cli.core.program import Dim
    from memplan_cli.core.results.placements import ArenaFacts
    from memplan_cli.core.results.plan import Plan


@dataclass(frozen=True, slots=True)
class Port:
    """A graph input or output; of its shape and bytes, what is known."""

    name: str
    dtype: str
    shape: tuple[Dim, ...] | None
    bytes: int | None


@dataclass(frozen=True, slots=True)
class Interface:
    """What goes into a model and what comes out, in the model's own order."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]


_TFLM_VERSION = 0
_TFLM_SUBGRAPH = 0
_INT32_MAX = 2**31 - 1

_COLUMNS = (
    "name", "block", "dtype", "shape", "bytes", "unit", "arena", "offset", "slot",
    "first", "last", "alias_of", "pinned",
)  # fmt: skip


def tensors_csv(plan: Plan) -> str:
    """Return one line a tensor: what it is, where it is placed, when it is live."""
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
            hint=how_to_know(plan),
        )
    pairs = zip(plan.arenas, plan.problems, strict=True)
    return next(((arena, problem) for arena, (problem, _) in pairs), None)


def element_alignment(plan: Plan) -> int:
    """Return the bytes of the widest element, once every tensor lies on its own.

    Raises:
        PlanError: one does not; many microcontrollers fault on reading it.
    """
    widest = 1
    for tensor in plan.tensors:
        width = max(BITS.get(tensor.dtype, 8) // 8, 1)
        if tensor.offset % width:
            raise PlanError(
                f"{tensor.id!r} of {tensor.dtype} lies at byte {tensor.offset}, which is no "
                f"multiple of {width}",
                hint=f"plan with --alignment {max(16, width)}",
            )
        widest = max(widest, width)
    return widest


def tflm(plan: Plan) -> str:
    """Return the int32 words of TFLite Micro's ``OfflineMemoryAllocation`` metadata.

    The words are version, subgraph, count, then an offset for each tensor, in the order
    of ``tensors``; -1 leaves a tensor to the runtime.

    Raises:
        PlanError: sizes depend on symbols, an offset does not fit 32 bits, or an element
            would lie off its own address.
    """
    fixed_arena(plan)
    element_alignment(plan)
    if any(tensor.offset > _INT32_MAX for tensor in plan.tensors):
        raise PlanError("an offset is beyond the 32 bits of TFLite Micro's format")
    placed = {tensor.id for tensor in plan.tensors}
    left = [r.name for r in plan.report.unplanned if r.name not in placed]
    names = [*(tensor.id for tensor in plan.tensors), *left]
    offsets = [*(tensor.offset for tensor in plan.tensors), *(-1 for _ in left)]
    data = {
        "metadata": "OfflineMemoryAllocation",
        "words": [_TFLM_VERSION, _TFLM_SUBGRAPH, len(offsets), *offsets],
        "tensors": [terminal(name) for name in names],
    }
    return json.dumps(data, ensure_ascii=True) + "\n"
