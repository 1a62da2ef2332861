"""Gradients of element-wise arithmetic and functions; operands of arithmetic may be broadcast."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from memplan_cli.features.training.rules.broadcast import unbroadcast

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.features.training.tape import Call, Rule

    Gradients = tuple[str, ...]


def identity(call: Call) -> Gradients:
    """Y = X: dX = dY."""
    return (call.dy,)


def cast(call: Call) -> Gradients:
    """Y = X in another type (Cast, CastLike): dX = dY in X's type."""
    return (call.tape.emit("Cast", call.dy, to=call.tape.dtype(call.input(0))),)


def add(call: Call) -> Gradients:
    """Y = A + B (or a sum of many): dA = dY, dB = dY."""
    return tuple(_input_gradient(call, i, call.dy) for i in range(len(call.node.input)))


def mean(call: Call) -> Gradients:
    """Y = (A + B + ...) / n: each gets dY / n."""
    n = len(call.node.input)
    share = call.tape.emit("Div", call.dy, call.tape.scalar(n, call.input(0)))
    return tuple(_input_gradient(call, i, share) for i in range(n))


def sub(call: Call) -> Gradients:
    """Y = A - B: dA = dY, dB = -dY."""
    db = ""
    if call.wants(1):
        db = call.tape.emit("Neg", _input_gradient(call, 1, call.dy))
    return (_input_gradient(call, 0, call.dy), db)


def mul(call: Call) -> Gradients:
    """Y = A B: dA = dY B, dB = dY A."""
    tape, a, b = call.tape, call.input(0), call.input(1)
    if a == b:  # each gets dY A, and the sum is 2 A dY
        product = tape.emit("Mul", call.dy, a)
        return (product, product)
    da = db = ""
    if call.wants(0):
        da = _input_gradient(call, 0, tape.emit("Mul", call.dy, b))
    if call.wants(1):
        db = _input_gradient(call, 1, tape.emit("Mul", call.dy, a))
    return (da, db)


def div(call: Call) -> Gradients:
    """Y = A / B: dA = dY / B, dB = -dA Y."""
    tape = call.tape
    # dA before it is summed to the shape of A.
    ratio = tape.emit("Div", call.dy, call.input(1))
    db = ""
    if call.wants(1):
        product = tape.emit("Mul", ratio, call.output())
        db = tape.emit("Neg", _input_gradient(call, 1, product))
    return (_input_gradient(call, 0, ratio), db)


def power(call: Call) -> Gradients:
    """Y = X ^ P: dX = dY P X^(P-1)."""
    return (_input_gradient(call, 0, call.tape.emit("Mul", call.dy, _power_slope(call))),)


def _power_slope(call: Call) -> str:
    """Return the derivative of X^P by X: P X^(P-1), without Pow if P is 2 or 3."""
    tape, x, p = call.tape, call.input(0), call.input(1)
    exponents = tape.value(p)
    if exponents is not None and exponents.size == 1:
        exponent = float(exponents.ravel()[0])
        if exponent in (2.0, 3.0):
            factor = tape.scalar(exponent, x)
            base = x if exponent == 2.0 else tape.emit("Mul", x, x)
            return tape.emit("Mul", base, factor)
    if tape.dtype(p) != tape.dtype(x):
        p = tape.emit("Cast", p, to=tape.dtype(x))
    p_minus_1 = tape.emit("Sub", p, tape.scalar(1, x))
    # Where P is 0, 0 X^0 in place of 0 X^-1, which would be NaN at X = 0.
    if exponents is None or not exponents.all():
        zero = tape.scalar(0, x)
        p_minus_1 = tape.emit("Where", tape.emit("Equal", p, zero), zero, p_minus_1)
    return tape.emit("Mul", p, tape.emit("Pow", x, p_minus_1))


def maximum(call: Call) -> Gradients:
    """Y = max(A, B, ...): dY goes to the operand that gave the maximum, to the first of equals."""
    return _gradient_of_chosen_operand(call, "GreaterOrEqual")


def minimum(call: Call) -> Gradients:
    """Y = min(A, B, ...): dY goes to the operand that gave the minimum, to the first of equals."""
    return _gradient_of_chosen_operand(call, "LessOrEqual")


