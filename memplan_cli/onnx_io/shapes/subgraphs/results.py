"""Types of the results of If, Loop and Scan, from those of their subgraphs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.onnx_io.types import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from memplan_cli.core.program import Op, Var, VarId
    from memplan_cli.onnx_io.types import DeclaredType

    Known = Mapping[VarId, Var]


def given_by_bodies(op: Op, known: Known) -> tuple[DeclaredType, ...]:
    """Return what is sure of each result of an op, by its subgraphs; nothing of other ops.

    Subgraphs may run any number of times: a state that may leave as it came is both.
    """
    given = _GIVEN.get(op.type)
    return given(op, known) if given and op.bodies and not op.domain else ()


def _if(op: Op, known: Known) -> tuple[DeclaredType, ...]:
    branches = [[_facts(var, known) for var in body.outputs] for body in op.bodies]
    found = branches[0]
    for other in branches[1:]:
        found = [_common(a, b) for a, b in zip(found, other, strict=False)]
    return tuple(found)


def _loop(op: Op, known: Known) -> tuple[DeclaredType, ...]:
    # The subgraph gives a condition first; the op reads a trip count and one before the states.
    return _states_and_rows(op, known, 1, [_facts(var, known) for var in op.inputs[2:]], ())


def _scan(op: Op, known: Known) -> tuple[DeclaredType, ...]:
    count, axes = op.attributes.get("num_scan_inputs"), op.attributes.get("scan_output_axes")
    if not isinstance(count, int):
        return ()
    states = [_facts(var, known) for var in op.inputs[: len(op.inputs) - count]]
    return _states_and_rows(op, known, 0, states, axes if isinstance(axes, tuple) else ())


def _states_and_rows(
    op: Op, known: Known, skipped: int, states: list[DeclaredType], axes: tuple[object, ...]
) -> tuple[DeclaredType, ...]:
    made = [_facts(var, known) for var in op.bodies[0].outputs[skipped:]]
    rows = made[len(states) :]
    places = [*(axis for axis in axes if isinstance(axis, int)), *[0] * len(rows)]
    return (
        *(_common(a, b) for a, b in zip(states, made, strict=False)),
        *(_stacked(row, axis) for row, axis in zip(rows, places, strict=False)),
    )


def _stacked(row: DeclaredType, axis: int) -> DeclaredType:
    dtype, shape = row
    if shape is None or not -len(shape) - 1 <= axis <= len(shape):
        return dtype, None
    axis %= len(shape) + 1
    return dtype, (*shape[:axis], None, *shape[axis:])


def _common(one: DeclaredType, two: DeclaredType) -> DeclaredType:
    dtype = one[0] if one[0] == two[0] else UNKNOWN[0]
    if one[1] is None or two[1] is None or len(one[1]) != len(two[1]):
        return dtype, None
    return dtype, tuple(a if a == b else None for a, b in zip(one[1], two[1], strict=True))


def _facts(var: VarId, known: Known) -> DeclaredType:
    return (known[var].dtype, known[var].shape) if var else UNKNOWN


_GIVEN: Mapping[str, Callable[[Op, Known], tuple[DeclaredType, ...]]] = {
    "If": _if,
    "Loop": _loop,
    "Scan": _scan,
}
