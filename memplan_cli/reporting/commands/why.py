"""`memplan why`: which buffers are live at the peak, or what keeps one tensor alive."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import accumulate
from shlex import quote
from typing import TYPE_CHECKING, ClassVar

from memplan_cli.core.one_line import one_line_repr
from memplan_cli.core.quantities import format_share, format_size
from memplan_cli.core.results.bound_plan import with_bound_symbols
from memplan_cli.core.results.placements import Placement  # noqa: TC001 - a type to read by
from memplan_cli.core.results.rewrites import ChunkingSummary
from memplan_cli.core.results.timeline import (
    curve,
    main_arena,
    nodes_at,
    occupancies,
    peak_tick,
)
from memplan_cli.core.serialization import SPARSE, Keys
from memplan_cli.errors import PlanError, SettingsError
from memplan_cli.planning.print_log import reason_for_no_reuse, reuses
from memplan_cli.reporting import document as doc
from memplan_cli.reporting.escape import per_unit
from memplan_cli.reporting.media import result_renderers
from memplan_cli.reporting.snapshot import known_share

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from memplan_cli.core.results.plan import Plan
    from memplan_cli.core.results.timeline import Occupancy

MAX_LATER_TENSORS = 20
"""Tensors that are listed as reusing one tensor's memory, in JSON too."""

_MAX_ROWS = 20
"""Buffers and regions that a text lists; JSON has all."""

_MAX_NAMES = 6
"""Names in one line."""


@dataclass(frozen=True, slots=True)
class LiveBuffer:
    """A buffer that is live at the peak.

    Attributes:
        tensor: the tensor that is live (of several that share the bytes).
        bytes: its size.
        made_by: the node that wrote it, or why it is live for the whole run.
        read_by: the node that keeps it alive.
        waits: the number of steps between its producer and its last reader.
        peak_without: the live peak if it were live at its producer and its last reader only: the
            most that recomputing it can gain.
    """

    tensor: str
    bytes: int
    made_by: str
    read_by: str
    waits: int
    peak_without: int


@dataclass(frozen=True, slots=True)
class PeakExplanation:
    """The step at which most bytes are live.

    Attributes:
        step: the step.
        node: the node that runs at it.
        bytes: the live bytes, in multiples of ``unit``.
        unit: the unit of the arena.
        rows: the live buffers, largest first.
        coverage: the share of intermediates whose size is known; the others are in no row.
        chunked: regions that are computed in chunks, which lowered the peak.
        model: the model's file.
    """

    json_keys: ClassVar[Keys] = (
        "step",
        "node",
        "bytes",
        "unit",
        "coverage",
        "partial",
        ("tensors", "rows"),
        "lowers_most",
        "chunked",
    )

    step: int
    node: str
    bytes: int
    unit: str
    rows: tuple[LiveBuffer, ...]
    coverage: float = 1.0
    chunked: ChunkingSummary = field(default_factory=ChunkingSummary, metadata=SPARSE)
    model: str = ""

    __repr__ = one_line_repr

    @property
    def best(self) -> LiveBuffer | None:
        """Return the buffer without which the peak would be lowest; None if none lowers it."""
        rows = sorted(self.rows, key=lambda row: (row.peak_without, row.tensor))
        return rows[0] if rows and rows[0].peak_without < self.bytes else None

    @property
    def partial(self) -> bool:
        """Whether the size of some intermediate is unknown."""
        return self.coverage < 1.0

    @property
    def lowers_most(self) -> str | None:
        """Return the tensor of the best candidate for recomputation."""
        return self.best.tensor if self.best else None


@dataclass(frozen=True, slots=True)
class TensorExplanation:
    """The lifetime of one tensor, and what else uses its memory.

    Attributes:
        tensor: its place and its live range.
        unit: the unit of its bytes and its offset.
        made_by: the node that writes it.
        read_by: its last reader.
        shares: tensors on the same bytes, as views or in place.
        held_by: of those, the one whose live range ends last.
        before: the tensor that used the memory just before; null: none did.
        reason: why none did.
        after: tensors that use some of these bytes later.
        at_peak: whether it is live at the step of the peak, which is that of the main arena.
    """

    tensor: Placement
    unit: str
    made_by: str
    read_by: str
    shares: tuple[str, ...]
    held_by: str
    before: str | None
    reason: str
    after: tuple[str, ...]
    at_peak: bool

    __repr__ = one_line_repr


