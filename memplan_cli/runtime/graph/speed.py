"""Whether a graph takes longer as it is written than as the runtime optimises it.

Told by the graphs alone, so that it is the same on every machine and every day. What
optimisation wins is bytes that fused ops no longer move, a call for each op that is gone,
and the blocked layouts of convolutions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.analysis.aliasing import VIEWS
from memplan_cli.analysis.cost import FLOPS_PER_BYTE, op_cost
from memplan_cli.core.program import walk
from memplan_cli.core.symbolic.dims import bind_dim
from memplan_cli.runtime.profile.record import PROFILE
from memplan_cli.runtime.simulate.trace import tensor_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.core.program import Program
    from memplan_cli.runtime.simulate.predict import Executed

SLOWEST = 1.05
"""How much longer a run may take for the sake of memory."""

_CALL = 40_000
"""Work that goes by while a kernel is called, in FLOPs: half a microsecond."""


def is_slower_as_written(
    written: Program, dims: Mapping[str, int], optimised: Executed
) -> bool:
    """Whether running the written graph as it stands is expected to take longer.

    Args:
        written: the graph in the file.
        dims: values for symbolic dims.
        optimised: the runtime's own graph of the same model.
    """
    if any(op.domain == PROFILE.blocked_domain for _, op in walk(optimised.program.body)):
        return True
    moved = _moved(written, dims), _moved(optimised.program, optimised.dims)
    more = FLOPS_PER_BYTE * (moved[0] - moved[1])
    more += _CALL * (_calls(written) - _calls(optimised.program))
    return more > (SLOWEST - 1) * work_of(written, dims)


def _calls(program: Program) -> int:
    return sum(1 for _, op in walk(program.body) if op.type not in VIEWS)


def _moved(program: Program, dims: Mapping[str, int]) -> int:
    """Return the bytes that kernels write, and read again."""
    sizes = tensor_bytes(program, dims)
    written = (
        sum(sizes.get(var, 0) for var in op.outputs)
        for _, op in walk(program.body)
        if op.type not in VIEWS
    )
    return 2 * sum(written)


def work_of(program: Program, dims: Mapping[str, int]) -> int:
    """Return the work of a graph at given dims, in FLOPs."""
    bound = {
        var: facts._replace(shape=tuple(bind_dim(dim, dims) for dim in facts.shape))
        for var, facts in program.vars.items()
        if facts.shape is not None
    }
    every = {**program.vars, **bound}
    return sum(op_cost(op, every).work for op in program.body.ops) + _CALL * _calls(program)
