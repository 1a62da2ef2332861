"""What a report says of reuse, tensor by tensor: each pair, and what reuses nothing."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from memplan_cli.core.quantities import counted, format_size
from memplan_cli.planning.print_log import print_log, without_reuse
from memplan_cli.reporting import document as doc
from memplan_cli.reporting.escape import per_unit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memplan_cli.core.results.plan import Plan

_HALF, _WIDE = frozenset({"float16", "bfloat16"}), "float32"


def logged(plan: Plan) -> Iterator[doc.Block]:
    """Yield the lines of ``--print-log``."""
    lines = tuple(map(doc.Name, print_log(plan)))
    yield from doc.section("Reuse, in the order of the plan", doc.Items(lines))


def left_at_32_bits(plan: Plan, most: int) -> Iterator[doc.Block]:
    """Yield the float32 intermediates of a model of 16-bit floats, the largest first.

    A conversion to float16 rarely halves the memory: what needs range is left as it was, and
    every cast makes one tensor more (onnxconverter-common#289, onnxruntime#9949).
    """
    dtypes = {tensor.dtype for tensor in plan.tensors}
    if not dtypes & _HALF or _WIDE not in dtypes:
        return
    wide = [tensor for tensor in plan.tensors if tensor.dtype == _WIDE]
    wide.sort(key=attrgetter("bytes"), reverse=True)
    units = {arena.id: per_unit(arena.unit) for arena in plan.arenas}
    whole: dict[str, int] = {}
    for tensor in wide:
        unit = units[tensor.arena]
        whole[unit] = whole.get(unit, 0) + tensor.bytes
    taken = " + ".join(f"{format_size(size)}{unit}" for unit, size in whole.items())
    stay = f"{'stays' if len(wide) == 1 else 'stay'} {_WIDE} beside 16-bit floats"
    line = f"{counted(len(wide), 'tensor')}, {taken} without reuse, {stay}"
    rows = (
        (
            doc.Name(tensor.id),
            f"{format_size(tensor.bytes)}{units[tensor.arena]}",
            f"[{','.join(map(str, tensor.shape))}]",
        )
        for tensor in wide[:most]
    )
    table = doc.first_rows(("tensor", ">bytes", "shape"), rows, len(wide) - most, "tensors")
    yield from doc.section("Not at 16 bits", doc.Paragraph(line), table)


def not_reused(plan: Plan, most: int) -> Iterator[doc.Block]:
    """Yield what reuses no memory, by reason, most bytes first.

    Only sizes that are numbers are summed.
    """
    fixed = {arena.id for arena in plan.arenas if arena.unit == "1"}
    found: dict[str, list[tuple[int, str]]] = {}
    for tensor, reason in without_reuse(plan.tensors):
        size = tensor.bytes if tensor.arena in fixed else 0
        found.setdefault(reason, []).append((-size, tensor.id))
    for refusal in plan.report.unplanned:
        if refusal.name not in plan.by_id:
            found.setdefault(refusal.reason, []).append((0, refusal.name))
    groups = sorted(
        (sum(size for size, _ in group), reason) for reason, group in found.items()
    )
    rows = (
        (
            str(len(found[reason])),
            format_size(-size) if size else "-",
            reason,
            _examples(found[reason]),
        )
        for size, reason in groups[:most]
    )
    heads = (">tensors", ">bytes", "reason", "for example")
    table = doc.first_rows(heads, rows, len(groups) - most, "reasons")
    yield from doc.section("Not reused, and why", table)


def _examples(group: list[tuple[int, str]]) -> tuple[str | doc.Name, ...]:
    """Return the two largest, a comma between them."""
    names = [doc.Name(name) for _, name in sorted(group)[:2]]
    return tuple(part for name in names for part in (", ", name))[1:]
