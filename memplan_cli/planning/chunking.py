"""Regions of a program in pieces until it fits the budget, before it is ordered and packed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memplan_cli.core.results.chunks import ChunkedRegion, Chunks, NewWeight, WholeTensor
from memplan_cli.errors import SettingsError
from memplan_cli.planning.terms import terms_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.core.program import Program, VarId
    from memplan_cli.core.progress import Progress
    from memplan_cli.planning.decided import Source
    from memplan_cli.planning.scope import Scope
    from memplan_cli.settings.settings import Settings
    from memplan_cli.transforms.chunking.search import Choice, Found


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
        SettingsError: there is no budget, sizes are no numbers, or the target is another.
    """
    from memplan_cli.transforms.chunking.axes.terms import Facts
    from memplan_cli.transforms.chunking.columns import search_by_columns
    from memplan_cli.transforms.chunking.graph import Graph
    from memplan_cli.transforms.chunking.search import search

    budget = _budget(settings)
    if settings.bounds or any(size.symbols for size in scope.sizes.values()):
        raise SettingsError(
            "--chunk auto needs sizes that are numbers", hint="bind the dims with --dim"
        )
    tell("chunking")
    facts = Facts(source.constants, source.opset, source.block)
    graph = Graph.of(program, facts, scope.pinned)
    terms = terms_of(program, scope, settings).resident
    found = search(graph, terms, budget)
    allowed = int(budget * found.before) if isinstance(budget, float) else budget
    if found.peak > allowed:
        found = search_by_columns(graph, terms, found, allowed)
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
