"""What can be let go, and after which node? The ancestor's ``release_memory``."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from memplan_cli.analysis.liveness import release_ticks
from memplan_cli.core.compact.columns import Columns, Groups, Made, column, numbers
from memplan_cli.core.program import label
from memplan_cli.core.results.placements import Release

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from memplan_cli.analysis.liveness import Timeline
    from memplan_cli.core.program import Op, VarId


def releases(timeline: Timeline, planned: Container[VarId]) -> Sequence[Release]:
    """Return, in order of execution, the planned tensors that die after each node."""
    last = release_ticks(timeline)
    dying = [var for var in last if var in planned]
    dying.sort(key=last.__getitem__)
    ticks = numbers(tick for tick, _ in groupby(dying, last.__getitem__))
    tensors = Groups(sorted(group) for _, group in groupby(dying, last.__getitem__))
    ops = [timeline.ending[tick] for tick in ticks]
    return Columns(Release, ticks, _labels(ops), tensors)


def _labels(ops: Sequence[Op]) -> Sequence[str]:
    """Return the label of each op, made when read where there are no names.

    Of what they are made of alone: a plan must not keep its program.
    """
    names = [op.name for op in ops]
    if all(names):
        return names
    sources = numbers(op.source for op in ops)
    return Made(label, column(names), column([op.type for op in ops]), sources)
