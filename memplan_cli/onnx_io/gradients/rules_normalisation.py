"""Gradients of normalisations.

With x^ = (X - m) / s over some axes and G the gradient of x^,
dX = (G - mean G - x^ mean(G x^)) / s. What is kept is X, m and 1/s, never x^.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from onnx import NodeProto, TensorProto

from memplan_cli.onnx_io.gradients.broadcast import unbroadcast
from memplan_cli.onnx_io.gradients.rules_reduction import nonzero
from memplan_cli.onnx_io.gradients.tape import Phase, mark
from memplan_cli.onnx_io.gradients.tensors import Tensor

if TYPE_CHECKING:
    from memplan_cli.onnx_io.gradients.tape import Call, Tape

    Gradients = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Statistics:
    """A tensor's mean and 1 / standard deviation over some axes, which they keep as 1."""

    mean: str
    inverse: str
    axes: tuple[int, ...]


def batch_normalization(call: Call) -> Gradients:
    """Y = x^ S + B over all but axis 1: dS = sum of dY x^, dB = sum of dY.

    In use, m and s are given: dX = dY S / s, dm = -dB S / s, d(s^2) = -dS S / (2 s^2).
    """
    if call.attribute("training_mode", 0):
        return _batch_in_training(call)
    tape, x, scale = call.tape, call.input(0), call.input(1)
    axes = _other_axes(tape, x)
    inverse = _inverse_root(call, call.input(4))
    first = second = third = fourth = fifth = ""
    if call.wants(2) or call.wants(3):
        third = tape.emit("ReduceSum", call.dy, axes, keepdims=0)
    if call.wants(1) or call.wants(4):
        centred = tape.emit("Sub", x, _as_channels(tape, call.input(3), x))
        product = tape.emit("Mul", call.dy, centred)
        total = tape.emit("ReduceSum", product, axes, keepdims=0)
        second = tape.emit("Mul", total, inverse)
    if call.wants(0):
        factor = _as_channels(tape, tape.emit("Mul", scale, inverse), x)
        first = tape.emit("Mul", call.dy, factor)
    if call.wants(3):
        fourth = tape.emit("Neg", tape.emit("Mul", third, tape.emit("Mul", scale, inverse)))
    if call.wants(4):
        slope = tape.emit("Mul", scale, tape.emit("Mul", inverse, inverse))
        half = tape.emit("Mul", slope, tape.scalar(-0.5, scale))
        fifth = tape.emit("Mul", second, half)
    return (first, second, third, fourth, fifth)


def _batch_in_training(call: Call) -> Gradients:
    """As the formula above, with the batch's own statistics, kept from the forward pass."""
    tape, x = call.tape, call.input(0)
    axes = _other_axes(tape, x)
    mean, inverse, factor = _write_batch_forward(call)
    total = tape.emit("ReduceSum", call.dy, axes, keepdims=1)
    centred = tape.emit("Sub", x, mean)
    product = tape.emit("Mul", call.dy, centred)
    moment = tape.emit("ReduceSum", product, axes, keepdims=1)
    channels = tape.ints(-1)
    third = tape.emit("Reshape", total, channels) if call.wants(2) else ""
    second = ""
    if call.wants(1):
        second = tape.emit("Reshape", tape.emit("Mul", moment, inverse), channels)
    first = ""
    if call.wants(0):
        count = _positions(tape, x)
        square = tape.emit("Mul", inverse, inverse)
        slope = tape.emit("Mul", tape.emit("Div", moment, count), square)
        rest = tape.emit("Sub", call.dy, tape.emit("Mul", centred, slope))
        rest = tape.emit("Sub", rest, tape.emit("Div", total, count))
        first = tape.emit("Mul", rest, factor)
    return (first, second, third)


