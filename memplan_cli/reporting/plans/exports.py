"""Plans as tables for other programs: CSV, MiniMalloc's CSV, a C header, TFLite Micro's words."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from memplan_cli.core.problem import align
from memplan_cli.core.symbolic.sizes import BITS
from memplan_cli.errors import PlanError
from memplan_cli.reporting.escape import c_identifier, c_string, csv_row, terminal
from memplan_cli.reporting.findings.hints import how_to_know

if TYPE_CHECKING:
    from memplan_cli.core.problem import Problem
    from memplan_cli.core.results.placements import ArenaFacts
    from memplan_cli.core.results.plan import Plan

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


def c_header(plan: Plan) -> str:
    """Return a header for C99 and C++: the arena's size and each tensor's place.

    Raises:
        PlanError: sizes depend on symbols, or an element would lie off its own address.
    """
    found = fixed_arena(plan)
    height = found[0].height if found else 0
    alignment = max(_element_alignment(plan), found[0].alignment if found else 1)
    return "".join(
        (
            "/* Written by memplan; do not edit.\n",
            f"   model sha256 {plan.report.model.sha256 or 'unknown'} */\n",
            "#ifndef MEMPLAN_PLAN_H\n#define MEMPLAN_PLAN_H\n\n#include <stdint.h>\n\n",
            f"#define MEMPLAN_ARENA_BYTES UINT64_C({height})\n",
            f"#define MEMPLAN_ARENA_ALIGNMENT UINT64_C({alignment})\n",
            f"#define MEMPLAN_TENSOR_COUNT {len(plan.tensors)}\n\n",
            "/* Bytes [offset, offset + bytes) belong to the tensor at steps [first, last). */\n",
            "typedef struct {\n  const char *name;\n  uint64_t offset;\n  uint64_t bytes;\n",
            "  uint32_t first;\n  uint32_t last;\n} memplan_tensor;\n\n",
            *_indices(plan),
            "\nstatic const memplan_tensor MEMPLAN_TENSORS[] = {\n",
            *(
                f"  {{{c_string(t.id)}, UINT64_C({t.offset}), UINT64_C({t.bytes}),"
                f" {t.first}u, {t.last}u}},\n"
                for t in plan.tensors
            ),
            # C has no empty arrays: one entry of zeros stands behind the last tensor.
            "  {0, 0, 0, 0u, 0u}\n};\n\n#endif\n",
        )
    )


def _element_alignment(plan: Plan) -> int:
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


def _indices(plan: Plan) -> list[str]:
    """Return a macro with its index for every tensor, names made unique."""
    used: set[str] = set()
    lines = []
    for index, tensor in enumerate(plan.tensors):
        name = c_identifier(tensor.id)
        if name in used:
            name = f"{name}__{index}"
        used.add(name)
        lines.append(f"#define MEMPLAN_INDEX_{name} {index}\n")
    return lines


def tflm(plan: Plan) -> str:
    """Return the int32 words of TFLite Micro's ``OfflineMemoryAllocation`` metadata.

    The words are version, subgraph, count, then an offset for each tensor, in the order
    of ``tensors``; -1 leaves a tensor to the runtime.

    Raises:
        PlanError: sizes depend on symbols, an offset does not fit 32 bits, or an element
            would lie off its own address.
    """
    fixed_arena(plan)
    _element_alignment(plan)
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
