"""Checks that the numbers a plan file reports agree with the tensors that it places.

A gate believes what a report says. In a file those numbers stand beside the layout that
they were taken from, and the plan's digest leaves them out, since measurements are added
later: so they are counted again here. `plan_clock` does the same for what happens when.

What only the model can tell is believed: the bytes of weights, inputs, outputs and of what
is donated (up to what there is of inputs and outputs), the bytes of levels that were not
asked for (between their bounds), the peak of the file's own order, and what was measured.
"""

from __future__ import annotations

from itertools import chain, pairwise
from typing import TYPE_CHECKING

from memplan_cli.core.problem import Buffer, BufferId, LiveRange, Problem, lower_bound
from memplan_cli.core.results.in_numbers import in_numbers
from memplan_cli.core.symbolic.bounds import at_most
from memplan_cli.core.symbolic.dims import parse_dim
from memplan_cli.core.symbolic.polynomials import total as added
from memplan_cli.core.symbolic.sizes import size_of
from memplan_cli.errors import PlanError, SettingsError
from memplan_cli.packing.pools.bound import slot_bound
from memplan_cli.packing.pools.pool import KINDS
from memplan_cli.planning.maxima import live_peak_text
from memplan_cli.planning.print_log import is_left_alone, refusals
from memplan_cli.planning.totals import expression, number

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from memplan_cli.core.results.amounts import Memory
    from memplan_cli.core.results.placements import Placement
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.core.results.report import Report
    from memplan_cli.core.symbolic.bounds import Bounds
    from memplan_cli.core.symbolic.sizes import Size

Claim = tuple[str, object, object]
"""The name of a number, what is said of it and the value counted."""


def check_numbers(plan: Plan) -> None:
    """Refuse a plan whose tensors, totals or counts are not what they are said to be.

    Raises:
        PlanError: naming the number, what is said and what was counted.
    """
    _check_sizes(plan)
    totals = chain(_settings(plan), _arenas(plan), _counts(plan), _totals(plan), _rows(plan))
    for name, said, counted in totals:
        if said != counted:
            raise PlanError(f"{name} is said to be {said}, the plan comes to {counted}")
    for name, low, said, high in _limits(plan):
        if not low <= said <= high:
            raise PlanError(
                f"{name} is said to be {said}, and the plan allows {low} to {high}"
            )
    _check_slots(plan)


def counts_shared_bytes(plan: Plan) -> bool:
    """Whether the plan's tensors share bytes as its live peak counts them.

    At level 2 a pool may be the answer, or the model is left as it is: then nothing
    shares, slots are numbered, and the live peak may count views once nevertheless.
    """
    return plan.report.level < 2 or all(tensor.slot is None for tensor in plan.tensors)


def _check_sizes(plan: Plan) -> None:
    units = {arena.id: arena.unit for arena in plan.arenas}
    bounds = _bounds(plan)
    for tensor in plan.tensors:
        size = _size(tensor, bounds)
        unit = size.unit if size.symbols else "1"
        if (size.coefficient, unit) != (tensor.bytes, units[tensor.arena]):
            shape = "x".join(map(str, tensor.shape)) or "scalar"
            said = _formatted(tensor.bytes, units[tensor.arena])
            raise PlanError(
                f"tensor {tensor.id[:120]!r} is said to take {said[:200]} bytes, {shape[:200]} "
                f"of {tensor.dtype[:40]} takes {_formatted(size.coefficient, unit)[:200]}"
            )


def _formatted(coefficient: int, unit: str) -> str:
    return str(coefficient) if unit == "1" else f"{coefficient}*{unit}"


def _size(tensor: Placement, bounds: Bounds) -> Size:
    size = size_of(tensor.shape, tensor.dtype)
    if size is None:
        raise PlanError(f"tensor {tensor.id[:120]!r} is of no type with a size")
    return at_most(size, bounds) if size.symbols else size


