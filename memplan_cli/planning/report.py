"""The report of a plan: the numbers of the contract, and how certain each one is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.core.program import Origin, VarId, blocks, intermediates
from memplan_cli.core.results.memory import (
    BOUND,
    EXACT,
    OBSERVED,
    PARTIAL,
    UNKNOWN,
    BoundDim,
    Memory,
    weakest,
)
from memplan_cli.core.results.report import InterfaceTensor, ModelSummary, Refusal, Report
from memplan_cli.core.results.rewrites import ChunkingSummary, FoldingSummary
from memplan_cli.core.symbolic.bounds import largest_size
from memplan_cli.core.symbolic.sizes import size_of
from memplan_cli.planning.allocation import Needs
from memplan_cli.planning.totals import (
    by_unit,
    countable,
    expression,
    in_bytes,
    input_bytes,
    live_peak_of,
    live_peak_text,
    number,
    number_at,
    output_bytes,
    peak_of,
    resident_buffers_by_unit,
    summed,
    uncounted,
    weight_bytes,
    weights_are_known,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memplan_cli.analysis.phase import Phases
    from memplan_cli.core.problem import Buffer
    from memplan_cli.core.program import Program
    from memplan_cli.core.results.report import LiveTensor
    from memplan_cli.core.results.rewrites import (
        ConstantTensor,
        Fallback,
        RecomputeSummary,
    )
    from memplan_cli.core.symbolic.sizes import Size
    from memplan_cli.planning.allocation import Allocation, Heights
    from memplan_cli.planning.candidate import Candidate, Source
    from memplan_cli.planning.scope import Scope
    from memplan_cli.planning.totals import ByUnit
    from memplan_cli.settings.settings import Settings

FoldableTensors = Callable[
    ["Program", "Settings", "VarId | None", Sequence["LiveTensor"]],
    tuple["ConstantTensor", ...],
]
"""Which of the tensors live at the peak are constant expressions: `Rewrites.foldable_tensors`."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The planned program and its allocation, which the plan and the report describe.

    Attributes:
        source: What is known of the file beside the program.
        settings: What decided the plan.
        phases: Which ops are forward, backward and update.
        original: The program in the order of the file, constants folded.
        scope: Which variables are planned, pinned or left out.
        candidate: The program in the planned order, and how it was found.
        needs: The sizes and live ranges that were allocated.
        allocation: The planned arenas.
        heights_by_level: The height of each arena by unit, at levels 0, 1 and 2.
        original_allocation: At the level of the settings, in the order of the file.
        warnings: For the user.
        fallbacks: Where the plan is not what the settings ask for first.
        folded: The constants that were computed ahead.
        chunked: The regions that are computed in chunks.
        constants: The values of new weights that chunks read.
    """

    source: Source
    settings: Settings
    phases: Phases
    original: Program
    scope: Scope
    candidate: Candidate
    needs: Needs
    allocation: Allocation
    heights_by_level: tuple[Heights, ...]
    original_allocation: Allocation
    warnings: tuple[str, ...] = ()
    fallbacks: tuple[Fallback, ...] = ()
    folded: FoldingSummary = field(default_factory=FoldingSummary)
    chunked: ChunkingSummary = field(default_factory=ChunkingSummary)
    constants: Mapping[VarId, tuple[int, ...]] = field(default_factory=dict)

    @property
    def program(self) -> Program:
        """The program in the planned order."""
        return self.candidate.program

    @property
    def dims(self) -> Mapping[str, int]:
        """The number of each dim that has one, given or assumed.

        A dim with bounds has none: sizes are already the largest for its bounds.
        """
        assumed = self.settings.inputs.assumed or {}
        bounds = self.settings.bounds
        unbounded = {name: value for name, value in assumed.items() if name not in bounds}
        return {**unbounded, **self.settings.dims}

    @property
    def is_proved(self) -> bool:
        """Whether no order has a lower live peak than the planned one."""
        bound = self.candidate.bound
        return bound is not None and self.allocation.live_peak <= bound


def report_of(decision: Decision, foldable_tensors: FoldableTensors) -> Report:
    """Return the report of a plan, but for ``reuses``, which only the plan's tensors tell.

    If the size of a tensor is unknown and the settings do not allow partial totals, all
    numbers that depend on intermediates are None.
    """
    program, needs, settings = decision.program, decision.needs, decision.settings
    inner = intermediates(program)
    has_unknown_sizes = any(var not in needs.sizes for var in countable(program, inner))
    hides_totals = has_unknown_sizes and not settings.allow_partial
    dims = decision.dims
    peak = peak_of(needs, decision.allocation, dims)
    peak_tensors = peak.tensors if peak else ()
    # Pinned tensors have to be kept, so they are not folded.
    unpinned = [tensor for tensor in peak_tensors if VarId(tensor.name) not in needs.pinned]
    foldable = foldable_tensors(program, settings, decision.phases.loss, unpinned)
    memory = _memory(decision, sum(tensor.bytes for tensor in foldable))
    if hides_totals:
        memory = memory.without_intermediates()
    original = _OriginalNumbers()
    if memory.planned is not None:
        original = _original_numbers(decision, memory)
    is_symbolic = number(by_unit(needs.sizes.values())) is None
    symbolic = _expressions(decision) if is_symbolic and not hides_totals else {}
    refusals = sorted([*decision.scope.unplanned.items(), *needs.pinned.items()])
    return Report(
        model=_model_summary(decision, len(inner)),
        bindings=_bindings(settings),
        phase=settings.kind(decision.phases.kind),
        level=settings.level,
        coverage=len(needs.sizes) / len(inner) if inner else 1.0,
        memory=memory,
        original_live_peak=original.live_peak,
        original_planned=original.planned,
        original_resident=original.resident,
        levels={
            str(level): None if hides_totals else number_at(heights, dims)
            for level, heights in enumerate(decision.heights_by_level)
        },
        slot_bound=None if hides_totals else _slot_bound(decision),
        peak=None if memory.live_peak is None else peak,
        interface=tuple(_interface(decision, memory.weights)),
        foldable=() if memory.live_peak is None else foldable,
        folded=decision.folded,
        chunked=_chunking_summary(decision),
        orders={} if hides_totals else decision.candidate.peaks,
        chosen_order=decision.candidate.order,
        certainty=_certainty(decision, memory, symbolic),
        symbolic=symbolic,
        phases=_ops_by_phase(decision),
        loss=decision.phases.loss,
        target=settings.target,
        recompute=_recompute_summary(decision, memory),
        donated=replace(decision.candidate.donated, bytes=_donated_bytes(decision)),
        unplanned=tuple(Refusal(str(var), reason) for var, reason in refusals),
        fallbacks=decision.fallbacks,
        warnings=(
            *decision.source.warnings,
            *decision.warnings,
            *_uncounted_warnings(program),
        ),
    )


def _memory(decision: Decision, foldable: int) -> Memory:
    """Return the bytes that the planned order needs, in total and in parts.

    A number is None if one of its sizes is symbolic. ``foldable`` is the bytes at the peak that folding of
    constants would save.
    """
    program, sizes, dims = decision.program, decision.needs.sizes, decision.dims
    bounds = decision.settings.bounds
    naive = number_at(by_unit(sizes.values()), dims)  # all intermediates, without reuse
    # If a size in this sum is symbolic, the live peak of the same intermediates is no number either.
    has_numbers = naive is not None
    planned = number_at(decision.allocation.heights, dims)
    inputs = number_at(input_bytes(program, bounds), dims)
    outputs = number_at(output_bytes(program, bounds), dims)
    weights = weight_bytes(program)
    total = None
    if inputs is not None and outputs is not None and planned is not None:
        total = weights + inputs + outputs + planned - _donated_bytes(decision)
    return Memory(
        weights=weights,
        inputs=inputs,
        outputs=outputs,
        naive=naive,
        live_peak=_live_peak(decision.allocation, dims) if has_numbers else None,
        planned=planned,
        total=total,
        order_bound=decision.candidate.bound,  # no order has a lower live peak
        order_proved=decision.is_proved,
        foldable=foldable if has_numbers else None,
        resident=resident_peak(decision, decision.needs),  # the live peak, outputs included
    )


def _interface(decision: Decision, weights: int) -> Iterator[InterfaceTensor]:
    """Yield the inputs and outputs of known size, and the weights that are not small.

    ``weights`` is the sum of all weights, of which a small weight is less than a thousandth.
    """
    program, bounds = decision.program, decision.settings.bounds
    all_vars, outputs = program.vars, dict.fromkeys(program.body.outputs)
    kinds = {
        "input": [all_vars[var] for var in program.body.inputs],
        # An output that is an input or a weight is listed as such.
        "output": [all_vars[var] for var in outputs if all_vars[var].origin is Origin.OP],
        "weight": [var for var in all_vars.values() if var.origin is Origin.WEIGHT],
    }
    for kind, vars_ in kinds.items():
        for var in vars_:
            size = size_of(var.shape, var.dtype)
            if size is None:
                continue
            tensor_bytes = number_at(by_unit([largest_size(size, bounds)]), decision.dims)
            if tensor_bytes is None:  # a dim of the size has no number
                continue
            is_small_weight = kind == "weight" and 1000 * tensor_bytes < weights
            if not is_small_weight:
                yield InterfaceTensor(str(var.id), kind, tensor_bytes)


def _live_peak(allocation: Allocation, dims: Mapping[str, int]) -> int | None:
    """Return the most bytes live at one tick; None if a size has no number."""
    return live_peak_of(in_bytes(allocation.storage.buffers_by_unit, dims))


def resident_peak(decision: Decision, needs: Needs) -> int | None:
    """Return the live peak with outputs counted; None if a size has no number."""
    return live_peak_of(in_bytes(_resident_buffers(decision, needs), decision.dims))


def _resident_buffers(decision: Decision, needs: Needs) -> Mapping[str, tuple[Buffer, ...]]:
    """Return the buffers that a runtime holds in an order, by unit."""
    donated = {output for _, output in decision.candidate.donated.pairs}
    return resident_buffers_by_unit(needs, decision.settings.bounds, donated)


class _OriginalNumbers(NamedTuple):
    """Bytes in the order of the file; None if a size has no number."""

    live_peak: int | None = None
    planned: int | None = None
    resident: int | None = None


def _original_numbers(decision: Decision, memory: Memory) -> _OriginalNumbers:
    """Return the live peak, the planned bytes and the resident peak of the program in the file's order.

    ``memory`` has the numbers of the planned order, which are returned if the order has not changed.
    """
    program, allocation = decision.original, decision.original_allocation
    if decision.candidate.program is program:
        return _OriginalNumbers(memory.live_peak, memory.planned, memory.resident)
    # The sizes in ``decision.needs`` are those of the planned program, which may have copies or
    # chunks of vars. Pinned vars are the same in both programs.
    sizes: dict[VarId, Size] = {}
    for var in allocation.storage.buffer_of:
        size = size_of(program.vars[var].shape, program.vars[var].dtype)
        if size is not None:
            sizes[var] = largest_size(size, decision.settings.bounds)
    needs = Needs(program, sizes, decision.needs.pinned)  # for the program in the file's order
    # Of ``decision``, `resident_peak` uses only dims, bounds and donated outputs, not the program.
    return _OriginalNumbers(
        live_peak=_live_peak(allocation, decision.dims),
        planned=number_at(allocation.heights, decision.dims),
        resident=resident_peak(decision, needs),
    )


def _donated_bytes(decision: Decision) -> int:
    """Return the bytes that donated pairs save in the total; 0 if a size has no number."""
    return number_at(_donated_units(decision), decision.dims) or 0


def _donated_units(decision: Decision) -> ByUnit:
    """Return the bytes of the outputs that take an input's memory, as coefficients by unit."""
    donated = {output for _, output in decision.candidate.donated.pairs}
    vars_ = decision.program.vars
    outputs = [vars_[var] for var in dict.fromkeys(decision.program.body.outputs)]
    sizes = [size_of(var.shape, var.dtype) for var in outputs if var.name in donated]
    bounds = decision.settings.bounds
    return by_unit(largest_size(size, bounds) for size in sizes if size is not None)


