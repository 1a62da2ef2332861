"""Where regions go among the ops of a block, and what stands for no node of the file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.analysis.precedence import nearest_order

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan_cli.core.program import Dataflow, Program, VarId
    from memplan_cli.features.chunking.graph import Graph
    from memplan_cli.features.chunking.region import Region

INSERTED = -1
"""The ``source`` of an op that stands for no node of the file."""


def schedule(graph: Graph, regions: Sequence[Region]) -> list[int] | None:
    """Return ops, then regions, by number in an order in which all is made before it is read."""
    ops = range(len(graph.ops))
    place = {
        at: number
        for number, region in enumerate(regions, start=len(ops))
        for at in region.splits
        if at not in region.copied
    }
    after: list[set[int]] = [set() for _ in range(len(ops) + len(regions))]
    for at in ops:
        for above in graph.above(at):
            one, other = place.get(above, above), place.get(at, at)
            if one != other:
                after[one].add(other)
    for number, region in enumerate(regions, start=len(ops)):
        for at in region.copied:
            own = (place.get(above, above) for above in graph.above(at))
            for above in own:
                if above != number:
                    after[above].add(number)
    # A region goes where its first op stood, or as soon after as what it reads is there.
    ranks = [*ops, *(min(set(region.splits) - region.copied) for region in regions)]
    steps = nearest_order([sorted(later) for later in after], ranks.__getitem__)
    if len(steps) < len(after):
        return None
    return [step for step in steps if step not in place]


def made_late(program: Program) -> Program:
    """Return a program whose ops run where they are first read, if that keeps nothing longer.

    A runtime puts first what hangs on inputs alone, and then it is live through every region.
    """
    flow = program.dataflow
    places = [(at, 1, at) for at in range(len(flow.ops))]
    for at in reversed(range(len(flow.ops))):
        op = flow.ops[at]
        read = [consumer for var in op.outputs for consumer in flow.consumers.get(var, ())]
        if read and not op.is_random and not op.bodies:
            first = min(places[consumer] for consumer in read)[0]
            if all(_is_there(flow, var, at, first) for var in flow.reads[at]):
                places[at] = first, 0, at
    ops = tuple(flow.ops[at] for *_, at in sorted(places))
    return program.with_ops(ops)


def _is_there(flow: Dataflow, var: VarId, consumer: int, until: int) -> bool:
    """Whether a var is there at some op without one of its consumers."""
    others = (at for at in flow.consumers[var] if at != consumer)
    return var not in flow.producer or any(at >= until for at in others)
