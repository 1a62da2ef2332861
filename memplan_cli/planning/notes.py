"""Warnings of a plan: settings without effect, and plans that do less than was asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.program import Origin, intermediates, walk
from memplan_cli.core.quantities import format_size
from memplan_cli.core.results.rewrites import (
    ORDER_KEPT,
    PACKING_TIMED_OUT,
    SLOTS_KEPT,
    Fallback,
)
from memplan_cli.core.selection import select
from memplan_cli.core.symbolic.sizes import size_of, symbols_of
from memplan_cli.errors import SettingsError
from memplan_cli.planning.candidate import FILE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from memplan_cli.analysis.phase import Phases
    from memplan_cli.core.program import Program, VarId
    from memplan_cli.planning.allocation import Allocation
    from memplan_cli.planning.candidate import Candidate
    from memplan_cli.settings.settings import Settings


def left_alone(settings: Settings, phases: Phases) -> Iterator[str]:
    """Yield why the model is not planned, if the settings exclude its phase."""
    kind = settings.kind(phases.kind)
    allowed = {
        "train": settings.mem_param.optimize_train,
        "test": settings.mem_param.optimize_test,
    }
    if not allowed[kind]:
        yield f"left as it is: mem_param.optimize_{kind} is false and the phase is {kind}"


def settings_notes(program: Program, settings: Settings) -> Iterator[str]:
    """Yield warnings of settings that have no effect, or another one than may be expected.

    Raises:
        SettingsError: a dim has both a number and bounds.
    """
    yield from _bounds_notes(program, settings)
    yield from _exclusion_notes(program, settings)
    yield from _expose_notes(program, settings)


def _bounds_notes(program: Program, settings: Settings) -> Iterator[str]:
    """Yield for each dim with bounds that sizes are the largest for it, or that no dim has the name.

    Raises:
        SettingsError: a dim has both a number and bounds.
    """
    if not settings.bounds:
        return
    dims = {dim for var in program.vars.values() for dim in var.shape or ()}
    names = {name for dim in dims for name in symbols_of(dim)}
    for name, (low, high, step) in settings.bounds.items():
        if name in settings.dims:
            raise SettingsError(f"dim {name!r} has both a number and bounds")
        if name in names:
            steps = f" in steps of {step}" if step != 1 else ""
            yield f"sizes are the largest for {name} from {low} to {high}{steps}"
        else:
            yield f"the bounds of {name!r} have no effect: the model has no free dim of this name"


def _exclusion_notes(program: Program, settings: Settings) -> Iterator[str]:
    """Yield a warning for each excluded pattern that matches no intermediate."""
    if not settings.excluded:
        return
    planned = frozenset(intermediates(program))
    outputs = frozenset(program.body.outputs)
    for pattern in dict.fromkeys(settings.excluded):
        matches = select(program, (pattern,)).keys()  # not empty: it raises without a match
        if matches & planned:
            continue
        first = next(iter(matches))
        var = program.vars[first]
        if var.origin is Origin.WEIGHT:
            kind = "a weight"
        else:
            kind = "a graph output" if first in outputs else f"a graph {var.origin.value}"
        more = f" and {len(matches) - 1} like it" if len(matches) > 1 else ""
        yield (
            f"excluding {pattern!r} changes nothing: {first!r}{more} is {kind}, which never "
            "shares its memory"
        )


def _expose_notes(program: Program, settings: Settings) -> Iterator[str]:
    """Yield warnings of the setting ``expose``, by which excluded tensors become outputs of the written model.

    They name the tensors that cannot become outputs, and count those that do.
    """
    if not settings.expose:
        return
    if not settings.excluded:
        yield "nothing is excluded, so there is nothing to expose"
    planned = frozenset(intermediates(program))
    count = 0
    for var in select(program, settings.excluded):
        if var not in planned:
            continue
        if program.vars[var].block:  # of a subgraph; the main graph has the path ""
            yield f"{var!r} is inside a subgraph and cannot be exposed as an output"
        else:
            count += 1
    if count:  # the report describes the model as read, in which they are no outputs yet
        change = (
            "1 exposed tensor becomes an output"
            if count == 1
            else f"{count} exposed tensors become outputs"
        )
        yield f"{change} of the written model; here the bytes are in `planned`, not in `outputs`"


def weights_notes(program: Program) -> Iterator[str]:
    """Yield how much larger quantized weights get by DequantizeLinear nodes.

    ONNX Runtime folds such nodes only with an option (docs/measurements).
    """

    def number_of_bytes(variables: Iterable[VarId]) -> int:
        """Return the total bytes of variables; those of unknown size count 0."""
        vars_ = [program.vars[identity] for identity in variables]
        sizes = [size_of(var.shape, var.dtype) for var in vars_]
        return sum(size.coefficient for size in sizes if size is not None and not size.symbols)

    nodes = [
        op
        for _, op in walk(program.body)
        if op.type == "DequantizeLinear" and program.vars[op.inputs[0]].origin is Origin.WEIGHT
    ]
    if nodes:
        quantized = {op.inputs[0] for op in nodes}  # several nodes may read one weight
        before = format_size(number_of_bytes(quantized))
        after = format_size(number_of_bytes(op.outputs[0] for op in nodes))
        yield (
            f"{len(quantized)} weights of {before} are dequantized to {after}: ONNX Runtime does "
            "that in each run, where it does not fuse the node into a kernel of whole "
            "numbers; with session.disable_quant_qdq=1 it folds them into weights of that size"
        )


def budget_notes(candidate: Candidate, allocation: Allocation) -> Iterator[str]:
    """Yield a warning if live bytes fit the budget, but their padded allocation does not."""
    # "1" is the unit of sizes in bytes. Symbolic sizes, in other units, have no budget.
    recompute, planned = candidate.recompute, allocation.heights.get("1", 0)
    if recompute.budget is not None and recompute.met and planned > recompute.budget:
        yield (
            f"the live bytes keep the budget of {recompute.budget} bytes, and the plan takes "
            f"{planned}: offsets are aligned, and slots are reused whole"
        )


def fallbacks(
    candidate: Candidate, allocation: Allocation, settings: Settings
) -> Iterator[Fallback]:
    """Yield where a plan falls back: the file's order, slots at level 2, a search cut short."""
    live_peak = allocation.live_peak
    lowest_peak = min(candidate.peaks.values(), default=live_peak)
    if candidate.order == FILE and lowest_peak < live_peak:
        why = (
            f"another has a live peak of {lowest_peak} bytes, not of {live_peak}, "
            "but takes more"
        )
        yield Fallback(ORDER_KEPT, "the order of the file is kept", why)
    for arena in allocation.arenas:
        unit = "" if arena.unit == "1" else f" of {arena.unit}"
        if settings.level == 2 and arena.slots:
            what = f"the arena{unit} has whole slots, as at level 1"
            yield Fallback(SLOTS_KEPT, what, "packed by offsets, it was taller")
        if arena.timed_out:
            what = f"the arena{unit} takes {arena.layout.height} bytes, over {arena.bound}"
            why = f"the search for a layout ended after {settings.time_limit:g} s"
            yield Fallback(PACKING_TIMED_OUT, what, why)
