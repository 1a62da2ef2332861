"""Compute regions of a program in chunks until it fits the budget, before ordering and packing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.binding_options import binding_options, input_shapes
from memplan_cli.core.results.rewrites import ChunkedRegion, ChunkingSummary, WholeTensor
from memplan_cli.core.symbolic.dims import parse_dim
from memplan_cli.core.symbolic.polynomials import symbol_names
from memplan_cli.errors import SettingsError
from memplan_cli.planning.rewrites import Chunking

if TYPE_CHECKING:
    from memplan_cli.core.program import Program
    from memplan_cli.core.progress import Progress
    from memplan_cli.features.chunking.graph import Graph
    from memplan_cli.features.chunking.search import Choice, SearchResult
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
    """Rewrite a program so that regions are computed in chunks until its live peak fits the budget.

    Raises:
        SettingsError: there is no budget, a dimension has no single value, the target is cuda,
            or the model has no nodes.
    """
    from memplan_cli.features.chunking.axes.split import ModelContext
    from memplan_cli.features.chunking.graph import Graph, run_at_first_use

    budget = _budget(settings)
    if not program.body.ops:
        raise SettingsError(
            "--chunk auto finds nothing to compute in chunks: the model has no nodes",
            hint="remove --chunk",
        )
    _require_fixed_sizes(program, planned_vars, settings)
    progress("chunking")
    context = ModelContext(source.constants, source.opset, source.block)
    graph = Graph.of(run_at_first_use(program), context, planned_vars.pinned)
    result, max_bytes = _best_result(graph, planned_vars.resident, budget)
    facts = _summary(result, graph, max_bytes)
    if not result.choices:
        # The ops of `graph` were moved to their first use, which is only done for chunks.
        return Chunking(program, constants={}, facts=facts)
    return Chunking(result.chunked.program, result.chunked.constants, facts)


def _best_result(
    graph: Graph, planned_vars: PlannedVars, budget: float
) -> tuple[SearchResult, int]:
    """Return the best result of all searches, and the budget in bytes.

    - First each region is cut along one axis.
    - If that misses the budget, products get copies of their inputs (`columns`).
    - Without copies, the chunks are cut again if they miss the budget or add much work (`nested`).
    """
    from memplan_cli.features.chunking.columns import search_with_copies
    from memplan_cli.features.chunking.nested import search_nested
    from memplan_cli.features.chunking.search import search

    one_axis = search(graph, planned_vars, budget)
    max_bytes = int(budget * one_axis.before) if isinstance(budget, float) else budget
    if one_axis.peak > max_bytes:
        with_copies = search_with_copies(graph, planned_vars, one_axis, max_bytes)
        if with_copies is not None:
            # Its regions have ops that `graph` does not have, so they cannot be cut again.
            return with_copies, max_bytes
    return search_nested(graph, planned_vars, one_axis, max_bytes), max_bytes


def _summary(result: SearchResult, graph: Graph, max_bytes: int) -> ChunkingSummary:
    """Return the report's record of a result; ``graph`` is the program without chunks."""
    return ChunkingSummary(
        regions=tuple(_reported_region(choice, result) for choice in result.choices),
        nodes=len(result.chunked.program.body.ops) - len(graph.ops),
        flops_increase=result.added_work,
        budget=max_bytes,
        met=result.peak <= max_bytes,
        bound=result.bound.bytes,
        bound_node=result.bound.op,
        bound_tensors=tuple(
            WholeTensor(var, graph.bytes(var)) for var in result.bound.tensors
        ),
    )


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


def _reported_region(choice: Choice, result: SearchResult) -> ChunkedRegion:
    """Return the report's record of a region; its added work is a share of the model's."""
    return ChunkedRegion(
        tensor=choice.region.seed,
        axis=choice.region.axis,
        pieces=choice.count,
        nodes=len(choice.region.splits),
        before=choice.before,
        after=choice.after,
        flops_increase=choice.work / result.work if result.work else 0.0,
    )


def _budget(settings: Settings) -> int | float:
    """Return the budget: bytes, or as a float a share of the live peak.

    Raises:
        SettingsError: there is no budget, or the target is cuda, for whose kernels it was not
            measured which chunks keep the bits.
    """
    if settings.target == "cuda":
        raise SettingsError(
            "--chunk auto needs the CPU: only there, the slices give the same bits",
            hint="remove --target or --chunk",
        )
    if settings.budget is None:
        raise SettingsError("--chunk auto needs a budget", hint="add --budget SIZE or N%")
    return settings.budget