def _bounds(plan: Plan) -> Bounds:
    """Return the bounds that the plan's settings say its sizes are the largest of.

    Raises:
        PlanError: they are no bounds.
    """
    from memplan_cli.settings.sources import read_overrides

    said = plan.settings.get("bounds")
    try:
        found = read_overrides({"bounds": said}).values.get("bounds", {})
    except (SettingsError, RecursionError) as error:
        raise PlanError(f"the plan's settings hold no bounds: {str(error)[:200]}") from error
    return found if isinstance(found, dict) else {}


def _settings(plan: Plan) -> Iterator[Claim]:
    """Yield what the settings ask for and the report says was done."""
    report, settings = plan.report, plan.settings
    yield "the report's level", report.level, settings.get("level", report.level)
    asked = settings.get("phase", "auto")
    yield "the report's phase", report.phase, report.phase if asked == "auto" else asked


def _counts(plan: Plan) -> Iterator[Claim]:
    report, model = plan.report, plan.report.model
    placed, count = len(plan.tensors), model.intermediates
    top = sum(len(order.nodes) for order in plan.order if not order.block)
    yield "nodes", model.nodes, sum(len(order.nodes) for order in plan.order)
    yield "blocks", model.blocks, len(plan.order)
    if report.phases:
        yield "nodes of all phases", sum(report.phases.values()), top
    yield "coverage", report.coverage, placed / count if count else 1.0
    yield "reuses", report.reuses, placed - sum(1 for _ in refusals(plan.tensors))
    refused = {refusal.name: refusal.reason for refusal in report.unplanned}
    pinned = {tensor.id: tensor.pinned for tensor in plan.tensors if tensor.pinned}
    told = {name: why for name, why in refused.items() if name in plan.by_id}
    yield "unplanned tensors with memory of their own", sorted(told), sorted(pinned)
    # Copies of what has no size are counted, and are not named again.
    if not report.recompute.nodes and not report.chunked.regions:
        yield "unplanned tensors without a size", len(refused) - len(told), count - placed


def _arenas(plan: Plan) -> Iterator[Claim]:
    units = [arena.unit for arena in plan.arenas]
    yield "the number of arenas", len(units), len(set(units))
    bounds = _least_heights(plan)
    for arena, (problem, _) in zip(plan.arenas, plan.problems, strict=True):
        said, bound = arena.lower_bound, bounds[arena.id]
        if said < bound and not is_left_alone(plan):
            bound = lower_bound(problem)  # of slots too, as files said before `slot_bound`
        yield f"lower_bound of arena {arena.id}", said, bound
    if plan.report.slot_bound is not None:
        by_unit = {arena.unit: bounds[arena.id] for arena in plan.arenas}
        summed = None if plan.report.level == 2 else number(by_unit)
        yield "slot_bound", plan.report.slot_bound, summed


def _least_heights(plan: Plan) -> dict[int, int]:
    """Return what no layout of each arena at the plan's level can go below."""
    if is_left_alone(plan):
        return {arena.id: 0 for arena in plan.arenas}
    if plan.report.level == 2:
        pairs = zip(plan.arenas, plan.problems, strict=True)
        return {arena.id: lower_bound(problem) for arena, (problem, _) in pairs}
    buffers: dict[int, list[Buffer]] = {arena.id: [] for arena in plan.arenas}
    for tensor in plan.tensors:
        live = LiveRange(tensor.first, tensor.last)
        buffers[tensor.arena].append(
            Buffer(BufferId(tensor.id), tensor.bytes, live, tensor.dtype, tensor.shape)
        )
    return {
        arena.id: slot_bound(
            Problem(tuple(buffers[arena.id]), arena.alignment), KINDS[plan.report.level]
        )
        for arena in plan.arenas
    }


