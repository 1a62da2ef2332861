"""Cases of element-wise operators, activations and reductions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from features.training.gradient_checks import Case
from features.training.gradient_values import (
    broadcast_pair,
    integer,
    ints,
    pick,
    positive,
    shape,
    values,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from features.training.gradient_values import Array, Draw

    Build = Callable[[Draw], Case]


def one(body: str, make: Callable[..., Array] = values, opset: int = 20) -> Build:
    return lambda draw: Case(body, {"x": make(draw, *shape(draw))}, opset=opset)


def two(body: str, make: Callable[..., Array] = values) -> Build:
    def build(draw: Draw) -> Case:
        a, b = broadcast_pair(draw)
        return Case(body, {"a": make(draw, *a), "b": make(draw, *b)})

    return build


def same(body: str) -> Build:
    return lambda draw: Case(body, {"x": values(draw, *shape(draw))})


def power(draw: Draw) -> Case:
    a, b = broadcast_pair(draw)
    inputs = {"a": positive(draw, *a), "b": values(draw, *b)}
    return Case("y = Pow(a, b)", inputs, wanted=("a",))


def fixed_power(draw: Draw) -> Case:
    exponent = np.array(pick(draw, 1.0, 2.0, 3.0, 4.0, -1.0))
    inputs = {"x": values(draw, *shape(draw))}
    return Case("y = Pow(x, p)", inputs, constants={"p": exponent})


def chosen(draw: Draw) -> Case:
    full = shape(draw, 2, 3)
    inputs = {"a": values(draw, *full), "b": values(draw, *full[1:]) + 0.03}
    return Case(f"y = {pick(draw, 'Max', 'Min')}(a, b)", inputs)


def three(kind: str) -> Build:
    def build(draw: Draw) -> Case:
        full = shape(draw)
        names = {
            n: values(draw, *full) + shift
            for n, shift in zip("abc", (0, 0.03, 0.07), strict=True)
        }
        return Case(f"y = {kind}(a, b, c)", names)

    return build


def where(draw: Draw) -> Case:
    a, b = broadcast_pair(draw)
    full = np.broadcast_shapes(a, b)
    rng = np.random.default_rng(integer(draw, 0, 99))
    inputs = {"a": values(draw, *a), "b": values(draw, *b), "c": rng.random(full) < 0.5}
    return Case("y = Where(c, a, b)", inputs)


def clip(draw: Draw) -> Case:
    bounds = {"low": np.array(-0.6), "high": np.array(0.4)}
    body = pick(draw, "y = Clip(x, low, high)", "y = Clip(x, low)", "y = Clip(x, , high)")
    return Case(body, {"x": values(draw, *shape(draw))}, constants=bounds)


def prelu(draw: Draw) -> Case:
    full = shape(draw, 2, 4)
    slope = tuple(n if integer(draw, 0, 1) else 1 for n in full)
    return Case("y = PRelu(x, s)", {"x": values(draw, *full), "s": values(draw, *slope)})


def dropout(draw: Draw) -> Case:
    constants = {"ratio": np.array(0.4), "training": np.array(bool(integer(draw, 0, 1)))}
    inputs = {"x": values(draw, *shape(draw))}
    return Case("y = Dropout<seed=3>(x, ratio, training)", inputs, constants=constants)


def along_axis(kind: str) -> Build:
    def build(draw: Draw) -> Case:
        full = shape(draw, 2, 3)
        axis = integer(draw, -len(full), len(full) - 1)
        return Case(f"y = {kind}<axis={axis}>(x)", {"x": values(draw, *full)})

    return build


def reduction(kind: str, make: Callable[..., Array] = values) -> Build:
    def build(draw: Draw) -> Case:
        full = shape(draw, 1, 4)
        count = integer(draw, 0, len(full))
        axes = sorted(
            np.random.default_rng(integer(draw, 0, 99)).permutation(len(full))[:count]
        )
        axes = [axis - len(full) * integer(draw, 0, 1) for axis in axes]
        keep = integer(draw, 0, 1)
        operands = "x, axes" if axes or integer(draw, 0, 1) else "x"
        body = f"y = {kind}<keepdims={keep}>({operands})"
        constants = {"axes": ints(*axes)}
        return Case(body, {"x": make(draw, *full)}, constants=constants)

    return build


def big(draw: Draw, *dims: int) -> Array:
    return values(draw, *dims, scale=3.0) + 0.02


def cast_like(draw: Draw) -> Case:
    full = shape(draw)
    inputs = {"x": values(draw, *full), "like": values(draw, 1)}
    return Case("y = CastLike(x, like)", inputs, wanted=("x",))


ELEMENTWISE: Mapping[str, Build] = {
    "Abs": one("y = Abs(x)"),
    "Add": two("y = Add(a, b)"),
    "Cast": one("y = Cast<to=11>(x)"),
    "CastLike": cast_like,
    "Clip": clip,
    "Cos": one("y = Cos(x)"),
    "Div": two("y = Div(a, b)", positive),
    "Div-twice": same("z = Exp(x) y = Div(x, z)"),
    "Dropout": dropout,
    "Elu": one("y = Elu<alpha=0.7>(x)"),
    "Erf": one("y = Erf(x)"),
    "Exp": one("y = Exp(x)"),
    "Gelu": one("y = Gelu(x)"),
    "Gelu-tanh": one('y = Gelu<approximate="tanh">(x)'),
    "HardSigmoid": one("y = HardSigmoid<alpha=0.7, beta=0.53>(x)"),
    "HardSwish": one("y = HardSwish(x)", big),
    "Identity": one("y = Identity(x)"),
    "LeakyRelu": one("y = LeakyRelu<alpha=0.2>(x)"),
    "LeakyRelu-down": one("y = LeakyRelu<alpha=-0.2>(x)"),
    "Log": one("y = Log(x)", positive),
    "LogSoftmax": along_axis("LogSoftmax"),
    "Max": chosen,
    "Max-three": three("Max"),
    "Mean": three("Mean"),
    "Min": chosen,
    "Min-three": three("Min"),
    "Mul": two("y = Mul(a, b)"),
    "Mul-square": same("y = Mul(x, x)"),
    "Neg": one("y = Neg(x)"),
    "PRelu": prelu,
    "Pow": power,
    "Pow-fixed": fixed_power,
    "Reciprocal": one("y = Reciprocal(x)", positive),
    "ReduceL2": reduction("ReduceL2"),
    "ReduceLogSumExp": reduction("ReduceLogSumExp"),
    "ReduceMax": reduction("ReduceMax"),
    "ReduceMean": reduction("ReduceMean"),
    "ReduceMin": reduction("ReduceMin"),
    "ReduceSum": reduction("ReduceSum"),
    "Relu": one("y = Relu(x)"),
    "Selu": one("y = Selu(x)"),
    "Sigmoid": one("y = Sigmoid(x)"),
    "Sin": one("y = Sin(x)"),
    "Softmax": along_axis("Softmax"),
    "Softplus": one("y = Softplus(x)"),
    "Sqrt": one("y = Sqrt(x)", positive),
    "Sub": two("y = Sub(a, b)"),
    "Sum": three("Sum"),
    "Tanh": one("y = Tanh(x)"),
    "Where": where,
}
