"""The plans that a search finds in one program: each needs less memory than the one before.

A *stage* is a program whose regions are searched. The first stage is the model's program. Later
ones are rewritten: with copies of ops (`columns`), or with chunks that are cut again (`nested`).
All plans of all stages are compared with the model's program.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from memplan_cli.features.chunking.graph import Graph
from memplan_cli.features.chunking.search import Search, with_new_sizes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from memplan_cli.core.program import Program, VarId
    from memplan_cli.features.chunking.axes.split import Dims
    from memplan_cli.features.chunking.rewrite import ChunkedProgram
    from memplan_cli.features.chunking.search import Choice, Limit, State
    from memplan_cli.ordering.records import PlannedVars

_NEXT_SHARE = 0.75
"""The next plan is searched with this share of the memory of the one before. All plans down to a
peak then take about as long to find as one that is searched with this peak directly."""

_TIME_PER_WORK = 0.4
"""Longer time of a run for each unit of added work, both as shares of the original's.

The largest ratio of eight models on November 23 was 0.38 (a ViT: 5.3 % more work, 2 % more time);
docs/measurements/chunking.md has larger ones. Slices that are read again are mostly in a cache, but
counted as moved."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A program in which regions are searched.

    Attributes:
        graph: its ops.
        planned_vars: its planned vars.
        original_work: the work of the model's program.
        added_work: the work of this program less that of the model's.
        constants: the values of the weights that the rewritings up to this program added.
        choices: regions of earlier stages, which are in chunks here.
    """

    graph: Graph
    planned_vars: PlannedVars
    original_work: int
    added_work: int = 0
    constants: Mapping[VarId, Dims] = field(default_factory=dict)
    choices: tuple[Choice, ...] = ()

    def rewritten(
        self,
        program: Program,
        constants: Mapping[VarId, Dims],
        kept_vars: Collection[VarId],
        *,
        added_work: int,
        choices: Iterable[Choice] = (),
    ) -> Stage:
        """Return the stage of a program that was made from this one.

        Args:
            program: the rewritten program.
            constants: the values of its new weights.
            kept_vars: vars that must not be cut in it.
            added_work: its work less that of this stage's program.
            choices: the regions that are in chunks in it.
        """
        known_constants = {**self.graph.context.constants, **constants}
        context = replace(self.graph.context, constants=known_constants)
        sizes = with_new_sizes(program, self.graph.program, self.planned_vars.sizes)
        return replace(
            self,
            graph=Graph.of(program, context, kept_vars),
            planned_vars=replace(self.planned_vars, sizes=sizes),
            added_work=self.added_work + added_work,
            constants={**self.constants, **constants},
            choices=(*self.choices, *choices),
        )


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """A program with regions in chunks.

    Attributes:
        stage: the program in which the regions were found.
        state: that program with the regions in chunks.
    """

    stage: Stage
    state: State

    @property
    def chunked(self) -> ChunkedProgram:
        """The program in chunks, with the constants that were added for its chunks or by earlier rewriting."""
        program, chunk_constants = self.state.chunked.program, self.state.chunked.constants
        # A constant is no longer in the program if chunks have replaced all ops that read it.
        stage_constants = {
            var: values for var, values in self.stage.constants.items() if var in program.vars
        }
        return replace(self.state.chunked, constants={**stage_constants, **chunk_constants})

    @property
    def peak(self) -> int:
        """The live peak in bytes."""
        return self.state.peak

    @property
    def choices(self) -> tuple[Choice, ...]:
        """The regions of all stages; equal cuts of the chunks of one region are one choice."""
        outer, own = self.stage.choices, self.state.choices
        return (*outer, *_merged(self.stage.graph, own)) if outer else own

    @property
    def added_work(self) -> float:
        """The added work, as a share of the work of the model's program."""
        work = self.stage.added_work + sum(choice.work for choice in self.state.choices)
        return work / self.stage.original_work if self.stage.original_work else 0.0

    @property
    def time(self) -> float:
        """The predicted time of a run, divided by that of the model's program."""
        return 1 + _TIME_PER_WORK * max(self.added_work, 0.0)


def descend(
    stage: Stage, budget: int, limit: Limit, first_target: int | None = None
) -> Iterator[ChunkPlan]:
    """Yield plans of a program, each with less memory, starting with the program as it is.

    Each plan is searched from the one before, with a smaller target in bytes: it has the regions of the
    plan before, in as many chunks or more, and further ones. Small steps find several small regions, which
    together may need less than the one large region that a search for the budget would take first.

    The plans end when one is within the budget in bytes, when a search finds nothing with less memory,
    or when the limit is reached. ``first_target`` is the target of the first plan with chunks; None:
    `_NEXT_SHARE` of the peak.
    """
    search = Search(stage.graph, stage.planned_vars, limit)
    start = search.write_state(())
    assert start is not None  # noqa: S101 - only regions can keep a program from being written
    state = start
    yield ChunkPlan(stage, start)
    while state.peak > budget and not limit.is_reached:
        target = max(int(_NEXT_SHARE * state.peak), budget)
        if state is start and first_target is not None:
            target = first_target
        lower = search.lower(state, target)
        if lower.peak > target and state is not start:
            # The regions of the plan before may stand in the way: search without them too.
            from_start = search.lower(start, target)
            lower = min(lower, from_start, key=lambda found: found.peak)
        if lower.peak >= state.peak:
            return
        yield ChunkPlan(stage, lower)
        state = lower


def _merged(graph: Graph, choices: Iterable[Choice]) -> Iterator[Choice]:
    """Merge choices that cut the chunks of one region alike, into one choice for the report.

    In ``graph``, a region may already be in 16 chunks. If each of these is cut again, there are 16 choices with
    the same nodes of the model, axis and count.
    """
    groups: dict[tuple[object, ...], list[Choice]] = {}
    for choice in choices:
        region = choice.region
        # The nodes of the model: the same for each of the 16 chunks.
        sources = tuple(graph.ops[index].source for index in sorted(region.splits))
        groups.setdefault((sources, region.axis, choice.count), []).append(choice)
    for group in groups.values():
        first = min(group, key=lambda choice: min(choice.region.splits))  # the first chunk
        # Live bytes do not add up, as one chunk runs after the other.
        yield replace(
            first,
            before=max(choice.before for choice in group),
            after=max(choice.after for choice in group),
            work=sum(choice.work for choice in group),
        )
