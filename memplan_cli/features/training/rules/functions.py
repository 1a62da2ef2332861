"""Gradients of functions of one number, element by element."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.features.training.tape import Call, Rule

    Gradients = tuple[str, ...]


def negate(call: Call) -> Gradients:
    """Y = -X: dX = -dY."""
    return (call.tape.emit("Neg", call.dy),)


def absolute(call: Call) -> Gradients:
    """Y = |X|: dX = dY sign X."""
    return (call.tape.emit("Mul", call.dy, call.tape.emit("Sign", call.input(0))),)


def sqrt(call: Call) -> Gradients:
    """Y = sqrt X: dX = dY / 2 / Y."""
    half = call.tape.emit("Mul", call.dy, call.tape.scalar(0.5, call.input(0)))
    return (call.tape.emit("Div", half, call.output()),)


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


def tan(call: Call) -> Gradients:
    """Y = tan X: dX = dY (1 + Y^2)."""
    return (call.tape.emit("Mul", call.dy, _square_plus(call, call.output(), 1.0)),)


def sinh(call: Call) -> Gradients:
    """Y = sinh X: dX = dY cosh X, with cosh X = sqrt(1 + Y^2)."""
    slope = call.tape.emit("Sqrt", _square_plus(call, call.output(), 1.0))
    return (call.tape.emit("Mul", call.dy, slope),)


def cosh(call: Call) -> Gradients:
    """Y = cosh X: dX = dY sinh X."""
    return (call.tape.emit("Mul", call.dy, call.tape.emit("Sinh", call.input(0))),)


def asin(call: Call) -> Gradients:
    """Y = asin X: dX = dY / sqrt(1 - X^2)."""
    return (call.tape.emit("Div", call.dy, _root_of_one_minus_square(call)),)


def acos(call: Call) -> Gradients:
    """Y = acos X: dX = -dY / sqrt(1 - X^2)."""
    part = call.tape.emit("Div", call.dy, _root_of_one_minus_square(call))
    return (call.tape.emit("Neg", part),)


def atan(call: Call) -> Gradients:
    """Y = atan X: dX = dY / (1 + X^2)."""
    return (call.tape.emit("Div", call.dy, _square_plus(call, call.input(0), 1.0)),)


def asinh(call: Call) -> Gradients:
    """Y = asinh X: dX = dY / sqrt(X^2 + 1)."""
    root = call.tape.emit("Sqrt", _square_plus(call, call.input(0), 1.0))
    return (call.tape.emit("Div", call.dy, root),)


def acosh(call: Call) -> Gradients:
    """Y = acosh X: dX = dY / sqrt(X^2 - 1)."""
    root = call.tape.emit("Sqrt", _square_plus(call, call.input(0), -1.0))
    return (call.tape.emit("Div", call.dy, root),)


def atanh(call: Call) -> Gradients:
    """Y = atanh X: dX = dY / (1 - X^2)."""
    x = call.input(0)
    rest = call.tape.emit("Sub", call.tape.scalar(1, x), call.tape.emit("Mul", x, x))
    return (call.tape.emit("Div", call.dy, rest),)


def erf(call: Call) -> Gradients:
    """Y = erf X: dX = dY 2/sqrt(pi) e^(-X^2)."""
    tape, x = call.tape, call.input(0)
    bell = tape.emit("Exp", tape.emit("Neg", tape.emit("Mul", x, x)))
    slope = tape.emit("Mul", bell, tape.scalar(2 / math.sqrt(math.pi), x))
    return (tape.emit("Mul", call.dy, slope),)


def _square_plus(call: Call, name: str, addend: float) -> str:
    square = call.tape.emit("Mul", name, name)
    return call.tape.emit("Add", square, call.tape.scalar(addend, call.input(0)))


def _root_of_one_minus_square(call: Call) -> str:
    x = call.input(0)
    rest = call.tape.emit("Sub", call.tape.scalar(1, x), call.tape.emit("Mul", x, x))
    return call.tape.emit("Sqrt", rest)


RULES: Mapping[str, Rule] = {
    "Abs": absolute,
    "Acos": acos,
    "Acosh": acosh,
    "Asin": asin,
    "Asinh": asinh,
    "Atan": atan,
    "Atanh": atanh,
    "Cos": cos,
    "Cosh": cosh,
    "Erf": erf,
    "Exp": exp,
    "Log": log,
    "Neg": negate,
    "Reciprocal": reciprocal,
    "Sin": sin,
    "Sinh": sinh,
    "Sqrt": sqrt,
    "Tan": tan,
}
"""The rule of each operator of this family."""
