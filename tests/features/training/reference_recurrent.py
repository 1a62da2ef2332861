"""Recurrences by their definitions, which onnx's own evaluator computes wrongly.

onnx's own leaves the last row of a reversed or two-sided sequence where the first belongs
(RNN and GRU up to 1.22), and knows one direction only (LSTM).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from onnx.reference.op_run import OpRun

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Array = NDArray[Any]
    State = tuple[Array, ...]

_BACKWARDS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


class _Recurrence(OpRun):  # type: ignore[misc]  # onnx has no types
    """One step after the other, one direction after the other; ``layout`` 0 alone."""

    op_domain = ""
    gates: ClassVar[int]
    states: ClassVar[int]

    def _run(
        self,
        x: Array,
        w: Array,
        r: Array,
        b: Array | None = None,
        lengths: Array | None = None,
        *rest: Array | None,
        **how: Any,  # noqa: ANN401 - attributes
    ) -> State:
        # x is [steps, batch, width], w [directions, gates hidden, width], r with hidden last.
        if how.get("layout") or lengths is not None:
            raise NotImplementedError("the cases have none of these")
        turned = _BACKWARDS[how.get("direction") or "forward"]
        hidden = r.shape[2]
        bias = np.zeros((len(turned), 2 * self.gates * hidden), x.dtype) if b is None else b
        start = np.zeros((len(turned), x.shape[1], hidden), x.dtype)
        given = [*rest, None, None, None]
        starts = [start if one is None else one for one in given[: self.states]]
        rows, ends = [], []
        for k, backwards in enumerate(turned):
            state = tuple(one[k] for one in starts)
            made = []
            for step in x[::-1] if backwards else x:
                state = self.step(step, state, (w[k], r[k], bias[k]), how)
                made.append(state[0])
            rows.append(np.stack(made[::-1] if backwards else made))
            ends.append(state)
        return np.stack(rows, axis=1), *(np.stack(end) for end in zip(*ends, strict=True))

    def step(
        self, x: Array, state: State, weights: tuple[Array, Array, Array], how: dict[str, Any]
    ) -> State:
        """Return the state behind one step; the first of it is the step's result."""
        raise NotImplementedError

    def parts(
        self, x: Array, h: Array, weights: tuple[Array, Array, Array]
    ) -> tuple[Sequence[Array], Sequence[Array], Sequence[Array]]:
        """Return what the input and the state give each gate, and its recurrent bias."""
        w, r, b = weights
        own, recurrent = np.split(b, 2)
        return (
            np.split(x @ w.T + own, self.gates, axis=1),
            np.split(h @ r.T, self.gates, axis=1),
            np.split(recurrent, self.gates),
        )


class RNN(_Recurrence):
    gates, states = 1, 1

    def step(
        self, x: Array, state: State, weights: tuple[Array, Array, Array], how: dict[str, Any]
    ) -> State:
        del how
        (own,), (back,), (bias,) = self.parts(x, state[0], weights)
        return (np.tanh(own + back + bias),)


class GRU(_Recurrence):
    gates, states = 3, 1

    def step(
        self, x: Array, state: State, weights: tuple[Array, Array, Array], how: dict[str, Any]
    ) -> State:
        (h,) = state
        own, back, bias = self.parts(x, h, weights)
        update, reset = (_sigmoid(own[k] + back[k] + bias[k]) for k in (0, 1))
        if how.get("linear_before_reset"):
            inner = reset * (back[2] + bias[2])
        else:
            rows = np.split(weights[1], 3)[2]
            inner = (reset * h) @ rows.T + bias[2]
        fresh = np.tanh(own[2] + inner)
        return ((1 - update) * fresh + update * h,)


class LSTM(_Recurrence):
    gates, states = 4, 2

    def step(
        self, x: Array, state: State, weights: tuple[Array, Array, Array], how: dict[str, Any]
    ) -> State:
        h, c = state
        del how
        own, back, bias = self.parts(x, h, weights)
        gate_i, gate_o, gate_f, fresh = (
            a + b + d for a, b, d in zip(own, back, bias, strict=True)
        )
        cell = _sigmoid(gate_f) * c + _sigmoid(gate_i) * np.tanh(fresh)
        return _sigmoid(gate_o) * np.tanh(cell), cell


RECURRENCES = [GRU, LSTM, RNN]
