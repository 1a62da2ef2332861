"""What can be let go, and after which node? The ancestor's ``release_memory``."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING

from memplan_cli.analysis.liveness import deaths
from memplan_cli.plan import Release

if TYPE_CHECKING:
    from collections.abc import Container

    from memplan_cli.analysis.liveness import Timeline
    from memplan_cli.ir import Op, VarId


def releases(timeline: Timeline, planned: Container[VarId]) -> tuple[Release, ...]:
    """Return, in order of execution, the planned tensors that die after each node."""
    dying: dict[int, tuple[Op, list[str]]] = {}
    for var, (_, end, _, op) in deaths(timeline).items():
        if var not in planned:
            continue
        if end in dying:  # no two ops end at one tick
            dying[end][1].append(var)
        else:
            dying[end] = (op, [var])
    return tuple(
        [
            Release(tick, op.label, tuple(sorted(names) if names[1:] else names))
            for tick, (op, names) in sorted(dying.items(), key=itemgetter(0))
        ]
    )
