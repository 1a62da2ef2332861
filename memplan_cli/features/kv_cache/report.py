"""The section of the plan report on key and value caches that are updated in place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.quantities import counted, format_size
from memplan_cli.reporting import document as doc

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memplan_cli.core.results.report import Report

_UPDATES = {
    "concat": "written by a TensorScatter",
    "cast": "written by a TensorScatter, in the dtype of the cache",
    "operator": "a TensorScatter writes the new entries of its operator",
    "shared": "written by its operator",
    "constant": "passed through unchanged",
}
"""Form of a cache buffer -> how a step updates it."""


def kv_cache_section(report: Report, max_rows: int) -> Iterator[doc.Block]:
    """Yield the buffers of the caches, how to bind them, and the caches that were kept as they are.

    Nothing is yielded if no capacity was planned for. With a capacity, at least one cache grows.
    """
    caches = report.caches
    if not caches.capacity:
        return
    rows: list[tuple[doc.Prose, ...]] = [
        (doc.Name(buffer.input), doc.Name(buffer.output), _UPDATES[buffer.form])
        for buffer in caches.buffers
    ]
    rows += [
        (doc.Name(cache.input), doc.Name(cache.output), f"kept: {cache.reason}")
        for cache in caches.kept
    ]
    # Constant caches are in the table only: their buffers do not have ``capacity`` entries.
    count = len(caches.growing)
    size = f", {format_size(caches.bytes)} in all" if caches.bytes else ""
    are_buffers = "is a buffer" if count == 1 else "are buffers"
    buffers_line = (
        f"{counted(count, 'cache')} {are_buffers} of {caches.capacity} entries{size}, "
        "bound both as input and as output"
    )
    length_line = (
        "the number of valid entries is the input ",
        doc.Name(caches.position),
        " and the output ",
        doc.Name(caches.length),
        "; memplan.Decoder binds and counts all of them",
    )
    table = doc.first_rows(("input", "output", ""), rows, "caches", max_rows)
    yield from doc.section(
        "Caches in place",
        doc.Paragraph(buffers_line),
        doc.Paragraph(length_line),
        *_step_memory(report),
        table,
    )


def _step_memory(report: Report) -> Iterator[doc.Paragraph]:
    """Yield the bytes of the decoding step that fills the caches, in the original and in the written model.

    Nothing is yielded if one of these sizes is unknown.
    """
    original, memory = report.caches.before, report.memory  # (inputs, outputs, planned)
    if original is None or memory.inputs is None:
        return
    if memory.outputs is None or memory.planned is None:
        return
    # Each cache is an output in the buffer of its input, and counts as an input only.
    written = memory.inputs, memory.outputs - report.caches.bytes, memory.planned
    yield doc.Paragraph(
        f"the step that fills them: {_sum(original)} before, {_sum(written)} now "
        "(inputs + outputs + planned)"
    )


def _sum(sizes: tuple[int, int, int]) -> str:
    """Return the bytes of inputs, outputs and plan, and their sum, as text.

    For example ``1.00 KiB + 2.00 KiB + 3.00 KiB = 6.00 KiB``.
    """
    return f"{' + '.join(map(format_size, sizes))} = {format_size(sum(sizes))}"
