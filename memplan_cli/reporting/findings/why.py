"""The live set at the peak and what would lower it, and the story of one tensor."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import accumulate
from shlex import quote
from typing import TYPE_CHECKING, ClassVar

from memplan_cli.core.results.bound_plan import with_bound_symbols
from memplan_cli.core.results.placements import Placement  # noqa: TC001 - a type to read by
from memplan_cli.core.results.rewrites import Chunks
from memplan_cli.core.results.timeline import (
    curve,
    main_arena,
    nodes_at,
    occupancies,
    peak_tick,
)
from memplan_cli.core.serialization import SPARSE, Keys
from memplan_cli.errors import PlanError, SettingsError
from memplan_cli.planning.print_log import reuses, why_not

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memplan_cli.core.results.plan import Plan
    from memplan_cli.core.results.timeline import Occupancy

MOST_FOLLOWERS = 20
"""Tensors that are named as reusing one tensor's memory."""


@dataclass(frozen=True, slots=True)
class AtPeak:
    """One piece of memory that is in use at the peak.

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
class PeakStory:
    """The step at which most bytes are live.

    Attributes:
        step: the step.
        node: the node that runs at it.
        bytes: the live bytes, in multiples of ``unit``.
        unit: the unit of the arena.
        rows: the live pieces of memory, largest first.
        coverage: the share of intermediates whose size is known; the others are in no row.
        chunked: regions that are computed piece by piece, which lowered the peak.
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
    rows: tuple[AtPeak, ...]
    coverage: float = 1.0
    chunked: Chunks = field(default_factory=Chunks, metadata=SPARSE)

    @property
    def best(self) -> AtPeak | None:
        """Return the row whose absence would lower the peak most, if any would."""
        found = min(self.rows, key=lambda row: (row.peak_without, row.tensor), default=None)
        return found if found is not None and found.peak_without < self.bytes else None

    @property
    def partial(self) -> bool:
        """Whether the size of some intermediate is unknown."""
        return self.coverage < 1.0

    @property
    def lowers_most(self) -> str | None:
        """Return the tensor of the best row."""
        return self.best.tensor if self.best else None


@dataclass(frozen=True, slots=True)
class TensorStory:
    """The lifetime of one tensor, and what else uses its memory.

    Attributes:
        place: its place and its live range.
        unit: the unit of its bytes and its offset.
        made_by: the node that writes it.
        read_by: its last reader.
        shares: tensors on the same bytes, as views or in place.
        held_by: of those, the one whose live range ends last.
        before: the tensor that used the memory just before; null: none did.
        reason: why none did.
        after: tensors that use some of these bytes later.
        at_peak: whether it is live at the peak.
    """

    json_keys: ClassVar[Keys] = (
        ("tensor", "place"),
        "unit",
        "made_by",
        "read_by",
        "shares",
        "held_by",
        "before",
        "reason",
        "after",
        "at_peak",
    )

    place: Placement
    unit: str
    made_by: str
    read_by: str
    shares: tuple[str, ...]
    held_by: str
    before: str | None
    reason: str
    after: tuple[str, ...]
    at_peak: bool


