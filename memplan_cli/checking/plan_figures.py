"""Count the numbers of a report again that follow from the plan's own rows, and check slots.

These are the checks of a plan file for which its model is not needed: they are applied
wherever a plan is read. `figures` adds the numbers that only the model gives. Both share no
code with the planner, whose numbers they check.

Some numbers follow from neither: the bytes of levels that were not asked for, the figures of
other orders, of other bindings, and what was measured. Most of them have limits, which are
checked. Without the model, the bytes of weights, inputs, outputs and of donated pairs are such
numbers too.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import replace
from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING

from memplan_cli.checking.layout import check_slots, storages
from memplan_cli.checking.rows import check_size
from memplan_cli.checking.sums import (
    added,
    canonical,
    factor_of,
    is_symbolic,
    number_of,
    samples,
    value_of,
)
from memplan_cli.core.symbolic.dims import canonical_dim

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from memplan_cli.checking.layout import Storage
    from memplan_cli.checking.sums import Sum
    from memplan_cli.core.results.amounts import Memory
    from memplan_cli.core.results.placements import Placement
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.core.symbolic.bounds import Bounds

Claim = tuple[str, object, object]
"""The name of a number, its value in the report, and the value counted."""

Limit = tuple[str, int, int, int]
"""The name of a number, the least that it can be, its value in the report, and the most."""


def check_plan_figures(plan: Plan, bounds: Bounds) -> Iterator[str]:
    """Yield the numbers of a report, and the slots, that the plan's rows contradict.

    The plan's layout must be safe: its arenas and aliases are there, and no tensor occurs
    twice.

    Args:
        plan: The plan with its report.
        bounds: Bounds of the dims that the plan's sizes are the largest for.
    """
    units = {arena.id: arena.unit for arena in plan.arenas}
    for row in plan.tensors:
        yield from check_size(row, units[row.arena], bounds)
    everything = storages(plan.tensors)
    yield from disagreements(
        chain(
            _settings(plan),
            _arenas(plan, everything),
            _counts(plan),
            _totals(plan, everything),
            _peak(plan, everything),
            _expressions(plan, everything),
            _profile_totals(plan),
        )
    )
    for name, low, said, high in _limits(plan):
        if not low <= said <= high:
            yield f"{name} is said to be {said}, and the plan allows {low} to {high}"
    yield from check_slots(plan.tensors, plan.report.level)


def disagreements(claims: Iterable[Claim]) -> Iterator[str]:
    """Yield a sentence for each number whose value in the report is not the one counted."""
    for name, said, counted in claims:
        if said != counted:
            yield f"{name} is said to be {_printable(said)}, it is {_printable(counted)}"


def _printable(value: object) -> str:
    """Return a value as text that no terminal takes for a command."""
    text = "nothing" if value is None else str(value)[:120]
    return text if text.isprintable() else repr(text)


def is_left_alone(plan: Plan) -> bool:
    """Whether the settings turn planning off for the model's phase."""
    block = plan.settings.get("mem_param")
    return isinstance(block, dict) and block.get(f"optimize_{plan.report.phase}") is False


def has_slots(everything: Sequence[Storage]) -> bool:
    """Whether a layout is made of slots. At level 2 this happens too, if slots are smaller."""
    return any(storage.members[0].slot is not None for storage in everything)


def dims_at(plan: Plan) -> Mapping[str, int]:
    """Return the values of the dims that the report's numbers are for.

    Dims with bounds have none: the plan's sizes are already the largest within the bounds.
    """
    bounds = plan.settings.get("bounds")
    bounded = bounds if isinstance(bounds, dict) else {}
    bindings = plan.report.bindings.items()
    return {name: dim.value for name, dim in bindings if name not in bounded}


def in_numbers(
    plan: Plan, everything: Sequence[Storage], dims: Mapping[str, int]
) -> Sequence[Storage] | None:
    """Return storages with bytes for coefficients of units; None if a symbol has no value."""
    factors = {arena.id: factor_of(arena.unit, dims) for arena in plan.arenas}
    found = []
    for storage in everything:
        factor = factors.get(storage.arena) if storage.bytes else 1
        if factor is None:
            return None
        found.append(replace(storage, bytes=storage.bytes * factor))
    return found


