"""Checks of the numbers in a report that follow from the plan's own tensors, without the model.

They are applied whenever a plan file is read. `figures` checks the numbers that need the model.
Neither shares code with the planner.

Some numbers follow from neither: the bytes of levels that were not planned, the numbers of other
orders and other bindings, and measurements. Most of them have limits, which are checked here.
Without the model, so do the bytes of weights, inputs, outputs and donated inputs.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.checking.arena_bounds import arena_bounds
from memplan_cli.checking.live_bytes import (
    LiveBytes,
    add_sums,
    canonical_expression,
    evaluate_expression,
    evaluate_sum,
    evaluate_unit,
    is_symbolic,
    live_bytes_at,
    live_curve,
    peak_bytes,
    sample_dims,
    tensor_storages,
)
from memplan_cli.checking.tensors import check_slots, check_tensor_bytes
from memplan_cli.core.symbolic.dims import canonical_dim

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from memplan_cli.checking.live_bytes import ByteSum, Storage
    from memplan_cli.core.results.memory import Memory
    from memplan_cli.core.results.placements import Placement
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.core.results.report import Report
    from memplan_cli.core.symbolic.bounds import Bounds


class Figure(NamedTuple):
    """A number or expression of a report as the plan file has it, and its value counted again."""

    name: str
    recorded: object
    counted: object


class _Limit(NamedTuple):
    """A number of a report that cannot be counted, and the range in which it must be."""

    name: str
    lowest: int
    recorded: int
    highest: int


def check_plan_figures(plan: Plan, bounds: Bounds) -> Iterator[str]:
    """Yield the numbers of a report, and the slots, that contradict the plan's tensors.

    Tensors whose bytes are not their largest size within ``bounds`` of dims are yielded too. The
    caller has checked the layout: arenas and aliases exist, and no tensor occurs twice.
    """
    for row in plan.tensors:
        yield from check_tensor_bytes(row, plan.units[row.arena], bounds)
    level = plan.report.level
    requested_level = plan.settings.get("level", level)
    yield from wrong_figures([Figure("the report's level", level, requested_level)])
    yield from check_slots(plan.tensors, level)
    storages = tensor_storages(plan.tensors)
    figures = [
        *_arena_figures(plan),
        *_bound_figures(plan),
        *_count_figures(plan),
        *_unplanned_figures(plan),
        *_total_figures(plan, storages),
        *_related_total_figures(plan),
        *_peak_figures(plan, storages),
        *_expression_figures(plan, storages),
        *_profile_figures(plan),
    ]
    yield from wrong_figures(figures)
    for name, lowest, recorded, highest in _limits(plan):
        if not lowest <= recorded <= highest:
            yield (
                f"{name} is recorded as {recorded}, and the plan allows {lowest} to {highest}"
            )


def wrong_figures(figures: Iterable[Figure]) -> Iterator[str]:
    """Yield a sentence for each figure whose recorded value is not the counted one."""
    for name, recorded, counted in figures:
        if recorded != counted:
            yield f"{name} is recorded as {printable(recorded)}, it is {printable(counted)}"


def printable(value: object) -> str:
    """Return a value of an untrusted file as short text without control characters."""
    text = "nothing" if value is None else str(value)[:120]
    return text if text.isprintable() else repr(text)


def report_dims(plan: Plan) -> Mapping[str, int]:
    """Return the values of dims for which the report's numbers are computed.

    Dims with bounds are left out: the plan's sizes are already the largest within the bounds.
    """
    bounds = plan.settings.get("bounds")
    bounded = bounds if isinstance(bounds, dict) else {}
    bindings = plan.report.bindings.items()
    return {name: dim.value for name, dim in bindings if name not in bounded}


def total_sums(plan: Plan) -> dict[str, ByteSum]:
    """Return the totals of a plan's tensors and arenas, by the names that the report gives them.

    A total is a sum over units: for bytes ``1``, for symbolic sizes products such as ``batch*seq``.
    The report names the planned total a second time, as the total of the plan's level.
    """
    naive = add_sums(*({plan.units[row.arena]: row.bytes} for row in plan.tensors))
    planned = add_sums(*({arena.unit: arena.height} for arena in plan.arenas))
    return {"naive": naive, "planned": planned, f"level {plan.report.level}": planned}


def _is_left_alone(plan: Plan) -> bool:
    """Return whether the settings turn planning off for the phase of the model."""
    mem_param = plan.settings.get("mem_param")
    key = f"optimize_{plan.report.phase}"
    return isinstance(mem_param, dict) and mem_param.get(key) is False


def _is_live_peak_countable(plan: Plan) -> bool:
    """Return whether the live peak follows from the plan's tensors.

    It does not if a plan of level 2 has the slots of level 1, because these need fewer bytes than
    offsets. The live peak is then that of tensors at offsets, some of which share bytes, and the plan
    does not contain these offsets.
    """
    return plan.report.level < 2 or all(row.slot is None for row in plan.tensors)


def _phase_figures(plan: Plan) -> Iterator[Figure]:
    """Yield the number of nodes of all phases, and whether the model is a training step.

    If the settings do not tell, it is one if it has nodes of the backward part or of the update. A report
    may lack the phases of nodes.
    """
    report, phase = plan.report, plan.settings.get("phase", "auto")
    if not report.phases:
        return
    main_nodes = sum(len(order.nodes) for order in plan.order if not order.block)
    yield Figure("phases", sorted(report.phases), ["backward", "forward", "update"])
    yield Figure("nodes of all phases", sum(report.phases.values()), main_nodes)
    if phase == "auto":
        trains = report.phases.get("backward") or report.phases.get("update")
        phase = "train" if trains else "test"
    yield Figure("the report's phase", report.phase, phase)


def _count_figures(plan: Plan) -> Iterator[Figure]:
    """Yield the report's numbers of nodes, blocks, placed tensors and reuses.

    They are compared with the plan's order and tensors. The number of intermediates needs the model,
    and is taken from the report.
    """
    report, model = plan.report, plan.report.model
    placed, intermediates = len(plan.tensors), model.intermediates
    yield Figure("nodes", model.nodes, sum(len(order.nodes) for order in plan.order))
    yield Figure("blocks", model.blocks, len(plan.order))
    yield from _phase_figures(plan)
    yield Figure("coverage", report.coverage, placed / intermediates if intermediates else 1.0)
    yield Figure("reuses", report.reuses, placed - _tensors_in_fresh_memory(plan.tensors))
    if not report.donated.pairs:
        yield Figure("donated bytes of no pairs", report.donated.bytes, 0)


def _unplanned_figures(plan: Plan) -> Iterator[Figure]:
    """Yield the tensors that the report lists as unplanned, beside those that the plan's tensors imply.

    A tensor is listed for one of two reasons. It is pinned: it has a place in the plan, but shares no memory.
    Or its size is unknown: it is an intermediate without a place.
    """
    report = plan.report
    listed = {entry.name for entry in report.unplanned}
    listed_with_place = {name for name in listed if name in plan.by_id}
    pinned = {row.id for row in plan.tensors if row.pinned}
    yield Figure(
        "unplanned tensors with memory of their own",
        recorded=sorted(listed_with_place),
        counted=sorted(pinned),
    )
    # Recomputed and chunked copies of a tensor of unknown size are intermediates without a place,
    # but only the tensor itself is listed.
    if not report.recompute.nodes and not report.chunked.regions:
        yield Figure(
            "unplanned tensors without a size",
            recorded=len(listed) - len(listed_with_place),
            counted=report.model.intermediates - len(plan.tensors),
        )


def _tensors_in_fresh_memory(rows: Iterable[Placement]) -> int:
    """Return the number of tensors that reuse no memory.

    They have no bytes, or are the first in their slot, or no byte of them belonged to a tensor with
    an earlier first tick.
    """
    fresh = 0
    used_ranges: defaultdict[int, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    used_slots: set[tuple[int, int]] = set()
    for row in sorted(rows, key=lambda row: (row.first, row.id)):
        if row.slot is not None:
            fresh += (row.arena, row.slot) not in used_slots
            used_slots.add((row.arena, row.slot))
        elif not row.bytes:
            fresh += 1
        else:
            fresh += _add_range(*used_ranges[row.arena], row.offset, row.offset + row.bytes)
    return fresh


def _add_range(starts: list[int], ends: list[int], low: int, high: int) -> bool:
    """Add [low, high) to a set of bytes and return whether none of these bytes was in it.

    The set is a list of disjoint ranges in order, as ``starts`` and ``ends``; both are changed.
    """
    # The ranges at [first, last) overlap the new one.
    first, last = bisect_right(ends, low), bisect_left(starts, high)
    if first == last:
        starts.insert(first, low)
        ends.insert(first, high)
        return True
    starts[first:last] = [min(low, starts[first])]
    ends[first:last] = [max(high, ends[last - 1])]
    return False


def _arena_figures(plan: Plan) -> Iterator[Figure]:
    """Yield the number of arenas, one for each unit, and the slots of each arena, numbered from 0."""
    units = [arena.unit for arena in plan.arenas]
    yield Figure("the number of arenas", recorded=len(units), counted=len(set(units)))
    slots: defaultdict[int, set[int]] = defaultdict(set)
    for row in plan.tensors:
        if row.slot is not None:
            slots[row.arena].add(row.slot)
    for arena in plan.arenas:
        numbers = sorted(slots[arena.id])
        yield Figure(f"slots of arena {arena.id}", numbers, list(range(len(numbers))))


def _bound_figures(plan: Plan) -> Iterator[Figure]:
    """Yield the lower bound of each arena, and of all slots together at levels 0 and 1.

    A model that is left as it is has the bound 0. A report without totals may omit the bound of all slots.
    """
    report = plan.report
    bounds = arena_bounds(plan)
    if _is_left_alone(plan):
        bounds = dict.fromkeys(bounds, 0)
    for arena in plan.arenas:
        name = f"lower_bound of arena {arena.id}"
        yield Figure(name, arena.lower_bound, bounds[arena.id])
    total = add_sums(*({arena.unit: bounds[arena.id]} for arena in plan.arenas))
    if report.level == 2:
        yield Figure("slot_bound", report.slot_bound, None)
    elif report.slot_bound is not None:
        counted = None if is_symbolic(total) else total.get("1", 0)
        yield Figure("slot_bound", report.slot_bound, counted)


def _total_figures(plan: Plan, storages: Sequence[Storage]) -> Iterator[Figure]:
    """Yield each recorded total of tensors and arenas beside its counted value, None if that is unknown.

    A partial report, in which sizes are missing, may have None for all totals.
    """
    report, memory, dims = plan.report, plan.report.memory, report_dims(plan)
    sums, level = total_sums(plan), str(report.level)
    planned = evaluate_sum(sums["planned"], dims)
    figures = [
        Figure("naive", memory.naive, evaluate_sum(sums["naive"], dims)),
        Figure("planned", memory.planned, planned),
        Figure(f"the bytes of level {level}", report.levels[level], planned),
        Figure("total", memory.total, _total(memory, report.donated.bytes)),
    ]
    live = live_bytes_at(plan, storages, dims)
    if live is None:
        figures.append(Figure("live_peak", memory.live_peak, None))
    elif _is_live_peak_countable(plan):
        figures.append(Figure("live_peak", memory.live_peak, peak_bytes(live)))
    omits_totals = report.partial and memory.planned is None
    for figure in figures:
        is_omitted = omits_totals and figure.recorded is None
        if not is_omitted:
            yield figure


def _related_total_figures(plan: Plan) -> Iterator[Figure]:
    """Yield figures that follow from totals of the report or of the plan.

    - Whether the budget of recomputation is met, unless the resident bytes are unknown. No budget counts
      as met.
    - The lower bound of a proved order, which is its live peak; an order that is not proved has another.
    - The planned bytes of a model that is left as it is: nothing is reused, so they are the naive ones.
    """
    report, memory = plan.report, plan.report.memory
    budget, met = report.recompute.budget, report.recompute.met
    if budget is None:
        yield Figure("whether the budget is met", met, True)  # noqa: FBT003 - the counted value
    elif memory.resident is not None:
        yield Figure("whether the budget is met", met, memory.resident <= budget)
    if memory.live_peak is not None:
        if memory.order_proved:
            yield Figure("order_bound of a proved order", memory.order_bound, memory.live_peak)
        else:
            has_proof = memory.order_bound == memory.live_peak
            yield Figure("whether the order is proved", memory.order_proved, has_proof)
    if _is_left_alone(plan):
        sums, dims = total_sums(plan), report_dims(plan)
        yield Figure(
            "planned of a model left as it is",
            evaluate_sum(sums["planned"], dims),
            evaluate_sum(sums["naive"], dims),
        )


def _total(memory: Memory, donated: int) -> int | None:
    """Return the sum of weights, inputs, outputs and planned bytes; None if a part is unknown."""
    if memory.inputs is None or memory.outputs is None or memory.planned is None:
        return None
    return memory.weights + memory.inputs + memory.outputs + memory.planned - donated


def _peak_figures(plan: Plan, storages: Sequence[Storage]) -> Iterator[Figure]:
    """Yield the report's peak as recorded and as counted: its step, and its tensors or their bytes.

    The peak must be None if the live bytes are unknown or 0. Its node is checked by `figures`.
    """
    peak, memory = plan.report.peak, plan.report.memory
    live = live_bytes_at(plan, storages, report_dims(plan))
    if memory.live_peak is None or live is None:
        yield Figure("the peak of bytes that are not known", peak, None)
    elif not _is_live_peak_countable(plan):
        # The tensors of the peak are those of another layout: only their bytes are known.
        size = 0 if peak is None else sum(size for _, size in peak.tensors)
        yield Figure("the bytes of the tensors at the peak", size, memory.live_peak)
    else:
        yield from _storage_peak_figures(plan, storages, live)


def _storage_peak_figures(
    plan: Plan, storages: Sequence[Storage], live: Sequence[LiveBytes]
) -> Iterator[Figure]:
    """Yield the step of the live peak, the first tick with the most live bytes, and its tensors.

    ``live`` has the live bytes of each storage.
    """
    peak = plan.report.peak
    curve = live_curve(live)
    highest = max(curve.values(), default=0)
    if not highest:
        yield Figure("the peak of nothing", peak, None)
        return
    tick = min(tick for tick, size in curve.items() if size == highest)
    yield Figure("peak.step", peak and peak.step, tick)
    if peak is not None:
        tensors = [
            (_latest_tensor(storage, tick), size)
            for storage, (first, end, size) in zip(storages, live, strict=True)
            if first <= tick < end and size
        ]
        yield Figure("peak.tensors", sorted(map(tuple, peak.tensors)), sorted(tensors))


def _latest_tensor(storage: Storage, tick: int) -> str:
    """Return the id of the tensor of a storage that was written last of those live at a tick.

    If none is live, as between two tensors that share bytes, the last id counts.
    """
    live = [row for row in storage.tensors if row.first <= tick < row.last]
    if not live:
        return max(row.id for row in storage.tensors)
    return max(live, key=lambda row: (row.first, row.id)).id


def _expression_figures(plan: Plan, storages: Sequence[Storage]) -> Iterator[Figure]:
    """Yield the expressions of the report, and its numbers with the values of these expressions.

    A report has expressions only if bytes of its tensors depend on a symbol. Missing ones are skipped: the
    module `figures` checks that the report has all it must have.
    """
    symbolic, sums = plan.report.symbolic, total_sums(plan)
    if not is_symbolic(sums["naive"]):
        yield Figure("expressions in symbols, where all are numbers", dict(symbolic), {})
        return
    for name, byte_sum in sums.items():
        if name in symbolic:
            # Equal sums have one canonical text.
            recorded = canonical_dim(symbolic[name])
            yield Figure(f"{name} in symbols", recorded, canonical_expression(byte_sum))
    yield from _total_expression(plan, canonical_expression(sums["planned"]))
    yield from _live_peak_expression(plan, storages)
    yield from _expression_values(plan)


def _total_expression(plan: Plan, planned: int | str) -> Iterator[Figure]:
    """Yield the total in symbols, with the sum of its terms: ``planned``, and others as the report has them.

    With donated inputs the total is less by their bytes, of which the plan has no expression: it is skipped.
    """
    report, symbolic = plan.report, plan.report.symbolic
    if {"inputs", "outputs", "total"} <= symbolic.keys() and not report.donated.pairs:
        parts = f"({symbolic['inputs']}) + ({symbolic['outputs']}) + ({planned})"
        total = canonical_dim(f"{report.memory.weights} + {parts}")
        yield Figure("total in symbols", canonical_dim(symbolic["total"]), total)


def _live_peak_expression(plan: Plan, storages: Sequence[Storage]) -> Iterator[Figure]:
    """Yield values of the live peak in symbols, a maximum over ticks, which has no canonical text."""
    text = plan.report.symbolic.get("live_peak")
    if text is None or not _is_live_peak_countable(plan):
        return
    for dims in sample_dims([arena.unit for arena in plan.arenas]):
        live = live_bytes_at(plan, storages, dims)
        if live is not None:
            yield Figure(
                "live_peak in symbols", evaluate_expression(text, dims), peak_bytes(live)
            )


def _expression_values(plan: Plan) -> Iterator[Figure]:
    """Yield each number that has an expression too, with the value of the expression.

    An expression under a name that no number has is yielded with None as its value, so that it is
    reported as wrong. An expression of a number that the report leaves unknown is skipped.
    """
    report, memory, dims = plan.report, plan.report.memory, report_dims(plan)
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
    for name, text in report.symbolic.items():
        if name not in numbers:
            yield Figure(f"{name[:40]} in symbols", text, None)
            continue
        number = numbers[name]
        if number is not None:
            title = f"the bytes of {name}" if name.startswith("level ") else name
            yield Figure(title, number, evaluate_expression(text, dims))


def _profile_figures(plan: Plan) -> Iterator[Figure]:
    """Yield the recorded total for each other binding of dims, with the sum of its recorded parts.

    The parts are weights, inputs, outputs and planned bytes. Nothing is yielded if inputs are donated:
    a total is then less by the donated bytes, which are not recorded for these bindings.
    """
    if plan.report.donated.pairs:
        return
    for profile in plan.report.profiles:
        dims = ", ".join(f"{name}={value}" for name, value in profile.dims.items())
        sum_of_parts = _total(profile.memory, donated=0)
        yield Figure(f"total at {dims[:120]}", profile.memory.total, sum_of_parts)


def _limits(plan: Plan) -> Iterator[_Limit]:
    """Yield each number of the report that cannot be counted from the plan, and the range in which it must be."""
    report, memory = plan.report, plan.report.memory
    # The most that alignment adds. A setting of a plan file may have any value.
    alignment = plan.settings.get("alignment")
    padding = 0
    if isinstance(alignment, int) and alignment > 0:
        padding = len(plan.tensors) * (alignment - 1)
    # A profile has the same tensors at other sizes, so the same padding at most.
    for profile in report.profiles:
        suffix = f" at {', '.join(map(str, profile.dims.values()))[:120]}"
        yield from _ordered_totals(profile.memory, padding, suffix)
    if memory.inputs is not None and memory.outputs is not None:
        most = min(memory.inputs, memory.outputs)
        yield _Limit("donated bytes", lowest=0, recorded=report.donated.bytes, highest=most)
    if memory.live_peak is None or memory.naive is None or memory.planned is None:
        return
    unshared_peak = _unshared_peak(plan)  # the live peak if no tensors shared bytes
    yield _Limit("live_peak", lowest=0, recorded=memory.live_peak, highest=unshared_peak)
    yield from _ordered_totals(memory, padding, "")
    # A runtime holds the bytes of the live peak at least. Not so at levels 0 and 1, where a view and its base
    # have a slot each: the live peak counts both, and a runtime holds their bytes once.
    least_resident = memory.live_peak if report.level == 2 else 0
    yield from _resident_limit(report, least_resident, unshared_peak)
    yield from _level_limits(report.levels, unshared_peak, memory.naive + padding)


def _resident_limit(
    report: Report, least_intermediates: int, most_intermediates: int
) -> Iterator[_Limit]:
    """Yield the recorded resident bytes and the range in which they must be; nothing if they are unknown.

    Resident bytes are the most bytes of intermediates and outputs that a runtime holds at one tick.
    Those of intermediates alone are between ``least_intermediates`` and ``most_intermediates``.
    """
    memory = report.memory
    if memory.resident is None or memory.outputs is None:
        return
    # All outputs are live at the end, but donated ones are stored in inputs.
    outputs = memory.outputs - report.donated.bytes
    yield _Limit(
        "resident",
        lowest=max(least_intermediates, outputs),
        recorded=memory.resident,
        highest=most_intermediates + outputs,
    )


def _level_limits(
    levels: Mapping[str, int | None], unshared_peak: int, highest: int
) -> Iterator[_Limit]:
    """Yield the range of the planned bytes at each level.

    At levels 0 and 1 a tensor reuses the whole slot of a dead tensor, of the same dtype and shape
    or of the same dtype. At level 2 tensors have offsets, and tensors that are live at the same
    tick can share bytes, as a view and its base. So levels 0 and 1 need ``unshared_peak`` at least,
    and each level needs at most as much as the one below it.

    Args:
        levels: the planned bytes of the levels ``"0"``, ``"1"`` and ``"2"``; None if they are unknown.
        unshared_peak: the most bytes live at one tick if no tensors shared bytes.
        highest: the bytes of all tensors if none shared bytes, which no level exceeds.
    """
    for level in "012":
        size = levels[level]
        if size is not None:
            lowest = 0 if level == "2" else unshared_peak
            yield _Limit(f"the bytes of level {level}", lowest, size, highest)
            highest = size


def _ordered_totals(memory: Memory, padding: int, suffix: str) -> Iterator[_Limit]:
    """Yield the order's bound, the live peak and the planned bytes: each is at most the next one.

    The planned bytes are at most ``naive`` plus the padding for alignment. ``suffix`` is added to
    the names.
    """
    totals = [
        ("order_bound", memory.order_bound),
        ("live_peak", memory.live_peak),
        ("planned", memory.planned),
        ("naive", None if memory.naive is None else memory.naive + padding),
    ]
    known = [(name, size) for name, size in totals if size is not None]
    for (name, size), (_, next_size) in pairwise(known):
        yield _Limit(name + suffix, 0, size, next_size)


def _unshared_peak(plan: Plan) -> int:
    """Return the most bytes live at one tick if no tensors shared bytes. No pool needs less."""
    dims = report_dims(plan)
    factors = {arena.id: evaluate_unit(arena.unit, dims) or 0 for arena in plan.arenas}
    return peak_bytes(
        LiveBytes(row.first, row.last, row.bytes * factors[row.arena]) for row in plan.tensors
    )
