"""Forms of element-wise operators, activations and reductions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from features.training.forms import above, fixed, form, single

if TYPE_CHECKING:
    from typing import Any

    from features.training.forms import Forms
    from features.training.gradient_checks import Case

_BROADCASTS = {
    "ranks": ((3,), (2, 3)),
    "ones": ((2, 1, 3), (2, 4, 1)),
    "scalar-left": ((), (2, 3)),
    "scalar-right": ((2, 3), ()),
    "scalars": ((), ()),
    "one-and-scalar": ((1,), ()),
    "long-one": ((1, 1, 1), (2,)),
}

_PAIRED = ("Add", "Sub", "Mul", "Div", "Max", "Min", "Mean", "Sum", "PRelu")

BROADCAST: Forms = {
    f"{kind}-{name}": form(
        f"y = {kind}(a, b)", a=above(*a, seed=1), b=np.asarray(above(*b, seed=2) + 0.003)
    )
    for kind in _PAIRED
    for name, (a, b) in _BROADCASTS.items()
    if kind != "PRelu" or np.broadcast_shapes(a, b) == a
}

_REDUCED = (
    "L2",
    "LogSumExp",
    "Max",
    "Mean",
    "Min",
    "Sum",
)

_AXES: dict[str, tuple[str, dict[str, Any]]] = {
    "all": ("x", {}),
    "empty": ("x, n", {"n": []}),
    "none": ("x", {"noop_with_empty_axes": 1}),
    "none-empty": ("x, n", {"noop_with_empty_axes": 1, "n": []}),
    "noop-unused": ("x, n", {"noop_with_empty_axes": 1, "n": [1]}),
    "negative": ("x, n", {"n": [-1, 0]}),
    "run-time": ("x, n", {"n": np.array([-1, 0])}),
    "run-time-none": ("x, n", {"noop_with_empty_axes": 1, "n": np.array([], np.int64)}),
    "run-time-all": ("x, n", {"n": np.array([], np.int64)}),
}


def _reduction(kind: str, axes: str, keepdims: int, dims: tuple[int, ...]) -> Case:
    operands, given = _AXES[axes]
    how = {**given, "keepdims": keepdims}
    named = ", ".join((f"{k}={v}" for k, v in how.items() if k != "n"))
    read = {k: v for k, v in given.items() if k == "n"}
    return form(f"y = Reduce{kind}<{named}>({operands})", x=above(*dims), **read)


REDUCTIONS: Forms = {
    f"Reduce{kind}-{axes}-{keepdims}": _reduction(kind, axes, keepdims, (2, 3, 2))
    for kind in _REDUCED
    for axes in _AXES
    for keepdims in (0, 1)
    if not (kind == "Mean" and axes.startswith("run-time"))
}

REDUCTIONS_OF_SCALARS: Forms = {
    f"Reduce{kind}-scalar-{keepdims}": _reduction(kind, "all", keepdims, ())
    for kind in _REDUCED
    for keepdims in (0, 1)
}

REDUCTIONS_OF_ONES: Forms = {
    f"Reduce{kind}-ones": form(
        f"y = Reduce{kind}<keepdims=0>(x, n)", x=above(1, 3, 1), n=[0, 2]
    )
    for kind in _REDUCED
}

SINGULAR: Forms = {
    "Pow-zero-exponent": form("y = Pow(x, p)", x=np.array([0.3, 0.0, -2.0]), p=0.0),
    "Pow-exponents-at-zero": form(
        "y = Pow(x, p)", x=np.array([0.0, 0.0, 0.5]), p=[0.0, 2.0, 0.0]
    ),
    **{f"Pow-{p}": form("y = Pow(x, p)", x=above(2, 3), p=p) for p in (-1.0, 0.5, 2.0, 4.0)},
    "Pow-whole": form("y = Pow(x, p)", x=fixed(2, 3), p=[2, 3, 1]),
    "Pow-two-exponents": form("y = Pow(x, p)", x=above(3, 2), p=[2.0, 3.0]),
    "Pow-one-more-axis": form("y = Pow(x, p)", x=fixed(3), p=[[2.0]]),
    "Pow-single": form("y = Pow(x, p)", x=above(2, 3), p=single(3), how={"wanted": ("x",)}),
}

SLOPES: Forms = {
    f"{kind}-{name}": form(f"y = {kind}<{a}>(x)", x=fixed(3, 4))
    for kind, name, a in (
        ("Elu", "down", "alpha=-0.7"),
        ("Elu", "flat", "alpha=0.0"),
        ("Selu", "down", "alpha=-1.2"),
        ("Selu", "turned", "gamma=-0.9"),
        ("Selu", "both", "alpha=-1.2, gamma=-0.9"),
        ("LeakyRelu", "flat", "alpha=0.0"),
        ("HardSigmoid", "down", "alpha=-0.4"),
        ("ThresholdedRelu", "down", "alpha=-0.32"),
        ("Softmax", "default", "axis=-1"),
    )
}

DEFAULTS: Forms = {
    f"{kind}-default": form(f"y = {kind}(x)", x=fixed(3, 4) * 3)
    for kind in (
        *("Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "LogSoftmax"),
        *("Mish", "Relu", "Selu", "Softmax", "Softplus", "Softsign"),
        *("ThresholdedRelu", "Sigmoid", "Tanh", "Erf", "Abs", "Neg", "Transpose", "Trilu"),
        *("Flatten", "Squeeze", "Max", "Min", "Sum", "Mean", "Clip"),
    )
}

SCALARS: Forms = {
    f"{kind}-rank-0": form(f"y = {kind}(x)", x=above())
    for kind in (
        *("Abs", "Elu", "Exp", "Gelu", "HardSwish", "Identity", "LeakyRelu", "Log"),
        *("Neg", "Reciprocal", "Relu", "Sigmoid", "Sqrt", "Tanh", "Transpose"),
        *("Squeeze", "Clip", "Dropout", "Softplus", "Erf", "Cos"),
    )
}

BOUNDS: Forms = {
    "Clip-both": form("y = Clip(x, l, h)", x=fixed(3, 4), l=-0.22, h=0.31),
    "Clip-high": form("y = Clip(x, , h)", x=fixed(3, 4), h=0.31),
    "Clip-crossed": form("y = Clip(x, l, h)", x=fixed(3, 4), l=0.31, h=-0.22),
}

OPERANDS: Forms = {
    "HardSigmoid-saturated": form("y = HardSigmoid<alpha=3.0>(x)", x=fixed(3, 4)),
    "Shrink-default": form("y = Shrink(x)", x=single(3, 5)),
    "Shrink-wide": form("y = Shrink<lambd=-0.2, bias=0.3>(x)", x=single(3, 4)),
    "Shrink-shifted": form("y = Shrink<lambd=0.32, bias=0.1>(x)", x=single(3, 4)),
    "Sum-one": form("y = Sum(x)", x=(2, 3)),
    "Mean-broadcast": form("y = Mean(a, b, c)", a=(2, 3), b=(3,), c=()),
    "Max-broadcast": form("y = Max(a, b, c)", a=(2, 3), b=fixed(3) + 0.03, c=()),
    "Max-same": form("y = Max(x, x)", x=(2, 3)),
    "Min-same-and-other": form("y = Min(x, x, c)", x=(2, 3), c=0.02),
    "Add-same": form("y = Add(x, x)", x=(2, 3)),
    "Sub-same": form("y = Sub(x, x)", x=(2, 3)),
    "Div-same": form("y = Div(x, x)", x=(2, 3)),
    "Where-same": form("y = Where(c, x, x)", x=(2, 3), c=np.array([True, False, True])),
    "Where-scalars": form("y = Where(c, a, b)", a=(), b=(), c=np.eye(2) > 0),
    "Where-wide-condition": form("y = Where(c, a, b)", a=(3,), b=(1,), c=np.eye(3)[None] > 0),
    "PRelu-one": form("y = PRelu(x, s)", x=(2, 3, 2), s=(1,)),
    "PRelu-scalar": form("y = PRelu(x, s)", x=(2, 3, 2), s=()),
    "Cast-through-double": form(
        "z = Cast<to=11>(x) q = Mul(z, z) y = Cast<to=1>(q)", x=single(2, 3)
    ),
    "Cast-through-whole": form("z = Cast<to=7>(x) q = Cast<to=11>(z) y = Add(x, q)", x=(2, 3)),
    "Dropout-ratio-only": form("y = Dropout(x, r)", x=(2, 3), r=0.4),
    "Softmax-middle": form("y = Softmax<axis=1>(x)", x=(2, 3, 2)),
    "Softmax-one": form("y = Softmax<axis=1>(x)", x=(2, 1, 2)),
    "ReduceL1": form("y = ReduceL1<keepdims=0>(x, n)", x=(2, 3), n=[-1]),
    "ReduceLogSum": form("y = ReduceLogSum(x)", x=above(2, 3)),
    "ReduceSumSquare": form("y = ReduceSumSquare(x, n)", x=(2, 3), n=[0]),
    "Swish-default": form("y = Swish(x)", x=(2, 3), how={"opset": 24}),
}

ARITHMETIC: Forms = {
    **BROADCAST,
    **REDUCTIONS,
    **REDUCTIONS_OF_SCALARS,
    **REDUCTIONS_OF_ONES,
    **SINGULAR,
    **SLOPES,
    **DEFAULTS,
    **SCALARS,
    **BOUNDS,
    **OPERANDS,
}
