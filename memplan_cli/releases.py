"""What can be let go, and after which node? The ancestor's ``release_memory``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.analysis.liveness import deaths
from memplan_cli.plan import Release

if TYPE_CHECKING:
    from collections.abc import Container

    from memplan_cli.ir import Program, VarId


def releases(program: Program, planned: Container[VarId]) -> tuple[Release, ...]:
    """Return, in order of execution, the planned tensors that die after each node."""
    dying: dict[tuple[int, str], list[str]] = {}
    for var, step in deaths(program).items():
        if var in planned:
            dying.setdefault((step.end, step.op.label), []).append(var)
    return tuple(
        Release(tick, node, tuple(sorted(names)))
        for (tick, node), names in sorted(dying.items())
    )
