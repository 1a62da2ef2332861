"""Gradients of normalizations.

All normalize X over some axes: Xn = (X - m) / s, with mean m and standard deviation s. With G the
gradient of Xn, dX = (G - mean G - Xn mean(G Xn)) / s, where the means are over the same axes. Only X, m
and 1 / s are kept from the forward pass, never Xn.

Channels are on axis 1. A tensor per channel, such as a scale, is a vector [C]; to broadcast with X it
is reshaped to a *channel column* [1, C, 1, ...].
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from onnx import NodeProto, TensorProto

from memplan_cli.errors import ModelError
from memplan_cli.features.training.rules.broadcast import unbroadcast
from memplan_cli.features.training.tape import Phase, set_phase
from memplan_cli.features.training.tensors import Tensor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.features.training.tape import Call, Rule, Tape

    Gradients = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Statistics:
    """Mean m and reciprocal standard deviation 1 / s over ``axes``, which have size 1 in both."""

    mean: str
    reciprocal: str
    axes: tuple[int, ...]


def layer_normalization(call: Call) -> Gradients:
    """Y = Xn S + B with Xn = (X - m) / s over the last axes: dS = sum of dY Xn, dB = sum of dY."""
    tape, x, scale = call.tape, call.input(0), call.input(1)
    rank = tape.rank(x)
    start = call.attribute("axis", -1) % rank
    axes = tuple(range(start, rank))
    if tape.dtype(x) == TensorProto.FLOAT:
        shape = (*tape.shape(x)[:start], *[1] * (rank - start))
        tensor = Tensor(TensorProto.FLOAT, shape)
        mean = call.optional_output(1, tensor)
        statistics = Statistics(mean, call.optional_output(2, tensor), axes)
    else:  # the node outputs its statistics in float32 only
        statistics = _statistics(call, x, axes)
    xn = _normalized(tape, x, statistics)
    dx = dscale = dbias = ""
    if call.wants(2):
        dbias = unbroadcast(tape, call.dy, call.output(), call.input(2))
    if call.wants(1):
        dscale = unbroadcast(tape, tape.emit("Mul", call.dy, xn), call.output(), scale)
    if call.wants(0):
        dx = _gradient_of_x(tape, tape.emit("Mul", call.dy, scale), xn, statistics)
    return (dx, dscale, dbias)


def instance_normalization(call: Call) -> Gradients:
    """Y = Xn S + B with Xn = (X - m) / s over the positions of each channel of each sample."""
    tape, x = call.tape, call.input(0)
    axes = tuple(range(2, tape.rank(x)))
    statistics = _statistics(call, x, axes)
    xn = _normalized(tape, x, statistics)
    dscale, dbias = _channel_gradients(call, xn)
    dx = ""
    if call.wants(0):
        g = tape.emit("Mul", call.dy, _as_channel_column(tape, call.input(1), x))
        dx = _gradient_of_x(tape, g, xn, statistics)
    return (dx, dscale, dbias)


_SCALE_PER_CHANNEL_OPSET = 21
"""From this opset S and B of a GroupNormalization have one number per channel, before per group."""


def group_normalization(call: Call) -> Gradients:
    """Y = Xn S + B with Xn = (X - m) / s over the positions and channels of each group of each sample.

    Raises:
        ModelError: the node's opset has a scale and bias per group.
    """
    if call.tape.opset < _SCALE_PER_CHANNEL_OPSET:
        raise ModelError(
            f"GroupNormalization {call.label!r} has a scale per group: it has no gradient rule",
            hint=f"export the model with opset {_SCALE_PER_CHANNEL_OPSET} or later",
        )
    tape, x = call.tape, call.input(0)
    grouped_shape = tape.ints(0, call.attribute("num_groups"), -1)
    grouped_x = tape.emit("Reshape", x, grouped_shape)
    statistics = _statistics(call, grouped_x, (2,))
    xn = _normalized(tape, grouped_x, statistics)
    dscale, dbias = _channel_gradients(call, tape.reshape_like(xn, x))
    dx = ""
    if call.wants(0):
        g = tape.emit("Mul", call.dy, _as_channel_column(tape, call.input(1), x))
        grouped_g = tape.emit("Reshape", g, grouped_shape)
        dx = tape.reshape_like(_gradient_of_x(tape, grouped_g, xn, statistics), x)
    return (dx, dscale, dbias)


def batch_normalization(call: Call) -> Gradients:
    """Y = Xn S + B with Xn = (X - m) / s over all axes but 1: dS = sum of dY Xn, dB = sum of dY.

    In training mode, mean m and deviation s are computed from X, otherwise from inputs: dX differs.

    Raises:
        ModelError: X has no channels, or not all inputs are of one element type.
    """
    _reject_mixed_types(call)
    if call.tape.rank(call.input(0)) < 2:
        raise ModelError(
            f"BatchNormalization {call.label!r} of a tensor without"
            " channels has no gradient rule"
        )
    if call.attribute("training_mode", 0):
        return _batch_normalization_in_training(call)
    return _batch_normalization_in_inference(call)


def _batch_normalization_in_inference(call: Call) -> Gradients:
    """Y = Xn S + B with Xn = (X - m) / s, where m and s are constants for each channel.

    So dX = dY S / s, dS = sum of dY Xn, and dB = sum of dY. s = sqrt(variance + epsilon).
    """
    tape, x, scale = call.tape, call.input(0), call.input(1)
    mean, variance = call.input(3), call.input(4)
    axes = _axes_but_channels(tape, x)
    reciprocal = _reciprocal_root(call, variance, like=variance)
    dx = dscale = dbias = ""
    if call.wants(2):
        dbias = tape.emit("ReduceSum", call.dy, axes, keepdims=0)
    if call.wants(1):
        centered = tape.emit("Sub", x, _as_channel_column(tape, mean, x))
        product = tape.emit("Mul", call.dy, centered)
        total = tape.emit("ReduceSum", product, axes, keepdims=0)
        dscale = tape.emit("Mul", total, reciprocal)
    if call.wants(0):
        factor = _as_channel_column(tape, tape.emit("Mul", scale, reciprocal), x)
        dx = tape.emit("Mul", call.dy, factor)
    # None for mean and variance: `sweep` refuses a model that needs their gradients.
    return (dx, dscale, dbias)


def _batch_normalization_in_training(call: Call) -> Gradients:
    """Y = (X - m) S / s + B, with the mean m and the standard deviation s of each channel in the batch.

    The forward node is replaced by operators whose results include m, 1 / s and S / s. With C = X - m:

        dB = sum dY, dS = sum(dY C) / s, dX = (dY - C mean(dY C) / s^2 - mean dY) S / s
    """
    tape, x = call.tape, call.input(0)
    axes = _axes_but_channels(tape, x)
    mean, reciprocal, factor = _replace_forward_batch_normalization(call)  # m, 1 / s, S / s
    dy_sum = tape.emit("ReduceSum", call.dy, axes, keepdims=1)
    centered = tape.emit("Sub", x, mean)
    product = tape.emit("Mul", call.dy, centered)
    product_sum = tape.emit("ReduceSum", product, axes, keepdims=1)
    vector = tape.ints(-1)
    dx = dscale = dbias = ""
    if call.wants(2):
        dbias = tape.emit("Reshape", dy_sum, vector)
    if call.wants(1):
        dscale = tape.emit("Reshape", tape.emit("Mul", product_sum, reciprocal), vector)
    if call.wants(0):
        square = tape.emit("Mul", reciprocal, reciprocal)
        slope = tape.emit("Mul", _mean_per_channel(tape, product_sum, x), square)
        difference = tape.emit("Sub", call.dy, tape.emit("Mul", centered, slope))
        difference = tape.emit("Sub", difference, _mean_per_channel(tape, dy_sum, x))
        dx = tape.emit("Mul", difference, factor)
    return (dx, dscale, dbias)


def _replace_forward_batch_normalization(call: Call) -> tuple[str, str, str]:
    """Replace the forward node by single operators, so that the backward pass can read its statistics.

    The nodes are recorded in ``replacements`` of the tape, with those of the running statistics.

    Returns:
        m, 1 / s and S / s, each as a channel column [1, C, 1, ...]. m and s are the mean and the standard
        deviation of each channel in the batch, S is the scale, the node's second input.
    """
    tape, x = call.tape, call.input(0)
    axes, nodes = _axes_but_channels(tape, x), list[NodeProto]()

    def emit(kind: str, *inputs: str, **attributes: object) -> str:
        nodes.append(tape.make_node(kind, inputs, 1, **attributes))
        return str(nodes[-1].output[0])

    def column(name: str) -> str:
        return emit("Reshape", name, tape.ints(*_channel_column_shape(tape, x)))

    mean = emit("ReduceMean", x, axes, keepdims=1)
    centered = emit("Sub", x, mean)
    variance = emit("ReduceMean", emit("Mul", centered, centered), axes, keepdims=1)
    shifted = emit("Add", variance, tape.scalar(call.attribute("epsilon", 1e-5), x))
    reciprocal = emit("Reciprocal", emit("Sqrt", shifted))
    factor = emit("Mul", reciprocal, column(call.input(1)))
    scaled = emit("Mul", centered, factor)
    emit("Add", scaled, column(call.input(2)))
    nodes[-1].output[0] = call.output()
    nodes.extend(_running_statistic_nodes(call, mean, variance))
    for node in nodes:
        set_phase(node, Phase.FORWARD)
    tape.replacements[call.output()] = nodes
    return mean, reciprocal, factor


def _running_statistic_nodes(call: Call, mean: str, variance: str) -> list[NodeProto]:
    """Return forward nodes that compute the new running mean and variance of a BatchNormalization.

    These are its outputs 1 and 2: ``momentum * old + (1 - momentum) * batch``, where ``batch`` is the ``mean`` or
    ``variance`` of the batch. An omitted output gets no nodes.
    """
    tape, nodes = call.tape, list[NodeProto]()
    momentum = call.attribute("momentum", 0.9)
    for index, statistic in ((1, mean), (2, variance)):
        if not call.output(index):
            continue
        old = call.input(index + 2)
        vector = tape.make_node("Reshape", [statistic, tape.ints(-1)])
        old_part = tape.make_node("Mul", [old, tape.scalar(momentum, old)])
        new_part = tape.make_node("Mul", [vector.output[0], tape.scalar(1 - momentum, old)])
        total = tape.make_node("Add", [old_part.output[0], new_part.output[0]])
        total.output[0] = call.output(index)
        nodes.extend((vector, old_part, new_part, total))
    return nodes


def _mean_per_channel(tape: Tape, total: str, x: str) -> str:
    """Return ``total``, a sum over the elements of each channel of X, divided by their number."""
    sizes = tape.tensor(x).sizes
    if sizes is not None:
        return tape.divide(total, prod(sizes[:1] + sizes[2:]), x)
    return tape.divide_by_tensor(total, _element_count(tape, x), x)


def _element_count(tape: Tape, x: str) -> str:
    """Add forward nodes that count the elements of a channel of X; return the count, an int64 scalar."""
    axes = tape.ints(0, *range(2, tape.rank(x)))
    lengths = tape.make_node("Gather", [tape.shape_of(x), axes])
    count = tape.make_node("ReduceProd", [lengths.output[0]], keepdims=0)
    for node in (lengths, count):
        tape.add_to_forward(x, node)
    return str(count.output[0])


def _reject_mixed_types(call: Call) -> None:
    """Raise ModelError if X, scale or statistics are of different element types."""
    types = {call.tape.dtype(name) for name in call.node.input if name}
    if len(types - {TensorProto.UNDEFINED}) > 1:  # an unknown type may agree
        raise ModelError(
            f"{call.node.op_type} {call.label!r} takes several element"
            " types: it has no gradient rule for that"
        )


def _statistics(call: Call, name: str, axes: tuple[int, ...]) -> Statistics:
    """Add backward nodes that compute the `Statistics` of ``name``, X or a reshaped X, over axes of ``name``."""
    tape, x, axes_tensor = call.tape, call.input(0), call.tape.ints(*axes)
    mean = tape.emit("ReduceMean", name, axes_tensor, keepdims=1)
    centered = tape.emit("Sub", name, mean)
    squares = tape.emit("Mul", centered, centered)
    variance = tape.emit("ReduceMean", squares, axes_tensor, keepdims=1)
    return Statistics(mean, _reciprocal_root(call, variance, like=x), axes)


def _reciprocal_root(call: Call, variance: str, like: str) -> str:
    """Return 1 / sqrt(variance + epsilon) with the node's epsilon.

    ``like`` is a tensor of the variance's type; a variance that was just emitted has no known type.
    """
    tape, epsilon = call.tape, call.attribute("epsilon", 1e-5)
    shifted = tape.emit("Add", variance, tape.scalar(epsilon, like))
    return tape.emit("Reciprocal", tape.emit("Sqrt", shifted))


def _normalized(tape: Tape, name: str, statistics: Statistics) -> str:
    """Return Xn = (X - m) / s."""
    return tape.emit("Mul", tape.emit("Sub", name, statistics.mean), statistics.reciprocal)


def _gradient_of_x(tape: Tape, g: str, xn: str, statistics: Statistics) -> str:
    """Return dX = (G - mean G - Xn mean(G Xn)) / s, from the gradient G of Xn = (X - m) / s."""
    axes = tape.ints(*statistics.axes)
    mean_product = tape.emit("ReduceMean", tape.emit("Mul", g, xn), axes, keepdims=1)
    mean = tape.emit("ReduceMean", g, axes, keepdims=1)
    difference = tape.emit("Sub", g, tape.emit("Mul", xn, mean_product))
    return tape.emit("Mul", tape.emit("Sub", difference, mean), statistics.reciprocal)


def _channel_gradients(call: Call, xn: str) -> tuple[str, str]:
    """Return the gradients of scale and bias, [C] each; empty if not wanted."""
    tape, axes = call.tape, _axes_but_channels(call.tape, call.input(0))
    dscale = dbias = ""
    if call.wants(2):
        dbias = tape.emit("ReduceSum", call.dy, axes, keepdims=0)
    if call.wants(1):
        dscale = tape.emit("ReduceSum", tape.emit("Mul", call.dy, xn), axes, keepdims=0)
    return dscale, dbias


def _axes_but_channels(tape: Tape, x: str) -> str:
    """Return an int64 constant with all axes of X but 1."""
    return tape.ints(0, *range(2, tape.rank(x)))


def _channel_column_shape(tape: Tape, x: str) -> list[int]:
    """Return [1, -1, 1, ...] of the rank of X."""
    return [1, -1, *[1] * (tape.rank(x) - 2)]


def _as_channel_column(tape: Tape, vector: str, x: str) -> str:
    """Return a vector [C] as [1, C, 1, ...] of the rank of X."""
    return tape.emit("Reshape", vector, tape.ints(*_channel_column_shape(tape, x)))


RULES: Mapping[str, Rule] = {
    "BatchNormalization": batch_normalization,
    "GroupNormalization": group_normalization,
    "InstanceNormalization": instance_normalization,
    "LayerNormalization": layer_normalization,
}
"""The rule of each operator of this family."""
