"""An allocator: each buffer goes to the lowest offset that is free during its live range."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import memplan_cli
from memplan_cli.core.problem import Layout, align
from memplan_cli.packing import ALLOCATORS

if TYPE_CHECKING:
    from memplan_cli.core.problem import Buffer, BufferId, Problem

MODEL = Path(__file__).parents[3] / "sample_models" / "train_mlp.onnx"


def longest_first(problem: Problem) -> Layout:
    """Place buffers in order of falling lifetime, each at the lowest free offset."""
    offsets: dict[BufferId, int] = {}
    placed: list[Buffer] = []
    for buffer in sorted(problem.buffers, key=lambda b: (b.live.start - b.live.end, b.id)):
        offset = 0
        for other in sorted(placed, key=lambda b: offsets[b.id]):
            is_apart = (
                other.live.end <= buffer.live.start or buffer.live.end <= other.live.start
            )
            if not is_apart and offsets[other.id] < offset + buffer.size:
                top = align(offsets[other.id] + other.size, problem.alignment)
                offset = max(offset, top)
        offsets[buffer.id] = offset
        placed.append(buffer)
    tops = (offsets[b.id] + align(b.size, problem.alignment) for b in placed)
    return Layout(offsets, max(tops, default=0))


EXTENDED = {**ALLOCATORS, "longest_first": longest_first}


def main() -> None:
    """Plan a model with the new allocator, and with memplan's search."""
    for name in ("longest_first", "portfolio"):
        memory = memplan_cli.plan(MODEL, allocate=EXTENDED[name]).report.memory
        print(f"{name}: {memory.planned} bytes of {memory.naive} without reuse")


if __name__ == "__main__":
    main()
