"""Chunks that are cut again along a second axis.

For small budgets one axis gives many narrow chunks, and each reads all keys and values. Both
of these need the same bytes, but the second is less work:

    96 chunks of [6 heads x 16 rows of scores]
    16 chunks of [6 heads x 94 rows], each in 6 chunks of [1 head x 94 rows]

The result of the search along one axis tells the regions. Here they get fewer chunks, and the
same search runs on the program with these chunks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memplan_cli.features.chunking.graph import Graph
from memplan_cli.features.chunking.search import (
    Search,
    SearchResult,
    search,
    with_new_sizes,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from memplan_cli.features.chunking.search import Choice
    from memplan_cli.ordering.records import PlannedVars

_ACCEPTED_ADDED_WORK = 0.1
"""Share of added work up to which a result that meets the budget is kept."""

_MAX_OUTER_CHUNKS = 8
"""Regions of at most so many chunks keep them."""

_COUNT_DIVISORS = (2, 4, 6, 8)
"""The number of chunks of all other regions is divided by one of these before chunks are cut again."""


def search_nested(
    graph: Graph, planned_vars: PlannedVars, one_axis: SearchResult, budget: int
) -> SearchResult:
    """Return the best of a search result with one axis per region, and of variants that are cut again.

    The fewer outer chunks, the more often each is cut again. What is least work depends on the
    operators, so several numbers are tried.
    """
    is_good_enough = one_axis.peak <= budget and one_axis.added_work <= _ACCEPTED_ADDED_WORK
    if not one_axis.choices or is_good_enough:
        return one_axis
    variants = (
        _cut_again(graph, planned_vars, one_axis, budget, divisor)
        for divisor in _COUNT_DIVISORS
    )
    results = (one_axis, *(variant for variant in variants if variant is not None))
    return min(results, key=lambda result: (max(result.peak, budget), result.added_work))


def _cut_again(
    graph: Graph, planned_vars: PlannedVars, one_axis: SearchResult, budget: int, divisor: int
) -> SearchResult | None:
    """Return a result with fewer chunks, which are cut again.

    The number of chunks of each region is divided by ``divisor``; few chunks stay, as they add little
    work. The result lists the choices of both searches: the regions of ``one_axis`` with fewer
    chunks (the *outer* ones), and regions inside these chunks (the *inner* ones). None if the outer
    chunks cannot be written.
    """
    outer_choices = (
        replace(choice, count=max(choice.count // divisor, 2))
        if choice.count > _MAX_OUTER_CHUNKS
        else choice
        for choice in one_axis.choices
    )
    outer = Search(graph, planned_vars).with_measured_choices(outer_choices)
    if outer is None:
        return None
    program, constants = outer.chunked.program, outer.chunked.constants
    context = replace(graph.context, constants={**graph.context.constants, **constants})
    # Only tensors of chunks may be cut: everything of the original program is kept.
    inner_graph = Graph.of(program, context, graph.kept_vars | frozenset(graph.program.vars))
    sizes = with_new_sizes(program, graph.program, planned_vars.sizes)
    inner = search(inner_graph, replace(planned_vars, sizes=sizes), budget)
    remaining_constants = {
        var: value for var, value in constants.items() if var in inner.chunked.program.vars
    }
    choices = (*outer.choices, *_merge_inner_choices(inner_graph, inner.choices))
    work = sum(choice.work for choice in choices)
    # Of ``one_axis`` stays what is known of the program without chunks: `before`, `work`, `bound`.
    return replace(
        one_axis,
        chunked=replace(
            inner.chunked, constants={**remaining_constants, **inner.chunked.constants}
        ),
        sizes=inner.sizes,
        choices=choices,
        peak=inner.peak,
        added_work=work / one_axis.work if one_axis.work else 0.0,
    )


def _merge_inner_choices(inner_graph: Graph, choices: Iterable[Choice]) -> Iterator[Choice]:
    """Merge the inner choices that cut the chunks of one outer region in the same way, for the report.

    The ops of ``inner_graph`` are those of the outer chunks, and each inner choice cuts ops of one
    outer chunk. If 16 outer chunks are all cut again, there are 16 choices. They have the same
    original nodes (`Op.source`), axis and count, and become one choice. It has the region of the
    first of them, the largest live bytes and the sum of work.
    """
    groups: dict[tuple[object, ...], list[Choice]] = {}
    for choice in choices:
        region = choice.region
        sources = tuple(inner_graph.ops[index].source for index in sorted(region.splits))
        groups.setdefault((sources, region.axis, choice.count), []).append(choice)
    for group in groups.values():
        first = min(group, key=lambda choice: min(choice.region.splits))
        yield replace(
            first,
            before=max(choice.before for choice in group),
            after=max(choice.after for choice in group),
            work=sum(choice.work for choice in group),
        )
