"""Lower bounds of the memory that a program needs in any order, whatever is recomputed.

The inputs and outputs of an op are live at once, and graph outputs stay live to the end.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memplan_cli.analysis.aliasing import SHARE_VIEWS
from memplan_cli.features.recompute.values import bytes_of
from memplan_cli.ordering.block_graph import storage_facts
from memplan_cli.ordering.cut_bounds import local_bounds
from memplan_cli.ordering.witnesses import graph_without_subgraphs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan_cli.core.program import Program
    from memplan_cli.ordering.records import PlannedVars


def step_bytes(program: Program, planned_vars: PlannedVars) -> Sequence[int]:
    """Return for each op of the top block the bytes of the values that it reads and makes.

    These values are live at once in any order, also if values are recomputed. All pinned vars count
    for every op. An output that may be written over an input counts as if it always were. Subgraphs
    count as if they needed nothing.
    """
    numbers = {var: bytes_of(planned_vars.sizes, var) for var in planned_vars.sizes}
    facts = storage_facts(program, planned_vars, numbers)
    return local_bounds(graph_without_subgraphs(program.body, facts))


def resident_bound(program: Program, planned_vars: PlannedVars) -> int:
    """Return a lower bound of the peak of intermediates and graph outputs, for any order and with any recomputation.

    The peak is at least each of these numbers of bytes:

    - For each op, the intermediates that it reads and makes (`step_bytes`).
    - For each op that makes graph outputs, its intermediates and the largest of these outputs.
    - All graph outputs, and the intermediates of the op that makes the last of them.

    Args:
        program: the program in which each op runs once.
        planned_vars: its `results` are the graph outputs; its `sizes` are the intermediates.
    """
    results = planned_vars.results
    # This is the peak that a budget limits: views share bytes, and no output is written over an input.
    intermediate_bytes = step_bytes(program, replace(planned_vars, aliasing=SHARE_VIEWS))
    all_outputs = 0
    beside_outputs: list[int] = []  # the intermediates of each op that makes graph outputs
    with_largest_output: list[int] = []  # the same, plus the largest of these outputs
    for op, op_bytes in zip(program.body.ops, intermediate_bytes, strict=True):
        output_sizes = [bytes_of(results, var) for var in op.outputs if var in results]
        # Views need no bytes of their own. Bytes that are left out can only lower the bound, so it stays valid.
        if not output_sizes or SHARE_VIEWS.is_view(op):
            continue
        # A subgraph may free the intermediates that it reads before the outputs are made: none count here.
        op_intermediates = 0 if op.bodies else op_bytes
        beside_outputs.append(op_intermediates)
        # Not all of these outputs: an op that makes a and b may run twice, once for a and once for b.
        with_largest_output.append(op_intermediates + max(output_sizes))
        all_outputs += sum(output_sizes)
    # Which op makes the last output depends on the order, so only the fewest intermediates are certain.
    at_last_output = all_outputs + min(beside_outputs, default=0)
    return max((at_last_output, *with_largest_output, *intermediate_bytes))
