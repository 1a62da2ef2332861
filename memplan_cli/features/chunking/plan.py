"""Compute regions of a program in chunks, before ordering and packing."""

from __future__ import annotations

from itertools import starmap
from typing import TYPE_CHECKING

from memplan_cli.core.binding_options import binding_options, input_shapes
from memplan_cli.core.results.rewrites import (
    ChunkedRegion,
    ChunkingSummary,
    ChunkPoint,
    WholeTensor,
)
from memplan_cli.core.symbolic.dims import parse_dim
from memplan_cli.core.symbolic.polynomials import symbol_names
from memplan_cli.errors import SettingsError
from memplan_cli.planning.rewrites import Chunking

if TYPE_CHECKING:
    from memplan_cli.core.program import Program
    from memplan_cli.core.progress import Progress
    from memplan_cli.features.chunking.anytime import SearchResult
    from memplan_cli.features.chunking.graph import Graph
    from memplan_cli.features.chunking.search import Choice
    from memplan_cli.features.chunking.stage import ChunkPlan
    from memplan_cli.ordering.records import PlannedVars
    from memplan_cli.planning.candidate import Source
    from memplan_cli.settings.settings import Settings


def chunk(
    program: Program,
    planned_vars: PlannedVars,
    settings: Settings,
    source: Source,
    progress: Progress,
) -> Chunking:
    """Rewrite a program so that regions are computed in chunks.

    With a budget, the fastest plan is chosen whose live peak fits it. Without one, it is the plan of the
    least live peak whose run is predicted to take at most 5 % longer.

    Raises:
        SettingsError: a dimension has no single value, the target is cuda, or the model has no nodes.
    """
    from memplan_cli.features.chunking.anytime import search
    from memplan_cli.features.chunking.axes.split import ModelContext
    from memplan_cli.features.chunking.graph import Graph, run_at_first_use

    # It was not measured with which chunks the kernels of cuda keep the bits.
    if settings.target == "cuda":
        raise SettingsError(
            "--chunk auto needs the CPU: only there, the slices give the same bits",
            hint="remove --target or --chunk",
        )
    if not program.body.ops:
        raise SettingsError(
            "--chunk auto finds nothing to compute in chunks: the model has no nodes",
            hint="remove --chunk",
        )
    _require_fixed_sizes(program, planned_vars, settings)
    progress("chunking")
    context = ModelContext(source.constants, source.opset, source.block)
    graph = Graph.of(run_at_first_use(program), context, planned_vars.pinned)
    result = search(graph, planned_vars.resident, settings.budget, settings.time_limit)
    facts, best = _summary(result, graph), result.best
    if not best.choices:
        # The ops of `graph` were moved to their first use, which is only done for chunks.
        return Chunking(program, constants={}, facts=facts)
    return Chunking(best.chunked.program, best.chunked.constants, facts)


def _summary(result: SearchResult, graph: Graph) -> ChunkingSummary:
    """Return the report's record of a result; ``graph`` is the program without chunks."""
    best, bound = result.best, result.bound
    return ChunkingSummary(
        regions=tuple(
            _reported_region(choice, best.stage.original_work) for choice in best.choices
        ),
        nodes=_added_nodes(best, graph),
        flops_increase=best.added_work,
        budget=result.budget,
        met=result.budget is None or best.peak <= result.budget,
        bound=bound.bytes,
        bound_node=bound.op,
        bound_tensors=tuple(starmap(WholeTensor, bound.tensors.items())),
        curve=tuple(
            ChunkPoint(plan.peak, round(plan.time, 4), _added_nodes(plan, graph), plan is best)
            for plan in result.curve
        ),
        ended_early=result.ended_early,
    )


def _added_nodes(plan: ChunkPlan, graph: Graph) -> int:
    return len(plan.chunked.program.body.ops) - len(graph.ops)


def _require_fixed_sizes(
    program: Program, planned_vars: PlannedVars, settings: Settings
) -> None:
    """Refuse a program whose sizes are not all numbers: a chunk is cut at fixed indices.

    Raises:
        SettingsError: naming the dimensions that have bounds or no value.
    """
    symbols = {symbol for size in planned_vars.sizes.values() for symbol in size.symbols}
    free_dims = {name for symbol in symbols for name in symbol_names(parse_dim(symbol))}
    names = sorted({*settings.bounds, *free_dims})
    if not names:
        return
    upper_bounds = {name: limits.high for name, limits in settings.bounds.items()}
    options = binding_options(input_shapes(program), upper_bounds)
    raise SettingsError(
        f"--chunk auto needs one value for each dimension, and these have none or a range: "
        f"{', '.join(names)}",
        hint=f"give each one a number, such as {options}" if options else "remove --chunk",
    )


def _reported_region(choice: Choice, work: int) -> ChunkedRegion:
    """Return the report's record of a region; its added work is a share of the model's ``work``."""
    return ChunkedRegion(
        tensor=choice.region.seed,
        axis=choice.region.axis,
        pieces=choice.count,
        nodes=len(choice.region.splits),
        before=choice.before,
        after=choice.after,
        flops_increase=choice.work / work if work else 0.0,
    )