def _recompute_summary(decision: Decision, memory: Memory) -> RecomputeSummary:
    """Return which ops run twice, and whether the plan, donations included, fits the budget."""
    facts = decision.candidate.recompute
    if facts.budget is None or memory.resident is None:
        return facts
    return replace(facts, met=memory.resident <= facts.budget)


def _chunking_summary(decision: Decision) -> ChunkingSummary:
    """Return the chunked regions, and whether the planned order fits the budget."""
    facts = decision.chunked
    if facts.budget is None:
        return facts
    resident = resident_peak(decision, decision.needs)
    return replace(facts, met=resident is not None and resident <= facts.budget)


def _slot_bound(decision: Decision) -> int | None:
    """Return a lower bound of the slots' bytes at levels 0 and 1; None if sizes have symbols."""
    if decision.settings.level == 2:
        return None
    bound = number({arena.unit: arena.bound for arena in decision.allocation.arenas})
    return bound or None  # 0 where the model is left as it is


def _expressions(decision: Decision) -> dict[str, str]:
    """Return each number of the report as an expression of symbols, if it has one.

    The total is that of weights, inputs, outputs and the planned arenas. Donated outputs lie in the memory of
    inputs, and are subtracted. The resident peak is that of intermediates and outputs.
    """
    program, bounds = decision.program, decision.settings.bounds
    inputs, outputs = input_bytes(program, bounds), output_bytes(program, bounds)
    planned = decision.allocation.heights
    totals: dict[str, Mapping[str, int] | None] = {
        "inputs": inputs,
        "outputs": outputs,
        "naive": by_unit(decision.needs.sizes.values()),
        "planned": planned,
    }
    if inputs is not None and outputs is not None:
        weights = {"1": weight_bytes(program)}  # "1" is the unit of bytes, which has no symbol
        minus_donated = {unit: -size for unit, size in _donated_units(decision).items()}
        totals["total"] = summed(weights, inputs, outputs, planned, minus_donated)
    expressions = {
        name: expression(total) for name, total in totals.items() if total is not None
    }
    peaks = {"live_peak": live_peak_text(decision.allocation.storage.buffers_by_unit)}
    if outputs is not None:
        peaks["resident"] = live_peak_text(_resident_buffers(decision, decision.needs))
    expressions.update({name: text for name, text in peaks.items() if text is not None})
    for level, heights in enumerate(decision.heights_by_level):
        expressions[f"level {level}"] = expression(heights)
    return expressions