def why_peak(plan: Plan) -> PeakExplanation:
    """Return the buffers that are live at the peak of a plan's main arena.

    Raises:
        PlanError: nothing is planned.
    """
    plan = with_bound_symbols(plan)
    arena = main_arena(plan)
    points = curve(plan, arena)
    if arena is None or not points:
        raise PlanError(
            "nothing is planned, so there is no peak",
            hint="no intermediate has any bytes;"
            f" `memplan report {quote(plan.report.model.path)}` shows inputs, outputs and weights",
        )
    tick, nodes = peak_tick(points), nodes_at(plan)
    live = [
        occupancy
        for occupancy in occupancies(plan)
        if occupancy.tensor.arena == arena.id and occupancy.live_at(tick) and occupancy.bytes
    ]
    buffers = [
        _live_buffer(occupancy, tick, nodes, peak_without)
        for occupancy, peak_without in zip(live, _peaks_without(points, live), strict=True)
    ]
    return PeakExplanation(
        step=tick,
        node=nodes.get(tick, ""),
        bytes=max(size for _, size in points),
        unit=arena.unit,
        rows=tuple(sorted(buffers, key=lambda row: (-row.bytes, row.tensor))),
        coverage=plan.report.coverage,
        chunked=plan.report.chunked,
        model=plan.report.model.path,
    )


def _live_buffer(
    occupancy: Occupancy, tick: int, nodes: Mapping[int, str], peak_without: int
) -> LiveBuffer:
    """Return the buffer of an occupancy: a range of bytes, used by a tensor and its aliases.

    Its name, producer and last reader are those of the newest tensor that is live at ``tick``, or of the first
    tensor if none is. It waits at the steps between the first producer and the last reader of all its tensors;
    ``peak_without`` is the peak without the buffer at these steps.
    """
    tensor = max(
        (member for member in occupancy.members if member.first <= tick < member.last),
        key=lambda member: (member.first, member.id),
        default=occupancy.tensor,
    )
    pinned = tensor.pinned
    return LiveBuffer(
        tensor=tensor.id,
        bytes=occupancy.bytes,
        made_by=f"whole run: {pinned}" if pinned else nodes.get(tensor.first, ""),
        read_by="" if pinned else nodes.get(tensor.last - 1, ""),
        waits=max(occupancy.last - occupancy.first - 2, 0),  # ``last`` is exclusive
        peak_without=peak_without,
    )


def _peaks_without(
    points: Sequence[tuple[int, int]], buffers: Iterable[Occupancy]
) -> Iterator[int]:
    """Yield, for each buffer, the peak if it were live at its first and last tick only.

    A point is ``(tick, live bytes)``, which hold until the tick of the next point. For example, with the points
    ``(0, 8) (1, 12) (3, 4)`` and a buffer of 4 bytes with first=0 and last=4, the peak falls from 12 to 8.
    """
    ticks = [tick for tick, _ in points]
    sizes = [size for _, size in points]
    highest_until = list(accumulate(sizes, max))
    highest_from = list(accumulate(reversed(sizes), max))[::-1]
    peak = highest_until[-1]
    for buffer in buffers:
        last_tick = buffer.last - 1  # ``last`` is exclusive
        # The points whose bytes hold at the buffer's first and last tick.
        at_first = bisect_right(ticks, buffer.first) - 1
        at_last = bisect_right(ticks, last_tick) - 1
        # The points up to ``at_first`` and from ``at_last`` on keep their bytes. All points between lose the buffer.
        unchanged_peak = max(highest_until[at_first], highest_from[at_last])
        # Of two cases: the highest point keeps its bytes, or it lies between.
        yield max(unchanged_peak, peak - buffer.bytes)


