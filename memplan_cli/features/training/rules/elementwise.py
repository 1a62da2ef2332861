"""Gradients of arithmetic and choices, element by element; operands may have been broadcast."""

from __future__ import annotations

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
    """Y = X in another type: dX = dY in X's type."""
    dtype = call.tape.dtype(call.input(0))
    if call.attribute("to") == dtype:
        return (call.dy,)
    return (call.tape.emit("Cast", call.dy, to=dtype),)


def cast_like(call: Call) -> Gradients:
    """Y = X in the type of another: dX = dY in X's type."""
    return (call.tape.emit("Cast", call.dy, to=call.tape.dtype(call.input(0))),)


def add(call: Call) -> Gradients:
    """Y = A + B (or a sum of many): dA = dY, dB = dY."""
    return tuple(_to_input(call, i, call.dy) for i in range(len(call.node.input)))


def mean(call: Call) -> Gradients:
    """Y = (A + B + ...) / n: each gets dY / n."""
    count = len(call.node.input)
    part = call.tape.emit("Div", call.dy, call.tape.scalar(count, call.input(0)))
    return tuple(_to_input(call, i, part) for i in range(count))


def sub(call: Call) -> Gradients:
    """Y = A - B: dA = dY, dB = -dY."""
    second = ""
    if call.wants(1):
        second = call.tape.emit("Neg", _to_input(call, 1, call.dy))
    return (_to_input(call, 0, call.dy), second)


def mul(call: Call) -> Gradients:
    """Y = A B: dA = dY B, dB = dY A."""
    first, second = call.input(0), call.input(1)
    if first == second:
        part = call.tape.emit("Mul", call.dy, first)
        return (part, part)
    return (_times(call, 0, second), _times(call, 1, first))


def div(call: Call) -> Gradients:
    """Y = A / B: dA = dY / B, dB = -dA Y."""
    tape = call.tape
    first = tape.emit("Div", call.dy, call.input(1))
    second = ""
    if call.wants(1):
        product = tape.emit("Mul", first, call.output())
        second = tape.emit("Neg", _to_input(call, 1, product))
    return (_to_input(call, 0, first), second)


def power(call: Call) -> Gradients:
    """Y = X ^ P: dX = dY P X^(P-1), dP = dY Y log X where X > 0, else 0."""
    tape, base, exponent = call.tape, call.input(0), call.input(1)
    known = tape.value(exponent)
    second = ""
    if call.wants(1):
        zero = tape.scalar(0, base)
        positive = tape.emit("Greater", base, zero)
        logs = tape.emit("Log", tape.emit("Where", positive, base, tape.scalar(1, base)))
        slope = tape.emit("Mul", call.output(), logs)
        second = _to_input(call, 1, tape.emit("Mul", call.dy, slope))
        if tape.dtype(exponent) != tape.dtype(base):
            second = tape.emit("Cast", second, to=tape.dtype(exponent))
    if not call.wants(0):
        return ("", second)
    if known is not None and known.size == 1 and float(known.ravel()[0]) in _SMALL:
        slope = _small_power(call, float(known.ravel()[0]))
    else:
        slope = _power_slope(call)
    return (_to_input(call, 0, tape.emit("Mul", call.dy, slope)), second)


_SMALL = (0.0, 1.0, 2.0, 3.0)
"""Exponents whose slope is written without a Pow."""


def _power_slope(call: Call) -> str:
    """P X^(P-1), with 0 X^0 where P is 0: X^-1 would make nothing of it at 0."""
    tape, base, exponent = call.tape, call.input(0), call.input(1)
    known, factor = tape.value(exponent), exponent
    if tape.dtype(exponent) != tape.dtype(base):
        factor = tape.emit("Cast", exponent, to=tape.dtype(base))
    less = tape.emit("Sub", factor, tape.scalar(1, base))
    if known is None or not known.all():
        zero = tape.scalar(0, base)
        less = tape.emit("Where", tape.emit("Equal", factor, zero), zero, less)
    return tape.emit("Mul", factor, tape.emit("Pow", base, less))


