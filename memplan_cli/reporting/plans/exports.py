"""Plans as files for other programs: CSV, MiniMalloc, TFLite Micro, C header, Chrome trace."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan_cli.core.problem import align
from memplan_cli.core.results.timeline import curve, moments, occupancies
from memplan_cli.core.symbolic.sizes import BITS
from memplan_cli.errors import PlanError
from memplan_cli.reporting.escape import (
    c_identifier,
    c_string,
    csv_row,
    per_unit,
    printable,
)
from memplan_cli.reporting.hints import unknown_sizes_hint

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from memplan_cli.core.json_types import Json
    from memplan_cli.core.program import Dim
    from memplan_cli.core.results.plan import Plan


@dataclass(frozen=True, slots=True)
class Port:
    """A graph input or output; shape and bytes are None if unknown."""

    name: str
    dtype: str
    shape: tuple[Dim, ...] | None
    bytes: int | None


@dataclass(frozen=True, slots=True)
class Interface:
    """The graph inputs and outputs of a model, in its own order."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]


_TFLM_VERSION = 0
_TFLM_SUBGRAPH = 0
"""The index of the only subgraph that the offsets are for."""

_INT32_MAX = 2**31 - 1

_COLUMNS = (
    "name", "block", "dtype", "shape", "bytes", "unit", "arena", "offset", "slot",
    "first", "last", "alias_of", "pinned",
)  # fmt: skip


def tensors_csv(plan: Plan) -> str:
    """Return a CSV line per tensor: its type, its place in an arena, and its live range."""
    lines = [csv_row(_COLUMNS)]
    for tensor in plan.tensors:
        facts = tensor._asdict()
        facts["shape"] = "x".join(str(dim) for dim in tensor.shape)
        facts["unit"] = plan.units[tensor.arena]
        lines.append(csv_row([facts[column] for column in _COLUMNS]))
    return "".join(lines)


def minimalloc(plan: Plan) -> str:
    """Return the plan's packing problem in MiniMalloc's CSV, sizes rounded up to the alignment.

    Raises:
        PlanError: sizes depend on symbols.
    """
    require_fixed_sizes(plan)
    lines = ["id,lower,upper,size\n"]
    for problem, _layout in plan.problems:  # one, or none if nothing is planned
        for buffer in problem.buffers:
            size = align(buffer.size, problem.alignment)
            lines.append(csv_row([buffer.id, buffer.live.start, buffer.live.end, size]))
    return "".join(lines)


def require_fixed_sizes(plan: Plan) -> None:
    """Raise if sizes of a plan depend on symbols; otherwise it has one arena at most.

    A plan has one arena per unit of its sizes. The unit ``1`` means sizes in bytes; any other
    unit is a product of symbols, such as ``batch*seq``.

    Raises:
        PlanError: the plan has an arena with another unit than ``1``.
    """
    symbolic_units = sorted({*plan.units.values()} - {"1"})
    if symbolic_units:
        raise PlanError(
            f"this format needs fixed sizes, but sizes depend on {', '.join(symbolic_units)[:200]}",
            hint=unknown_sizes_hint(plan),
        )