def why_tensor(plan: Plan, name: str) -> TensorExplanation:
    """Return the place and lifetime of one tensor, and the tensors on its bytes: before, with and after it.

    Raises:
        SettingsError: the plan has no such tensor; the hint gives the reason or similar names.
    """
    plan = with_bound_symbols(plan)
    placement = plan.by_id.get(name)
    if placement is None:
        raise _unknown_tensor_error(plan, name)
    nodes = nodes_at(plan)
    # The tensor with all views and in-place results on the same bytes.
    occupancy = next(item for item in occupancies(plan) if placement in item.members)
    last_live = max(occupancy.members, key=lambda tensor: (tensor.last, tensor.id))
    all_reuses = reuses(plan.tensors, plan.report.level)
    reuse = next(item for item in all_reuses if item.tensor == placement)
    peak = peak_tick(curve(plan, main_arena(plan)))
    return TensorExplanation(
        tensor=placement,
        unit=plan.units[placement.arena],
        made_by="" if placement.pinned else nodes.get(placement.first, ""),
        read_by="" if placement.pinned else nodes.get(placement.last - 1, ""),
        shares=tuple(tensor.id for tensor in occupancy.members if tensor != placement),
        held_by=last_live.id,
        before=reuse.donor.id if reuse.donor else None,
        reason=reason_for_no_reuse(plan, reuse),
        after=tuple(_later_tensors(plan, occupancy)[:MAX_LATER_TENSORS]),
        at_peak=placement.first <= peak < placement.last,
    )


def _unknown_tensor_error(plan: Plan, name: str) -> SettingsError:
    """Return the error for a tensor without a place: not planned, chunked, or misspelled."""
    refusal_reasons = {refusal.name: refusal.reason for refusal in plan.report.unplanned}
    if name in refusal_reasons:
        return SettingsError(f"{name!r} is not planned: {refusal_reasons[name]}")
    for region in plan.report.chunked.regions:
        if region.tensor == name:
            return SettingsError(
                f"{name!r} is never stored whole: it is computed in {region.pieces} chunks "
                f"along axis {region.axis}",
                hint=f"the chunks are tensors of their own: --tensor {name}__chunk1",
            )
    names = tuple(dict.fromkeys((*plan.by_id, *refusal_reasons)))
    # A tensor of a subgraph has the path of its block before its name.
    similar = [other for other in names if other.endswith(f"/{name}")][:3]
    similar = similar or get_close_matches(name, names, n=3)
    hint = (
        f"did you mean {', '.join(similar)}?"
        if similar
        else "graph inputs, graph outputs and weights are never planned; see `report --format csv`"
    )
    return SettingsError(f"the plan has no tensor {name!r}", hint=hint)


def _later_tensors(plan: Plan, occupancy: Occupancy) -> list[str]:
    """Return the tensors that later use some of the bytes of a tensor and its aliases, in order of time."""
    low, high = occupancy.tensor.offset, occupancy.tensor.offset + occupancy.bytes
    return [
        tensor.id
        for tensor in sorted(plan.tensors, key=lambda tensor: (tensor.first, tensor.id))
        if tensor.arena == occupancy.tensor.arena
        and tensor.first >= occupancy.last  # ``last`` is exclusive
        and tensor.offset < high
        and low < tensor.offset + tensor.bytes
    ]


_HEADS = ("tensor", ">size", ">share", "last read by", ">peak without")

_PEAK_WITHOUT = (
    "peak without: the live peak if the tensor were live only when it is written and when it is "
    "last read. Recomputing it cannot lower the peak below this."
)


def peak_document(explanation: PeakExplanation) -> doc.Document:
    """Return the live buffers as a table, and the one whose recomputation would gain most."""
    partial = f" (partial: {known_share(explanation.coverage)})" if explanation.partial else ""
    unit = per_unit(explanation.unit)
    hidden = explanation.rows[_MAX_ROWS:]
    hidden_size = format_size(sum(row.bytes for row in hidden)) + unit
    caption = f"and {len(hidden)} more tensors, {hidden_size}" if hidden else ""
    rows = tuple(
        (
            doc.Name(row.tensor),
            format_size(row.bytes) + unit,
            format_share(row.bytes, explanation.bytes),
            # A tensor that lives for the whole run has no last reader, but a reason in ``made_by``.
            doc.Name(row.read_by or row.made_by),
            format_size(row.peak_without) + unit,
        )
        for row in explanation.rows[:_MAX_ROWS]
    )
    live = f"{format_size(explanation.bytes)}{unit} live at the peak{partial}"
    return doc.Document(
        (doc.Name(explanation.model), f": {live}"),
        (
            doc.Paragraph(
                (f"The peak is at step {explanation.step}, ", doc.Name(explanation.node))
            ),
            doc.Table(doc.columns(*_HEADS), rows, caption),
            doc.Paragraph(_advice(explanation)),
            doc.Paragraph(_PEAK_WITHOUT, "soft"),
            *_chunked_regions(explanation),
        ),
    )