def why_peak(plan: Plan) -> PeakStory:
    """Return who is live at the peak, and what would lower it.

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
    tick, nodes, live = peak_tick(points), nodes_at(plan), _Curve.of(points)
    rows = [
        _at_peak(item, tick, live, nodes)
        for item in occupancies(plan)
        if item.tensor.arena == arena.id and item.live_at(tick) and item.bytes
    ]
    return PeakStory(
        step=tick,
        node=nodes.get(tick, ""),
        bytes=live.peak,
        unit=arena.unit,
        rows=tuple(sorted(rows, key=lambda row: (-row.bytes, row.tensor))),
        coverage=plan.report.coverage,
        chunked=plan.report.chunked,
    )


def why_tensor(plan: Plan, name: str) -> TensorStory:
    """Return the story of one tensor.

    Raises:
        SettingsError: the plan holds no such tensor; the hint names the nearest, or why.
    """
    plan = with_bound_symbols(plan)
    place = plan.by_id.get(name)
    if place is None:
        raise _unknown(plan, name)
    nodes = nodes_at(plan)
    (item,) = (h for h in occupancies(plan) if place in h.members)
    reused = reuses(plan.tensors, plan.report.level)
    (found,) = (reuse for reuse in reused if reuse.tensor == place)
    longest = max(item.members, key=lambda tensor: (tensor.last, tensor.id))
    peak = peak_tick(curve(plan, main_arena(plan)))
    return TensorStory(
        place=place,
        unit=next(arena.unit for arena in plan.arenas if arena.id == place.arena),
        made_by="" if place.pinned else nodes.get(place.first, ""),
        read_by="" if place.pinned else nodes.get(place.last - 1, ""),
        shares=tuple(tensor.id for tensor in item.members if tensor != place),
        held_by=longest.id,
        before=found.donor.id if found.donor else None,
        reason=why_not(plan, found),
        after=tuple(_followers(plan, item)[:MOST_FOLLOWERS]),
        at_peak=place.first <= peak < place.last,
    )


def _unknown(plan: Plan, name: str) -> SettingsError:
    refused = {refusal.name: refusal.reason for refusal in plan.report.unplanned}
    if name in refused:
        return SettingsError(f"{name!r} is not planned: {refused[name]}")
    known = (*plan.by_id, *(other for other in refused if other not in plan.by_id))
    regions = (each for each in plan.report.chunked.regions if each.tensor == name)
    region = next(regions, None)
    if region is not None:
        return SettingsError(
            f"{name!r} is never whole: its region is computed in {region.pieces} pieces along "
            f"axis {region.axis}",
            hint=f"pieces are tensors of their own: --tensor {name}__chunk1",
        )
    close = [other for other in known if other.endswith(f"/{name}")][:3]
    close = close or get_close_matches(name, known, n=3)
    hint = (
        "graph inputs, graph outputs and weights are never planned; see `report --format csv`"
    )
    if close:
        hint = f"did you mean {', '.join(close)}?"
    return SettingsError(f"the plan holds no tensor {name!r}", hint=hint)


def _at_peak(item: Occupancy, tick: int, live: _Curve, nodes: Mapping[int, str]) -> AtPeak:
    now = max(
        (tensor for tensor in item.members if tensor.first <= tick < tensor.last),
        key=lambda tensor: (tensor.first, tensor.id),
        default=item.tensor,
    )
    pinned = now.pinned
    return AtPeak(
        tensor=now.id,
        bytes=item.bytes,
        made_by=f"whole run: {pinned}" if pinned else nodes.get(now.first, ""),
        read_by="" if pinned else nodes.get(now.last - 1, ""),
        waits=max(item.last - item.first - 2, 0),
        peak_without=live.without(item),
    )


@dataclass(frozen=True, slots=True)
class _Curve:
    """Live bytes over time, and the most of them before and after each of its points."""

    ticks: tuple[int, ...]
    most_until: tuple[int, ...]
    most_from: tuple[int, ...]
    peak: int

    @classmethod
    def of(cls, points: Sequence[tuple[int, int]]) -> _Curve:
        sizes = [size for _, size in points]
        until = (0, *accumulate(sizes, max))
        after = (*reversed((*accumulate(reversed(sizes), max),)), 0)
        return cls(tuple(tick for tick, _ in points), until, after, max(sizes))

    def without(self, item: Occupancy) -> int:
        """Return the peak if ``item`` were absent between its first and its last tick.

        The curve is constant from one point to the next, so only stretches that lie wholly
        between those two ticks are lower without it.
        """
        low = bisect_left(self.ticks, item.first + 1)
        high = bisect_right(self.ticks, item.last - 1) - 1
        # A peak outside of them is in one of the other two terms.
        return max(self.most_until[low], self.most_from[high], self.peak - item.bytes)


def _followers(plan: Plan, item: Occupancy) -> list[str]:
    low, high = item.tensor.offset, item.tensor.offset + item.bytes
    return [
        tensor.id
        for tensor in sorted(plan.tensors, key=lambda tensor: (tensor.first, tensor.id))
        if tensor.arena == item.tensor.arena
        and tensor.first >= item.last
        and tensor.offset < high
        and low < tensor.offset + tensor.bytes
    ]
