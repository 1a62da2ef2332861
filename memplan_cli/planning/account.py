"""The report on what was decided: the numbers of the contract, and how certain each is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from memplan_cli.core.program import VarId, blocks, intermediates
from memplan_cli.core.results.memory import BoundDim, Memory
from memplan_cli.core.results.report import ModelFacts, Refusal, Report
from memplan_cli.core.symbolic.bounds import at_most
from memplan_cli.core.symbolic.sizes import size_of
from memplan_cli.planning.certainty import certainty_of
from memplan_cli.planning.maxima import live_peak_text
from memplan_cli.planning.totals import (
    by_unit,
    countable,
    expression,
    in_bytes,
    input_bytes,
    live_peak_of,
    number,
    number_at,
    output_bytes,
    peak_of,
    resident_units,
    summed,
    uncounted,
    weight_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from memplan_cli.core.problem import Buffer
    from memplan_cli.core.program import Program
    from memplan_cli.core.results.report import LiveTensor
    from memplan_cli.core.results.rewrites import Chunks, ConstantTensor, Recompute
    from memplan_cli.planning.choosing.allocation import Allocation, Needs
    from memplan_cli.planning.decided import Decided
    from memplan_cli.planning.totals import ByUnit
    from memplan_cli.settings.settings import Settings


FoldableTensors = Callable[
    ["Program", "Settings", "VarId | None", Sequence["LiveTensor"]],
    tuple["ConstantTensor", ...],
]
"""Which of the tensors live at the peak are constant expressions: `Rewrites.foldable_tensors`."""


def report_of(decided: Decided, reuses: int, foldable_tensors: FoldableTensors) -> Report:
    """Return the report of a plan in which ``reuses`` tensors reuse memory."""
    program, needs = decided.program, decided.needs
    inner = intermediates(program)
    count = len(inner)
    coverage = len(needs.sizes) / count if count else 1.0
    open_sizes = any(var not in needs.sizes for var in countable(program, inner))
    silent = open_sizes and not decided.settings.allow_partial
    dims = _numbers(decided.settings)
    peak = peak_of(needs, decided.allocation, dims)
    at_peak = peak.tensors if peak else ()
    unpinned = [tensor for tensor in at_peak if VarId(tensor.name) not in needs.pinned]
    foldable = foldable_tensors(program, decided.settings, decided.phases.loss, unpinned)
    memory = _memory(decided, sum(tensor.bytes for tensor in foldable))
    if silent:
        memory = Memory(
            weights=memory.weights,
            inputs=memory.inputs,
            outputs=memory.outputs,
            naive=None,
            live_peak=None,
            planned=None,
            total=None,
        )
    before = (None, None, None) if memory.planned is None else _original(decided, memory)
    is_symbolic = number(by_unit(needs.sizes.values())) is None
    symbolic = _expressions(decided) if is_symbolic and not silent else {}
    target = decided.settings.target
    refusals = [*decided.scope.unplanned.items(), *needs.pinned.items()]
    return Report(
        model=_facts(decided, count),
        bindings=_bindings(decided.settings),
        phase=decided.settings.kind(decided.phases.kind),
        level=decided.settings.level,
        coverage=coverage,
        memory=memory,
        original_live_peak=before[0],
        original_planned=before[1],
        original_resident=before[2],
        levels={
            str(level): None if silent else number_at(heights, dims)
            for level, heights in enumerate(decided.levels)
        },
        slot_bound=None if silent else _slot_bound(decided),
        peak=None if memory.live_peak is None else peak,
        foldable=() if memory.live_peak is None else foldable,
        folded=decided.folded,
        chunked=_chunks(decided),
        orders={} if silent else decided.candidate.peaks,
        chosen_order=decided.candidate.order,
        certainty=certainty_of(decided, memory, symbolic),
        symbolic=symbolic,
        phases=_parts(decided),
        loss=decided.phases.loss,
        target=target,
        recompute=_recompute(decided, memory),
        donated=replace(decided.candidate.donated, bytes=_donated_bytes(decided)),
        reuses=reuses,
        unplanned=tuple(Refusal(str(var), reason) for var, reason in sorted(refusals)),
        fallbacks=decided.fallbacks,
        warnings=(*decided.source.warnings, *decided.warnings, *_not_counted(program)),
    )


def _recompute(decided: Decided, memory: Memory) -> Recompute:
    """Return what runs twice, and whether the plan, donations made, fits the budget."""
    found = decided.candidate.recompute
    if found.budget is None or memory.resident is None:
        return found
    return replace(found, met=memory.resident <= found.budget)


def _chunks(decided: Decided) -> Chunks:
    """Return what is in pieces, and whether the plan as it was ordered fits the budget."""
    found = decided.chunked
    if found.budget is None:
        return found
    dims = _numbers(decided.settings)
    resident = live_peak_of(in_bytes(_resident(decided, decided.needs), dims))
    met = resident is not None and resident <= found.budget
    return replace(found, met=met)


def _not_counted(program: Program) -> Iterator[str]:
    """Say which values are in no total: texts, sequences and maps, of which nobody knows the bytes."""
    inner = intermediates(program)
    counted = set(countable(program, inner))
    between = (program.vars[var] for var in inner if var not in counted)
    left = [*uncounted(program), *between]
    if left:
        names = ", ".join(f"{var.name[:100]!r} ({var.dtype})" for var in left[:3])
        more = f" and {len(left) - 3} more" if len(left) > 3 else ""
        yield f"in no total, for nothing says their bytes: {names}{more}"


def _numbers(settings: Settings) -> Mapping[str, int]:
    """Return the number of each dim, those that are assumed included."""
    # What has bounds is at its largest already, or has no number.
    assumed = (settings.inputs.assumed or {}).items()
    return {**{n: v for n, v in assumed if n not in settings.bounds}, **settings.dims}


def _bindings(settings: Settings) -> dict[str, BoundDim]:
    """Return the number of each dim that has one, with who said it."""
    said = settings.inputs.provenance
    assumed = {
        name: BoundDim(value, "assumed")
        for name, value in (settings.inputs.assumed or {}).items()
        if name not in settings.bounds
    }
    found = {
        name: BoundDim(value, said.get(name, "given")) for name, value in settings.dims.items()
    }
    return dict(sorted({**assumed, **found}.items()))


def _parts(decided: Decided) -> dict[str, int]:
    """Count the top-level nodes of each phase."""
    counts = {"forward": 0, "backward": 0, "update": 0}
    for op in decided.program.body.ops:
        counts[decided.phases.part(op)] += 1
    return counts


def _facts(decided: Decided, count: int) -> ModelFacts:
    everything = list(blocks(decided.program.body))
    return ModelFacts(
        path=decided.source.path,
        sha256=decided.source.sha256,
        nodes=sum(len(block.ops) for block in everything),
        blocks=len(everything),
        intermediates=count,
        inputs=decided.source.inputs,
    )


def _memory(decided: Decided, foldable: int) -> Memory:
    program, sizes = decided.program, decided.needs.sizes
    bounds, dims = decided.settings.bounds, _numbers(decided.settings)
    naive = number_at(by_unit(sizes.values()), dims)
    planned = number_at(decided.allocation.heights, dims)
    inputs = number_at(input_bytes(program, bounds), dims)
    outputs = number_at(output_bytes(program, bounds), dims)
    weights = weight_bytes(program)
    total = None
    resident = live_peak_of(in_bytes(_resident(decided, decided.needs), dims))
    if inputs is not None and outputs is not None and planned is not None:
        total = weights + inputs + outputs + planned - _donated_bytes(decided)
    return Memory(
        weights=weights,
        inputs=inputs,
        outputs=outputs,
        naive=naive,
        live_peak=None if naive is None else _live_peak(decided.allocation, dims),
        planned=planned,
        total=total,
        order_bound=decided.candidate.bound,
        order_proved=decided.is_proved,
        foldable=None if naive is None else foldable,
        resident=resident,
    )


def _resident(decided: Decided, needs: Needs) -> Mapping[str, tuple[Buffer, ...]]:
    """Return what a runtime holds in an order, by unit."""
    donated = {made for _, made in decided.candidate.donated.pairs}
    return resident_units(needs, decided.settings.bounds, donated)


def _live_peak(allocation: Allocation, dims: Mapping[str, int]) -> int | None:
    return live_peak_of(in_bytes(allocation.storage[1], dims))


def _donated_bytes(decided: Decided) -> int:
    """Return what the donated pairs save in the total; 0 where that is no number."""
    return number_at(_donated(decided), _numbers(decided.settings)) or 0


def _donated(decided: Decided) -> ByUnit:
    """Return the bytes of outputs that take an input's memory: each pair counts once."""
    given = {made for _, made in decided.candidate.donated.pairs}
    vars_ = decided.program.vars
    made = (vars_[var] for var in dict.fromkeys(decided.program.body.outputs))
    sizes = (size_of(var.shape, var.dtype) for var in made if var.name in given)
    bounds = decided.settings.bounds
    return by_unit(at_most(size, bounds) for size in sizes if size is not None)


