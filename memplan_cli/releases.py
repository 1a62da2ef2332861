"""What can be let go, and after which node? The ancestor's ``release_memory``."""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from memplan_cli.analysis.liveness import deaths
from memplan_cli.plan import Release

if TYPE_CHECKING:
    from collections.abc import Container

    from memplan_cli.analysis.liveness import Timeline
    from memplan_cli.ir import VarId


def releases(timeline: Timeline, planned: Container[VarId]) -> tuple[Release, ...]:
    """Return, in order of execution, the planned tensors that die after each node."""
    last = deaths(timeline)
    # No two ops end at one tick.
    ends = sorted([(step.end, var) for var, step in last.items() if var in planned])
    found = []
    for tick, dying in groupby(ends, itemgetter(0)):
        names = tuple([var for _, var in dying])
        found.append(Release(tick, last[names[0]].op.label, names))
    return tuple(found)
