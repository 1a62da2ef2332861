"""Checks of the numbers in a report that follow from the plan's own tensors, without the model.

They are applied whenever a plan file is read. `figures` checks the numbers that need the model.
Neither shares code with the planner.

Some numbers follow from neither: the bytes of levels that were not planned, the numbers of other
orders and other bindings, and measurements. Most of them have limits, which are checked here.
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
    is_symbolic,
    live_bytes_at,
    live_curve,
    merge_storages,
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


class Comparison(NamedTuple):
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
    yield from mismatches([Comparison("the report's level", level, requested_level)])
    yield from check_slots(plan.tensors, level)
    storages = tensor_storages(plan.tensors)
    comparisons = [
        *_compare_arenas(plan),
        *_compare_bounds(plan),
        *_compare_counts(plan),
        *_compare_unplanned(plan),
        *_compare_totals(plan, storages),
        *_compare_related_totals(plan),
        *_compare_peak(plan, storages),
        *_compare_expressions(plan, storages),
        *_compare_profiles(plan),
    ]
    yield from mismatches(comparisons)
    for name, lowest, recorded, highest in _limits(plan):
        if not lowest <= recorded <= highest:
            yield (
                f"{name} is recorded as {recorded}, and the plan allows {lowest} to {highest}"
            )


def mismatches(comparisons: Iterable[Comparison]) -> Iterator[str]:
    """Yield a sentence for each comparison whose recorded value is not the counted one."""
    for name, recorded, counted in comparisons:
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

    At level 2, tensors that share bytes count once. If the slots of level 1 need fewer bytes than offsets, a plan of
    level 2 has these slots, which do not tell which tensors share bytes.
    """
    return plan.report.level < 2 or all(row.slot is None for row in plan.tensors)


def _compare_phases(plan: Plan) -> Iterator[Comparison]:
    """Compare the phases of a report, if it has them: their names, their nodes, and the model's phase.

    The model's phase is that of the settings. With ``auto`` it is ``train`` if nodes of the main graph belong
    to the backward part or to the update, else ``test``.
    """
    report = plan.report
    if not report.phases:
        return
    main_nodes = sum(len(order.nodes) for order in plan.order if not order.block)
    yield Comparison("phases", sorted(report.phases), ["backward", "forward", "update"])
    yield Comparison("nodes of all phases", sum(report.phases.values()), main_nodes)
    phase = plan.settings.get("phase", "auto")
    if phase == "auto":
        trains = report.phases.get("backward") or report.phases.get("update")
        phase = "train" if trains else "test"
    yield Comparison("the report's phase", report.phase, phase)


def _compare_counts(plan: Plan) -> Iterator[Comparison]:
    """Compare a report's numbers of nodes, blocks, placed tensors and reuses with the plan's order and tensors.

    The number of intermediates needs the model, and is taken from the report.
    """
    report, model = plan.report, plan.report.model
    placed, intermediates = len(plan.tensors), model.intermediates
    yield Comparison("nodes", model.nodes, sum(len(order.nodes) for order in plan.order))
    yield Comparison("blocks", model.blocks, len(plan.order))
    yield from _compare_phases(plan)
    coverage = placed / intermediates if intermediates else 1.0
    yield Comparison("coverage", report.coverage, coverage)
    reuses = placed - _tensors_in_fresh_memory(plan.tensors)
    yield Comparison("reuses", report.reuses, reuses)
    if not report.donated.pairs:
        yield Comparison("donated bytes of no pairs", report.donated.bytes, 0)