def _original(decided: Decided, memory: Memory) -> tuple[int | None, int | None, int | None]:
    """Return live peak, planned and resident bytes of the file's order, at the same level."""
    if decided.candidate.program is decided.original:
        return memory.live_peak, memory.planned, memory.resident
    dims, before = _numbers(decided.settings), decided.before
    resident = None
    if memory.resident is not None:
        needs = _needs_before(decided)
        resident = live_peak_of(in_bytes(_resident(decided, needs), dims))
    return _live_peak(before, dims), number_at(before.heights, dims), resident


def _needs_before(decided: Decided) -> Needs:
    """Return what has to be allocated in the order of the file."""
    program, bounds = decided.original, decided.settings.bounds
    found = {var: program.vars[var] for var in decided.before.storage[0]}
    sizes = {var: size_of(facts.shape, facts.dtype) for var, facts in found.items()}
    known = {var: at_most(size, bounds) for var, size in sizes.items() if size is not None}
    return replace(decided.needs, program=program, sizes=known, measured=None)


def _expressions(decided: Decided) -> dict[str, str]:
    """Return each number of the report as an expression of symbols, where there is one."""
    program, bounds = decided.program, decided.settings.bounds
    inputs, outputs = input_bytes(program, bounds), output_bytes(program, bounds)
    planned = decided.allocation.heights
    totals = {
        "inputs": inputs,
        "outputs": outputs,
        "naive": by_unit(decided.needs.sizes.values()),
        "planned": planned,
    }
    if inputs is not None and outputs is not None:
        weights = {"1": weight_bytes(program)}
        saved = {unit: -size for unit, size in _donated(decided).items()}
        totals["total"] = summed(weights, inputs, outputs, planned, saved)
    found = {name: expression(total) for name, total in totals.items() if total is not None}
    peak = live_peak_text(decided.allocation.storage[1])
    if peak is not None:
        found["live_peak"] = peak
    if outputs is not None:
        buffers = _resident(decided, decided.needs)
        resident = live_peak_text(buffers)
        if resident is not None:
            found["resident"] = resident
    for level, heights in enumerate(decided.levels):
        found[f"level {level}"] = expression(heights)
    return found


def _slot_bound(decided: Decided) -> int | None:
    """Return the bound of whole slots, where the plan is made of them and sizes are numbers."""
    if decided.settings.level == 2:
        return None
    bound = number({arena.unit: arena.bound for arena in decided.allocation.arenas})
    return bound or None  # 0 where the model is left as it is