def live_curve(everything: Iterable[Storage]) -> dict[int, int]:
    """Return the bytes needed from each tick on at which the number changes."""
    changes: defaultdict[int, int] = defaultdict(int)
    for storage in everything:
        changes[storage.first] += storage.bytes
        changes[storage.last] -= storage.bytes
    ticks = sorted(changes)
    return dict(zip(ticks, accumulate(changes[tick] for tick in ticks), strict=True))


def sums_of(plan: Plan) -> dict[str, Sum]:
    """Return the totals of the plan's rows and arenas, by unit."""
    units = {arena.id: arena.unit for arena in plan.arenas}
    planned = added(*({arena.unit: arena.height} for arena in plan.arenas))
    return {
        "naive": added(*({units[row.arena]: row.bytes} for row in plan.tensors)),
        "planned": planned,
        f"level {plan.report.level}": planned,
    }


def _settings(plan: Plan) -> Iterator[Claim]:
    report, settings = plan.report, plan.settings
    yield "the report's level", report.level, settings.get("level", report.level)
    asked = settings.get("phase", "auto")
    yield "the report's phase", report.phase, report.phase if asked == "auto" else asked


def _counts(plan: Plan) -> Iterator[Claim]:
    report, model = plan.report, plan.report.model
    placed, count = len(plan.tensors), model.intermediates
    yield "nodes", model.nodes, sum(len(order.nodes) for order in plan.order)
    yield "blocks", model.blocks, len(plan.order)
    if report.phases:
        top = sum(len(order.nodes) for order in plan.order if not order.block)
        yield "nodes of all phases", sum(report.phases.values()), top
    yield "coverage", report.coverage, placed / count if count else 1.0
    yield "reuses", report.reuses, placed - _count_fresh(plan.tensors)
    refused = {refusal.name: refusal.reason for refusal in report.unplanned}
    pinned = {row.id: row.pinned for row in plan.tensors if row.pinned}
    own = {name: reason for name, reason in refused.items() if name in plan.by_id}
    yield "unplanned tensors with memory of their own", sorted(own), sorted(pinned)
    # Copies of tensors without a size are counted, and are not named again.
    if not report.recompute.nodes and not report.chunked.regions:
        yield "unplanned tensors without a size", len(refused) - len(own), count - placed


def _count_fresh(rows: Iterable[Placement]) -> int:
    """Count the tensors without bytes, and those whose bytes no earlier tensor had."""
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
    """Add a range to sorted disjoint ranges; return whether it overlaps none of them."""
    first, last = bisect_right(ends, low), bisect_left(starts, high)
    untouched = first >= last
    if untouched or starts[first] > low or ends[last - 1] < high or last - first > 1:
        merged = low, high
        if not untouched:
            merged = min(low, starts[first]), max(high, ends[last - 1])
        starts[first:last], ends[first:last] = [merged[0]], [merged[1]]
    return untouched