def _bindings(settings: Settings) -> dict[str, BoundDim]:
    """Return each dim that was given or assumed, by name: its number, and the number's origin.

    Sizes with a dim that has bounds do not use its assumed number: they are the largest within the bounds
    (`Decision.dims`). The origin says so.
    """
    provenance = settings.inputs.provenance
    assumed = {
        name: BoundDim(value, "bounds" if name in settings.bounds else "assumed")
        for name, value in (settings.inputs.assumed or {}).items()
    }
    given = {
        name: BoundDim(value, provenance.get(name, "given"))
        for name, value in settings.dims.items()
    }
    return dict(sorted({**assumed, **given}.items()))


def _ops_by_phase(decision: Decision) -> dict[str, int]:
    """Return the number of top-level ops of each phase."""
    counts = {"forward": 0, "backward": 0, "update": 0}
    for op in decision.program.body.ops:
        counts[decision.phases.phase(op)] += 1
    return counts


def _model_summary(decision: Decision, intermediate_count: int) -> ModelSummary:
    """Return the model's file, and how many nodes, blocks and intermediates it has."""
    all_blocks = list(blocks(decision.program.body))
    return ModelSummary(
        path=decision.source.path,
        sha256=decision.source.sha256,
        nodes=sum(len(block.ops) for block in all_blocks),
        blocks=len(all_blocks),
        intermediates=intermediate_count,
        inputs=decision.source.inputs,
    )


