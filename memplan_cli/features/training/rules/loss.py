"""Gradients of the loss operators."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.features.training.tape import Call, Rule

    Gradients = tuple[str, ...]


def softmax_cross_entropy(call: Call) -> Gradients:
    """L = -sum of w[t] P[t] / n, P = log softmax X: dX = (e^P - onehot t) w[t] dL / n.

    t are the labels and w[t] the weights of their classes, 0 for ignored labels; n is the sum of all w[t] if the
    reduction is a mean, else 1. P is the node's second output. If P has a gradient dP, dP - e^P (sum of dP) is
    added to dX; without dL, dX is this term alone.
    """
    tape, x = call.tape, call.input(0)
    p = call.optional_output(1, tape.tensor(x))  # added to the forward node if omitted there
    dp = call.gradients[1] if len(call.gradients) > 1 else ""
    dx_from_p = ""
    if dp:
        total = tape.emit("ReduceSum", dp, tape.ints(1), keepdims=1)
        dx_from_p = tape.emit("Sub", dp, tape.emit("Mul", tape.emit("Exp", p), total))
    if not call.dy:
        return (dx_from_p,)
    factor = _weighted_gradient(call)  # w[t] dL / n for each label
    product = tape.emit("Mul", tape.emit("Exp", p), factor)
    # The factor is subtracted at the labels, so that no one-hot tensor is made. The index of an ignored label
    # is 0, and so is its factor.
    negative = tape.emit("Neg", factor)
    dx = tape.emit(
        "ScatterElements", product, _label_indices(call), negative, axis=1, reduction="add"
    )
    return (tape.emit("Add", dx, dx_from_p) if dx_from_p else dx,)


def negative_log_likelihood(call: Call) -> Gradients:
    """L = -sum of w[t] X[t] / n: dX = -w[t] dL / n at the labels t, else 0."""
    tape = call.tape
    negative = tape.emit("Neg", _weighted_gradient(call))
    zeros = tape.zeros_like(call.input(0))
    return (tape.emit("ScatterElements", zeros, _label_indices(call), negative, axis=1),)


def _label_indices(call: Call) -> str:
    """Return the labels t, [N, ...], as [N, 1, ...]; ignored labels are 0, as their weight is 0."""
    tape, labels = call.tape, call.input(1)
    ignored = call.attribute("ignore_index")
    if ignored is not None:
        zero = tape.constant(0, tape.dtype(labels))
        is_ignored = tape.emit("Equal", labels, tape.constant(ignored, tape.dtype(labels)))
        labels = tape.emit("Where", is_ignored, zero, labels)
    return tape.emit("Unsqueeze", labels, tape.ints(1))


def _weighted_gradient(call: Call) -> str:
    """Return the factor w[t] dL / n of each label t of a loss operator, as [N, 1, ...].

    w[t] is the weight of the label's class: 1 without class weights (input 2), and 0 for an ignored label. dL is
    the gradient of the loss (`call.dy`). n is the sum of all w[t] if the reduction is a mean, otherwise 1.
    """
    tape, x, labels = call.tape, call.input(0), call.input(1)
    reduction, ignored = call.attribute("reduction", "mean"), call.attribute("ignore_index")
    is_mean = reduction == "mean"
    if not call.input(2) and ignored is None:  # all weights are 1: fewer nodes do
        if reduction == "none":  # dL has the shape of the labels
            return tape.emit("Unsqueeze", call.dy, tape.ints(1))
        share = _divided_by_label_count(call) if is_mean else call.dy
        expanded = tape.emit("Expand", share, tape.shape_of(labels))
        return tape.emit("Unsqueeze", expanded, tape.ints(1))
    if call.input(2):
        valid_labels = tape.emit("Squeeze", _label_indices(call), tape.ints(1))
        weight = tape.emit("Gather", call.input(2), valid_labels, axis=0)
    else:
        weight = tape.emit("Expand", tape.scalar(1, x), tape.shape_of(labels))
    if ignored is not None:
        is_ignored = tape.emit("Equal", labels, tape.constant(ignored, tape.dtype(labels)))
        weight = tape.emit("Where", is_ignored, tape.scalar(0, x), weight)
    share = call.dy
    if is_mean:
        share = tape.emit("Div", share, tape.emit("ReduceSum", weight, keepdims=0))
    return tape.emit("Unsqueeze", tape.emit("Mul", weight, share), tape.ints(1))


def _divided_by_label_count(call: Call) -> str:
    """Return dL / n for n labels."""
    tape, x, labels = call.tape, call.input(0), call.input(1)
    sizes = tape.tensor(labels).sizes
    if sizes is not None:
        return tape.divide(call.dy, prod(sizes), x)
    count = tape.emit("ReduceProd", tape.shape_of(labels), keepdims=0)
    return tape.divide_by_tensor(call.dy, count, x)


RULES: Mapping[str, Rule] = {
    "NegativeLogLikelihoodLoss": negative_log_likelihood,
    "SoftmaxCrossEntropyLoss": softmax_cross_entropy,
}
"""The rule of each operator of this family."""