def _advice(explanation: PeakExplanation) -> doc.Prose:
    """Return a sentence on the tensor whose recomputation would lower the peak most, if any would."""
    best = explanation.best
    if best is None:
        return "No single tensor lowers the peak: another step is as high."
    peak = format_size(best.peak_without) + per_unit(explanation.unit)
    return (
        "Recomputing ",
        doc.Name(best.tensor),
        f" instead of keeping it would lower the peak most, to {peak} at best.",
    )


def _chunked_regions(explanation: PeakExplanation) -> Iterator[doc.Block]:
    """Yield the regions that are computed in chunks, which lowered the peak."""
    lines: list[doc.Prose] = []
    for region in explanation.chunked.regions[:_MAX_ROWS]:
        saved = format_size(max(region.before - region.after, 0))
        chunks = f": {region.pieces} chunks along axis {region.axis}, {saved} saved"
        lines.append((doc.Name(region.tensor), chunks))
    yield from doc.section("Computed in chunks", doc.Items(tuple(lines)) if lines else None)


def tensor_document(explanation: TensorExplanation) -> doc.Document:
    """Return the place of a tensor, its producer and last reader, and its reuse of memory."""
    tensor = explanation.tensor
    dims = ",".join(str(dim) for dim in tensor.shape)
    size = f"{format_size(tensor.bytes)}{per_unit(explanation.unit)}"
    title = (doc.Name(tensor.id), f": {tensor.dtype} [{dims}], {size}")
    return doc.Document(title, (doc.Items(tuple(_tensor_lines(explanation))),))


def _tensor_lines(explanation: TensorExplanation) -> Iterator[doc.Prose]:
    """Yield the lines of `tensor_document`; those that do not apply are left out."""
    tensor = explanation.tensor
    slot = "" if tensor.slot is None else f", slot {tensor.slot}"
    where = f"arena {tensor.arena} at offset {tensor.offset}{slot}"
    yield f"placed in {where}, steps {tensor.first} to {tensor.last - 1}"
    if tensor.pinned:
        yield f"has a buffer of its own for the whole run: {tensor.pinned}"
    else:
        yield "made by ", doc.Name(explanation.made_by)
        yield "kept alive by ", doc.Name(explanation.read_by), ", which reads it last"
    if explanation.shares:
        yield "shares its bytes with ", *_name_list(explanation.shares)
        if explanation.held_by != tensor.id:
            yield "the bytes stay in use for ", doc.Name(explanation.held_by)
    if explanation.before is None:
        yield f"reuses no memory: {explanation.reason}"
    else:
        yield "reuses the memory of ", doc.Name(explanation.before)
    if explanation.after:
        yield "its memory is reused by ", *_name_list(explanation.after)
    yield "is live at the peak" if explanation.at_peak else "is not live at the peak"


def _name_list(names: tuple[str, ...]) -> tuple[str | doc.Name, ...]:
    """Return the first names separated by commas, and the number of the others."""
    parts: list[str | doc.Name] = []
    for name in names[:_MAX_NAMES]:
        parts += [", ", doc.Name(name)] if parts else [doc.Name(name)]
    hidden = len(names) - _MAX_NAMES
    return (*parts, f" and {hidden} more") if hidden > 0 else tuple(parts)


PEAK_RENDERERS: Mapping[str, Callable[[PeakExplanation], str]] = result_renderers(
    "why-peak", peak_document, "text", "markdown"
)

TENSOR_RENDERERS: Mapping[str, Callable[[TensorExplanation], str]] = result_renderers(
    "why-tensor", tensor_document, "text", "markdown"
)
