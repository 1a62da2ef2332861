"""Chunks that are cut again along a second axis.

For small budgets one axis gives many narrow chunks, and each reads all keys and values. Both
of these need the same bytes, but the second is less work:

    96 chunks of [6 heads x 16 rows of scores]
    16 chunks of [6 heads x 94 rows], each in 6 chunks of [1 head x 94 rows]

A plan along one axis tells the regions. Here they get fewer chunks, and the program with these
chunks is the next stage of the search.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memplan_cli.features.chunking.search import Search

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memplan_cli.features.chunking.search import Limit
    from memplan_cli.features.chunking.stage import ChunkPlan, Stage

_MAX_CHEAP_CHUNKS = 8
"""Regions of at most so many chunks keep their number: these chunks add little work."""

_COUNT_DIVISORS = (2, 4, 6, 8)
"""By what the numbers of chunks of all other regions are divided, in one stage each."""


def stages_of_fewer_chunks(plan: ChunkPlan, limit: Limit) -> Iterator[Stage]:
    """Yield stages, that is programs to search further, in which the plan's regions have fewer chunks.

    A later search cuts each of these coarse chunks again. 96 chunks become 48, 24, 16 and 12 in one stage
    each, as the best number depends on the operators; at most 8 chunks keep their number in all stages.
    Stages that cannot be written are left out.
    """

    def fewer(count: int, divisor: int) -> int:
        return count if count <= _MAX_CHEAP_CHUNKS else -(-count // divisor)

    stage = plan.stage
    counts_of_stages = dict.fromkeys(
        tuple(fewer(choice.count, divisor) for choice in plan.state.choices)
        for divisor in _COUNT_DIVISORS
    )
    for counts in filter(None, counts_of_stages):  # there is nothing to cut without regions
        choices = [
            replace(choice, count=count)
            for choice, count in zip(plan.state.choices, counts, strict=True)
        ]
        coarse = Search(stage.graph, stage.planned_vars, limit).with_measured_choices(choices)
        if coarse is not None:
            yield stage.rewritten(
                coarse.chunked.program,
                coarse.chunked.constants,
                # All vars so far are kept whole: only new ones, which are those of the chunks, may be cut.
                kept_vars=stage.graph.kept_vars | frozenset(stage.graph.program.vars),
                added_work=sum(choice.work for choice in coarse.choices),
                choices=coarse.choices,
            )