def _uncounted_warnings(program: Program) -> Iterator[str]:
    """Yield a warning that names strings, sequences and maps, which are in no total."""
    inner = intermediates(program)
    counted = set(countable(program, inner))
    uncounted_inner = [program.vars[var] for var in inner if var not in counted]
    vars_ = [*uncounted(program), *uncounted_inner]  # first the graph's inputs and outputs
    if vars_:
        names = ", ".join(f"{var.name[:100]!r} ({var.dtype})" for var in vars_[:3])
        more = f" and {len(vars_) - 3} more" if len(vars_) > 3 else ""
        yield f"not counted in any total, as shapes do not determine their bytes: {names}{more}"


def _certainty(
    decision: Decision, memory: Memory, symbolic: Mapping[str, str]
) -> dict[str, str]:
    """Return how certain each number is; the total is as certain as its weakest part.

    Numbers of intermediates are partial if a size is unknown, else bounds if a dim has bounds, else
    observed if sizes come from a run. A number that is None and has no expression is unknown.
    """
    program, sizes = decision.program, decision.needs.sizes
    of_intermediates = EXACT
    if len(sizes) < len(intermediates(program)):
        of_intermediates = PARTIAL
    elif any(size.bound_of for size in sizes.values()):
        of_intermediates = BOUND
    elif decision.source.sizes_observed:
        of_intermediates = OBSERVED
    certainty = {
        "weights": EXACT if weights_are_known(program) else PARTIAL,
        **_interface_certainty(decision),
        **dict.fromkeys(("naive", "live_peak", "planned"), of_intermediates),
    }
    certainty["resident"] = weakest(certainty["outputs"], of_intermediates)
    for name in ("weights", "inputs", "outputs", "naive", "live_peak", "resident", "planned"):
        if getattr(memory, name) is None and name not in symbolic:
            certainty[name] = UNKNOWN
    parts = (certainty[name] for name in ("weights", "inputs", "outputs", "planned"))
    return {**certainty, "total": weakest(*parts)}


def _interface_certainty(decision: Decision) -> dict[str, str]:
    """Return how certain the bytes of the graph's inputs and of its outputs are.

    They are exact; a bound if they depend on dims with bounds; observed at best if a size was observed in
    a run; and partial if one of them is a string, sequence or map, which has no bytes to count.
    """
    program, bounds = decision.program, decision.settings.bounds
    certainty = {}
    for name, bytes_of, vars_ in (
        ("inputs", input_bytes, program.body.inputs),
        ("outputs", output_bytes, program.body.outputs),
    ):
        # Bounds count only if these sizes depend on their dims.
        has_bounds = bytes_of(program, bounds) != bytes_of(program)
        certainty[name] = BOUND if has_bounds else EXACT
        if not decision.source.observed_vars.isdisjoint(vars_):
            certainty[name] = weakest(certainty[name], OBSERVED)
    for var in uncounted(program):
        certainty["inputs" if var.origin is Origin.INPUT else "outputs"] = PARTIAL
    return certainty
