"""The numbers of a report, counted again from the model and from where its tensors lie."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from memplan_cli.checking.bindings import dims_at
from memplan_cli.checking.edges import edges_of, foldable
from memplan_cli.checking.order import label_of
from memplan_cli.checking.resident import held, most_with, results_at
from memplan_cli.checking.sums import number_of
from memplan_cli.checking.symbols import (
    check_symbols,
    factors_of,
    in_numbers,
    sums_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from memplan_cli.checking.clock import Value
    from memplan_cli.checking.edges import Edges
    from memplan_cli.checking.layout import Storage
    from memplan_cli.checking.rows import Placed
    from memplan_cli.checking.subject import Subject
    from memplan_cli.core.results.placements import Placement
    from memplan_cli.core.symbolic.bounds import Bounds

Claim = tuple[str, object, object]
"""The name of a number, what is said of it and the value counted."""


def check_figures(
    subject: Subject, placed: Placed, everything: Sequence[Storage], bounds: Bounds
) -> Iterator[str]:
    """Yield the numbers of a report that are not those of the model and its layout."""
    edges = edges_of(subject, bounds)
    numbers = in_numbers(subject, everything)
    claims = [*_counts(subject, placed), *_edges(subject, edges)]
    claims += _totals(subject, placed, edges, numbers)
    claims += _peak(subject, numbers)
    claims += _arenas(subject, everything)
    shown = held(subject, placed)
    claims += _resident(subject, edges, shown)
    claims += check_symbols(subject, edges, sums_of(subject, placed, edges), everything, shown)
    for name, said, counted in claims:
        if said != counted:
            yield f"{name} is said to be {_word(said)}, it is {_word(counted)}"
    yield from foldable(subject)
    yield from _ladders(subject, placed)


def _word(said: object) -> str:
    """Return what was said, as text that no terminal takes for more."""
    text = "nothing" if said is None else str(said)[:120]
    return text if text.isprintable() else repr(text)


def _counts(subject: Subject, placed: Placed) -> Iterator[Claim]:
    report, clock = subject.plan.report, subject.clock
    results = {id(value) for value in clock.top.outputs}
    count = sum(
        1 for value in clock.values() if value.is_intermediate and id(value) not in results
    )
    yield "nodes", report.model.nodes, sum(len(region.nodes) for region in clock.regions)
    yield "blocks", report.model.blocks, len(clock.regions)
    yield "intermediates", report.model.intermediates, count
    yield "coverage", report.coverage, len(placed.rows) / count if count else 1.0
    if report.phases:
        yield "nodes of all phases", sum(report.phases.values()), len(clock.top.nodes)
    fresh = _fresh([row for row, _ in placed.rows.values()])
    yield "reuses", report.reuses, len(placed.rows) - fresh
    copies = [
        node for region in clock.regions for node in region.nodes if _is_copy(node.outputs)
    ]
    yield "recomputed nodes", report.recompute.nodes, len(copies)


def _is_copy(outputs: Sequence[Value | None]) -> bool:
    made = [value.name for value in outputs if value is not None]
    return bool(made) and all("__recompute" in name for name in made)


def _fresh(rows: Iterable[Placement]) -> int:
    """Count the tensors that lie where nothing has lain before, or in no bytes."""
    fresh = 0
    taken: defaultdict[int, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    slots: set[tuple[int, int]] = set()
    for row in sorted(rows, key=lambda row: (row.first, row.id)):
        if row.slot is not None:
            fresh += (row.arena, row.slot) not in slots
            slots.add((row.arena, row.slot))
        elif not row.bytes:
            fresh += 1
        else:
            fresh += _take(*taken[row.arena], row.offset, row.offset + row.bytes)
    return fresh


def _take(starts: list[int], ends: list[int], low: int, high: int) -> bool:
    """Add a range to disjoint ones, sorted; return whether none of it was in them."""
    first, last = bisect_right(ends, low), bisect_left(starts, high)
    untouched = first >= last
    if untouched or starts[first] > low or ends[last - 1] < high or last - first > 1:
        merged = low, high
        if not untouched:
            merged = min(low, starts[first]), max(high, ends[last - 1])
        starts[first:last], ends[first:last] = [merged[0]], [merged[1]]
    return untouched


def _edges(subject: Subject, edges: Edges) -> Iterator[Claim]:
    memory, dims = subject.plan.report.memory, dims_at(subject)
    yield "weights", memory.weights, edges.weights
    for name, said, of in (
        ("inputs", memory.inputs, edges.inputs),
        ("outputs", memory.outputs, edges.outputs),
    ):
        if of is not None:  # else it is the plan's own word, as sizes of single tensors are
            yield name, said, number_of(of, dims)
    donated = subject.plan.report.donated.bytes
    yield "donated bytes", donated, number_of(edges.donated, dims) or 0


def _totals(
    subject: Subject, placed: Placed, edges: Edges, numbers: Sequence[Storage] | None
) -> Iterator[Claim]:
    plan, memory = subject.plan, subject.plan.report.memory
    dims, sums = dims_at(subject), sums_of(subject, placed, edges)
    level = str(plan.report.level)
    planned = number_of(sums["planned"], dims)
    yield from _original(subject)
    if plan.report.partial and memory.planned is None:
        return
    yield "naive", memory.naive, number_of(sums["naive"], dims)
    yield "planned", memory.planned, planned
    yield f"the bytes of level {level}", plan.report.levels[level], planned
    total = None
    if planned is not None and memory.inputs is not None and memory.outputs is not None:
        total = memory.weights + memory.inputs + memory.outputs + planned
        total -= plan.report.donated.bytes
    yield "total", memory.total, total
    if numbers is None:
        yield "live_peak", memory.live_peak, None
    elif all(storage.members[0].slot is None for storage in numbers) or level != "2":
        yield "live_peak", memory.live_peak, max(_curve(numbers).values(), default=0)


def _resident(
    subject: Subject, edges: Edges, shown: Sequence[Storage] | None
) -> Iterator[Claim]:
    """Yield what a runtime holds, where the report says it.

    Where the model does not say an output's bytes, this number is the plan's own word as
    they are: a run has told them, or the inference of the runtime.
    """
    report = subject.plan.report
    said, numbers = (
        report.memory.resident,
        None if shown is None else in_numbers(subject, shown),
    )
    made = results_at(edges, dims_at(subject))
    if numbers is None or (said is None and report.partial):
        return
    if made is not None:
        yield "resident", said, most_with(numbers, made)


def _original(subject: Subject) -> Iterator[Claim]:
    """Yield what the file's order takes where it is the plan's: other orders are not here."""
    report, memory = subject.plan.report, subject.plan.report.memory
    is_another = report.recompute.nodes or report.chunked.regions
    own = report.chosen_order == "file" and not is_another
    pairs = (
        ("original.live_peak", report.original_live_peak, memory.live_peak),
        ("original.planned", report.original_planned, memory.planned),
        ("original.resident", report.original_resident, memory.resident),
    )
    for name, said, counted in pairs:
        if own or memory.planned is None:
            yield name, said, counted


def _curve(everything: Iterable[Storage]) -> dict[int, int]:
    """Return the bytes that are needed from each tick on at which the number changes."""
    changes: defaultdict[int, int] = defaultdict(int)
    for storage in everything:
        changes[storage.first] += storage.bytes
        changes[storage.last] -= storage.bytes
    ticks = sorted(changes)
    return dict(zip(ticks, accumulate(changes[tick] for tick in ticks), strict=True))


def _peak(subject: Subject, everything: Sequence[Storage] | None) -> Iterator[Claim]:
    report, plan = subject.plan.report, subject.plan
    said = report.peak
    if report.memory.live_peak is None or everything is None:
        yield "the peak of bytes that are not known", said, None
        return
    if report.level == 2 and any(s.members[0].slot is not None for s in everything):
        return
    curve = _curve(everything)
    top = max(curve.values(), default=0)
    if not top:
        yield "the peak of nothing", said, None
        return
    tick = min(tick for tick, size in curve.items() if size == top)
    yield "peak.step", said and said.step, tick
    found = [
        (_youngest(storage, tick), storage.bytes)
        for storage in everything
        if storage.first <= tick < storage.last and storage.bytes
    ]
    if said is not None:
        yield "peak.tensors", sorted(map(tuple, said.tensors)), sorted(found)
        labels = [
            label_of(node, entry)
            for region, order in zip(subject.clock.regions, plan.order, strict=True)
            for node, entry in zip(region.nodes, order.nodes, strict=True)
            if tick in (node.start, node.end)
        ]
        yield "peak.node", said.node, labels[0] if labels else ""


def _youngest(storage: Storage, tick: int) -> str:
    """Return the tensor that was written last of those that need these bytes at a tick."""
    ages = [
        (row.first if row.first <= tick < row.last else -1, row.id) for row in storage.members
    ]
    return max(ages)[1]


def _arenas(subject: Subject, everything: Sequence[Storage]) -> Iterator[Claim]:
    """Yield the bound of each arena that is packed by offsets: the most live at one tick."""
    slotted = {s.arena for s in everything if s.members[0].slot is not None}
    units = [arena.unit for arena in subject.plan.arenas]
    yield "the number of arenas", len(units), len(set(units))
    for arena in subject.plan.arenas:
        changes: defaultdict[int, int] = defaultdict(int)
        for storage in everything:
            if storage.arena == arena.id:
                padded = -(-storage.bytes // arena.alignment) * arena.alignment
                changes[storage.first] += padded
                changes[storage.last] -= padded
        live = max(accumulate(changes[tick] for tick in sorted(changes)), default=0)
        if subject.plan.report.level == 2 and arena.id not in slotted:
            yield f"lower_bound of arena {arena.id}", arena.lower_bound, live
        yield (
            f"lower_bound of arena {arena.id}",
            arena.lower_bound,
            min(arena.lower_bound, arena.height),
        )


def _ladders(subject: Subject, placed: Placed) -> Iterator[str]:
    """Yield what is said to be more than what it can never be more than."""
    report, memory = subject.plan.report, subject.plan.report.memory
    steps = [
        ("order_bound", memory.order_bound),
        ("live_peak", memory.live_peak),
        ("planned", memory.planned),
    ]
    asked = subject.plan.settings.get("alignment")
    padding = len(placed.rows) * (asked - 1) if type(asked) is int and asked > 1 else 0
    most = None if memory.naive is None else memory.naive + padding
    levels = [(f"the bytes of level {level}", report.levels[level]) for level in "210"]
    for ladder in ([*steps, ("naive", most)], [*levels, ("naive", most)]):
        known = [(name, size) for name, size in ladder if size is not None]
        for (low, less), (high, more) in pairwise(known):
            if less > more:
                yield f"{low} is said to be {less}, more than {high}, which is {more}"
    if memory.order_proved and memory.order_bound != memory.live_peak:
        yield (
            f"the order is said to be proved, at {memory.live_peak} bytes over a bound of "
            f"{_word(memory.order_bound)}"
        )
    if memory.live_peak is None or memory.naive is None:
        return
    apart: defaultdict[int, int] = defaultdict(int)
    factors = factors_of(subject)
    for row, _ in placed.rows.values():
        size = row.bytes * (factors[row.arena] or 0)
        apart[row.first] += size
        apart[row.last] -= size
    least = max(accumulate(apart[tick] for tick in sorted(apart)), default=0)
    if memory.live_peak > least:
        yield f"live_peak is said to be {memory.live_peak}, no more than {least} are live"
    for level in "01":
        said = report.levels[level]
        if said is not None and said < least:
            yield f"the bytes of level {level} are said to be {said}, {least} are live"
