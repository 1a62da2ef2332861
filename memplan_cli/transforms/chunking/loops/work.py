"""The modelled work of a program with loops: what a subgraph costs, as often as it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.analysis.cost import KERNEL_LAUNCH, op_cost
from memplan_cli.transforms.chunking.loops.sized import with_numbers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.core.program import Block, Program
    from memplan_cli.transforms.chunking.loops.write import Looped


def work_at(state: Looped, dims: Mapping[str, int]) -> int:
    """Return the work of a program at one size, kernels' launches included."""
    turns = {
        loop_path: dims[count.trips]
        for loop_path, count in zip(state.paths, state.counts, strict=True)
    }
    return _work(with_numbers(state.program, dims), state.program.body, turns)


def _work(program: Program, block: Block, turns: Mapping[str, int]) -> int:
    found = 0
    for op in block.ops:
        if op.bodies:
            found += sum(
                turns.get(body.path, 1) * _work(program, body, turns) for body in op.bodies
            )
        else:
            found += op_cost(op, program.vars).work
        found += KERNEL_LAUNCH
    return found
