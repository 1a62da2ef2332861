"""Gradients of activations; computed from the output where possible, so that X can be freed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from onnx import TensorProto

from memplan_cli.features.training.rules.broadcast import unbroadcast
from memplan_cli.features.training.tensors import Tensor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.features.training.tape import Call, Rule

    Gradients = tuple[str, ...]


def relu(call: Call) -> Gradients:
    """Y = max(X, 0): dX = dY where Y > 0."""
    return (_dy_where_positive(call, call.output(), call.tape.scalar(0, call.input(0))),)


def leaky_relu(call: Call) -> Gradients:
    """Y = X where X > 0 else a X: dX = dY, or a dY."""
    slope = call.attribute("alpha", 0.01)
    scaled = call.tape.emit("Mul", call.dy, call.tape.scalar(slope, call.input(0)))
    # With a positive slope Y has the sign of X, so X can be freed.
    sign = call.output() if slope > 0 else call.input(0)
    return (_dy_where_positive(call, sign, scaled),)


def prelu(call: Call) -> Gradients:
    """Y = X where X > 0 else S X: dX = dY or S dY, dS = X dY where X < 0."""
    tape, x, slope = call.tape, call.input(0), call.input(1)
    zero = tape.scalar(0, x)
    dx = dslope = ""
    if call.wants(1):
        product = tape.emit("Mul", call.dy, tape.emit("Min", x, zero))
        dslope = unbroadcast(tape, product, call.output(), slope)
    if call.wants(0):
        dx = _dy_where_positive(call, x, tape.emit("Mul", call.dy, slope))
    return (dx, dslope)


def elu(call: Call) -> Gradients:
    """Y = X where X > 0 else a (e^X - 1): dX = dY, or dY (Y + a)."""
    alpha = call.attribute("alpha", 1.0)
    # Unless a is negative, Y is positive where X is, so X can be freed.
    sign = call.output() if alpha >= 0 else call.input(0)
    slope = call.tape.emit("Add", call.output(), call.tape.scalar(alpha, call.input(0)))
    return (_dy_where_positive(call, sign, call.tape.emit("Mul", call.dy, slope)),)


def sigmoid(call: Call) -> Gradients:
    """Y = 1 / (1 + e^-X): dX = dY Y (1 - Y)."""
    tape, y = call.tape, call.output()
    one_minus_y = tape.emit("Sub", tape.scalar(1, call.input(0)), y)
    return (tape.emit("Mul", tape.emit("Mul", call.dy, y), one_minus_y),)


def tanh(call: Call) -> Gradients:
    """Y = tanh X: dX = dY (1 - Y^2)."""
    tape, y = call.tape, call.output()
    slope = tape.emit("Sub", tape.scalar(1, call.input(0)), tape.emit("Mul", y, y))
    return (tape.emit("Mul", call.dy, slope),)


def hard_sigmoid(call: Call) -> Gradients:
    """Y = min(max(a X + b, 0), 1): dX = a dY where 0 < Y < 1."""
    tape, x, y = call.tape, call.input(0), call.output()
    zero = tape.scalar(0, x)
    is_inside = tape.emit(
        "And", tape.emit("Greater", y, zero), tape.emit("Less", y, tape.scalar(1, x))
    )
    scaled = tape.emit("Mul", call.dy, tape.scalar(call.attribute("alpha", 0.2), x))
    return (tape.emit("Where", is_inside, scaled, zero),)


def hard_swish(call: Call) -> Gradients:
    """Y = X h(X), h = min(max(X/6 + 1/2, 0), 1): dX = dY (h + X/6 where -3 < X < 3)."""
    tape, x = call.tape, call.input(0)
    h = tape.emit("HardSigmoid", x, alpha=1 / 6, beta=0.5)
    is_inside = tape.emit("Less", tape.emit("Abs", x), tape.scalar(3, x))
    sixth_of_x = tape.emit("Mul", x, tape.scalar(1 / 6, x))
    x_slope = tape.emit("Where", is_inside, sixth_of_x, tape.scalar(0, x))
    return (tape.emit("Mul", call.dy, tape.emit("Add", h, x_slope)),)


def softplus(call: Call) -> Gradients:
    """Y = log(1 + e^X): dX = dY sigmoid X."""
    return (call.tape.emit("Mul", call.dy, call.tape.emit("Sigmoid", call.input(0))),)


def gelu(call: Call) -> Gradients:
    """Y = X F(X) with the normal distribution F, or its tanh form: dX = dY (F + X F')."""
    is_tanh = call.attribute("approximate", "none") == "tanh"
    slope = _gelu_slope_tanh(call) if is_tanh else _gelu_slope_erf(call)
    return (call.tape.emit("Mul", call.dy, slope),)


def softmax(call: Call) -> Gradients:
    """Y = softmax X: dX = Y (dY - sum of dY Y along the axis)."""
    tape, y = call.tape, call.output()
    axis = tape.ints(call.attribute("axis", -1))
    product = tape.emit("Mul", call.dy, y)
    total = tape.emit("ReduceSum", product, axis, keepdims=1)
    return (tape.emit("Sub", product, tape.emit("Mul", y, total)),)


def log_softmax(call: Call) -> Gradients:
    """Y = log softmax X: dX = dY - e^Y (sum of dY along the axis)."""
    tape = call.tape
    axis = tape.ints(call.attribute("axis", -1))
    total = tape.emit("ReduceSum", call.dy, axis, keepdims=1)
    product = tape.emit("Mul", tape.emit("Exp", call.output()), total)
    return (tape.emit("Sub", call.dy, product),)


def dropout(call: Call) -> Gradients:
    """Y = X mask / (1 - r) in training, else X: dX = dY mask / (1 - r), with the mask kept.

    The mask is the node's second output, which is added if it is omitted. If it is only known in the run
    whether the node trains, a Where chooses between this gradient and dY.
    """
    tape, x, training_mode = call.tape, call.input(0), call.input(2)
    is_training = call.constant_input(2)  # None: known only at run time
    if not training_mode or (is_training is not None and not is_training.any()):
        return (call.dy,)
    mask = call.optional_output(1, Tensor(TensorProto.BOOL, tape.tensor(x).shape))
    r = call.input(1) or tape.scalar(0.5, x)  # the standard's default
    if call.input(1) and tape.dtype(r) != tape.dtype(x):
        r = tape.emit("Cast", r, to=tape.dtype(x))
    one_minus_r = tape.emit("Sub", tape.scalar(1, x), r)
    masked = tape.emit("Where", mask, call.dy, tape.scalar(0, x))
    scaled = tape.emit("Div", masked, one_minus_r)
    if is_training is not None:
        return (scaled,)
    return (tape.emit("Where", training_mode, scaled, call.dy),)


def _dy_where_positive(call: Call, sign: str, otherwise: str) -> str:
    """Return dY where ``sign`` is positive, and the tensor ``otherwise`` elsewhere."""
    is_positive = call.tape.emit("Greater", sign, call.tape.scalar(0, call.input(0)))
    return call.tape.emit("Where", is_positive, call.dy, otherwise)


def _gelu_slope_erf(call: Call) -> str:
    """Return F + X F', with F = (1 + erf(X / sqrt 2)) / 2 and F' = e^(-X^2 / 2) / sqrt(2 pi)."""
    tape, x = call.tape, call.input(0)
    scaled_x = tape.emit("Mul", x, tape.scalar(math.sqrt(0.5), x))
    one_plus_erf = tape.emit("Add", tape.emit("Erf", scaled_x), tape.scalar(1, x))
    f = tape.emit("Mul", one_plus_erf, tape.scalar(0.5, x))
    exponent = tape.emit("Mul", tape.emit("Mul", x, x), tape.scalar(-0.5, x))
    density = tape.emit(
        "Mul", tape.emit("Exp", exponent), tape.scalar(1 / math.sqrt(2 * math.pi), x)
    )
    return tape.emit("Add", f, tape.emit("Mul", x, density))


def _gelu_slope_tanh(call: Call) -> str:
    """Return (1 + t + X (1 - t^2) u') / 2, with u = c (X + k X^3), u' = c (1 + 3 k X^2), t = tanh u."""
    tape, x = call.tape, call.input(0)
    c, k = math.sqrt(2 / math.pi), 0.044715
    one, half = tape.scalar(1, x), tape.scalar(0.5, x)
    square = tape.emit("Mul", x, x)
    u_over_x = tape.emit(
        "Add", tape.emit("Mul", square, tape.scalar(c * k, x)), tape.scalar(c, x)
    )
    t = tape.emit("Tanh", tape.emit("Mul", u_over_x, x))
    u_slope = tape.emit(
        "Add", tape.emit("Mul", square, tape.scalar(3 * c * k, x)), tape.scalar(c, x)
    )
    tanh_slope = tape.emit("Sub", one, tape.emit("Mul", t, t))
    x_part = tape.emit("Mul", tape.emit("Mul", x, tanh_slope), u_slope)
    one_plus_t = tape.emit("Add", t, one)
    return tape.emit("Mul", tape.emit("Add", one_plus_t, x_part), half)


RULES: Mapping[str, Rule] = {
    "Dropout": dropout,
    "Elu": elu,
    "Gelu": gelu,
    "HardSigmoid": hard_sigmoid,
    "HardSwish": hard_swish,
    "LeakyRelu": leaky_relu,
    "LogSoftmax": log_softmax,
    "PRelu": prelu,
    "Relu": relu,
    "Sigmoid": sigmoid,
    "Softmax": softmax,
    "Softplus": softplus,
    "Tanh": tanh,
}
"""The rule of each operator of this family."""
