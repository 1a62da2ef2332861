"""Cases of what is expanded first: recurrences, loops, scans, attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from features.training.gradient_checks import Case
from features.training.gradient_values import integer, pick, values

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from features.training.gradient_values import Array, Draw

    Build = Callable[[Draw], Case]

_LENGTH, _BATCH, _WIDTH, _HIDDEN = 3, 2, 2, 2


def recurrent(kind: str, gates: int) -> Build:
    def build(draw: Draw) -> Case:
        direction = pick(draw, "forward", "reverse", "bidirectional")
        ways = 2 if direction == "bidirectional" else 1
        how = f'hidden_size={_HIDDEN}, direction="{direction}"'
        if kind == "GRU":
            how += f", linear_before_reset={integer(draw, 0, 1)}"
        inputs = {
            "x": values(draw, _LENGTH, _BATCH, _WIDTH),
            "w": values(draw, ways, gates * _HIDDEN, _WIDTH),
            "r": values(draw, ways, gates * _HIDDEN, _HIDDEN),
            "b": values(draw, ways, 2 * gates * _HIDDEN),
            "h": values(draw, ways, _BATCH, _HIDDEN),
        }
        operands = "x, w, r, b, , h"
        if kind == "LSTM":
            inputs["c"] = values(draw, ways, _BATCH, _HIDDEN)
            operands += ", c"
        return Case(f"y, last = {kind}<{how}>({operands})", inputs, ("y", "last"))

    return build


def attention(draw: Draw) -> Case:
    queries, keys = pick(draw, (2, 2), (4, 2), (2, 1))
    how = f"q_num_heads={queries}, kv_num_heads={keys}, is_causal={integer(draw, 0, 1)}"
    how += pick(draw, "", ", scale=0.3", ", softcap=1.5")
    rows, columns = integer(draw, 1, 3), integer(draw, 3, 4)
    inputs: dict[str, Array] = {
        "q": values(draw, 2, rows, queries * 2),
        "k": values(draw, 2, columns, keys * 2),
        "v": values(draw, 2, columns, keys * 3),
    }
    operands = "q, k, v"
    if integer(draw, 0, 1):
        inputs["mask"] = values(draw, rows, columns)
        operands += ", mask"
    return Case(f"y = Attention<{how}>({operands})", inputs, opset=23)


def attention_by_head(draw: Draw) -> Case:
    inputs = {name: values(draw, 1, 2, 3, 2) for name in "qkv"}
    seen = np.array([[True, False, True], [True, True, True], [False, True, True]])
    return Case("y = Attention(q, k, v, m)", {**inputs, "m": seen}, opset=23)


def rotary(draw: Draw) -> Case:
    angles = values(draw, 1, 3, 2)
    constants = {"c": np.cos(angles), "s": np.sin(angles)}
    inputs = {"x": values(draw, 1, 2, 3, 4)}
    how = f"interleaved={integer(draw, 0, 1)}"
    return Case(f"y = RotaryEmbedding<{how}>(x, c, s)", inputs, constants=constants, opset=23)


def cropped(draw: Draw) -> Case:
    size = {"n": np.array([integer(draw, 2, 6), integer(draw, 2, 6)])}
    return Case("y = CenterCropPad(x, n)", {"x": values(draw, 4, 5)}, constants=size)


RECURRENT: Mapping[str, Build] = {
    "Attention": attention,
    "Attention-by-head": attention_by_head,
    "CenterCropPad": cropped,
    "GRU": recurrent("GRU", 3),
    "LSTM": recurrent("LSTM", 4),
    "RNN": recurrent("RNN", 1),
    "RotaryEmbedding": rotary,
}
