"""A plan as a header for C99 and C++: tensors with their places, steps, inputs and outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.results.timeline import moments
from memplan_cli.reporting.escape import c_identifier, c_string
from memplan_cli.reporting.plans.exports import element_alignment, fixed_arena

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from memplan_cli.core.results.plan import Plan
    from memplan_cli.reporting.plans.exports import Interface, Port

_TYPES = """\
/* Bytes [offset, offset + bytes) belong to the tensor at steps [first, last); alias_of is
   the index of the tensor whose bytes it shares, or -1. */
typedef struct {
  const char *name;
  uint64_t offset;
  uint64_t bytes;
  uint32_t first;
  uint32_t last;
  int32_t alias_of;
} memplan_tensor;

/* A node runs at step first; one with subgraphs ends at step last, its subgraph between them. */
typedef struct {
  const char *name;
  uint32_t first;
  uint32_t last;
} memplan_step;

/* A graph input or output, which has no place in the arena; bytes are 0 where unknown. */
typedef struct {
  const char *name;
  const char *dtype;
  const char *shape;
  uint64_t bytes;
} memplan_port;

"""


def c_header(plan: Plan, interface: Interface | None = None) -> str:
    """Return the header of a plan, and of what goes in and out where that is known.

    Raises:
        PlanError: sizes depend on symbols, or an element would lie off its own address.
    """
    return "".join(_parts(plan, interface))


def _parts(plan: Plan, interface: Interface | None) -> Iterator[str]:
    found = fixed_arena(plan)
    height = found[0].height if found else 0
    alignment = max(element_alignment(plan), found[0].alignment if found else 1)
    yield "/* Written by memplan; do not edit.\n"
    yield f"   model sha256 {plan.report.model.sha256 or 'unknown'} */\n"
    yield "#ifndef MEMPLAN_PLAN_H\n#define MEMPLAN_PLAN_H\n\n#include <stdint.h>\n\n"
    yield f"#define MEMPLAN_ARENA_BYTES UINT64_C({height})\n"
    yield f"#define MEMPLAN_ARENA_ALIGNMENT UINT64_C({alignment})\n"
    yield f"#define MEMPLAN_TENSOR_COUNT {len(plan.tensors)}\n\n"
    yield _TYPES
    yield from _indices(plan)
    yield from _tensors(plan)
    yield from _steps(plan)
    if interface is None:
        yield "/* A plan file holds no graph inputs and outputs: write this from the model. */\n"
    else:
        yield from _ports("INPUT", interface.inputs)
        yield from _ports("OUTPUT", interface.outputs)
    yield "\n#endif\n"


def _tensors(plan: Plan) -> Iterator[str]:
    at = {tensor.id: index for index, tensor in enumerate(plan.tensors)}
    rows = (
        f"{c_string(t.id)}, UINT64_C({t.offset}), UINT64_C({t.bytes}), {t.first}u, {t.last}u, "
        f"{at[t.alias_of] if t.alias_of else -1}"
        for t in plan.tensors
    )
    yield from _table("memplan_tensor", "TENSORS", rows, "0, 0, 0, 0u, 0u, -1")


def _steps(plan: Plan) -> Iterator[str]:
    nodes = moments(plan)
    yield f"#define MEMPLAN_STEP_COUNT {len(nodes)}\n"
    rows = (f"{c_string(node.label)}, {node.start}u, {node.end}u" for node in nodes)
    yield from _table("memplan_step", "STEPS", rows, "0, 0u, 0u")


def _ports(kind: str, ports: Sequence[Port]) -> Iterator[str]:
    yield f"#define MEMPLAN_{kind}_COUNT {len(ports)}\n"
    rows = (
        f"{c_string(port.name)}, {c_string(port.dtype)}, {c_string(_shape(port))}, "
        f"UINT64_C({port.bytes or 0})"
        for port in ports
    )
    yield from _table("memplan_port", f"{kind}S", rows, "0, 0, 0, 0")


def _shape(port: Port) -> str:
    return "?" if port.shape is None else "x".join(str(dim or "?") for dim in port.shape)


def _table(kind: str, name: str, rows: Iterable[str], nothing: str) -> Iterator[str]:
    """Yield an array. C has no empty ones: an entry of zeros stands behind the last."""
    yield f"static const {kind} MEMPLAN_{name}[] = {{\n"
    yield from (f"  {{{row}}},\n" for row in rows)
    yield f"  {{{nothing}}}\n}};\n\n"


def _indices(plan: Plan) -> Iterator[str]:
    """Yield a macro with its index for every tensor, names made unique."""
    used: set[str] = set()
    for index, tensor in enumerate(plan.tensors):
        name = c_identifier(tensor.id)
        if name in used:
            name = f"{name}__{index}"
        used.add(name)
        yield f"#define MEMPLAN_INDEX_{name} {index}\n"
    yield "\n"
