"""Differences between two plans, attributed to the tensors that caused them.

The peak's change is accounted for to the byte: each tensor that is live at one of the two
peaks gives what it takes there after, less what it took there before.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, ClassVar

from memplan_cli.core.quantities import format_size
from memplan_cli.core.serialization import Keys  # noqa: TC001 - a type to read by
from memplan_cli.reporting.findings.snapshot import Snapshot, dims_text, known_share

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memplan_cli.reporting.findings.snapshot import TensorFacts


class Kind(Enum):
    """What happened to a tensor, from the peak's point of view."""

    NEW = "new"
    GREW = "grew"
    LONGER = "lives longer"
    ENTERED = "entered the peak"
    GONE = "gone"
    SHRANK = "shrank"
    SHORTER = "dies earlier"
    LEFT = "left the peak"


@dataclass(frozen=True, slots=True)
class Change:
    """One tensor's part in the change of the peak.

    Attributes:
        tensor: its name.
        kind: what happened to it.
        effect: bytes that it adds to the peak; below zero: that it takes off.
        reason: the same in words, with the nodes that matter.
    """

    tensor: str
    kind: Kind
    effect: int
    reason: str


@dataclass(frozen=True, slots=True)
class MetricChange:
    """One metric before and after; null: unknown."""

    json_keys: ClassVar[Keys] = ("name", "before", "after", "change")

    name: str
    before: int | None
    after: int | None

    @property
    def change(self) -> int | None:
        """Return the difference, where both are known."""
        if self.before is None or self.after is None:
            return None
        return self.after - self.before


@dataclass(frozen=True, slots=True)
class Difference:
    """Everything that changed from one snapshot to another."""

    json_keys: ClassVar[Keys] = (
        ("before", "before.model"),
        ("after", "after.model"),
        "nodes",
        ("partial.before", "before.partial"),
        ("partial.after", "after.partial"),
        ("peak_node.before", "before.peak_node"),
        ("peak_node.after", "after.peak_node"),
        "metrics",
        "changes",
        "notes",
    )

    before: Snapshot
    after: Snapshot
    metrics: tuple[MetricChange, ...]
    changes: tuple[Change, ...]
    notes: tuple[str, ...]

    @property
    def nodes(self) -> int:
        """Return how many nodes were added; below zero: removed."""
        return self.after.nodes - self.before.nodes


def compare(before: Snapshot, after: Snapshot) -> Difference:
    """Say what changed, largest effect on the peak first."""
    names = dict.fromkeys((*before.metrics, *after.metrics))
    changes = sorted(_changes(before, after), key=lambda c: (-abs(c.effect), c.tensor))
    return Difference(
        before=before,
        after=after,
        metrics=tuple(
            MetricChange(name, before.metrics.get(name), after.metrics.get(name))
            for name in names
        ),
        changes=tuple(changes),
        notes=tuple(_notes(before, after)),
    )


def _changes(before: Snapshot, after: Snapshot) -> Iterator[Change]:
    for name in sorted({*before.tensors, *after.tensors}):
        old, new = before.tensors.get(name), after.tensors.get(name)
        effect = (new.at_peak if new else 0) - (old.at_peak if old else 0)
        if not effect:
            continue
        if new is None:
            yield Change(name, Kind.GONE, effect, "it is no longer there")
        elif old is None:
            yield Change(name, Kind.NEW, effect, f"new, made by {_node(new.made_by)}")
        elif effect > 0:
            yield _increase(name, old, new, after)
        else:
            yield _decrease(name, old, new, after)


def _increase(name: str, old: TensorFacts, new: TensorFacts, after: Snapshot) -> Change:
    effect = new.at_peak - old.at_peak
    if new.bytes > old.bytes:
        reason = f"grew from {format_size(old.bytes)} to {format_size(new.bytes)}"
        return Change(name, Kind.GREW, effect, reason)
    if new.read_by != old.read_by or new.steps > old.steps:
        return Change(name, Kind.LONGER, effect, _live_range(old, new))
    return Change(name, Kind.ENTERED, effect, _elsewhere(after))


def _decrease(name: str, old: TensorFacts, new: TensorFacts, after: Snapshot) -> Change:
    effect = new.at_peak - old.at_peak
    if new.bytes < old.bytes:
        reason = f"shrank from {format_size(old.bytes)} to {format_size(new.bytes)}"
        return Change(name, Kind.SHRANK, effect, reason)
    if new.steps < old.steps:
        return Change(name, Kind.SHORTER, effect, _live_range(old, new))
    return Change(name, Kind.LEFT, effect, _elsewhere(after))


def _live_range(old: TensorFacts, new: TensorFacts) -> str:
    now = f"lives until {_node(new.read_by)}, {new.steps} steps"
    return f"{now}; before until {_node(old.read_by)}, {old.steps} steps"


def _elsewhere(after: Snapshot) -> str:
    return f"unchanged, but the peak is at {_node(after.peak_node)} now"


def _node(name: str) -> str:
    return name or "no node"


def _notes(before: Snapshot, after: Snapshot) -> Iterator[str]:
    if before.graph_sha256 == after.graph_sha256:
        yield "the graph is the same"
    elif before.nodes != after.nodes:
        yield f"{after.nodes - before.nodes:+d} nodes: {before.nodes} before, {after.nodes} now"
    yield from (f"{c.name} was {c.before}, is {c.after}" for c in conditions(before, after))
    for snapshot in (before, after):
        if snapshot.partial:
            yield f"totals of {snapshot.model} are partial: {known_share(snapshot.coverage)}"


@dataclass(frozen=True, slots=True)
class Condition:
    """Something that two snapshots were not made alike with, in words."""

    name: str
    before: str
    after: str


def conditions(before: Snapshot, after: Snapshot) -> Iterator[Condition]:
    """Yield what the two were made with and is not the same; dims only where both say them."""
    for name in ("level", "phase", "memplan", "runtime"):
        old, new = getattr(before, name), getattr(after, name)
        if old != new:
            yield Condition(name, _told(old), _told(new))
    if before.coverage != after.coverage:
        yield Condition("coverage", f"{before.coverage:.3g}", f"{after.coverage:.3g}")
    if before.dims is not None and after.dims is not None and before.dims != after.dims:
        yield Condition("dims", dims_text(before.dims), dims_text(after.dims))


def _told(condition: str | int) -> str:
    """Return one condition in words; an empty text is what nobody wrote down."""
    return "not known" if condition == "" else str(condition)
