"""Which intermediates stay at 32 bits in a model of 16-bit floats?

A conversion to float16 rarely halves the memory: what needs range is left as it was, and
every cast makes one tensor more (onnxconverter-common#289, onnxruntime#9949).
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.core.compact.columns import cells
from memplan_cli.core.quantities import format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan_cli.core.results.placements import Placement
    from memplan_cli.core.results.plan import Plan

_HALF = frozenset({"float16", "bfloat16"})

_WIDE = "float32"


class Wide(NamedTuple):
    """Tensors that take twice what they would at 16 bits: a line about all, a row each."""

    line: str
    rows: Sequence[tuple[str, str, str]]


HEADER = ("tensor", ">bytes", "shape")


def wide_tensors(plan: Plan) -> Wide | None:
    """Return the float32 intermediates, the largest first; None where no float is shorter."""
    if not any(dtype in _HALF for (dtype,) in cells(plan.tensors, "dtype")):
        return None
    wide = [tensor for tensor in plan.tensors if tensor.dtype == _WIDE]
    if not wide:
        return None
    units = {
        arena.id: "" if arena.unit == "1" else f" x {arena.unit}" for arena in plan.arenas
    }
    whole: dict[str, int] = {}
    for tensor in wide:
        unit = units[tensor.arena]
        whole[unit] = whole.get(unit, 0) + tensor.bytes
    taken = " + ".join(f"{format_size(size)}{unit}" for unit, size in whole.items())
    line = f"{len(wide)} tensors, {taken} without reuse, stay {_WIDE} beside 16-bit floats"
    wide.sort(key=attrgetter("bytes"), reverse=True)
    return Wide(line, [_row(tensor, units[tensor.arena]) for tensor in wide])


def _row(tensor: Placement, unit: str) -> tuple[str, str, str]:
    dims = ",".join(map(str, tensor.shape))
    return tensor.id, f"{format_size(tensor.bytes)}{unit}", f"[{dims}]"