def _write_batch_forward(call: Call) -> tuple[str, str, str]:
    """Spell the forward node out, so that its mean and 1 / s are there to keep.

    Returns the names of both and of S / s, each [1, C, 1, ...].
    """
    tape, x = call.tape, call.input(0)
    axes, nodes = _other_axes(tape, x), list[NodeProto]()

    def emit(kind: str, *inputs: str, **attributes: object) -> str:
        nodes.append(tape.make(kind, inputs, 1, **attributes))
        return str(nodes[-1].output[0])

    def column(name: str) -> str:
        return emit("Reshape", name, tape.ints(*_column(tape, x)))

    mean = emit("ReduceMean", x, axes, keepdims=1)
    centred = emit("Sub", x, mean)
    squares = emit("ReduceSumSquare", centred, axes, keepdims=1)
    count = _positions(tape, x)
    variance = emit("Div", squares, count)
    shifted = emit("Add", variance, tape.scalar(call.attribute("epsilon", 1e-5), x))
    inverse = emit("Reciprocal", emit("Sqrt", shifted))
    factor = emit("Mul", inverse, column(call.input(1)))
    scaled = emit("Mul", centred, factor)
    nodes.append(tape.make("Add", [scaled, column(call.input(2))]))
    nodes[-1].output[0] = call.output()
    nodes.extend(_running(call, (mean, variance)))
    for node in nodes:
        mark(node, Phase.FORWARD)
    tape.instead[call.output()] = nodes
    return mean, inverse, factor


def _running(call: Call, batch: tuple[str, str]) -> list[NodeProto]:
    """New running statistic = old momentum + the batch's (1 - momentum)."""
    tape, nodes = call.tape, list[NodeProto]()
    momentum = call.attribute("momentum", 0.9)
    for index, fresh in enumerate(batch, 1):
        if not call.output(index):
            continue
        old = call.input(index + 2)
        flat = tape.make("Reshape", [fresh, tape.ints(-1)])
        parts = [
            tape.make("Mul", [old, tape.scalar(momentum, old)]),
            tape.make("Mul", [flat.output[0], tape.scalar(1 - momentum, old)]),
        ]
        both = tape.make("Add", [parts[0].output[0], parts[1].output[0]])
        both.output[0] = call.output(index)
        nodes.extend((flat, *parts, both))
    return nodes


def layer_normalization(call: Call) -> Gradients:
    """Y = x^ S + B over the last axes: dS = sum of dY x^, dB = sum of dY."""
    tape, x, scale = call.tape, call.input(0), call.input(1)
    rank = tape.rank(x)
    start = call.attribute("axis", -1) % rank
    axes = tuple(range(start, rank))
    if tape.dtype(x) == TensorProto.FLOAT:
        shape = (*tape.shape(x)[:start], *[1] * (rank - start))
        kept = Tensor(TensorProto.FLOAT, shape)
        statistics = Statistics(call.saved(1, kept), call.saved(2, kept), axes)
    else:  # the node gives its statistics in float32 only
        statistics = _statistics(call, x, axes)
    hat = _normalised(tape, x, statistics)
    third = second = first = ""
    if call.wants(2):
        third = unbroadcast(tape, call.dy, call.output(), call.input(2))
    if call.wants(1):
        second = unbroadcast(tape, tape.emit("Mul", call.dy, hat), call.output(), scale)
    if call.wants(0):
        first = _through(tape, tape.emit("Mul", call.dy, scale), hat, statistics)
    return (first, second, third)


def instance_normalization(call: Call) -> Gradients:
    """Y = x^ S + B over the positions of each channel of each sample."""
    tape, x = call.tape, call.input(0)
    axes = tuple(range(2, tape.rank(x)))
    statistics = _statistics(call, x, axes)
    hat = _normalised(tape, x, statistics)
    third, second = _channel_gradients(call, hat)
    first = ""
    if call.wants(0):
        weighted = tape.emit("Mul", call.dy, _as_channels(tape, call.input(1), x))
        first = _through(tape, weighted, hat, statistics)
    return (first, second, third)


