"""Caches in place in a report: their buffers, how they are bound, and what a step took before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.quantities import format_size
from memplan_cli.reporting import document as doc

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memplan_cli.core.results.report import Report

_FORMS = {
    "concat": "a TensorScatter writes into it",
    "cast": "a TensorScatter writes into it, in the cache's type",
    "operator": "a TensorScatter writes what its operator adds",
    "shared": "its operator writes into it",
    "constant": "passed through as it is",
}


def caches(report: Report, most: int) -> Iterator[doc.Block]:
    """Yield the buffers of caches, and the caches that are left as they were."""
    found = report.caches
    if not found.capacity:
        return
    rows: list[tuple[doc.Prose, ...]] = [
        (doc.Name(each.input), doc.Name(each.output), _FORMS[each.form])
        for each in found.buffers
    ]
    rows += [(doc.Name(k.input), doc.Name(k.output), f"kept: {k.reason}") for k in found.kept]
    count = len(found.growing)
    size = f", {format_size(found.bytes)} in all" if found.bytes else ""
    line = (
        f"{count} {'cache is a buffer' if count == 1 else 'caches are buffers'} of "
        f"{found.capacity} entries{size}, each bound as input and as output"
    )
    binding = (
        "how many entries are valid goes in as ",
        doc.Name(found.position),
        " and comes out as ",
        doc.Name(found.length),
        "; memplan.Decoder keeps all of it",
    )
    table = doc.first_rows(("input", "output", ""), rows[:most], len(rows) - most, "caches")
    blocks = [doc.Paragraph(line), doc.Paragraph(binding), *_before(report), table]
    yield from doc.section("Caches in place", *blocks)


def _before(report: Report) -> Iterator[doc.Paragraph]:
    """Yield what the step that fills the caches takes now, and what the original takes."""
    before, memory = report.caches.before, report.memory
    if before is None or memory.inputs is None or memory.planned is None:
        return
    now = memory.inputs, (memory.outputs or 0) - report.caches.bytes, memory.planned
    yield doc.Paragraph(
        f"the step that fills them: {_sum(before)} before, {_sum(now)} now "
        "(inputs + outputs + planned)"
    )


def _sum(parts: tuple[int, int, int]) -> str:
    return f"{' + '.join(map(format_size, parts))} = {format_size(sum(parts))}"
