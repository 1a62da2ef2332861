"""Lower bounds of the memory that a program needs in any order, whatever is recomputed.

The inputs and outputs of an op are live at once, and graph outputs stay live to the end.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memplan_cli.analysis.aliasing import SHARE_VIEWS
from memplan_cli.features.recompute.values import bytes_of, find_values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan_cli.core.program import Op, Program
    from memplan_cli.features.recompute.values import Values
    from memplan_cli.ordering.records import PlannedVars


def step_bytes(program: Program, planned_vars: PlannedVars) -> Sequence[int]:
    """Return for each op of the top block the bytes of the values that it reads and makes.

    These are live at once, whatever the order and the copies, beside all pinned vars. An output
    that may be written over an input counts as if it always were.
    """
    values = find_values(
        program, planned_vars.sizes, planned_vars.pinned, planned_vars.aliasing
    )
    pinned_bytes = sum(
        bytes_of(planned_vars.sizes, var) for var in dict.fromkeys(planned_vars.pinned)
    )
    return [
        pinned_bytes
        + sum(values.sizes[value] for value in _touched_values(values, op, place))
        - _overwritten_bytes(values, op, planned_vars)
        for place, op in enumerate(program.body.ops)
    ]


def resident_bound(program: Program, planned_vars: PlannedVars) -> int:
    """Return a lower bound of intermediates and graph outputs together.

    Only views share bytes. The bound is the largest of three needs, which hold for any order and
    any copies:

    - Each op needs the intermediates that it reads and makes (`step_bytes`).
    - An op that makes graph outputs needs the largest of them besides. The others do not count, as
      copies of the op may make them at other times.
    - When the last graph output is made, all graph outputs are live, and the intermediates that
      its producer reads and makes. Which op is last is not known, so the smallest one counts.

    Args:
        program: the program without copies.
        planned_vars: its `results` are the graph outputs; its `sizes` are the intermediates.
    """
    results = planned_vars.results
    intermediate_bytes = step_bytes(program, replace(planned_vars, aliasing=SHARE_VIEWS))
    all_outputs = 0
    # For each op that makes graph outputs: the bytes of intermediates that are live beside them, and
    # the same with its largest graph output.
    bytes_beside: list[int] = []
    bytes_with_output: list[int] = []
    for op, op_bytes in zip(program.body.ops, intermediate_bytes, strict=True):
        output_sizes = [bytes_of(results, var) for var in op.outputs if var in results]
        if output_sizes and not SHARE_VIEWS.is_view(op):  # a view needs no bytes of its own
            # Intermediates that a subgraph reads may be freed before the outputs are made.
            beside = 0 if op.bodies else op_bytes
            bytes_beside.append(beside)
            bytes_with_output.append(beside + max(output_sizes))
            all_outputs += sum(output_sizes)
    at_last_producer = all_outputs + min(bytes_beside, default=0)
    return max((at_last_producer, *bytes_with_output, *intermediate_bytes))


def _touched_values(values: Values, op: Op, place: int) -> set[int]:
    """Return the values that an op reads and makes, which are live at once.

    For an If only those that it reads: what a branch reads can be gone, or overwritten, by the
    time that the outputs are made.
    """
    runs_one_branch = bool(op.bodies) and not op.repeats
    outputs = () if runs_one_branch else op.outputs
    touched = (*values.dataflow.reads[place], *outputs)
    return {values.value_of[var] for var in touched if var in values.value_of}


def _overwritten_bytes(values: Values, op: Op, planned_vars: PlannedVars) -> int:
    """Return the bytes of an op's first output if it may be written over an input, else 0."""
    if not op.outputs or op.outputs[0] not in values.value_of:
        return 0
    sizes, output = planned_vars.sizes, op.outputs[0]
    is_in_place = any(
        position < len(op.inputs)
        and op.inputs[position] in values.value_of
        and sizes.get(op.inputs[position]) == sizes.get(output)
        for position in planned_vars.aliasing.in_place_inputs(op)
    )
    return bytes_of(sizes, output) if is_in_place else 0
