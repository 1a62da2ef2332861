"""Regions of a program in pieces until it fits the budget, before it is ordered and packed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memplan_cli.core.binding_options import bounds_options
from memplan_cli.core.program import walk
from memplan_cli.core.results.chunks import ChunkedRegion, Chunks, NewWeight, WholeTensor
from memplan_cli.core.symbolic.dims import parse_dim
from memplan_cli.core.symbolic.polynomials import names_in
from memplan_cli.errors import SettingsError
from memplan_cli.planning.terms import terms_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.core.program import Program, VarId
    from memplan_cli.core.progress import Progress
    from memplan_cli.planning.decided import Source
    from memplan_cli.planning.scope import Scope
    from memplan_cli.settings.settings import Settings
    from memplan_cli.transforms.chunking.axes.terms import Facts
    from memplan_cli.transforms.chunking.loops.search import Loops
    from memplan_cli.transforms.chunking.search import Found
    from memplan_cli.transforms.chunking.state import Choice

_MANY_NODES = 2000
"""Nodes more than which pieces are loops, where loops meet the budget as well."""

_LEAST_OPSET = 12
"""The opset since which Max and Min are of whole numbers too."""


@dataclass(frozen=True, slots=True)
class Chunking:
    """A program in pieces, the values of its new constants, and what is reported."""

    program: Program
    constants: Mapping[VarId, NewWeight] = field(default_factory=dict)
    facts: Chunks = field(default_factory=Chunks)


def in_pieces(
    program: Program, scope: Scope, settings: Settings, source: Source, tell: Progress
) -> Chunking:
    """Compute regions in pieces until the live peak fits the budget.

    Raises:
        SettingsError: there is no budget, sizes are no numbers, the target is another, or
            there are no nodes.
    """
    from memplan_cli.transforms.chunking.axes.terms import Facts
    from memplan_cli.transforms.chunking.columns import search_by_columns
    from memplan_cli.transforms.chunking.graph import Graph
    from memplan_cli.transforms.chunking.loops.measure import Task
    from memplan_cli.transforms.chunking.loops.search import search_loops
    from memplan_cli.transforms.chunking.nested import search_nested
    from memplan_cli.transforms.chunking.schedule import made_late
    from memplan_cli.transforms.chunking.search import search

    budget = _budget(settings)
    if not program.body.ops:
        raise SettingsError(
            "--chunk auto finds nothing to compute in pieces: the model has no nodes",
            hint="leave --chunk out",
        )
    tell("chunking")
    facts = Facts(source.constants, source.opset, source.block)
    if settings.bounds or any(size.symbols for size in scope.sizes.values()):
        return _in_loops(program, scope, settings, facts, budget)
    graph = Graph.of(made_late(program), facts, scope.pinned)
    terms = terms_of(program, scope, settings).resident
    by_rows = search(graph, terms, budget)
    allowed = int(budget * by_rows.before) if isinstance(budget, float) else budget
    found = by_rows
    if found.peak > allowed:
        found = search_by_columns(graph, terms, found, allowed)
    if found is by_rows:
        found = search_nested(graph, terms, found, allowed)
    many = len(found.chunked.program.body.ops) - len(program.body.ops) > _MANY_NODES
    may_loop = settings.target == "portable" and facts.opset >= _LEAST_OPSET
    if may_loop and (many or found.peak > allowed):
        loops = search_loops(Task(program, facts, frozenset(scope.pinned), {}), allowed)
        if loops.chunked is not None and loops.peak <= allowed:
            return _as_loops(program, loops, allowed)
    return Chunking(
        found.chunked.program if found.choices else program,
        found.chunked.constants,
        Chunks(
            regions=tuple(_told(choice, found) for choice in found.choices),
            nodes=len(found.chunked.program.body.ops) - len(program.body.ops),
            flops_increase=found.extra,
            budget=allowed,
            met=found.peak <= allowed,
            bound=found.bound.bytes,
            bound_node=found.bound.op,
            bound_tensors=tuple(
                WholeTensor(var, graph.bytes(var)) for var in found.bound.tensors
            ),
        ),
    )


def _in_loops(
    program: Program, scope: Scope, settings: Settings, facts: Facts, budget: float
) -> Chunking:
    """Compute regions as loops, whose pieces the graph sizes by each request.

    Raises:
        SettingsError: a dim has no bounds, or the operators are older than loops need.
    """
    from memplan_cli.transforms.chunking.loops.measure import Task
    from memplan_cli.transforms.chunking.loops.search import search_loops

    free = sorted({name for size in scope.sizes.values() for name in size.symbols})
    if free:
        names = sorted({name for unit in free for name in names_in(parse_dim(unit))})
        raise SettingsError(
            f"--chunk auto needs numbers or bounds for the dims: {', '.join(names)}",
            hint=bounds_options(names),
        )
    if facts.opset < _LEAST_OPSET:
        raise SettingsError(
            f"--chunk auto with --bounds writes operators of opset {_LEAST_OPSET}, and the model "
            f"has opset {facts.opset}",
            hint="convert the model, or bind the dims with --dim",
        )
    task = Task(program, facts, frozenset(scope.pinned), settings.bounds)
    found = search_loops(task, budget)
    allowed = int(budget * found.before) if isinstance(budget, float) else budget
    return _as_loops(program, found, allowed)


def _as_loops(program: Program, found: Loops, allowed: int) -> Chunking:
    """Return a program in loops with what is reported of it."""
    made = found.chunked
    return Chunking(
        made.program if made else program,
        made.constants if made else {},
        Chunks(
            regions=tuple(
                ChunkedRegion(
                    each.tensor,
                    each.axis,
                    each.pieces,
                    each.nodes,
                    found.before,
                    each.after,
                    each.extra,
                    each.trips,
                )
                for each in found.told
            ),
            nodes=_nodes(made.program) - _nodes(program) if made else 0,
            flops_increase=sum(each.extra for each in found.told),
            budget=allowed,
            met=found.peak <= allowed,
            bound=found.bound.bytes,
            bound_node=found.bound.op,
            bound_tensors=tuple(
                WholeTensor(var, size) for var, size in found.bound_sizes.items()
            ),
        ),
    )


def _nodes(program: Program) -> int:
    return sum(1 for _ in walk(program.body))


def _told(choice: Choice, found: Found) -> ChunkedRegion:
    return ChunkedRegion(
        choice.region.seed,
        choice.region.axis,
        choice.count,
        len(choice.region.splits),
        choice.before,
        choice.after,
        choice.work / found.work if found.work else 0.0,
    )


def _budget(settings: Settings) -> int | float:
    """Return the budget.

    Raises:
        SettingsError: there is none, or nobody knows which pieces keep bits.
    """
    if settings.target == "cuda":
        raise SettingsError(
            "--chunk auto knows which pieces keep the bits of kernels on CPU alone",
            hint="leave --target or --chunk out",
        )
    if settings.budget is None:
        raise SettingsError("--chunk auto needs a budget", hint="add --budget SIZE or N%")
    return settings.budget
