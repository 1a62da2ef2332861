"""`memplan diff`: what changed between two plans, attributed to tensors; as data and as text.

The change of the peak is explained to the byte: every tensor that is live at one of the two
peaks contributes its bytes at the peak after the change, less its bytes at the peak before. Inputs,
outputs and weights, which are not planned, are compared by their sizes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from itertools import chain
from typing import TYPE_CHECKING, ClassVar

from memplan_cli.core.one_line import one_line_repr
from memplan_cli.core.quantities import format_change, format_share, format_size
from memplan_cli.core.serialization import Keys  # noqa: TC001 - a type to read by
from memplan_cli.reporting import document as doc
from memplan_cli.reporting.escape import printable, shortened_name
from memplan_cli.reporting.media import result_renderers
from memplan_cli.reporting.snapshot import Snapshot, dims_text, known_share, metric_label

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from memplan_cli.reporting.snapshot import TensorFacts

_MAX_CHANGES = 25
"""Tensors that a comparison lists; JSON has all."""

_MAIN_METRICS = ("process.total", "planned", "total", "weights")
"""Metrics that a comparison always shows; others only if they changed."""


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
    """One tensor's part in the change of the peak, or of the inputs, outputs or weights.

    Attributes:
        tensor: its name.
        kind: what happened to it.
        effect: bytes that it adds; below zero: that it takes off.
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
        """Return the difference, None if one of the two is unknown."""
        if self.before is None or self.after is None:
            return None
        return self.after - self.before


@dataclass(frozen=True, slots=True)
class Difference:
    """Everything that changed from one snapshot to another.

    Attributes:
        before: the earlier snapshot.
        after: the later snapshot.
        metrics: the metrics of both.
        changes: the tensors that changed the peak, largest effect first.
        interface: the inputs, outputs and weights that were added, removed or resized, largest effect
            first, by their kind.
        notes: sentences on the graph, the conditions and unknown sizes.
    """

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
        "interface",
        "notes",
    )

    before: Snapshot
    after: Snapshot
    metrics: tuple[MetricChange, ...]
    changes: tuple[Change, ...]
    interface: Mapping[str, tuple[Change, ...]]
    notes: tuple[str, ...]

    __repr__ = one_line_repr

    @property
    def nodes(self) -> int:
        """Return how many nodes were added; below zero: removed."""
        return self.after.nodes - self.before.nodes

    def causes(self, metric: str | None) -> tuple[Change, ...]:
        """Return the changes that explain the change of a metric, largest effect first.

        For ``inputs``, ``outputs`` or ``weights`` they are the changes of these. For all others, and for None,
        they are the changes of the peak; with outputs for ``resident``, which counts them, and with inputs,
        outputs and weights for ``total`` and ``process.*``.
        """
        name = metric or ""
        if name in ("inputs", "outputs", "weights"):
            return self.interface[name.removesuffix("s")]
        if name == "resident":
            return largest_first([*self.changes, *self.interface["output"]])
        if name == "total" or name.startswith("process."):
            return largest_first(chain(self.changes, *self.interface.values()))
        return self.changes


def compare(before: Snapshot, after: Snapshot) -> Difference:
    """Return what changed from one snapshot to another."""
    metric_names = dict.fromkeys((*before.metrics, *after.metrics))
    return Difference(
        before=before,
        after=after,
        metrics=tuple(
            MetricChange(name, before.metrics.get(name), after.metrics.get(name))
            for name in metric_names
        ),
        changes=largest_first(_peak_changes(before, after)),
        interface={
            kind: largest_first(_interface_changes(before, after, kind))
            for kind in ("input", "output", "weight")
        },
        notes=tuple(_notes(before, after)),
    )


def largest_first(changes: Iterable[Change]) -> tuple[Change, ...]:
    """Return the cause of a moved peak, which has no effect of its own, then the largest effects first."""
    return tuple(sorted(changes, key=lambda c: (c.effect != 0, -abs(c.effect), c.tensor)))


def _interface_changes(before: Snapshot, after: Snapshot, role: str) -> Iterator[Change]:
    """Yield a change for each input, output or weight (``role``) that was added, removed or resized.

    An added one with the size of a removed one counts as renamed, and is no change. Weights too small
    for a record are one change together.
    """
    old, new = (
        {name: size.bytes for name, size in snapshot.interface.items() if size.kind == role}
        for snapshot in (before, after)
    )
    added = {name: size for name, size in new.items() if name not in old}
    removed = {name: size for name, size in old.items() if name not in new}
    for name, size in list(added.items()):
        renamed = next((other for other, bytes_ in removed.items() if bytes_ == size), None)
        if renamed is not None:
            del added[name], removed[renamed]
    for name, size in added.items():
        yield Change(name, Kind.NEW, size, f"new {role}")
    for name, size in removed.items():
        yield Change(name, Kind.GONE, -size, f"{role} that is gone")
    for name, old_size in old.items():
        if name in new and new[name] != old_size:
            sizes = f"{role}, from {format_size(old_size)} to {format_size(new[name])}"
            yield _resized(name, new[name] - old_size, sizes)
    if role == "weight":
        small_before = before.metrics.get("weights", 0) - sum(old.values())
        small_after = after.metrics.get("weights", 0) - sum(new.values())
        if small_after != small_before:
            effect = small_after - small_before
            yield _resized("small weights", effect, "all weights not listed")