def group_normalization(call: Call) -> Gradients:
    """Y = x^ S + B over the positions and channels of each group of each sample."""
    if call.tape.opset < _SCALE_BY_CHANNEL:
        return _scaled_by_group(call)
    tape, x = call.tape, call.input(0)
    groups = tape.ints(0, call.attribute("num_groups"), -1)
    grouped = tape.emit("Reshape", x, groups)
    statistics = _statistics(call, grouped, (2,))
    hat = _normalised(tape, grouped, statistics)
    third, second = _channel_gradients(call, tape.reshape_like(hat, x))
    first = ""
    if call.wants(0):
        weighted = tape.emit("Mul", call.dy, _as_channels(tape, call.input(1), x))
        split = tape.emit("Reshape", weighted, groups)
        first = tape.reshape_like(_through(tape, split, hat, statistics), x)
    return (first, second, third)


_SCALE_BY_CHANNEL = 21
"""The opset from which S and B of a GroupNormalization have a number a channel, not a group."""


def _scaled_by_group(call: Call) -> Gradients:
    """As an instance normalisation of [N, groups, all in a group]."""
    tape, x = call.tape, call.input(0)
    groups = tape.ints(0, call.attribute("num_groups"), -1)
    grouped, dy = (tape.emit("Reshape", name, groups) for name in (x, call.dy))
    statistics = _statistics(call, grouped, (2,))
    hat = _normalised(tape, grouped, statistics)
    first = second = third = ""
    if call.wants(2):
        third = tape.emit("ReduceSum", dy, tape.ints(0, 2), keepdims=0)
    if call.wants(1):
        product = tape.emit("Mul", dy, hat)
        second = tape.emit("ReduceSum", product, tape.ints(0, 2), keepdims=0)
    if call.wants(0):
        column = tape.emit("Reshape", call.input(1), tape.ints(1, -1, 1))
        weighted = tape.emit("Mul", dy, column)
        first = tape.reshape_like(_through(tape, weighted, hat, statistics), x)
    return (first, second, third)


def rms_normalization(call: Call) -> Gradients:
    """Y = x^ S, x^ = X / r, r^2 = mean X^2 + e: dX = (G - x^ mean(G x^)) / r, dS = sum of dY x^."""
    tape, x, scale = call.tape, call.input(0), call.input(1)
    rank = tape.rank(x)
    axes = tape.ints(*range(call.attribute("axis", -1) % rank, rank))
    mean = tape.emit("ReduceMean", tape.emit("Mul", x, x), axes, keepdims=1)
    shifted = tape.emit("Add", mean, tape.scalar(call.attribute("epsilon", 1e-5), x))
    inverse = tape.emit("Reciprocal", tape.emit("Sqrt", shifted))
    hat = tape.emit("Mul", x, inverse)
    second = first = ""
    if call.wants(1):
        second = unbroadcast(tape, tape.emit("Mul", call.dy, hat), call.output(), scale)
    if call.wants(0):
        weighted = tape.emit("Mul", call.dy, scale)
        share = tape.emit("ReduceMean", tape.emit("Mul", weighted, hat), axes, keepdims=1)
        rest = tape.emit("Sub", weighted, tape.emit("Mul", hat, share))
        first = tape.emit("Mul", rest, inverse)
    return (first, second)


def mean_variance_normalization(call: Call) -> Gradients:
    """Y = x^ over some axes, by default all but the channels."""
    tape, x = call.tape, call.input(0)
    axes = tuple(axis % tape.rank(x) for axis in call.attribute("axes", (0, 2, 3)))
    statistics = _statistics(call, x, axes, 1e-18)  # the definition adds 1e-9 to s
    return (_through(tape, call.dy, _normalised(tape, x, statistics), statistics),)


