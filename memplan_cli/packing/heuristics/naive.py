"""Allocation without any reuse: the baseline for everything saved."""

from __future__ import annotations

from memplan_cli.core.problem import BufferId, Layout, Problem, align


def naive(problem: Problem) -> Layout:
    """Give every buffer bytes of its own, one above the other."""
    offsets: dict[BufferId, int] = {}
    top = 0
    for buffer in problem.buffers:
        offsets[buffer.id] = top
        top += align(buffer.size, problem.alignment)
    return Layout(offsets, height=top)