def _compare_unplanned(plan: Plan) -> Iterator[Comparison]:
    """Compare the tensors that a report lists as unplanned with those that the plan's tensors imply.

    A tensor is listed for one of two reasons. It is pinned: it has a place in the plan, but shares no memory.
    Or its size is unknown: it is an intermediate of the model without a place.
    """
    report = plan.report
    listed_ids = {entry.name for entry in report.unplanned}  # a name is the id of a tensor
    listed_with_place = {tensor_id for tensor_id in listed_ids if tensor_id in plan.by_id}
    pinned_ids = {row.id for row in plan.tensors if row.pinned}
    yield Comparison(
        "unplanned tensors with memory of their own",
        recorded=sorted(listed_with_place),
        counted=sorted(pinned_ids),
    )
    # Recomputed and chunked copies of a tensor of unknown size are intermediates without a place,
    # but only the tensor itself is listed.
    if not report.recompute.nodes and not report.chunked.regions:
        # All tensors with a place, the pinned ones too, are intermediates.
        intermediates_without_place = report.model.intermediates - len(plan.tensors)
        yield Comparison(
            "unplanned tensors without a size",
            recorded=len(listed_ids) - len(listed_with_place),
            counted=intermediates_without_place,
        )


def _tensors_in_fresh_memory(rows: Iterable[Placement]) -> int:
    """Return the number of tensors that reuse no memory of a tensor with an earlier first tick.

    In a slot the first tensor counts; at an offset, each tensor of which no byte was used before.
    """
    count = 0
    used_slots: set[tuple[int, int]] = set()  # arena and slot
    # The bytes used in each arena: disjoint ranges in order, as a list of starts and a list of ends.
    used_ranges: defaultdict[int, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for row in sorted(rows, key=lambda row: (row.first, row.id)):
        is_fresh = True  # a tensor without bytes
        if row.slot is not None:
            is_fresh = (row.arena, row.slot) not in used_slots
            used_slots.add((row.arena, row.slot))
        elif row.bytes:
            starts, ends = used_ranges[row.arena]
            is_fresh = _add_range(starts, ends, row.offset, row.offset + row.bytes)
        count += is_fresh
    return count


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


def _compare_arenas(plan: Plan) -> Iterator[Comparison]:
    """Compare the arenas with their rule: each has a unit of its own, and its slots are numbered from 0."""
    units = [arena.unit for arena in plan.arenas]
    yield Comparison("the number of arenas", recorded=len(units), counted=len(set(units)))
    slots: defaultdict[int, set[int]] = defaultdict(set)
    for row in plan.tensors:
        if row.slot is not None:
            slots[row.arena].add(row.slot)
    for arena in plan.arenas:
        numbers = sorted(slots[arena.id])
        yield Comparison(f"slots of arena {arena.id}", numbers, list(range(len(numbers))))


def _compare_bounds(plan: Plan) -> Iterator[Comparison]:
    """Compare the lower bound of each arena and, at levels 0 and 1, their sum: the report's ``slot_bound``.

    At these levels an arena consists of slots, each of which is reused whole. A report may omit the sum.
    """
    report = plan.report
    bounds = arena_bounds(plan)
    if _is_left_alone(plan):  # not planned: no bound is computed
        bounds = dict.fromkeys(bounds, 0)
    for arena in plan.arenas:
        name = f"lower_bound of arena {arena.id}"
        yield Comparison(name, arena.lower_bound, bounds[arena.id])
    if report.level == 2:  # without slots
        yield Comparison("slot_bound", report.slot_bound, None)
    elif report.slot_bound is not None:
        bound = add_sums(*({arena.unit: bounds[arena.id]} for arena in plan.arenas))
        # None if the sum has a symbol, as 4 * batch: then any ``slot_bound`` is wrong.
        yield Comparison("slot_bound", report.slot_bound, evaluate_sum(bound, dims={}))


def _compare_totals(plan: Plan, storages: Sequence[Storage]) -> Iterator[Comparison]:
    """Compare the totals of a report with those of the plan's tensors and arenas; None is an unknown total.

    The live peak is left out if it does not follow from the plan's tensors. A partial report, in which sizes
    are missing, may have None for all totals.
    """
    report, memory, dims = plan.report, plan.report.memory, report_dims(plan)
    sums, level = total_sums(plan), str(report.level)
    planned = evaluate_sum(sums["planned"], dims)
    comparisons = [
        Comparison("naive", memory.naive, evaluate_sum(sums["naive"], dims)),
        Comparison("planned", memory.planned, planned),
        Comparison(f"the bytes of level {level}", report.levels[level], planned),
        Comparison("total", memory.total, _total(memory, report.donated.bytes)),
    ]
    live = live_bytes_at(plan, storages, dims)
    if live is None:  # a symbol has no value
        comparisons.append(Comparison("live_peak", memory.live_peak, None))
    elif _is_live_peak_countable(plan):
        comparisons.append(Comparison("live_peak", memory.live_peak, peak_bytes(live)))
    omits_totals = report.partial and memory.planned is None
    for comparison in comparisons:
        is_omitted = omits_totals and comparison.recorded is None
        if not is_omitted:
            yield comparison


def _compare_related_totals(plan: Plan) -> Iterator[Comparison]:
    """Compare three facts of a report with those that follow from its totals.

    - The budget of recomputation is met if the resident bytes are at most the budget, or there is none.
    - The order is proved if its lower bound is its live peak.
    - The planned bytes of a model that is left as it is are the naive ones, because nothing is reused.

    A fact about totals that are unknown is left out.
    """
    report, memory = plan.report, plan.report.memory
    budget, met = report.recompute.budget, report.recompute.met
    if budget is None:
        yield Comparison("whether the budget is met", recorded=met, counted=True)
    elif memory.resident is not None:
        yield Comparison("whether the budget is met", met, memory.resident <= budget)
    if memory.live_peak is not None:
        bound = memory.order_bound
        if memory.order_proved:
            yield Comparison("order_bound of a proved order", bound, memory.live_peak)
        else:
            is_proved = bound == memory.live_peak
            yield Comparison("whether the order is proved", memory.order_proved, is_proved)
    if _is_left_alone(plan):
        sums, dims = total_sums(plan), report_dims(plan)
        planned, naive = (evaluate_sum(sums[name], dims) for name in ("planned", "naive"))
        yield Comparison("planned of a model left as it is", planned, naive)


def _total(memory: Memory, donated: int) -> int | None:
    """Return the sum of weights, inputs, outputs and planned bytes; None if a part is unknown."""
    if memory.inputs is None or memory.outputs is None or memory.planned is None:
        return None
    return memory.weights + memory.inputs + memory.outputs + memory.planned - donated


def _compare_peak(plan: Plan, storages: Sequence[Storage]) -> Iterator[Comparison]:
    """Compare the report's peak, the step with the most live bytes and its tensors, with the plan's tensors."""
    peak, memory = plan.report.peak, plan.report.memory
    live = live_bytes_at(plan, storages, report_dims(plan))
    if memory.live_peak is None or live is None:
        # Sizes are unknown: the report must have no peak.
        yield Comparison("the peak of bytes that are not known", recorded=peak, counted=None)
    elif _is_live_peak_countable(plan):
        yield from _compare_peak_tensors(plan, storages, live)
    else:
        # The peak cannot be counted from the plan. The report must at least agree with itself: the tensors that are live
        # at the peak have the bytes of the live peak.
        sum_of_tensors = 0 if peak is None else sum(size for _, size in peak.tensors)
        name = "the bytes of the tensors at the peak"
        yield Comparison(name, recorded=sum_of_tensors, counted=memory.live_peak)


def _compare_peak_tensors(
    plan: Plan, storages: Sequence[Storage], live: Sequence[LiveBytes]
) -> Iterator[Comparison]:
    """Compare the report's peak with the first tick that has the most live bytes, and with the tensors there.

    If no bytes are live at any tick, the report must have no peak. ``live`` has the live bytes of each storage.
    """
    peak = plan.report.peak
    curve = live_curve(live)
    highest = max(curve.values(), default=0)
    if highest == 0:
        yield Comparison("the peak of nothing", peak, None)
        return
    tick = min(tick for tick, size in curve.items() if size == highest)
    yield Comparison("peak.step", peak and peak.step, tick)
    if peak is not None:
        tensors = [
            (_latest_tensor(storage, tick), size)
            for storage, (first, end, size) in zip(storages, live, strict=True)
            if first <= tick < end and size
        ]
        yield Comparison("peak.tensors", sorted(map(tuple, peak.tensors)), sorted(tensors))


def _latest_tensor(storage: Storage, tick: int) -> str:
    """Return the id of the tensor after which a report names a storage at a tick: of the live ones, the last to start."""
    live = [row for row in storage.tensors if row.first <= tick < row.last]
    if not live:  # between two tensors that share the bytes: reports have the last id by name
        return max(row.id for row in storage.tensors)
    return max(live, key=lambda row: (row.first, row.id)).id


def _compare_expressions(plan: Plan, storages: Sequence[Storage]) -> Iterator[Comparison]:
    """Compare the expressions of a report with counted sums, and its numbers with the values of its expressions.

    If all bytes of the tensors are numbers, the report must have no expressions. Missing expressions are
    skipped: the module `figures` checks that the report has all it must have.
    """
    symbolic, sums = plan.report.symbolic, total_sums(plan)
    if not is_symbolic(sums["naive"]):
        name = "expressions in symbols, where all are numbers"
        yield Comparison(name, recorded=dict(symbolic), counted={})
        return
    for name, byte_sum in sums.items():
        if name in symbolic:
            # Equal sums have one canonical text.
            recorded = canonical_dim(symbolic[name])
            yield Comparison(f"{name} in symbols", recorded, canonical_expression(byte_sum))
    # ``symbolic["total"]`` is the sum of weights, inputs, outputs and the planned bytes.
    yield from _compare_total_expression(plan, canonical_expression(sums["planned"]))
    yield from _compare_live_peak_expression(plan, storages)
    yield from _compare_expression_values(plan)


def _compare_total_expression(plan: Plan, planned: int | str) -> Iterator[Comparison]:
    """Compare the total in symbols with the sum of its terms: ``planned``, and others as the report has them.

    With donated inputs nothing is compared: the total is then less by their bytes, of which the plan has no
    expression.
    """
    report, symbolic = plan.report, plan.report.symbolic
    if {"inputs", "outputs", "total"} <= symbolic.keys() and not report.donated.pairs:
        parts = f"({symbolic['inputs']}) + ({symbolic['outputs']}) + ({planned})"
        total = canonical_dim(f"{report.memory.weights} + {parts}")
        yield Comparison("total in symbols", canonical_dim(symbolic["total"]), total)


def _compare_live_peak_expression(
    plan: Plan, storages: Sequence[Storage]
) -> Iterator[Comparison]:
    """Compare the live peak in symbols by its values at some dims: a maximum over ticks has no canonical text."""
    text = plan.report.symbolic.get("live_peak")
    if text is None or not _is_live_peak_countable(plan):
        return
    # The unit of an arena is a product of symbols, such as ``batch*seq``, to which values are given.
    for dims in sample_dims([arena.unit for arena in plan.arenas]):
        live = live_bytes_at(plan, storages, dims)
        if live is not None:
            recorded = evaluate_expression(text, dims)
            yield Comparison("live_peak in symbols", recorded, peak_bytes(live))


def _compare_expression_values(plan: Plan) -> Iterator[Comparison]:
    """Compare each known number that has an expression too with the value of the expression.

    An expression under a name that no number has is compared with None, so that it is reported as wrong.
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
            yield Comparison(f"{name[:40]} in symbols", text, None)
            continue
        number = numbers[name]
        if number is not None:
            title = f"the bytes of {name}" if name.startswith("level ") else name
            yield Comparison(title, number, evaluate_expression(text, dims))


def _compare_profiles(plan: Plan) -> Iterator[Comparison]:
    """Compare the recorded total for each other binding of dims with the sum of its recorded parts.

    The parts are weights, inputs, outputs and planned bytes. Nothing is compared if inputs are donated:
    a total is then less by the donated bytes, which are not recorded for these bindings.
    """
    if plan.report.donated.pairs:
        return
    for profile in plan.report.profiles:
        dims = ", ".join(f"{name}={value}" for name, value in profile.dims.items())
        sum_of_parts = _total(profile.memory, donated=0)
        yield Comparison(f"total at {dims[:120]}", profile.memory.total, sum_of_parts)


def _limits(plan: Plan) -> Iterator[_Limit]:
    """Yield each number of the report that cannot be counted from the plan, and the range in which it must be.

    The unshared peak is the live peak if no tensors shared bytes, and padding is the most that alignment adds. At the
    *levels* 0 and 1 tensors lie in slots, at level 2 at offsets in an arena::

        order_bound <= live_peak <= planned <= naive + padding      `_limits_of_totals`
        live_peak <= unshared_peak                                  here
        unshared_peak <= level 1 <= level 0 <= naive + padding      `_level_limits`
        0 <= level 2 <= level 1                                     `_level_limits`
        live_peak (level 2) <= resident <= unshared_peak + outputs  `_resident_limit`
        0 <= donated bytes <= inputs, outputs                       here
    """
    report, memory = plan.report, plan.report.memory
    # A setting of a plan file may have any value.
    alignment = plan.settings.get("alignment")
    padding = 0
    if isinstance(alignment, int) and alignment > 0:
        padding = len(plan.tensors) * (alignment - 1)
    # A profile has the same tensors at other sizes, so the same padding at most.
    for profile in report.profiles:
        suffix = f" at {', '.join(map(str, profile.dims.values()))[:120]}"
        yield from _limits_of_totals(profile.memory, padding, suffix)
    if memory.inputs is not None and memory.outputs is not None:
        most = min(memory.inputs, memory.outputs)
        yield _Limit("donated bytes", lowest=0, recorded=report.donated.bytes, highest=most)
    if memory.live_peak is None or memory.naive is None or memory.planned is None:
        return  # the ranges below need these totals
    unshared_peak = _unshared_peak(plan)
    yield _Limit("live_peak", lowest=0, recorded=memory.live_peak, highest=unshared_peak)
    yield from _limits_of_totals(memory, padding, "")
    # In slots, a tensor and its view count twice in the live peak. A runtime holds their bytes once.
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
    """Yield the range in which the planned bytes of each level must be; none for a level of unknown bytes (None).

    ``unshared_peak`` is the most bytes live at one tick, and ``highest`` the bytes of all tensors, if none share bytes.
    """
    for level in "012":
        size = levels[level]
        if size is not None:
            # A slot (level 0: of one dtype and shape; level 1: of one dtype) has one live tensor at a time. At level 2
            # tensors have offsets, and a view can share the bytes of its base.
            lowest = 0 if level == "2" else unshared_peak
            yield _Limit(f"the bytes of level {level}", lowest, size, highest)
            highest = size  # the next level needs at most as much


def _limits_of_totals(memory: Memory, padding: int, suffix: str) -> Iterator[_Limit]:
    """Yield for each known total but the last that it is at most the next known total.

    ``padding`` is the most that alignment adds. ``suffix`` is added to the names.
    """
    totals = [  # each is at most the next; nothing limits the last
        ("order_bound", memory.order_bound),
        ("live_peak", memory.live_peak),
        ("planned", memory.planned),
        ("naive", None if memory.naive is None else memory.naive + padding),
    ]
    known = [(name, size) for name, size in totals if size is not None]
    for (name, size), (_, next_size) in pairwise(known):
        yield _Limit(name + suffix, lowest=0, recorded=size, highest=next_size)


def _unshared_peak(plan: Plan) -> int:
    """Return the most bytes live at one tick if no tensors shared bytes. No pool needs less."""
    storages = merge_storages((row.id, row) for row in plan.tensors)  # one for each tensor
    return peak_bytes(live_bytes_at(plan, storages, report_dims(plan)) or ())
