"""Pieces in pieces again along another axis: products stay wide where the budget is narrow.

    [6 heads x 16 rows of scores]     one axis: 96 pieces, each reads all keys and values
    [1 head x 94 rows of scores]      two axes: 16 pieces of 6, each reads a head of them

Both hold as many bytes. The search of one axis says which regions there are; here they get fewer
pieces, and the same search looks for regions within these.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memplan_cli.core.results.chunks import Cut
from memplan_cli.features.chunking.graph import Graph
from memplan_cli.features.chunking.search import Found, Search, search
from memplan_cli.features.chunking.state import sizes_with

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from memplan_cli.features.chunking.state import Choice
    from memplan_cli.ordering.terms import Terms

_MUCH = 0.1
"""Added work, as a share of the model's, below which one axis is good enough."""

_FEW = 8
"""Pieces that are as wide as they need be."""

_FEWER = (2, 4, 6, 8)
"""How many times fewer pieces regions get before these are cut again."""


def search_nested(graph: Graph, terms: Terms, found: Found, budget: int) -> Found:
    """Return what is found where pieces are cut again, if that is less work or meets a budget.

    Args:
        graph: The program as it is.
        terms: What is planned of it.
        found: What was found along one axis each.
        budget: Bytes.
    """
    if not found.choices or (found.peak <= budget and found.extra <= _MUCH):
        return found
    others = (_nested(graph, terms, found, budget, times) for times in _FEWER)
    return min(
        (found, *filter(None, others)), key=lambda each: (max(each.peak, budget), each.extra)
    )


def _nested(graph: Graph, terms: Terms, found: Found, budget: int, times: int) -> Found | None:
    """Return what is found where regions have so many times fewer pieces, cut again."""
    outer = Search(graph, terms, budget).recounted(
        replace(each, count=max(each.count // times, 2)) if each.count > _FEW else each
        for each in found.choices
    )
    if outer is None:
        return None
    made, program = outer.made, outer.made.program
    numbers = {var: each for var, each in made.constants.items() if not isinstance(each, Cut)}
    facts = replace(graph.facts, constants={**graph.facts.constants, **numbers})
    # What pieces do not make stays as it is, and so does where they are joined.
    inner = Graph.of(program, facts, graph.kept | frozenset(graph.program.vars))
    sizes = sizes_with(program, graph.program, terms.sizes)
    again = search(inner, replace(terms, sizes=sizes), budget)
    if any(isinstance(each, Cut) for each in again.chunked.constants.values()):
        return None
    kept = {
        var: each for var, each in made.constants.items() if var in again.chunked.program.vars
    }
    chunked = replace(again.chunked, constants={**kept, **again.chunked.constants})
    choices = (*outer.choices, *_together(inner, again.choices))
    work = sum(each.work for each in choices)
    return replace(
        found,
        chunked=chunked,
        sizes=again.sizes,
        choices=choices,
        peak=again.peak,
        extra=work / found.work if found.work else 0.0,
    )


def _together(graph: Graph, choices: Iterable[Choice]) -> Iterator[Choice]:
    """Yield what is done to several pieces of a region once, as it is done to the first."""
    alike: dict[tuple[object, ...], list[Choice]] = {}
    for choice in choices:
        region = choice.region
        sources = tuple(graph.ops[at].source for at in sorted(region.splits))
        alike.setdefault((sources, region.axis, choice.count), []).append(choice)
    for group in alike.values():
        first = min(group, key=lambda each: min(each.region.splits))
        yield replace(
            first,
            before=max(each.before for each in group),
            after=max(each.after for each in group),
            work=sum(each.work for each in group),
        )