def element_alignment(plan: Plan) -> int:
    """Return the bytes of the widest element type of the plan, the alignment that its arena needs.

    Raises:
        PlanError: a tensor's offset is not a multiple of the tensor's element size. Many
            microcontrollers cannot read such an element.
    """
    widest = 1
    for tensor in plan.tensors:
        # Elements of less than a byte, such as int4, are packed into bytes.
        width = max(BITS.get(tensor.dtype, 8) // 8, 1)
        if tensor.offset % width:
            raise PlanError(
                f"{tensor.id!r} of {tensor.dtype} is at byte {tensor.offset}, which is not a "
                f"multiple of {width}",
                # 16 bytes suit every type up to complex128.
                hint=f"plan with --alignment {max(16, width)}",
            )
        widest = max(widest, width)
    return widest


def tflm(plan: Plan) -> str:
    """Return TFLite Micro's ``OfflineMemoryAllocation`` metadata as a JSON object on one line.

    ``words`` are the int32 words of the metadata: version, subgraph, count, then one offset for each name in
    ``tensors``. The offset -1 leaves a tensor, which the plan does not place, to the runtime. TFLite wants the
    offsets in the order of its own tensors: whoever converts the model puts them into it, by the names.

    Raises:
        PlanError: sizes depend on symbols, an offset does not fit 32 bits, or an element
            would not be aligned.
    """
    require_fixed_sizes(plan)
    element_alignment(plan)  # for its errors: the format has no place for an alignment
    if any(tensor.offset > _INT32_MAX for tensor in plan.tensors):
        raise PlanError("an offset is beyond the 32 bits of TFLite Micro's format")
    placed = {tensor.id for tensor in plan.tensors}
    # A tensor may be placed and still have a reason in `unplanned`: it is listed once.
    unplaced = [
        refusal.name for refusal in plan.report.unplanned if refusal.name not in placed
    ]
    names = [*(tensor.id for tensor in plan.tensors), *unplaced]
    offsets = [*(tensor.offset for tensor in plan.tensors), *(-1 for _ in unplaced)]
    data = {
        "metadata": "OfflineMemoryAllocation",
        "words": [_TFLM_VERSION, _TFLM_SUBGRAPH, len(offsets), *offsets],
        "tensors": names,
    }
    return json.dumps(data, ensure_ascii=True) + "\n"


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
    """Return a header for C99 and C++: the tensors' places, the steps, and the interface if given.

    Raises:
        PlanError: sizes depend on symbols, or an element would not be aligned.
    """
    require_fixed_sizes(plan)
    # There is one arena, or none if nothing is planned.
    height = max((arena.height for arena in plan.arenas), default=0)
    alignment = max(element_alignment(plan), *(arena.alignment for arena in plan.arenas), 1)
    ports: Iterable[str] = (
        "/* A plan file holds no graph inputs and outputs: write this from the model. */\n",
    )
    if interface is not None:
        inputs = _port_table("INPUT", interface.inputs)
        ports = (*inputs, *_port_table("OUTPUT", interface.outputs))
    parts = (
        "/* Written by memplan; do not edit.\n",
        f"   model sha256 {plan.report.model.sha256 or 'unknown'} */\n",
        "#ifndef MEMPLAN_PLAN_H\n#define MEMPLAN_PLAN_H\n\n#include <stdint.h>\n\n",
        f"#define MEMPLAN_ARENA_BYTES UINT64_C({height})\n",
        f"#define MEMPLAN_ARENA_ALIGNMENT UINT64_C({alignment})\n",
        f"#define MEMPLAN_TENSOR_COUNT {len(plan.tensors)}\n\n",
        _TYPES,
        *_index_macros(plan),
        *_tensor_table(plan),
        *_step_table(plan),
        *ports,
        "\n#endif\n",
    )
    return "".join(parts)


def _tensor_table(plan: Plan) -> Iterator[str]:
    """Yield the array of ``memplan_tensor`` structs: one per tensor, in the order of the plan, and an unused one."""
    indices = {tensor.id: index for index, tensor in enumerate(plan.tensors)}
    rows = (
        f"{c_string(t.id)}, UINT64_C({t.offset}), UINT64_C({t.bytes}), {t.first}u, {t.last}u, "
        f"{indices[t.alias_of] if t.alias_of else -1}"
        for t in plan.tensors
    )
    yield from _c_array("memplan_tensor", "TENSORS", rows, last_row="0, 0, 0, 0u, 0u, -1")


def _step_table(plan: Plan) -> Iterator[str]:
    """Yield the array of ``memplan_step`` structs, one per node in the order of execution."""
    nodes = moments(plan)
    yield f"#define MEMPLAN_STEP_COUNT {len(nodes)}\n"
    rows = (f"{c_string(node.label)}, {node.start}u, {node.end}u" for node in nodes)
    yield from _c_array("memplan_step", "STEPS", rows, last_row="0, 0u, 0u")


def _port_table(kind: str, ports: Sequence[Port]) -> Iterator[str]:
    """Yield the array of ``memplan_port`` structs; ``kind`` is ``INPUT`` or ``OUTPUT``."""
    yield f"#define MEMPLAN_{kind}_COUNT {len(ports)}\n"
    rows = (
        f"{c_string(port.name)}, {c_string(port.dtype)}, {c_string(_shape(port))}, "
        f"UINT64_C({port.bytes or 0})"
        for port in ports
    )
    yield from _c_array("memplan_port", f"{kind}S", rows, last_row="0, 0, 0, 0")


def _shape(port: Port) -> str:
    """Return a shape such as ``batchx3x224``, with ``?`` for an unknown dim or an unknown rank."""
    if port.shape is None:
        return "?"
    return "x".join("?" if dim is None else str(dim) for dim in port.shape)


def _c_array(struct: str, name: str, rows: Iterable[str], last_row: str) -> Iterator[str]:
    """Yield the C array ``MEMPLAN_<name>`` of structs, one per row.

    The ``last_row`` follows, because C has no empty arrays. It is not counted.
    """
    yield f"static const {struct} MEMPLAN_{name}[] = {{\n"
    yield from (f"  {{{row}}},\n" for row in rows)
    yield f"  {{{last_row}}}\n}};\n\n"


def _index_macros(plan: Plan) -> Iterator[str]:
    """Yield a macro per tensor with its index in ``MEMPLAN_TENSORS``.

    If two tensors have the same C identifier, the later one gets its index as a suffix.
    """
    used: set[str] = set()
    for index, tensor in enumerate(plan.tensors):
        name = c_identifier(tensor.id)
        if name in used:
            # No identifier of `c_identifier` has two underscores in a row, so this one is unique.
            name = f"{name}__{index}"
        used.add(name)
        yield f"#define MEMPLAN_INDEX_{name} {index}\n"
    yield "\n"


_NODES, _TENSORS = 0, 1
"""Process ids of the trace; viewers show one process below the other."""


def chrome_trace(plan: Plan) -> str:
    """Return events for chrome://tracing and Perfetto as JSON: one tick is one microsecond."""
    lines = ",\n".join(json.dumps(event, ensure_ascii=True) for event in _trace_events(plan))
    return f'{{"displayTimeUnit":"ms","traceEvents":[\n{lines}\n]}}\n'


def _trace_events(plan: Plan) -> Iterator[Json]:
    """Yield the events of the trace format.

    A node is a complete event (``X``), the use of a range of bytes a pair of asynchronous events
    (``b`` and ``e``), and the live bytes of an arena are a counter (``C``), named by the arena's unit: no
    two arenas have the same.
    """
    yield _process_name(_NODES, "nodes, one tick each")
    yield _process_name(_TENSORS, "tensors")
    for moment in moments(plan):
        yield {
            "name": printable(moment.label),
            "ph": "X",
            "ts": moment.start,
            "dur": moment.end + 1 - moment.start,  # the last tick is inclusive
            "pid": _NODES,
            "tid": 0,
        }
    for number, item in enumerate(occupancies(plan)):
        common = {
            "name": printable(item.tensor.id),
            "cat": "tensor",
            "id": number,
            "pid": _TENSORS,
            "tid": item.tensor.arena,
        }
        args = {
            "bytes": item.bytes,
            "offset": item.tensor.offset,
            "tensors": [printable(tensor.id) for tensor in item.members],
        }
        yield {**common, "ph": "b", "ts": item.first, "args": args}
        yield {**common, "ph": "e", "ts": item.last}  # exclusive, unlike ``moment.end``
    for arena in plan.arenas:
        for tick, size in curve(plan, arena):
            yield {
                "name": f"live bytes{per_unit(arena.unit)}",
                "ph": "C",
                "ts": tick,
                "pid": _NODES,
                "args": {"live": size},
            }


def _process_name(process: int, name: str) -> Json:
    return {"name": "process_name", "ph": "M", "pid": process, "args": {"name": name}}