def _totals(plan: Plan) -> Iterator[Claim]:
    """Yield every total of the tensors and arenas; None is what is not known.

    Where sizes are missing, a report may be silent on all of them.
    """
    report, memory = plan.report, plan.report.memory
    at = in_numbers(plan) if memory.naive is not None else plan
    heights = by_arena_unit(plan)
    sizes: dict[str, int] = {}
    units = {arena.id: arena.unit for arena in plan.arenas}
    for tensor in plan.tensors:
        unit = units[tensor.arena] if tensor.bytes else "1"
        sizes[unit] = sizes.get(unit, 0) + tensor.bytes
    planned, naive = number(heights), number(sizes)
    if at is not plan:
        planned, naive = at.arenas[0].height, sum(tensor.bytes for tensor in at.tensors)
    level = str(report.level)
    if not report.donated.pairs:
        yield "donated bytes of no pairs", report.donated.bytes, 0
    claims: list[Claim] = [
        ("naive", memory.naive, naive),
        ("planned", memory.planned, planned),
        (f"the bytes of level {level}", report.levels[level], planned),
        ("total", memory.total, _total(memory, report.donated.bytes)),
    ]
    if naive is None:
        claims.append(("live_peak", memory.live_peak, None))
    elif counts_shared_bytes(plan):
        claims.append(("live_peak", memory.live_peak, _live_peak(at)))
    silent = report.partial and memory.planned is None
    yield from (claim for claim in claims if not (silent and claim[1] is None))
    yield from _in_symbols(plan, sizes, heights)
    budget = report.recompute.budget
    if memory.resident is not None and budget is not None:
        yield "whether the budget is met", report.recompute.met, memory.resident <= budget
    if memory.live_peak is not None and memory.order_proved:
        yield "order_bound of a proved order", memory.order_bound, memory.live_peak
    if is_left_alone(plan):
        yield "planned of a model left as it is", planned, naive


def _in_symbols(
    plan: Plan, sizes: Mapping[str, int], heights: Mapping[str, int]
) -> Iterator[Claim]:
    """Yield every expression of a symbolic plan."""
    report, memory, level = plan.report, plan.report.memory, str(plan.report.level)
    counted: dict[str, str | None] = {
        "naive": expression(sizes),
        "planned": expression(heights),
    }
    counted[f"level {level}"] = counted["planned"]
    if counts_shared_bytes(plan) and "live_peak" in report.symbolic:
        counted["live_peak"] = _live_peak_text(plan)
    for name, text in counted.items():
        yield f"{name} in symbols", report.symbolic.get(name, text), text
    if {"inputs", "outputs", "total"} <= report.symbolic.keys() and not report.donated.pairs:
        terms = [parse_dim(report.symbolic[name]) for name in ("inputs", "outputs")]
        terms += [{(): memory.weights}, parse_dim(counted["planned"] or "")]
        yield "total in symbols", parse_dim(report.symbolic["total"]), added(terms)


def by_arena_unit(plan: Plan) -> dict[str, int]:
    """Return the height of the arenas, unit by unit."""
    found: dict[str, int] = {}
    for arena in plan.arenas:
        found[arena.unit] = found.get(arena.unit, 0) + arena.height
    return found


def _total(memory: Memory, donated: int) -> int | None:
    if memory.inputs is None or memory.outputs is None or memory.planned is None:
        return None
    return memory.weights + memory.inputs + memory.outputs + memory.planned - donated


def _rows(plan: Plan) -> Iterator[Claim]:
    """Yield the total of each binding's row; what else it says is another plan's."""
    for row in plan.report.profiles:
        # What donated pairs save there, the file does not say.
        if not plan.report.donated.pairs:
            where = ", ".join(f"{name}={value}" for name, value in row.dims.items())
            yield f"total at {where[:120]}", row.memory.total, _total(row.memory, 0)


def _live_peak(plan: Plan) -> int:
    """Return the most bytes live at one tick, of a plan whose sizes are numbers."""
    return max((lower_bound(Problem(p.buffers)) for p, _ in plan.problems), default=0)


def _live_peak_text(plan: Plan) -> str | None:
    pairs = zip(plan.arenas, plan.problems, strict=True)
    return live_peak_text({arena.unit: problem.buffers for arena, (problem, _) in pairs})


