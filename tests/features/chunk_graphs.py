"""Random graphs that mix the operators of the table of splits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from features.chunk_models import Maker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import onnx

SAMPLES, ROWS, HIDDEN = 2, 24, 16
"""What every tensor between steps has: rows for a few pieces, columns that fill registers."""


def _linear(make: Maker, x: str, _: str) -> str:
    return make.node("MatMul", x, make.weight(HIDDEN, HIDDEN))


def _mlp(make: Maker, x: str, _: str) -> str:
    wide = make.node("MatMul", x, make.weight(HIDDEN, 4 * HIDDEN))
    gelu = make.node("Mul", wide, make.node("Sigmoid", wide))
    return make.node("MatMul", gelu, make.weight(4 * HIDDEN, HIDDEN))


def _norm(make: Maker, x: str, _: str) -> str:
    return make.node(
        "LayerNormalization", x, make.weight(HIDDEN), make.weight(HIDDEN), axis=-1
    )


def _centered(make: Maker, x: str, _: str) -> str:
    axis = make.constant(np.array([int(make.rng.integers(0, 3))], np.int64))
    kind = ("ReduceMax", "ReduceMin", "ReduceMean")[int(make.rng.integers(3))]
    return make.node("Sub", x, make.node(kind, x, axis, keepdims=1))


def _softmax(make: Maker, x: str, _: str) -> str:
    return make.node("Softmax", x, axis=int(make.rng.integers(-1, 3)))


def _joined(make: Maker, x: str, other: str) -> str:
    kind = ("Add", "Mul", "Max", "Sub")[int(make.rng.integers(4))]
    return make.node(kind, x, other)


def _unary(make: Maker, x: str, _: str) -> str:
    kind = ("Relu", "Sigmoid", "Tanh", "Neg", "Identity", "Erf")[int(make.rng.integers(6))]
    return make.node(kind, x)


def _scores(make: Maker, x: str, other: str) -> str:
    turned = make.node("Transpose", other, perm=(0, 2, 1))
    return make.node("MatMul", make.node("Softmax", make.node("MatMul", x, turned)), other)


def _attention(make: Maker, x: str, other: str) -> str:
    told = {"q_num_heads": 4, "kv_num_heads": int(make.rng.choice((1, 2, 4)))}
    told["is_causal"] = int(make.rng.integers(2))
    width = HIDDEN // 4 * told["kv_num_heads"]
    q = make.node("MatMul", x, make.weight(HIDDEN, HIDDEN))
    k, v = (make.node("MatMul", other, make.weight(HIDDEN, width)) for _ in range(2))
    return make.node("Attention", q, k, v, **told)


def _halves(make: Maker, x: str, other: str) -> str:
    axis = int(make.rng.integers(1, 3))
    both = make.node("Concat", x, other, axis=axis)
    length = (SAMPLES, ROWS, HIDDEN)[axis]
    places = (np.array([at], np.int64) for at in (length // 2, length // 2 + length, axis))
    return make.node("Slice", both, *map(make.constant, places))


def _convolved(make: Maker, x: str, _: str) -> str:
    shape = make.constant(np.array((SAMPLES, 1, ROWS, HIDDEN), np.int64))
    x = make.node("Reshape", x, shape)
    x = make.node("Conv", x, make.weight(4, 1, 3, 3), make.weight(4), pads=(1, 1, 1, 1))
    kind = ("MaxPool", "AveragePool")[int(make.rng.integers(2))]
    x = make.node(kind, x, kernel_shape=(3, 1), pads=(1, 0, 1, 0))
    x = make.node("Conv", x, make.weight(1, 4, 1, 1))
    return make.node("Reshape", x, make.constant(np.array((SAMPLES, ROWS, HIDDEN), np.int64)))


def _heads(make: Maker, x: str, _: str) -> str:
    four = make.constant(np.array((SAMPLES, ROWS, 4, HIDDEN // 4), np.int64))
    turned = make.node("Transpose", make.node("Reshape", x, four), perm=(0, 2, 1, 3))
    back = make.node("Transpose", make.node("Softmax", turned), perm=(0, 2, 1, 3))
    return make.node(
        "Reshape", back, make.constant(np.array((SAMPLES, ROWS, HIDDEN), np.int64))
    )


def _gathered(make: Maker, x: str, _: str) -> str:
    axis = int(make.rng.integers(0, 3))
    length = (SAMPLES, ROWS, HIDDEN)[axis]
    at = make.constant(make.rng.integers(0, length, length).astype(np.int64))
    return make.node("Gather", x, at, axis=axis)


def _put(make: Maker, x: str, other: str) -> str:
    axis = int(make.rng.integers(0, 3))
    shape = [SAMPLES, ROWS, HIDDEN]
    length, shape[axis] = shape[axis], int(make.rng.integers(1, shape[axis] + 1))
    at = make.constant(make.rng.integers(0, length, shape).astype(np.int64))
    picked = make.node("GatherElements", other, at, axis=axis)
    return make.node("ScatterElements", x, at, picked, axis=axis, reduction="add")


STEPS: Sequence[Callable[[Maker, str, str], str]] = (
    _linear, _mlp, _norm, _centered, _softmax, _joined, _unary, _scores, _attention, _halves,
    _convolved, _heads, _gathered, _put,
)  # fmt: skip


def mixed(seed: int, steps: int) -> onnx.ModelProto:
    """Return a graph of random steps, each of which reads one or two of the last tensors."""
    make, made = Maker(seed), ["x"]
    for _ in range(steps):
        one, other = (
            made[-int(make.rng.integers(1, min(len(made), 3) + 1))] for _ in range(2)
        )
        made.append(STEPS[int(make.rng.integers(len(STEPS)))](make, one, other))
    return make.model({"x": (SAMPLES, ROWS, HIDDEN)}, made[-1], 23)
