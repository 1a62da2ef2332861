"""Estimates of run time from a graph alone, the same on every machine.

Optimisation by the runtime saves the bytes that fused ops do not move, the launch of each removed op,
and, by blocked layouts, time of convolutions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.analysis.cost import FLOPS_PER_BYTE, KERNEL_LAUNCH, node_work
from memplan_cli.core.operators import NCHWC, operator
from memplan_cli.core.program import walk
from memplan_cli.core.symbolic.dims import bind_dim
from memplan_cli.runtime.run.timing import SLOWEST
from memplan_cli.runtime.simulate.trace import tensor_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.core.program import Program
    from memplan_cli.runtime.simulate.predict import ExecutedGraph


def is_slower_as_written(
    written: Program, dims: Mapping[str, int], optimised: ExecutedGraph
) -> bool:
    """Return whether a graph without optimisation is estimated to run over 5 % longer than with it.

    Args:
        written: the graph in the file.
        dims: values of symbolic dims.
        optimised: the runtime's own graph of the same model.
    """
    if any(op.domain == NCHWC for _, op in walk(optimised.program.body)):
        return True
    moved = _moved_bytes(written, dims) - _moved_bytes(optimised.program, optimised.dims)
    launches = _count_ops(written) - _count_ops(optimised.program)
    additional_work = FLOPS_PER_BYTE * moved + KERNEL_LAUNCH * launches
    return additional_work > (SLOWEST - 1) * work_of(written, dims)


def work_of(program: Program, dims: Mapping[str, int]) -> int:
    """Return the estimated time of a graph at these dims, in floating-point operations."""
    bound = {
        var: facts._replace(shape=tuple(bind_dim(dim, dims) for dim in facts.shape))
        for var, facts in program.vars.items()
        if facts.shape is not None
    }
    variables = {**program.vars, **bound}
    return sum(node_work(op, variables) for op in program.body.ops)


def _count_ops(program: Program) -> int:
    return sum(1 for _ in walk(program.body))


def _moved_bytes(program: Program, dims: Mapping[str, int]) -> int:
    """Return the bytes that kernels move: each tensor is written once and read once, views not at all."""
    sizes = tensor_bytes(program, dims)
    written = (
        sum(sizes.get(var, 0) for var in op.outputs)
        for _, op in walk(program.body)
        if not operator(op).is_view
    )
    return 2 * sum(written)
