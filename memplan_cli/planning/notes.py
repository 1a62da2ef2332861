"""What a reader must know of settings that do less than they say, or of a plan that does."""

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
    from collections.abc import Iterator

    from memplan_cli.analysis.phase import Phases
    from memplan_cli.core.program import Program, VarId
    from memplan_cli.planning.allocation import Allocation
    from memplan_cli.planning.candidate import Candidate
    from memplan_cli.settings.settings import Settings


def left_alone(settings: Settings, phases: Phases) -> Iterator[str]:
    """Yield why models of this kind are left as they are, if they are."""
    kind = settings.kind(phases.kind)
    allowed = {
        "train": settings.mem_param.optimize_train,
        "test": settings.mem_param.optimize_test,
    }
    if not allowed[kind]:
        yield f"left as it is: mem_param.optimize_{kind} is false and the phase is {kind}"


def settings_notes(program: Program, settings: Settings) -> Iterator[str]:
    """Yield what a reader must know of settings that do less than they say, or nothing.

    Raises:
        SettingsError: a dim has both a number and bounds.
    """
    yield from _bounds_notes(program, settings)
    yield from _idle_exclusions(program, settings)
    yield from _hidden_notes(program, settings)


def _idle_exclusions(program: Program, settings: Settings) -> Iterator[str]:
    """Say which patterns mean only what is never planned: exclusion changes nothing there."""
    if not settings.excluded:
        return
    planned = frozenset(intermediates(program))
    results = frozenset(program.body.outputs)
    for pattern in dict.fromkeys(settings.excluded):
        meant = select(program, (pattern,)).keys()
        if meant & planned:
            continue
        first = next(iter(meant))
        var = program.vars[first]
        kind = "a graph output" if first in results else f"a graph {var.origin.value}"
        what = {Origin.WEIGHT: "a weight"}.get(var.origin, kind)
        more = f" and {len(meant) - 1} like it" if len(meant) > 1 else ""
        yield (
            f"excluding {pattern!r} changes nothing: {first!r}{more} is {what}, which never "
            "shares its memory"
        )


def weights_notes(program: Program) -> Iterator[str]:
    """Say how much larger quantised weights get where nodes dequantise them.

    ONNX Runtime folds such nodes only where its option says so (docs/measurements).
    """
    before: dict[VarId, int] = {}
    after: dict[VarId, int] = {}
    for _, op in walk(program.body):
        if (
            op.type != "DequantizeLinear"
            or program.vars[op.inputs[0]].origin is not Origin.WEIGHT
        ):
            continue
        for table, identity in ((before, op.inputs[0]), (after, op.outputs[0])):
            var = program.vars[identity]
            size = size_of(var.shape, var.dtype)
            table[identity] = 0 if size is None or size.symbols else size.coefficient
    if before:
        small, large = (format_size(sum(table.values())) for table in (before, after))
        yield (
            f"{len(before)} weights of {small} are dequantised to {large}: ONNX Runtime does "
            "that in each run, where it does not fuse the node into a kernel of whole "
            "numbers; with session.disable_quant_qdq=1 it folds them into weights of that size"
        )


def _hidden_notes(program: Program, settings: Settings) -> Iterator[str]:
    """Say which excluded vars cannot become outputs of the graph, or that there are none."""
    if not settings.expose:
        return
    if not settings.excluded:
        yield "nothing is excluded, so there is nothing to expose"
    planned = frozenset(intermediates(program))
    exposed = [var for var in select(program, settings.excluded) if var in planned]
    for identity in exposed:
        if program.vars[identity].block:
            yield f"{identity!r} is inside a subgraph and cannot be exposed as an output"
    count = sum(1 for identity in exposed if not program.vars[identity].block)
    if count:
        what = "1 exposed tensor" if count == 1 else f"{count} exposed tensors"
        yield f"{what} of the written model's outputs: in `planned` here, not in `outputs`"


def _bounds_notes(program: Program, settings: Settings) -> Iterator[str]:
    """Yield what a reader must know of bounds, and which of them bind nothing.

    Raises:
        SettingsError: a dim has both a number and bounds.
    """
    if not settings.bounds:
        return
    dims = {dim for var in program.vars.values() for dim in var.shape or ()}
    names = {name for dim in dims for name in symbols_of(dim)}
    for name, (low, high) in settings.bounds.items():
        if name in settings.dims:
            raise SettingsError(f"dim {name!r} has both a number and bounds")
        if name in names:
            yield f"sizes are the most for {name} from {low} to {high}"
        else:
            yield f"no free dim is called {name!r}: its bounds do nothing"


def plan_notes(candidate: Candidate, allocation: Allocation) -> Iterator[str]:
    """Yield what a reader must know of a plan that keeps less than was asked for."""
    yield from _over_budget(candidate, allocation)


def fallbacks(
    candidate: Candidate, allocation: Allocation, settings: Settings
) -> Iterator[Fallback]:
    """Yield what the plan does otherwise than its level and its search would."""
    yield from _kept_order(candidate, allocation)
    for arena in allocation.arenas:
        of = "" if arena.unit == "1" else f" of {arena.unit}"
        if settings.level == 2 and arena.slots:
            what = f"the arena{of} has whole slots, as at level 1"
            yield Fallback(SLOTS_KEPT, what, "packed by offsets, it was taller")
        if arena.timed_out:
            what = f"the arena{of} takes {arena.layout.height} bytes, over {arena.bound}"
            why = f"the search for a layout ended after {settings.time_limit:g} s"
            yield Fallback(PACKING_TIMED_OUT, what, why)


def _kept_order(candidate: Candidate, allocation: Allocation) -> Iterator[Fallback]:
    """Say where the file's order stays although another one has a lower live peak."""
    live = allocation.live_peak
    least = min(candidate.peaks.values(), default=live)
    if candidate.order == FILE and least < live:
        why = f"another has a live peak of {least} bytes, not of {live}, but takes more"
        yield Fallback(ORDER_KEPT, "the order of the file is kept", why)


def _over_budget(candidate: Candidate, allocation: Allocation) -> Iterator[str]:
    """Say where live bytes keep a budget and their allocation, padded, takes more."""
    recompute, planned = candidate.recompute, allocation.heights.get("1", 0)
    if recompute.budget is not None and recompute.met and planned > recompute.budget:
        yield (
            f"the live bytes keep the budget of {recompute.budget} bytes, and the plan takes "
            f"{planned}: offsets are aligned, and slots are reused whole"
        )
