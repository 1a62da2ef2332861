"""What `memplan why` found, as text, Markdown or JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.quantities import format_share, format_size
from memplan_cli.core.serialization import to_json
from memplan_cli.reporting.columns import aligned
from memplan_cli.reporting.escape import (
    markdown,
    markdown_prose,
    per_unit,
    shortened,
    terminal,
)
from memplan_cli.reporting.findings.snapshot import known_share
from memplan_cli.reporting.plans.json_text import document
from memplan_cli.reporting.plans.markdown import table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from memplan_cli.reporting.findings.why import PeakStory, TensorStory

MOST_ROWS = 20
"""Tensors of the peak that are listed; JSON has all."""

_LOWERS = (
    "peak without: the highest the live bytes would come if the tensor were kept only while "
    "it is written and last read; the most that recomputing it could gain"
)


def peak_text(story: PeakStory) -> str:
    """Return the live set at the peak as a table."""
    return "\n".join(_peak_lines(story)) + "\n"


def peak_json(story: PeakStory) -> str:
    """Return the live set at the peak as JSON."""
    return document(to_json(story))


def peak_markdown(story: PeakStory) -> str:
    """Return the live set at the peak for a pull request."""
    where = f"step {story.step}, {markdown(story.node)}"
    header = ("tensor", ">bytes", ">share", "made by", "last read by", ">peak without")
    rows = (
        (
            markdown(row.tensor),
            _size(row.bytes, story),
            format_share(row.bytes, story.bytes),
            markdown(row.made_by),
            markdown(row.read_by),
            _size(row.peak_without, story),
        )
        for row in story.rows[:MOST_ROWS]
    )
    size = _size(story.bytes, story)
    parts = [f"## {size} at the peak{_partial(story)}: {where}", table(header, rows)]
    left = len(story.rows) - MOST_ROWS
    if left > 0:
        parts.append(f"and {left} more tensors")
    parts.append(markdown_prose(_advice(story)))
    return "\n\n".join(parts) + "\n"


def tensor_text(story: TensorStory) -> str:
    """Return one tensor's story."""
    return "\n".join(_tensor_lines(story)) + "\n"


def tensor_json(story: TensorStory) -> str:
    """Return one tensor's story as JSON."""
    return document(to_json(story))


def tensor_markdown(story: TensorStory) -> str:
    """Return one tensor's story as a list."""
    first, *rest = _tensor_lines(story)
    lines = "\n".join(f"- {markdown_prose(line.strip())}" for line in rest)
    return f"## {markdown(first)}\n\n{lines}\n"


def _size(size: int, story: PeakStory) -> str:
    return format_size(size) + per_unit(story.unit)


def _partial(story: PeakStory) -> str:
    return f" (partial: {known_share(story.coverage)})" if story.coverage < 1.0 else ""


def _peak_lines(story: PeakStory) -> Iterator[str]:
    node = shortened(story.node, 80)
    where = f"step {story.step}, {node}"
    yield f"{_size(story.bytes, story)} live at the peak{_partial(story)}: {where}"
    heads = ("tensor", "bytes", "share", "made by", "last read by", "peak without")
    cells = [
        (
            shortened(row.tensor, 36),
            _size(row.bytes, story),
            format_share(row.bytes, story.bytes),
            shortened(row.made_by, 28),
            shortened(row.read_by, 28),
            _size(row.peak_without, story),
        )
        for row in story.rows[:MOST_ROWS]
    ]
    yield from (f"  {line}".rstrip() for line in aligned((heads, *cells), left=(0, 3, 4)))
    left = len(story.rows) - MOST_ROWS
    if left > 0:
        rest = sum(row.bytes for row in story.rows[MOST_ROWS:])
        yield f"  and {left} more tensors, {_size(rest, story)}"
    yield _advice(story)
    yield f"  {_LOWERS}"


def _advice(story: PeakStory) -> str:
    best = story.best
    if best is None:
        return "No single tensor lowers the peak: something else is as high without it."
    return (
        f"{terminal(best.tensor)} would lower the peak most: "
        f"to {_size(best.peak_without, story)}, if it were made again instead of kept."
    )


def _tensor_lines(story: TensorStory) -> Iterator[str]:
    place = story.place
    dims = ",".join(str(dim) for dim in place.shape)
    size = f"{format_size(place.bytes)}{per_unit(story.unit)}"
    yield terminal(f"{place.id}: {place.dtype} [{dims}], {size}")
    where = f"arena {place.arena} at offset {place.offset}"
    slot = "" if place.slot is None else f", slot {place.slot}"
    yield f"  lies in {where}{slot}, steps {place.first} to {place.last - 1}"
    if place.pinned:
        yield f"  has memory of its own for the whole run: {terminal(place.pinned)}"
    else:
        yield f"  made by {terminal(story.made_by)}"
        yield f"  kept alive by {terminal(story.read_by)}, which reads it last"
    if story.shares:
        yield f"  shares its bytes with {_names(story.shares)}"
        if story.held_by != place.id:
            yield f"  the bytes stay in use for {terminal(story.held_by)}"
    if story.before is None:
        yield f"  takes no memory over: {terminal(story.reason)}"
    else:
        yield f"  takes the memory of {terminal(story.before)}"
    if story.after:
        yield f"  its memory goes on to {_names(story.after)}"
    yield "  is live at the peak" if story.at_peak else "  is not live at the peak"


def _names(names: tuple[str, ...]) -> str:
    shown = ", ".join(shortened(name, 60) for name in names[:6])
    return shown if len(names) <= 6 else f"{shown} and {len(names) - 6} more"


PEAK_RENDERERS: Mapping[str, Callable[[PeakStory], str]] = {
    "text": peak_text,
    "json": peak_json,
    "markdown": peak_markdown,
}

TENSOR_RENDERERS: Mapping[str, Callable[[TensorStory], str]] = {
    "text": tensor_text,
    "json": tensor_json,
    "markdown": tensor_markdown,
}