def _limits(plan: Plan) -> Iterator[tuple[str, int, int, int]]:
    """Yield numbers that cannot be counted, with what they are never below or above."""
    report, memory, padding = plan.report, plan.report.memory, _padding(plan)
    for row in report.profiles:
        where = f" at {', '.join(map(str, row.dims.values()))[:120]}"
        yield from _ladder(where, row.memory, padding)
    if memory.inputs is not None and memory.outputs is not None:
        most = min(memory.inputs, memory.outputs)
        yield "donated bytes", 0, report.donated.bytes, most
    if memory.live_peak is None or memory.naive is None or memory.planned is None:
        return
    apart = _apart(in_numbers(plan).tensors)
    yield "live_peak", 0, memory.live_peak, min(apart, memory.planned)
    yield from _ladder("", memory, padding)
    yield from _resident(report, memory, apart)
    levels = [report.levels[level] for level in "210"]
    for name, said in zip("210", levels, strict=True):
        least = 0 if name == "2" else apart
        if said is not None:
            yield f"the bytes of level {name}", least, said, memory.naive + padding
    for (name, low), (_, high) in pairwise(zip("210", levels, strict=True)):
        if low is not None and high is not None:
            yield f"the bytes of level {name}", 0, low, high


def _resident(
    report: Report, memory: Memory, apart: int
) -> Iterator[tuple[str, int, int, int]]:
    """Yield what a runtime holds: only the model knows when outputs begin, and what is a view.

    Below level 2 a view has bytes of its own, which no runtime gives it.
    """
    if memory.resident is None or memory.outputs is None or memory.live_peak is None:
        return
    given = memory.outputs - report.donated.bytes
    least = memory.live_peak if report.level == 2 else 0
    yield "resident", max(least, given), memory.resident, apart + given


def _padding(plan: Plan) -> int:
    """Return the most bytes that an alignment adds which was asked for: none by default."""
    asked = plan.settings.get("alignment")
    return len(plan.tensors) * (asked - 1) if type(asked) is int and asked > 0 else 0


def _ladder(where: str, memory: Memory, padding: int) -> Iterator[tuple[str, int, int, int]]:
    """Yield what is never above the next: order_bound, live_peak, planned, padded naive."""
    apart = None if memory.naive is None else memory.naive + padding
    steps = [("order_bound", memory.order_bound), ("live_peak", memory.live_peak)]
    steps += [("planned", memory.planned), ("naive", apart)]
    known = [(name, size) for name, size in steps if size is not None]
    for (name, low), (_, high) in pairwise(known):
        yield name + where, 0, low, high


def _apart(tensors: Iterable[Placement]) -> int:
    """Return the most bytes live at one tick if nothing shared its bytes: no pool takes less."""
    buffers = [
        Buffer(BufferId(tensor.id), tensor.bytes, LiveRange(tensor.first, tensor.last))
        for tensor in tensors
    ]
    return lower_bound(Problem(tuple(buffers)))


def _check_slots(plan: Plan) -> None:
    """Refuse slots that are not reused as a level says."""
    if plan.report.level == 2 and counts_shared_bytes(plan):
        return
    firsts: dict[tuple[int, int], Placement] = {}
    for tensor in plan.tensors:
        if tensor.slot is None:
            if plan.report.level == 2:
                continue
            raise PlanError(f"tensor {tensor.id[:120]!r} of a pool lies in no slot")
        first = firsts.setdefault((tensor.arena, tensor.slot), tensor)
        same = (first.offset, first.dtype) == (tensor.offset, tensor.dtype)
        if plan.report.level == 0:
            same = same and first.shape == tensor.shape
        if not same:
            raise PlanError(
                f"tensors {first.id[:120]!r} and {tensor.id[:120]!r} cannot have one slot at "
                f"level {plan.report.level}: {tensor.slot}"
            )
