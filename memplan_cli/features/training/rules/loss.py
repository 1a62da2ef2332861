"""Gradients of the loss operators."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.features.training.tape import Call, Rule

    Gradients = tuple[str, ...]


def softmax_cross_entropy(call: Call) -> Gradients:
    """L = -sum of w[t] log softmax X [t] / n: dX = (e^P - onehot t) w[t] dL / n, P = log softmax X.

    P is the node's second output: what flows into it adds dP - e^P (sum of dP). No one-hot
    tensor is made: ScatterElements subtracts.
    """
    tape, x = call.tape, call.input(0)
    logs = call.saved(1, tape.tensor(x))
    second = call.gradients[1] if len(call.gradients) > 1 else ""
    direct = ""
    if second:
        total = tape.emit("ReduceSum", second, tape.ints(1), keepdims=1)
        direct = tape.emit("Sub", second, tape.emit("Mul", tape.emit("Exp", logs), total))
    if not call.dy:
        return (direct,)
    weight = _row_weight(call)
    spread = tape.emit("Mul", tape.emit("Exp", logs), weight)
    less = tape.emit("Neg", weight)
    gradient = tape.emit(
        "ScatterElements", spread, _labels(call), less, axis=1, reduction="add"
    )
    return (tape.emit("Add", gradient, direct) if direct else gradient,)


def negative_log_likelihood(call: Call) -> Gradients:
    """L = -sum of w[t] X[t] / n: dX = -w[t] dL / n at the labels t, else 0."""
    tape = call.tape
    less = tape.emit("Neg", _row_weight(call))
    zeros = tape.zeros_like(call.input(0))
    return (tape.emit("ScatterElements", zeros, _labels(call), less, axis=1),)


def _labels(call: Call) -> str:
    """Return the labels as [N, 1, ...], ignored ones as class 0 (their weight is 0)."""
    tape, labels = call.tape, call.input(1)
    ignored = call.attribute("ignore_index")
    if ignored is not None:
        zero = tape.constant(0, tape.dtype(labels))
        same = tape.emit("Equal", labels, tape.constant(ignored, tape.dtype(labels)))
        labels = tape.emit("Where", same, zero, labels)
    return tape.emit("Unsqueeze", labels, tape.ints(1))


def _row_weight(call: Call) -> str:
    """Return w[t] dL / n of each label as [N, 1, ...]."""
    tape, x, labels = call.tape, call.input(0), call.input(1)
    reduction = call.attribute("reduction", "mean")
    ignored = call.attribute("ignore_index")
    if not call.input(2) and ignored is None:
        dy, like = call.dy, labels
        if reduction == "none":
            return tape.emit("Unsqueeze", dy, tape.ints(1))
        if reduction == "mean":
            dy = _averaged(call, dy)
        flat = tape.emit("Expand", dy, tape.shape_of(like))
        return tape.emit("Unsqueeze", flat, tape.ints(1))
    safe = tape.emit("Squeeze", _labels(call), tape.ints(1))
    if call.input(2):
        weight = tape.emit("Gather", call.input(2), safe, axis=0)
    else:
        weight = tape.emit("Expand", tape.scalar(1, x), tape.shape_of(labels))
    if ignored is not None:
        same = tape.emit("Equal", labels, tape.constant(ignored, tape.dtype(labels)))
        weight = tape.emit("Where", same, tape.scalar(0, x), weight)
    dy = call.dy
    if reduction == "mean":
        dy = tape.emit("Div", dy, tape.emit("ReduceSum", weight, keepdims=0))
    return tape.emit("Unsqueeze", tape.emit("Mul", weight, dy), tape.ints(1))


def _averaged(call: Call, dy: str) -> str:
    """Divide by the number of labels."""
    tape, x, labels = call.tape, call.input(0), call.input(1)
    sizes = tape.tensor(labels).sizes
    if sizes is not None:
        return tape.divided(dy, prod(sizes), x)
    count = tape.emit("ReduceProd", tape.shape_of(labels), keepdims=0)
    return tape.divided_at_run_time(dy, count, x)


RULES: Mapping[str, Rule] = {
    "NegativeLogLikelihoodLoss": negative_log_likelihood,
    "SoftmaxCrossEntropyLoss": softmax_cross_entropy,
}
"""The rule of each operator of this family."""