def _resized(name: str, effect: int, reason: str) -> Change:
    """Return the change of something that grew or shrank by ``effect`` bytes."""
    return Change(name, Kind.GREW if effect > 0 else Kind.SHRANK, effect, reason)


def _peak_changes(before: Snapshot, after: Snapshot) -> Iterator[Change]:
    """Yield the cause of a moved peak, and a change for every tensor whose bytes at the peak differ."""
    if cause := _cause_of_moved_peak(before, after):
        yield cause
    for name in sorted({*before.tensors, *after.tensors}):
        old, new = before.tensors.get(name), after.tensors.get(name)
        effect = (new.at_peak if new else 0) - (old.at_peak if old else 0)
        if not effect:
            continue
        if new is None:
            yield Change(name, Kind.GONE, effect, "no longer in the model")
        elif old is None:
            yield Change(name, Kind.NEW, effect, f"new, made by {_node_text(new.made_by)}")
        elif effect > 0:
            yield _increase(name, old, new, after)
        else:
            yield _decrease(name, old, new, after)


def _cause_of_moved_peak(before: Snapshot, after: Snapshot) -> Change | None:
    """Return the likely cause of a peak at another node: the largest tensor at both peaks that now lives longer.

    Its effect is 0, as its bytes at the peak are the same. None if the peak is at the same node, or there is no
    such tensor with another last reader.
    """
    if before.peak_node == after.peak_node:
        return None
    longer = [
        name
        for name, new in after.tensors.items()
        if (old := before.tensors.get(name)) is not None
        and old.at_peak == new.at_peak > 0
        and old.read_by != new.read_by
        and old.steps < new.steps
    ]
    if not longer:
        return None
    name = max(longer, key=lambda name: (after.tensors[name].at_peak, name))
    lifetime = _lifetime_change(before.tensors[name], after.tensors[name])
    return Change(name, Kind.LONGER, 0, f"{lifetime}; it is live at both peaks")


def _increase(name: str, old: TensorFacts, new: TensorFacts, after: Snapshot) -> Change:
    """Return the change of a tensor that has more bytes at the peak than before.

    The reason is the first of these that applies: the tensor is larger; it lives for more steps; the
    peak is now at a step where it is live.
    """
    effect = new.at_peak - old.at_peak
    if new.bytes > old.bytes:
        reason = f"grew from {format_size(old.bytes)} to {format_size(new.bytes)}"
        return Change(name, Kind.GREW, effect, reason)
    if new.steps > old.steps:
        return Change(name, Kind.LONGER, effect, _lifetime_change(old, new))
    reason = f"live until {_node_text(new.read_by)}; {_moved_peak(after)}"
    return Change(name, Kind.ENTERED, effect, reason)


def _decrease(name: str, old: TensorFacts, new: TensorFacts, after: Snapshot) -> Change:
    """Return the change of a tensor that has fewer bytes at the peak than before.

    The reason is the first of these that applies: the tensor is smaller; it lives for fewer
    steps; the peak is no longer at a step where it is live.
    """
    effect = new.at_peak - old.at_peak
    if new.bytes < old.bytes:
        reason = f"shrank from {format_size(old.bytes)} to {format_size(new.bytes)}"
        return Change(name, Kind.SHRANK, effect, reason)
    if new.steps < old.steps:
        return Change(name, Kind.SHORTER, effect, _lifetime_change(old, new))
    return Change(name, Kind.LEFT, effect, f"unchanged, but {_moved_peak(after)}")


def _moved_peak(after: Snapshot) -> str:
    return f"the peak is at {_node_text(after.peak_node)} now"


def _lifetime_change(old: TensorFacts, new: TensorFacts) -> str:
    now = f"lives until {_node_text(new.read_by)}, {new.steps} steps"
    return f"{now}; before until {_node_text(old.read_by)}, {old.steps} steps"


def _node_text(name: str) -> str:
    return name or "no node"


