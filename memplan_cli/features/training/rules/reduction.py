"""Gradients of reductions: spread the gradient over what was reduced."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from memplan_cli.features.training.tape import UnknownShapeError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.features.training.tape import Call, Rule

    Gradients = tuple[str, ...]


def reduce_sum(call: Call) -> Gradients:
    """Y = sum of X along axes: dX = dY repeated along them."""
    return (_repeated(call, _with_reduced_axes(call, call.dy)),)


def reduce_mean(call: Call) -> Gradients:
    """Y = mean of n values: dX = dY / n, repeated."""
    return (_repeated(call, _divided_by_count(call, _with_reduced_axes(call, call.dy))),)


def reduce_l2(call: Call) -> Gradients:
    """Y = sqrt of the sum of X^2: dX = X dY / Y, 0 where Y is 0."""
    tape, x, y = call.tape, call.input(0), call.output()
    is_zero = tape.emit("Equal", y, tape.scalar(0, x))
    divisor = tape.emit("Where", is_zero, tape.scalar(math.inf, x), y)
    ratio = tape.emit("Div", call.dy, divisor)
    return (tape.emit("Mul", x, _with_reduced_axes(call, ratio)),)


def reduce_log_sum_exp(call: Call) -> Gradients:
    """Y = log of the sum of e^X: dX = dY e^(X - Y)."""
    tape = call.tape
    y = _with_reduced_axes(call, call.output())
    weight = tape.emit("Exp", tape.emit("Sub", call.input(0), y))
    return (tape.emit("Mul", weight, _with_reduced_axes(call, call.dy)),)


def reduce_extreme(call: Call) -> Gradients:
    """Y = max (or min) of X: dY is shared by the elements equal to Y."""
    tape, x, axes = call.tape, call.input(0), _reduced_axes(call)
    if axes == ():  # nothing is reduced: Y is X
        return (call.dy,)
    is_extreme = tape.emit("Equal", x, _with_reduced_axes(call, call.output()))
    mask = tape.emit("Cast", is_extreme, to=tape.dtype(x))
    if axes is None:
        # The axes are an input that may be empty at run time: the sum then reduces what the call reduces.
        noop = call.attribute("noop_with_empty_axes", 0)
        count = tape.emit(
            "ReduceSum", mask, call.input(1), keepdims=1, noop_with_empty_axes=noop
        )
    else:
        count = tape.emit("ReduceSum", mask, tape.ints(*axes), keepdims=1)
    share = tape.emit("Div", _with_reduced_axes(call, call.dy), count)
    return (tape.emit("Mul", mask, share),)


def _reduced_axes(call: Call) -> tuple[int, ...] | None:
    """Return the reduced axes, counted from the front; None: known only at run time.

    Empty if nothing is reduced: X is a scalar, or ``noop_with_empty_axes`` is set.
    """
    rank = call.tape.rank(call.input(0))
    without_axes = () if call.attribute("noop_with_empty_axes", 0) else tuple(range(rank))
    if not call.input(1):
        return without_axes
    values = call.constant_input(1)
    if values is None:
        return None
    if not values.size:
        return without_axes
    return tuple(sorted(int(axis) % rank for axis in values.ravel()))


def _with_reduced_axes(call: Call, name: str) -> str:
    """Return a tensor of Y's shape with the reduced axes as axes of size 1."""
    axes = _reduced_axes(call)
    if call.attribute("keepdims", 1) or axes == ():
        return name
    axes_tensor = call.input(1) if axes is None else call.tape.ints(*axes)
    return call.tape.emit("Unsqueeze", name, axes_tensor)


def _repeated(call: Call, name: str) -> str:
    """Return a tensor with reduced axes of size 1 expanded to the shape of X."""
    if _reduced_axes(call) == ():  # nothing was reduced
        return name
    return call.tape.emit("Expand", name, call.tape.shape_of(call.input(0)))


def _divided_by_count(call: Call, name: str) -> str:
    """Return the tensor ``name`` divided by the number of elements of X that are reduced to one of Y.

    Raises:
        UnknownShapeError: the axes are not constant.
    """
    tape, x = call.tape, call.input(0)
    axes = _reduced_axes(call)
    if axes is None:
        raise UnknownShapeError(f"the axes of {call.node.op_type} over {x!r} are not constant")
    shape = tape.shape(x)
    sizes = [dim for dim in (shape[axis] for axis in axes) if isinstance(dim, int)]
    if len(sizes) == len(axes):
        return tape.divide(name, math.prod(sizes), like=x)
    lengths = tape.emit("Gather", tape.shape_of(x), tape.ints(*axes))
    count = tape.emit("ReduceProd", lengths, keepdims=0)
    return tape.divide_by_tensor(name, count, like=x)


RULES: Mapping[str, Rule] = {
    "ReduceL2": reduce_l2,
    "ReduceLogSumExp": reduce_log_sum_exp,
    "ReduceMax": reduce_extreme,
    "ReduceMean": reduce_mean,
    "ReduceMin": reduce_extreme,
    "ReduceSum": reduce_sum,
}
"""The rule of each operator of this family."""
