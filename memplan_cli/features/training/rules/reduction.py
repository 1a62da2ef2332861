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
    return (_spread(call, _kept(call, call.dy)),)


def reduce_mean(call: Call) -> Gradients:
    """Y = mean of n values: dX = dY / n, repeated."""
    return (_spread(call, _averaged(call, _kept(call, call.dy))),)


def reduce_sum_square(call: Call) -> Gradients:
    """Y = sum of X^2: dX = 2 X dY."""
    doubled = call.tape.emit("Mul", _kept(call, call.dy), call.tape.scalar(2, call.input(0)))
    return (call.tape.emit("Mul", call.input(0), doubled),)


def reduce_l1(call: Call) -> Gradients:
    """Y = sum of |X|: dX = dY sign X."""
    sign = call.tape.emit("Sign", call.input(0))
    return (call.tape.emit("Mul", sign, _kept(call, call.dy)),)


def reduce_l2(call: Call) -> Gradients:
    """Y = sqrt of the sum of X^2: dX = X dY / Y, 0 where Y is 0."""
    ratio = call.tape.emit("Div", call.dy, nonzero(call, call.output()))
    return (call.tape.emit("Mul", call.input(0), _kept(call, ratio)),)


def reduce_log_sum(call: Call) -> Gradients:
    """Y = log of the sum of X: dX = dY / e^Y, repeated."""
    part = call.tape.emit("Div", call.dy, call.tape.emit("Exp", call.output()))
    return (_spread(call, _kept(call, part)),)


def reduce_log_sum_exp(call: Call) -> Gradients:
    """Y = log of the sum of e^X: dX = dY e^(X - Y)."""
    tape = call.tape
    weight = tape.emit("Exp", tape.emit("Sub", call.input(0), _kept(call, call.output())))
    return (tape.emit("Mul", weight, _kept(call, call.dy)),)


def reduce_extreme(call: Call) -> Gradients:
    """Y = max (or min) of X: dY is shared by the elements equal to Y."""
    tape, x = call.tape, call.input(0)
    if _axes(call) == ():
        return (call.dy,)
    equal = tape.emit("Equal", x, _kept(call, call.output()))
    mask = tape.emit("Cast", equal, to=tape.dtype(x))
    count = _reduced(call, "ReduceSum", mask)
    return (tape.emit("Mul", mask, tape.emit("Div", _kept(call, call.dy), count)),)


def reduce_prod(call: Call) -> Gradients:
    """Y = product of X: dX = dY times the product of the others; 0 if one of those is 0.

    P is the product of what is not 0, which is all of X or all but the zeros: an element is
    the others' product where no other is 0, and that is P / X, or P for a lone zero itself.
    """
    tape, x = call.tape, call.input(0)
    if _axes(call) == ():
        return (call.dy,)
    zero = tape.scalar(0, x)
    is_zero = tape.emit("Equal", x, zero)
    safe = tape.emit("Where", is_zero, tape.scalar(1, x), x)
    product = tape.emit("Mul", _kept(call, call.dy), _reduced(call, "ReduceProd", safe))
    mask = tape.emit("Cast", is_zero, to=tape.dtype(x))
    others = tape.emit("Sub", _reduced(call, "ReduceSum", mask), mask)
    alone = tape.emit("Equal", others, zero)
    return (tape.emit("Where", alone, tape.emit("Div", product, safe), zero),)


def cumulative_sum(call: Call) -> Gradients:
    """Y = running sum: dX = running sum of dY from the other end."""
    turned = 1 - call.attribute("reverse", 0)
    exclusive = call.attribute("exclusive", 0)
    back = call.tape.emit(
        "CumSum", call.dy, call.input(1), reverse=turned, exclusive=exclusive
    )
    return (back,)


def nonzero(call: Call, norm: str) -> str:
    """Return a norm with infinity for 0, so that what is divided by it becomes 0."""
    tape, x = call.tape, call.input(0)
    is_zero = tape.emit("Equal", norm, tape.scalar(0, x))
    return tape.emit("Where", is_zero, tape.scalar(math.inf, x), norm)


def _axes(call: Call) -> tuple[int, ...] | None:
    """Return the reduced axes, counted from the front; None: known at run time only.

    Nothing is reduced where there are none: a scalar, or ``noop_with_empty_axes``.
    """
    rank = call.tape.rank(call.input(0))
    if not call.input(1):
        empty = call.attribute("noop_with_empty_axes", 0)
        return () if empty else tuple(range(rank))
    values = call.constant_input(1)
    if values is None:
        return None
    if not values.size:
        return () if call.attribute("noop_with_empty_axes", 0) else tuple(range(rank))
    return tuple(sorted(int(axis) % rank for axis in values.ravel()))


def _reduced(call: Call, kind: str, name: str) -> str:
    """Reduce a tensor shaped as the input along the call's axes, which it keeps as 1."""
    axes = _axes(call)
    if axes is not None:
        return call.tape.emit(kind, name, call.tape.ints(*axes), keepdims=1)
    none = call.attribute("noop_with_empty_axes", 0)
    return call.tape.emit(kind, name, call.input(1), keepdims=1, noop_with_empty_axes=none)


def _kept(call: Call, reduced: str) -> str:
    """Give a reduced tensor its axes back, of size 1."""
    axes = _axes(call)
    if call.attribute("keepdims", 1) or axes == ():
        return reduced
    if axes is None:
        return call.tape.emit("Unsqueeze", reduced, call.input(1))
    return call.tape.emit("Unsqueeze", reduced, call.tape.ints(*axes))


def _spread(call: Call, kept: str) -> str:
    if _axes(call) == ():
        return kept
    return call.tape.emit("Expand", kept, call.tape.shape_of(call.input(0)))


def _averaged(call: Call, name: str) -> str:
    """Divide by the number of elements that each result was made from."""
    tape, x = call.tape, call.input(0)
    axes = _axes(call)
    shape = tape.shape(x)
    sizes = [shape[axis] for axis in axes] if axes is not None else [None]
    numbers = [size for size in sizes if isinstance(size, int)]
    if len(numbers) == len(sizes):
        count = 1
        for number in numbers:
            count *= number
        return tape.divided(name, count, x)
    if axes is None:
        raise UnknownShapeError(f"the axes of {call.node.op_type} over {x!r} are not constant")
    part = tape.emit("Gather", tape.shape_of(x), tape.ints(*axes))
    return tape.divided_at_run_time(name, tape.emit("ReduceProd", part, keepdims=0), x)


RULES: Mapping[str, Rule] = {
    "CumSum": cumulative_sum,
    "ReduceL1": reduce_l1,
    "ReduceL2": reduce_l2,
    "ReduceLogSum": reduce_log_sum,
    "ReduceLogSumExp": reduce_log_sum_exp,
    "ReduceMax": reduce_extreme,
    "ReduceMean": reduce_mean,
    "ReduceMin": reduce_extreme,
    "ReduceProd": reduce_prod,
    "ReduceSum": reduce_sum,
    "ReduceSumSquare": reduce_sum_square,
}
"""The rule of each operator of this family."""