def lp_normalization(call: Call) -> Gradients:
    """Y = X / |X|_p along an axis: dX = (dY - N sum of dY Y) / |X|_p, N = Y (p 2) or sign X (p 1)."""
    tape, x, y = call.tape, call.input(0), call.output()
    axis = tape.ints(call.attribute("axis", -1))
    order = call.attribute("p", 2)
    norm = nonzero(call, tape.emit(f"ReduceL{order}", x, axis, keepdims=1))
    total = tape.emit("ReduceSum", tape.emit("Mul", call.dy, y), axis, keepdims=1)
    slope = y if order == 2 else tape.emit("Sign", x)
    rest = tape.emit("Sub", call.dy, tape.emit("Mul", slope, total))
    return (tape.emit("Div", rest, norm),)


def _statistics(
    call: Call, name: str, axes: tuple[int, ...], epsilon: float | None = None
) -> Statistics:
    """Compute again in the backward pass what the forward node does not give."""
    tape, x, over = call.tape, call.input(0), call.tape.ints(*axes)
    mean = tape.emit("ReduceMean", name, over, keepdims=1)
    centred = tape.emit("Sub", name, mean)
    variance = tape.emit("ReduceMean", tape.emit("Mul", centred, centred), over, keepdims=1)
    small = call.attribute("epsilon", 1e-5) if epsilon is None else epsilon
    shifted = tape.emit("Add", variance, tape.scalar(small, x))
    return Statistics(mean, tape.emit("Reciprocal", tape.emit("Sqrt", shifted)), axes)


def _normalised(tape: Tape, name: str, statistics: Statistics) -> str:
    return tape.emit("Mul", tape.emit("Sub", name, statistics.mean), statistics.inverse)


def _through(tape: Tape, gradient: str, hat: str, statistics: Statistics) -> str:
    """(G - mean G - x^ mean(G x^)) / s."""
    axes = tape.ints(*statistics.axes)
    share = tape.emit("ReduceMean", tape.emit("Mul", gradient, hat), axes, keepdims=1)
    mean = tape.emit("ReduceMean", gradient, axes, keepdims=1)
    rest = tape.emit("Sub", gradient, tape.emit("Mul", hat, share))
    return tape.emit("Mul", tape.emit("Sub", rest, mean), statistics.inverse)


def _channel_gradients(call: Call, hat: str) -> tuple[str, str]:
    """Return dB and dS of per-channel scale and bias."""
    tape, axes = call.tape, _other_axes(call.tape, call.input(0))
    third = second = ""
    if call.wants(2):
        third = tape.emit("ReduceSum", call.dy, axes, keepdims=0)
    if call.wants(1):
        second = tape.emit("ReduceSum", tape.emit("Mul", call.dy, hat), axes, keepdims=0)
    return third, second


def _inverse_root(call: Call, variance: str) -> str:
    tape = call.tape
    epsilon = tape.scalar(call.attribute("epsilon", 1e-5), variance)
    return tape.emit("Reciprocal", tape.emit("Sqrt", tape.emit("Add", variance, epsilon)))


def _other_axes(tape: Tape, name: str) -> str:
    return tape.ints(0, *range(2, tape.rank(name)))


def _column(tape: Tape, like: str) -> list[int]:
    return [1, -1, *[1] * (tape.rank(like) - 2)]


def _as_channels(tape: Tape, vector: str, like: str) -> str:
    return tape.emit("Reshape", vector, tape.ints(*_column(tape, like)))


def _positions(tape: Tape, name: str) -> str:
    """Return how many values each channel has, batch included, as a scalar."""
    sizes = tape.tensor(name).sizes
    if sizes is not None:
        return tape.scalar(prod(sizes) // sizes[1], name)
    axes = tape.ints(0, *range(2, tape.rank(name)))
    part = tape.make("Gather", [tape.shape_of(name), axes])
    count = tape.make("ReduceProd", [part.output[0]], keepdims=0)
    number = tape.make("Cast", [count.output[0]], to=tape.dtype(name))
    for node in (part, count, number):
        tape.place_after(name, node)
    return str(number.output[0])