def _small_power(call: Call, exponent: float) -> str:
    base, factor = call.input(0), call.tape.scalar(exponent, call.input(0))
    if exponent in (0.0, 1.0):
        return factor
    less = base if exponent == 2.0 else call.tape.emit("Mul", base, base)
    return call.tape.emit("Mul", less, factor)


def maximum(call: Call) -> Gradients:
    """Y = max(A, B, ...): dY goes to the operand that gave the maximum, to the first of equals."""
    return _to_the_chosen(call, "GreaterOrEqual")


def minimum(call: Call) -> Gradients:
    """Y = min(A, B, ...): dY goes to the operand that gave the minimum, to the first of equals."""
    return _to_the_chosen(call, "LessOrEqual")


def clip(call: Call) -> Gradients:
    """Y = min(max(X, low), high): dX = dY where low < Y < high; from Y, so X can be freed.

    A bound gets the sum of dY where Y is that bound; high where they are one.
    """
    tape, zero, rest = call.tape, call.tape.scalar(0, call.input(0)), call.dy
    found = ["", "", ""]
    for index, within in ((2, "Less"), (1, "Greater")):
        if not call.input(index):
            continue
        kept = tape.emit(within, call.output(), call.input(index))
        if call.wants(index):
            part = tape.emit("Where", kept, zero, rest)
            found[index] = _to_input(call, index, part)
        rest = tape.emit("Where", kept, rest, zero)
    return (rest if call.wants(0) else "", *found[1:])


def where(call: Call) -> Gradients:
    """Y = A where C else B: dA = dY where C, dB = dY where not C."""
    tape, condition = call.tape, call.input(0)
    zero = tape.scalar(0, call.output())
    first = second = ""
    if call.wants(1):
        first = _to_input(call, 1, tape.emit("Where", condition, call.dy, zero))
    if call.wants(2):
        second = _to_input(call, 2, tape.emit("Where", condition, zero, call.dy))
    return ("", first, second)


def modulo(call: Call) -> Gradients:
    """Y = A - B trunc(A / B): dA = dY, dB = -dY trunc(A / B)."""
    tape, a, b = call.tape, call.input(0), call.input(1)
    second = ""
    if call.wants(1):
        turns = tape.emit("Div", tape.emit("Sub", a, call.output()), b)
        product = tape.emit("Mul", call.dy, turns)
        second = tape.emit("Neg", _to_input(call, 1, product))
    return (_to_input(call, 0, call.dy), second)


def _to_input(call: Call, index: int, gradient: str) -> str:
    if not call.wants(index):
        return ""
    return unbroadcast(call.tape, gradient, call.output(), call.input(index))


def _times(call: Call, index: int, other: str) -> str:
    if not call.wants(index):
        return ""
    return _to_input(call, index, call.tape.emit("Mul", call.dy, other))


def _to_the_chosen(call: Call, wins: str) -> Gradients:
    tape, names = call.tape, list(call.node.input)
    if len(names) == 1:
        return (call.dy,)
    zero = tape.scalar(0, call.output())
    found: list[str] = []
    rest = call.dy
    for index, name in enumerate(names):
        if index == len(names) - 1:
            found.append(_to_input(call, index, rest))
            break
        chosen = tape.emit(wins, name, call.output())
        part = tape.emit("Where", chosen, rest, zero) if call.wants(index) else ""
        found.append(_to_input(call, index, part))
        rest = tape.emit("Where", chosen, zero, rest)
    return tuple(found)


RULES: Mapping[str, Rule] = {
    "Add": add,
    "Cast": cast,
    "CastLike": cast_like,
    "Clip": clip,
    "Div": div,
    "Identity": identity,
    "Max": maximum,
    "Mean": mean,
    "Min": minimum,
    "Mod": modulo,
    "Mul": mul,
    "Pow": power,
    "Sub": sub,
    "Sum": add,
    "Where": where,
}
"""The rule of each operator of this family."""