def _notes(before: Snapshot, after: Snapshot) -> Iterator[str]:
    """Yield sentences on the graph, on conditions that differ, and on totals that are partial."""
    if before.graph_sha256 == after.graph_sha256:
        yield "the graph is the same"
    elif before.nodes != after.nodes:
        yield f"{after.nodes - before.nodes:+d} nodes: {before.nodes} before, {after.nodes} now"
    for condition in changed_conditions(before, after):
        yield f"{condition.name}: {condition.before} before, {condition.after} after"
    for snapshot in (before, after):
        if snapshot.partial:
            yield f"totals of {snapshot.model} are partial: {known_share(snapshot.coverage)}"


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition of two snapshots that differs, so that their metrics may not compare."""

    name: str
    before: str
    after: str


def changed_conditions(before: Snapshot, after: Snapshot) -> Iterator[Condition]:
    """Yield the conditions that differ.

    Sizes are the shapes of inputs that both models have; other inputs are a change of the model.
    """
    for name in ("level", "phase", "target", "memplan", "runtime"):
        old, new = getattr(before, name), getattr(after, name)
        if old != new:
            yield Condition(name, _condition_text(old), _condition_text(new))
    if before.coverage != after.coverage:
        yield Condition("coverage", f"{before.coverage:.3g}", f"{after.coverage:.3g}")
    common_inputs = before.shapes.keys() & after.shapes.keys()
    old_sizes, new_sizes = (
        {name: snapshot.shapes[name] for name in common_inputs} for snapshot in (before, after)
    )
    if old_sizes != new_sizes:
        yield Condition("sizes", dims_text(old_sizes), dims_text(new_sizes))


def is_other_version(condition: Condition) -> bool:
    """Return whether two runtimes differ in name or version, and not only in the provider."""
    return condition.before.split()[:2] != condition.after.split()[:2]


def _condition_text(value: str | int) -> str:
    """Return a condition as text; a runtime that was not recorded is empty, which is unknown."""
    return "unknown" if value == "" else str(value)


def difference_document(difference: Difference) -> doc.Document:
    """Return the metrics of both sides, and the tensors that changed the peak."""
    before, after = difference.before, difference.after
    before_mark, after_mark = (" (partial)" if s.partial else "" for s in (before, after))
    peak: tuple[doc.Block, ...]
    if difference.changes:
        table = change_table(difference.changes, _MAX_CHANGES)
        peak = tuple(doc.section("What changed the peak", table))
    else:
        peak = (doc.Check(passed=True, text="No tensor at the peak changed."),)
    interface_changes = largest_first(chain(*difference.interface.values()))
    if interface_changes:
        table = change_table(interface_changes, _MAX_CHANGES)
        peak += tuple(doc.section("Inputs, outputs and weights", table))
    notes = doc.Items(difference.notes) if difference.notes else None
    title = (doc.Name(before.model), f"{before_mark} -> ", doc.Name(after.model), after_mark)
    return doc.Document(
        title, (_metrics_table(difference.metrics), *peak, *doc.section("Notes", notes))
    )


def _metrics_table(metrics: Sequence[MetricChange]) -> doc.Table:
    """Return a row for each metric of `_MAIN_METRICS` and for each that changed."""
    shown = [metric for metric in metrics if metric.name in _MAIN_METRICS or metric.change]
    equal = sum(metric.change == 0 for metric in metrics if metric not in shown)
    unknown = len(metrics) - len(shown) - equal
    hidden = [f"{equal} numbers are equal"] if equal else []
    hidden += [f"{unknown} are known for one side only"] if unknown else []
    return doc.Table(
        doc.columns("", ">before", ">after", ">change"),
        tuple(map(_metric_cells, shown)),
        f"{', '.join(hidden)}; --format json has all" if hidden else "",
    )


def change_table(changes: Sequence[Change], max_rows: int) -> doc.Table:
    """Return a row for each change; the caption sums up those beyond ``max_rows``."""
    rows = tuple(
        (
            format_change(change.effect),
            doc.Name(change.tensor),
            change.kind.value,
            change.reason,
        )
        for change in changes[:max_rows]
    )
    hidden = changes[max_rows:]
    hidden_effect = format_change(sum(change.effect for change in hidden))
    caption = f"{hidden_effect}: {len(hidden)} more tensors" if hidden else ""
    return doc.Table(doc.columns(">effect", "tensor", "what", "why"), rows, caption)


def change_line(change: Change) -> str:
    """Return one tensor's part in the change as one line, for formats without tables."""
    name, reason = shortened_name(change.tensor, 60), printable(change.reason)
    return f"{format_change(change.effect)} {name}: {reason}"


def _metric_cells(metric: MetricChange) -> tuple[str, str, str, str]:
    """Return a metric's name, its value before and after, and the change if it is known."""
    before, after = (
        "unknown" if size is None else format_size(size)
        for size in (metric.before, metric.after)
    )
    name = metric_label(metric.name)
    if metric.change is None or metric.before is None:
        return name, before, after, ""
    share = f" ({format_share(metric.change, metric.before)})" if metric.change else ""
    return name, before, after, format_change(metric.change) + share


RENDERERS: Mapping[str, Callable[[Difference], str]] = result_renderers(
    "diff", difference_document, "text", "markdown"
)
