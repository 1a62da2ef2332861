"""Operators that onnx's own evaluator computes wrongly or in float32, by their definitions."""

from __future__ import annotations

import math
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx.reference.op_run import OpRun

from features.training.reference_recurrent import RECURRENCES
from features.training.reference_resize import Resize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Array = NDArray[Any]


class Conv(OpRun):  # type: ignore[misc]  # onnx has no types
    """onnx's own, up to 1.22, pads where ``auto_pad`` says that nothing is padded."""

    op_domain = ""

    def _run(self, x: Array, w: Array, b: Array | None = None, **how: Any) -> tuple[Array]:  # noqa: ANN401 - attributes
        count = x.ndim - 2
        strides = how.get("strides") or [1] * count
        dilations = how.get("dilations") or [1] * count
        reach = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilations, strict=True)]
        pads = how.get("pads") or [0] * (2 * count)
        if (how.get("auto_pad") or "NOTSET") != "NOTSET":
            pads = _automatic_pads(how["auto_pad"], x.shape[2:], reach, strides)
        around = list(zip(pads[:count], pads[count:], strict=True))
        padded = np.pad(x, [(0, 0), (0, 0), *around])
        sizes = [
            (n - r) // s + 1 for n, r, s in zip(padded.shape[2:], reach, strides, strict=True)
        ]
        group = how.get("group") or 1
        own, made = w.shape[1], w.shape[0] // group
        out = np.zeros((x.shape[0], w.shape[0], *sizes), x.dtype)
        for g, tap in product(range(group), product(*(range(k) for k in w.shape[2:]))):
            places = tuple(
                slice(t * d, t * d + (n - 1) * s + 1, s)
                for t, d, n, s in zip(tap, dilations, sizes, strides, strict=True)
            )
            read: Any = (slice(None), slice(g * own, (g + 1) * own), *places)
            at: Any = (slice(g * made, (g + 1) * made), slice(None), *tap)
            part = np.einsum("nc...,mc->nm...", padded[read], w[at])
            out[:, g * made : (g + 1) * made] += part
        return (out if b is None else out + b.reshape(1, -1, *[1] * count),)


