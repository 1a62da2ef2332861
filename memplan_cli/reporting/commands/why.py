"""What `memplan why` found, as documents: the live set at the peak, or one tensor's story."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.quantities import format_share, format_size
from memplan_cli.reporting import document as doc
from memplan_cli.reporting.escape import per_unit
from memplan_cli.reporting.findings.assumed import assumed_lines
from memplan_cli.reporting.findings.snapshot import known_share
from memplan_cli.reporting.findings.why import PeakStory, TensorStory
from memplan_cli.reporting.media import renderers
from memplan_cli.reporting.media.json_text import result_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from memplan_cli.reporting.findings.process import ProcessStory
    from memplan_cli.reporting.findings.why import AtPeak
    from memplan_cli.runtime.process.parts import Part

_MOST_ROWS = 20
"""Tensors of the peak that are listed; JSON has all."""

_MOST_NAMES = 6

_HEADS = ("tensor", ">bytes", ">share", "made by", "last read by", ">peak without")

_PEAK_WITHOUT = (
    "peak without: the highest the live bytes would come if the tensor were kept only while "
    "it is written and last read; the most that recomputing it could gain"
)


_PROCESS_HEADS = ("part", ">load", ">run", ">private", "removed by")

_PROCESS_MEANS = (
    "load: at the highest while the session is made; run: at the highest of all, runs "
    "included; private: after the runs, shared with no other process. Predicted for one thread, "
    "beyond a process that has imported the runtime"
)


def process(story: ProcessStory) -> doc.Document:
    """Return what a process is made of as a table, and what would remove each part."""
    sizes = story.process
    rows = tuple(map(_part, story.parts))
    words = ", ".join(f"{name} {format_size(getattr(sizes, name))}" for name in _NUMBERS)
    return doc.Document(
        (doc.Name(story.model), f": {words}"),
        (
            doc.Table(doc.columns(*_PROCESS_HEADS), rows),
            doc.Paragraph(f"{_PROCESS_MEANS} ({story.runtime})", "soft"),
            *map(doc.Paragraph, assumed_lines(story.assumed)),
        ),
    )


_NUMBERS = ("load", "run", "private", "file")


def _part(part: Part) -> tuple[doc.Prose, ...]:
    sizes = (part.load, part.run, part.private)
    known = (format_size(size) if size else "-" for size in sizes)
    return (doc.Name(part.name), *known, part.remedy or "-")


def peak(story: PeakStory) -> doc.Document:
    """Return the live set at the peak as a table, and what would lower it most."""
    partial = f" (partial: {known_share(story.coverage)})" if story.coverage < 1.0 else ""
    rest = story.rows[_MOST_ROWS:]
    size = _size(sum(row.bytes for row in rest), story)
    caption = f"and {len(rest)} more tensors, {size}" if rest else ""
    rows = tuple(_row(row, story) for row in story.rows[:_MOST_ROWS])
    where = f"{_size(story.bytes, story)} live at the peak{partial}: step {story.step}, "
    return doc.Document(
        (where, doc.Name(story.node)),
        (
            doc.Table(doc.columns(*_HEADS), rows, caption),
            doc.Paragraph(_advice(story)),
            doc.Paragraph(_PEAK_WITHOUT, "soft"),
            *_chunked_regions(story),
        ),
    )


def _chunked_regions(story: PeakStory) -> Iterator[doc.Block]:
    """Yield the regions that are computed in pieces, which lowered the peak."""
    lines: list[doc.Prose] = []
    for region in story.chunked.regions[:_MOST_ROWS]:
        saved = format_size(max(region.before - region.after, 0))
        pieces = f": {region.pieces} pieces along axis {region.axis}, {saved} saved"
        lines.append((doc.Name(region.tensor), pieces))
    yield from doc.section("In pieces", doc.Items(tuple(lines)) if lines else None)


def _row(row: AtPeak, story: PeakStory) -> tuple[doc.Prose, ...]:
    return (
        doc.Name(row.tensor),
        _size(row.bytes, story),
        format_share(row.bytes, story.bytes),
        doc.Name(row.made_by),
        doc.Name(row.read_by),
        _size(row.peak_without, story),
    )


def _size(size: int, story: PeakStory) -> str:
    return format_size(size) + per_unit(story.unit)


def _advice(story: PeakStory) -> doc.Prose:
    best = story.best
    if best is None:
        return "No single tensor lowers the peak: something else is as high without it."
    lower = _size(best.peak_without, story)
    return (
        doc.Name(best.tensor),
        f" would lower the peak most: to {lower}, if it were recomputed instead of kept.",
    )


def tensor(story: TensorStory) -> doc.Document:
    """Return where a tensor is placed, who keeps it alive, whose memory it reuses."""
    place = story.place
    dims = ",".join(str(dim) for dim in place.shape)
    size = f"{format_size(place.bytes)}{per_unit(story.unit)}"
    title = (doc.Name(place.id), f": {place.dtype} [{dims}], {size}")
    return doc.Document(title, (doc.Items(tuple(_lines(story))),))


def _lines(story: TensorStory) -> Iterator[doc.Prose]:
    place = story.place
    slot = "" if place.slot is None else f", slot {place.slot}"
    where = f"arena {place.arena} at offset {place.offset}{slot}"
    yield f"placed in {where}, steps {place.first} to {place.last - 1}"
    if place.pinned:
        yield f"has a buffer of its own for the whole run: {place.pinned}"
    else:
        yield "made by ", doc.Name(story.made_by)
        yield "kept alive by ", doc.Name(story.read_by), ", which reads it last"
    if story.shares:
        yield "shares its bytes with ", *_names(story.shares)
        if story.held_by != place.id:
            yield "the bytes stay in use for ", doc.Name(story.held_by)
    if story.before is None:
        yield f"reuses no memory: {story.reason}"
    else:
        yield "reuses the memory of ", doc.Name(story.before)
    if story.after:
        yield "its memory is reused by ", *_names(story.after)
    yield "is live at the peak" if story.at_peak else "is not live at the peak"


def _names(names: tuple[str, ...]) -> tuple[str | doc.Name, ...]:
    shown = (part for name in names[:_MOST_NAMES] for part in (", ", doc.Name(name)))
    left = len(names) - _MOST_NAMES
    return (*tuple(shown)[1:], *((f" and {left} more",) if left > 0 else ()))


PEAK_RENDERERS: Mapping[str, Callable[[PeakStory], str]] = {
    **renderers(peak, "text", "markdown"),
    "json": lambda story: result_json("why-peak", story),
}

TENSOR_RENDERERS: Mapping[str, Callable[[TensorStory], str]] = {
    **renderers(tensor, "text", "markdown"),
    "json": lambda story: result_json("why-tensor", story),
}

PROCESS_RENDERERS: Mapping[str, Callable[[ProcessStory], str]] = {
    **renderers(process, "text", "markdown"),
    "json": lambda story: result_json("why-process", story),
}


def render(story: PeakStory | TensorStory | ProcessStory, form: str) -> str:
    """Return a story in one of the formats ``text``, ``json`` and ``markdown``."""
    match story:
        case PeakStory():
            return PEAK_RENDERERS[form](story)
        case TensorStory():
            return TENSOR_RENDERERS[form](story)
    return PROCESS_RENDERERS[form](story)
