"""Small values and types that come out of If, Loop and Scan.

A branch that is known to be taken is followed alone; of two, what both give is known. A Loop or
Scan that is known to turn so often is followed turn by turn, another one until a turn gives no
other value than it was given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memplan_cli.onnx_io.protobuf import messages
from memplan_cli.onnx_io.shapes.lattice import slice_of, stack_of, widened, with_shape
from memplan_cli.onnx_io.shapes.symbolic.values import (
    BOOL,
    INT64,
    Value,
    int_attribute,
    ints_attribute,
)
from memplan_cli.onnx_io.traversal import subgraphs

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto, TypeProto

    from memplan_cli.core.program import Dim, Shape
    from memplan_cli.onnx_io.shapes.symbolic.elements import Element
    from memplan_cli.onnx_io.shapes.symbolic.values import Values

MOST_TURNS = 64
"""Turns that are followed one by one."""

_ROUNDS = 8
"""Turns after which a value that still changes is not known."""


class Known(NamedTuple):
    """What is known of one value: its type, which may say nothing, and its elements."""

    kind: TypeProto
    value: Value | None = None


Follow = Callable[["GraphProto", Sequence[Known]], list[Known]]
"""From a subgraph, and what its inputs are, to what its outputs are."""


def type_of(element: int, shape: Shape | None) -> TypeProto:
    """Return a tensor type."""
    kind: TypeProto = messages().TypeProto()
    kind.tensor_type.elem_type = element
    return with_shape(kind, shape)


def common(one: Known, other: Known) -> Known:
    """Return what holds of a value that is one of two."""
    kind = widened(one.kind, other.kind)
    a, b = one.value, other.value
    if a is None or b is None or a.kind != b.kind or a.array.shape != b.array.shape:
        return Known(kind)
    both = np.empty(a.array.shape, dtype=object)
    both[...] = np.frompyfunc(_alike, 2, 1)(a.objects(), b.objects())
    return Known(kind, Value(both, a.kind).settled())


def _alike(one: Element, other: Element) -> Element:
    return one if one == other else None


def _known(values: Values, name: str) -> Known:
    kind = values.types.get(name)
    return Known(messages().TypeProto() if kind is None else kind, values.of(name))


def _number(value: Value | None) -> int | None:
    """Return the one number that a value is."""
    if value is None or not value.is_known or value.array.size != 1:
        return None
    return int(value.array.reshape(())[()])


def _if(values: Values, node: NodeProto, follow: Follow) -> list[Known]:
    condition = _number(values.value(node, 0))
    taken = "then_branch" if condition else "else_branch"
    branches = [g for name, g in subgraphs(node) if condition is None or name == taken]
    results = [follow(branch, ()) for branch in branches]
    first = results[0]
    for other in results[1:]:
        first = [common(a, b) for a, b in zip(first, other, strict=False)]
    return first


def _loop(values: Values, node: NodeProto, follow: Follow) -> list[Known]:
    ((_, body),) = subgraphs(node)
    start = state = [_known(values, name) for name in node.input[2:]]
    given = [bool(name) for name in node.input[:2]]
    count, begins = (
        _number(values.value(node, at)) if there else None for at, there in enumerate(given)
    )
    is_counted = count is not None or not given[0]
    if not is_counted or (given[1] and begins is None):
        return _settled(body, state, follow)
    turns, goes, rows = 0, begins is None or bool(begins), list[list[Known]]()
    while goes and (count is None or turns < count):
        if turns == MOST_TURNS:
            return _settled(body, start, follow)
        lead = [_scalar(turns, INT64), _scalar(1, BOOL)]
        on, *made = follow(body, [*lead, *state])
        goes_on = _number(on.value)
        if goes_on is None:
            return _settled(body, start, follow)
        state, turns, goes = made[: len(state)], turns + 1, bool(goes_on)
        rows.append(made[len(state) :])
    if not rows:  # what is stacked has the type of no turn
        return state
    return [*state, *(_stacked(row, 0) for row in zip(*rows, strict=True))]


def _scalar(number: Element, kind: int) -> Known:
    array = np.empty((), dtype=object)
    array[()] = number
    return Known(type_of(kind, ()), Value(array, kind).settled())


def _settled(body: GraphProto, start: list[Known], follow: Follow) -> list[Known]:
    """Return what a Loop gives that turns any number of times: what every turn leaves alone."""
    lead, state = [_scalar(None, INT64), _scalar(1, BOOL)], start
    for _ in range(_ROUNDS):
        _, *made = follow(body, [*lead, *state])
        wide = [common(a, b) for a, b in zip(state, made, strict=False)]
        if _is_same(wide, state):
            rows = [Known(stack_of(row.kind, 0, None)) for row in made[len(state) :]]
            return [*state, *rows]
        state = wide
    return []


def _is_same(one: Sequence[Known], other: Sequence[Known]) -> bool:
    return all(
        a.kind == b.kind
        and (a.value is None) == (b.value is None)
        and (a.value is None or b.value is None or a.value.elements == b.value.elements)
        for a, b in zip(one, other, strict=True)
    )


def _stacked(rows: Sequence[Known], axis: int) -> Known:
    kind = rows[0].kind
    for row in rows[1:]:
        kind = widened(kind, row.kind)
    kind = stack_of(kind, axis, len(rows))
    made = [row.value for row in rows if row.value is not None]
    if len(made) < len(rows) or len({value.array.shape for value in made}) > 1:
        return Known(kind)
    array = np.stack([value.objects() for value in made], axis)
    return Known(kind, Value(array, made[0].kind).settled())


def _scan(values: Values, node: NodeProto, follow: Follow) -> list[Known]:
    ((_, body),) = subgraphs(node)
    count = int_attribute(node, "num_scan_inputs", 0)
    states = len(node.input) - count
    backward = any(
        any(ints_attribute(node, f"scan_{side}_directions", ()))
        for side in ("input", "output")
    )
    whole = [_known(values, name) for name in node.input[states:]]
    axes = ints_attribute(node, "scan_input_axes", [0] * count)
    length = next((n for n in map(_along, whole, axes) if n is not None), None)
    if backward or length is None or not 0 < length <= MOST_TURNS:
        return []
    state = [_known(values, name) for name in node.input[:states]]
    rows: list[list[Known]] = []
    for turn in range(length):
        slices = [_slice(known, axis, turn) for known, axis in zip(whole, axes, strict=True)]
        made = follow(body, [*state, *slices])
        state = made[:states]
        rows.append(made[states:])
    ways = ints_attribute(node, "scan_output_axes", [0] * len(rows[0]))
    columns = zip(*rows, strict=True)
    return [*state, *(_stacked(row, way) for row, way in zip(columns, ways, strict=True))]


def _along(known: Known, axis: int) -> int | None:
    dims: Sequence[Dim] = [d.dim_value or None for d in known.kind.tensor_type.shape.dim]
    if known.value is not None:
        dims = known.value.array.shape
    dim = dims[axis] if -len(dims) <= axis < len(dims) else None
    return dim if isinstance(dim, int) else None


def _slice(known: Known, axis: int, turn: int) -> Known:
    kind = slice_of(known.kind, axis)
    if known.value is None:
        return Known(kind)
    rows = np.moveaxis(known.value.array, axis, 0)
    return Known(kind, Value(rows[turn, ...], known.value.kind).settled())


BODIES: Mapping[str, Callable[[Values, NodeProto, Follow], list[Known]]] = {
    "If": _if,
    "Loop": _loop,
    "Scan": _scan,
}
"""What control-flow nodes give, by following their subgraphs."""