def _automatic_pads(
    kind: str, sizes: Sequence[int], reach: Sequence[int], strides: Sequence[int]
) -> list[int]:
    """Return begins, then ends, so that a result has ``ceil(size / stride)`` places."""
    if kind == "VALID":
        return [0] * (2 * len(sizes))
    totals = [
        max((-(-n // s) - 1) * s + r - n, 0)
        for n, r, s in zip(sizes, reach, strides, strict=True)
    ]
    less = [total // 2 for total in totals]
    more = [total - half for total, half in zip(totals, less, strict=True)]
    return [*less, *more] if kind == "SAME_UPPER" else [*more, *less]


class ConvTranspose(OpRun):  # type: ignore[misc]  # onnx has no types
    """onnx's own fails on groups; the definition in four lines."""

    op_domain = ""

    def _run(self, x: Array, w: Array, b: Array | None = None, **how: Any) -> tuple[Array]:  # noqa: ANN401 - attributes
        count = x.ndim - 2
        strides = how.get("strides") or [1] * count
        dilations = how.get("dilations") or [1] * count
        pads = how.get("pads") or [0] * (2 * count)
        extra = how.get("output_padding") or [0] * count
        group = how.get("group") or 1
        if how.get("output_shape") or (how.get("auto_pad") or "NOTSET") not in (
            "NOTSET",
            "VALID",
        ):
            pads = self._resolved(x, w, how, (strides, dilations, extra))
        full = [
            (n - 1) * s + (k - 1) * d + 1 + e
            for n, s, k, d, e in zip(
                x.shape[2:], strides, w.shape[2:], dilations, extra, strict=True
            )
        ]
        per_group, own = w.shape[1], x.shape[1] // group
        out = np.zeros((x.shape[0], per_group * group, *full), x.dtype)
        for g in range(group):
            xs, ws = x[:, g * own : (g + 1) * own], w[g * own : (g + 1) * own]
            for tap in product(*(range(k) for k in w.shape[2:])):
                at: Any = (slice(None), slice(None), *tap)
                part = np.einsum("nc...,cm->nm...", xs, ws[at])
                places = tuple(
                    slice(t * d, t * d + (n - 1) * s + 1, s)
                    for t, d, n, s in zip(tap, dilations, x.shape[2:], strides, strict=True)
                )
                out[(slice(None), slice(g * per_group, (g + 1) * per_group), *places)] += part
        cut = tuple(
            slice(p, n - q) for p, q, n in zip(pads[:count], pads[count:], full, strict=True)
        )
        out = out[(slice(None), slice(None), *cut)]
        return (out if b is None else out + b.reshape(1, -1, *[1] * count),)

    def _resolved(
        self, x: Array, w: Array, how: dict[str, Any], given: tuple[list[int], ...]
    ) -> list[int]:
        begins, ends = [], []
        for axis, (s, d, e) in enumerate(zip(*given, strict=True)):
            n, k = x.shape[axis + 2], w.shape[axis + 2]
            want = how.get("output_shape") or [
                n * s for n, s in zip(x.shape[2:], given[0], strict=True)
            ]
            total = max((n - 1) * s + (k - 1) * d + 1 + e - want[axis], 0)
            half = total // 2
            begin = half if how.get("auto_pad") == "SAME_UPPER" else total - half
            begins.append(begin)
            ends.append(total - begin)
        return begins + ends


class Erf(OpRun):  # type: ignore[misc]  # onnx has no types
    """onnx's own has float32's precision."""

    op_domain = ""

    def _run(self, x: Array) -> tuple[Array]:
        return (np.vectorize(math.erf, otypes=[x.dtype])(x),)


class Gelu(OpRun):  # type: ignore[misc]  # onnx has no types
    """As Erf."""

    op_domain = ""

    def _run(self, x: Array, approximate: str | None = None) -> tuple[Array]:
        if approximate == "tanh":
            inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
            return (0.5 * x * (1 + np.tanh(inner)),)
        return (0.5 * x * (1 + np.vectorize(math.erf, otypes=[x.dtype])(x / math.sqrt(2))),)


class GroupNormalization(OpRun):  # type: ignore[misc]  # onnx has no types
    """onnx's own has float32's precision."""

    op_domain = ""

    def _run(self, x: Array, s: Array, b: Array, **how: Any) -> tuple[Array]:  # noqa: ANN401 - attributes
        groups = x.reshape(x.shape[0], how["num_groups"], -1)
        centered = groups - groups.mean(axis=2, keepdims=True)
        root = np.sqrt(groups.var(axis=2, keepdims=True) + how["epsilon"])
        column = (1, -1, *[1] * (x.ndim - 2))
        return ((centered / root).reshape(x.shape) * s.reshape(column) + b.reshape(column),)


class MaxPool(OpRun):  # type: ignore[misc]  # onnx has no types
    """onnx's own counts indices of few axes wrongly."""

    op_domain = ""

    def _run(self, x: Array, **how: Any) -> tuple[Array, Array]:  # noqa: ANN401 - attributes
        kernel = how["kernel_shape"]
        count = len(kernel)
        strides, pads = how.get("strides") or [1] * count, how.get("pads") or [0] * 2 * count
        rounding = math.ceil if how.get("ceil_mode") else math.floor
        steps = [
            rounding((x.shape[a + 2] + pads[a] + pads[a + count] - kernel[a]) / strides[a]) + 1
            for a in range(count)
        ]
        places = np.arange(x.size).reshape(x.shape)
        y = np.empty((*x.shape[:2], *steps), x.dtype)
        indices = np.empty(y.shape, np.int64)
        for at in product(*(range(n) for n in y.shape)):
            starts = [o * s - p for o, s, p in zip(at[2:], strides, pads, strict=False)]
            box = tuple(slice(max(a, 0), a + k) for a, k in zip(starts, kernel, strict=True))
            window = x[at[0], at[1]][box]
            best = np.unravel_index(window.argmax(), window.shape)
            y[at] = window[best]
            indices[at] = places[at[0], at[1]][box][best]
        return y, indices


OPERATORS = [
    Conv,
    ConvTranspose,
    Erf,
    Gelu,
    GroupNormalization,
    MaxPool,
    Resize,
    *RECURRENCES,
]