def _gradient_of_chosen_operand(call: Call, comparison: str) -> Gradients:
    """Return dY for the first operand for which ``comparison(operand, Y)`` holds, 0 for others.

    Every element of Y equals an element of some operand, so the last operand gets the rest.
    """
    tape, operands = call.tape, list(call.node.input)
    if len(operands) == 1:
        return (call.dy,)
    zero = tape.scalar(0, call.output())
    gradients: list[str] = []
    remaining_dy = call.dy  # 0 where a former operand was chosen
    for index, operand in enumerate(operands[:-1]):
        is_chosen = tape.emit(comparison, operand, call.output())
        gradient = tape.emit("Where", is_chosen, remaining_dy, zero)
        gradients.append(_input_gradient(call, index, gradient))
        remaining_dy = tape.emit("Where", is_chosen, zero, remaining_dy)
    last = len(operands) - 1
    return (*gradients, _input_gradient(call, last, remaining_dy))


def clip(call: Call) -> Gradients:
    """Y = min(max(X, low), high): dX = dY where low < Y < high; from Y, so X can be freed."""
    tape, dx = call.tape, call.dy
    for index, comparison in ((1, "Greater"), (2, "Less")):
        if call.input(index):
            is_inside = tape.emit(comparison, call.output(), call.input(index))
            dx = tape.emit("Where", is_inside, dx, tape.scalar(0, call.input(0)))
    return (dx,)


def where(call: Call) -> Gradients:
    """Y = A where C else B: dA = dY where C, dB = dY where not C."""
    tape, c = call.tape, call.input(0)
    zero = tape.scalar(0, call.output())
    da = _input_gradient(call, 1, tape.emit("Where", c, call.dy, zero))
    db = _input_gradient(call, 2, tape.emit("Where", c, zero, call.dy))
    return ("", da, db)


def _input_gradient(call: Call, index: int, gradient: str) -> str:
    """Return a gradient of Y's shape summed to the shape of an input; empty if it is not wanted."""
    if not call.wants(index):
        return ""
    return unbroadcast(call.tape, gradient, call.output(), call.input(index))


def negate(call: Call) -> Gradients:
    """Y = -X: dX = -dY."""
    return (call.tape.emit("Neg", call.dy),)


def absolute(call: Call) -> Gradients:
    """Y = |X|: dX = dY sign X."""
    return (call.tape.emit("Mul", call.dy, call.tape.emit("Sign", call.input(0))),)


def sqrt(call: Call) -> Gradients:
    """Y = sqrt X: dX = dY / 2 / Y."""
    half_dy = call.tape.emit("Mul", call.dy, call.tape.scalar(0.5, call.input(0)))
    return (call.tape.emit("Div", half_dy, call.output()),)


def reciprocal(call: Call) -> Gradients:
    """Y = 1 / X: dX = -dY Y^2."""
    square = call.tape.emit("Mul", call.output(), call.output())
    return (call.tape.emit("Neg", call.tape.emit("Mul", call.dy, square)),)


def exp(call: Call) -> Gradients:
    """Y = e^X: dX = dY Y."""
    return (call.tape.emit("Mul", call.dy, call.output()),)


def log(call: Call) -> Gradients:
    """Y = log X: dX = dY / X."""
    return (call.tape.emit("Div", call.dy, call.input(0)),)


def sin(call: Call) -> Gradients:
    """Y = sin X: dX = dY cos X."""
    return (call.tape.emit("Mul", call.dy, call.tape.emit("Cos", call.input(0))),)


def cos(call: Call) -> Gradients:
    """Y = cos X: dX = -dY sin X."""
    slope = call.tape.emit("Neg", call.tape.emit("Sin", call.input(0)))
    return (call.tape.emit("Mul", call.dy, slope),)


def erf(call: Call) -> Gradients:
    """Y = erf X: dX = dY 2/sqrt(pi) e^(-X^2)."""
    tape, x = call.tape, call.input(0)
    bell = tape.emit("Exp", tape.emit("Neg", tape.emit("Mul", x, x)))
    slope = tape.emit("Mul", bell, tape.scalar(2 / math.sqrt(math.pi), x))
    return (tape.emit("Mul", call.dy, slope),)


RULES: Mapping[str, Rule] = {
    "Abs": absolute,
    "Add": add,
    "Cast": cast,
    "CastLike": cast,
    "Clip": clip,
    "Cos": cos,
    "Div": div,
    "Erf": erf,
    "Exp": exp,
    "Identity": identity,
    "Log": log,
    "Max": maximum,
    "Mean": mean,
    "Min": minimum,
    "Mul": mul,
    "Neg": negate,
    "Pow": power,
    "Reciprocal": reciprocal,
    "Sin": sin,
    "Sqrt": sqrt,
    "Sub": sub,
    "Sum": add,
    "Where": where,
}
"""The rule of each operator of this family."""