def _arenas(plan: Plan, everything: Sequence[Storage]) -> Iterator[Claim]:
    """Yield the lower bound of each arena packed by offsets: the most bytes live at one tick."""
    units = [arena.unit for arena in plan.arenas]
    yield "the number of arenas", len(units), len(set(units))
    for arena in plan.arenas:
        said, name = arena.lower_bound, f"lower_bound of arena {arena.id}"
        changes: defaultdict[int, int] = defaultdict(int)
        for storage in everything:
            if storage.arena == arena.id:
                padded = -(-storage.bytes // arena.alignment) * arena.alignment
                changes[storage.first] += padded
                changes[storage.last] -= padded
        live = max(accumulate(changes[tick] for tick in sorted(changes)), default=0)
        if is_left_alone(plan):
            yield name, said, 0
        elif plan.report.level == 2:
            yield name, said, live
        else:  # the bound of slots, which may be above the most bytes live
            yield name, said, min(max(said, live), arena.height)


def _totals(plan: Plan, everything: Sequence[Storage]) -> Iterator[Claim]:
    """Yield every total of rows and arenas. None is a total that is not known.

    A partial report, some sizes of which are missing, may leave all of them out.
    """
    report, memory, dims = plan.report, plan.report.memory, dims_at(plan)
    sums = sums_of(plan)
    naive, planned = number_of(sums["naive"], dims), number_of(sums["planned"], dims)
    level = str(report.level)
    if not report.donated.pairs:
        yield "donated bytes of no pairs", report.donated.bytes, 0
    claims: list[Claim] = [
        ("naive", memory.naive, naive),
        ("planned", memory.planned, planned),
        (f"the bytes of level {level}", report.levels[level], planned),
        ("total", memory.total, _total(memory, report.donated.bytes)),
    ]
    numbers = in_numbers(plan, everything, dims)
    if numbers is None:
        claims.append(("live_peak", memory.live_peak, None))
    elif report.level < 2 or not has_slots(everything):
        live = max(live_curve(numbers).values(), default=0)
        claims.append(("live_peak", memory.live_peak, live))
    is_silent = report.partial and memory.planned is None
    yield from (claim for claim in claims if not (is_silent and claim[1] is None))
    budget = report.recompute.budget
    if memory.resident is not None and budget is not None:
        yield "whether the budget is met", report.recompute.met, memory.resident <= budget
    if memory.live_peak is not None and memory.order_proved:
        yield "order_bound of a proved order", memory.order_bound, memory.live_peak
    if is_left_alone(plan):
        yield "planned of a model left as it is", planned, naive


def _total(memory: Memory, donated: int) -> int | None:
    if memory.inputs is None or memory.outputs is None or memory.planned is None:
        return None
    return memory.weights + memory.inputs + memory.outputs + memory.planned - donated


def _peak(plan: Plan, everything: Sequence[Storage]) -> Iterator[Claim]:
    """Yield the step and the tensors of the peak; its node's label only the order tells."""
    said, memory = plan.report.peak, plan.report.memory
    numbers = in_numbers(plan, everything, dims_at(plan))
    if memory.live_peak is None or numbers is None:
        yield "the peak of bytes that are not known", said, None
        return
    if plan.report.level == 2 and has_slots(everything):
        if said is not None:
            live = sum(size for _, size in said.tensors)
            yield "the bytes of the tensors at the peak", live, memory.live_peak
        return
    curve = live_curve(numbers)
    top = max(curve.values(), default=0)
    if not top:
        yield "the peak of nothing", said, None
        return
    tick = min(tick for tick, size in curve.items() if size == top)
    yield "peak.step", said and said.step, tick
    if said is not None:
        live_tensors = [
            (_youngest(storage, tick), storage.bytes)
            for storage in numbers
            if storage.first <= tick < storage.last and storage.bytes
        ]
        yield "peak.tensors", sorted(map(tuple, said.tensors)), sorted(live_tensors)


def _youngest(storage: Storage, tick: int) -> str:
    """Return the tensor that was written last of those that need these bytes at a tick."""
    ages = [
        (row.first if row.first <= tick < row.last else -1, row.id) for row in storage.members
    ]
    return max(ages)[1]


def _expressions(plan: Plan, everything: Sequence[Storage]) -> Iterator[Claim]:
    """Yield each expression of the report, and each number that an expression comes to."""
    report, symbolic, sums = plan.report, plan.report.symbolic, sums_of(plan)
    if not is_symbolic(sums["naive"]):
        yield "what is said in symbols, where all are numbers", dict(symbolic), {}
        return
    for name, counted in sums.items():
        if name in symbolic:
            yield f"{name} in symbols", canonical_dim(symbolic[name]), canonical(counted)
    if {"inputs", "outputs", "total"} <= symbolic.keys() and not report.donated.pairs:
        parts = symbolic["inputs"], symbolic["outputs"], canonical(sums["planned"])
        text = " + ".join([str(report.memory.weights), *(f"({part})" for part in parts)])
        yield "total in symbols", canonical_dim(symbolic["total"]), canonical_dim(text)
    if "live_peak" in symbolic and not (report.level == 2 and has_slots(everything)):
        # Maxima have no canonical form: they are compared at several values of the symbols.
        for dims in samples([arena.unit for arena in plan.arenas]):
            numbers = in_numbers(plan, everything, dims)
            if numbers is not None:
                live = max(live_curve(numbers).values(), default=0)
                said = value_of(symbolic["live_peak"], dims)
                yield "live_peak in symbols", said, live
    yield from _numbers_of_expressions(plan)


def _numbers_of_expressions(plan: Plan) -> Iterator[Claim]:
    """Yield each number beside the value of its expression at the report's dims."""
    report, memory, dims = plan.report, plan.report.memory, dims_at(plan)
    numbers: dict[str, int | None] = {
        "inputs": memory.inputs,
        "outputs": memory.outputs,
        "naive": memory.naive,
        "live_peak": memory.live_peak,
        "resident": memory.resident,
        "planned": memory.planned,
        "total": memory.total,
    }
    numbers |= {f"level {level}": size for level, size in report.levels.items()}
    titles = {f"level {level}": f"the bytes of level {level}" for level in report.levels}
    for name, text in report.symbolic.items():
        if name not in numbers:
            yield f"{name[:40]} in symbols", text, None
        elif (said := numbers[name]) is not None:
            yield titles.get(name, name), said, value_of(text, dims)


def _profile_totals(plan: Plan) -> Iterator[Claim]:
    """Yield the total of each other binding; its parts are those of another plan."""
    for row in plan.report.profiles:
        if not plan.report.donated.pairs:  # what those save there, the file does not tell
            where = ", ".join(f"{name}={value}" for name, value in row.dims.items())
            yield f"total at {where[:120]}", row.memory.total, _total(row.memory, 0)


def _limits(plan: Plan) -> Iterator[Limit]:
    """Yield the numbers that cannot be counted, with the least and the most they can be."""
    report, memory = plan.report, plan.report.memory
    asked = plan.settings.get("alignment")
    padding = len(plan.tensors) * (asked - 1) if type(asked) is int and asked > 0 else 0
    for row in report.profiles:
        where = f" at {', '.join(map(str, row.dims.values()))[:120]}"
        yield from _ladder(where, row.memory, padding)
    if memory.inputs is not None and memory.outputs is not None:
        most = min(memory.inputs, memory.outputs)
        yield "donated bytes", 0, report.donated.bytes, most
    if memory.live_peak is None or memory.naive is None or memory.planned is None:
        return
    apart = _most_live_apart(plan)
    yield "live_peak", 0, memory.live_peak, min(apart, memory.planned)
    yield from _ladder("", memory, padding)
    if memory.resident is not None and memory.outputs is not None:
        # Only the model tells when outputs begin, and what is a view. Below level 2 a view
        # has bytes of its own, which no runtime gives it.
        given = memory.outputs - report.donated.bytes
        least = memory.live_peak if report.level == 2 else 0
        yield "resident", max(least, given), memory.resident, apart + given
    levels = [(level, report.levels[level]) for level in "210"]
    for level, said in levels:
        if said is not None:
            least = 0 if level == "2" else apart
            yield f"the bytes of level {level}", least, said, memory.naive + padding
    for (level, low), (_, high) in pairwise(levels):
        if low is not None and high is not None:
            yield f"the bytes of level {level}", 0, low, high


def _ladder(where: str, memory: Memory, padding: int) -> Iterator[Limit]:
    """Yield order_bound, live_peak and planned; each is at most the next, then padded naive."""
    apart = None if memory.naive is None else memory.naive + padding
    steps = [("order_bound", memory.order_bound), ("live_peak", memory.live_peak)]
    steps += [("planned", memory.planned), ("naive", apart)]
    known = [(name, size) for name, size in steps if size is not None]
    for (name, low), (_, high) in pairwise(known):
        yield name + where, 0, low, high


def _most_live_apart(plan: Plan) -> int:
    """Return the most bytes live at one tick if no tensors shared bytes: no pool takes less."""
    dims, changes = dims_at(plan), defaultdict[int, int](int)
    factors: Mapping[int, int | None] = {
        arena.id: factor_of(arena.unit, dims) for arena in plan.arenas
    }
    for row in plan.tensors:
        size = row.bytes * (factors[row.arena] or 0)
        changes[row.first] += size
        changes[row.last] -= size
    return max(accumulate(changes[tick] for tick in sorted(changes)), default=0)
