"""Gradients of normalisations.

With x^ = (X - m) / s over some axes and G the gradient of x^,
dX = (G - mean G - x^ mean(G x^)) / s. What is kept is X, m and 1/s, never x^.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from onnx import TensorProto

from memplan_cli.errors import ModelError
from memplan_cli.features.training.forward.tensors import Tensor
from memplan_cli.features.training.rules.broadcast import unbroadcast
from memplan_cli.features.training.rules.reduction import nonzero

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.features.training.tape import Call, Rule, Tape

    Gradients = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Statistics:
    """A tensor's mean and 1 / standard deviation over some axes, which they keep as 1."""

    mean: str
    inverse: str
    axes: tuple[int, ...]


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
        weighted = tape.emit("Mul", call.dy, as_channels(tape, call.input(1), x))
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
        weighted = tape.emit("Mul", call.dy, as_channels(tape, call.input(1), x))
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
    refuse_several_types(call)
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


def refuse_several_types(call: Call) -> None:
    """Stop where X, scale or statistics are of different element types.

    Raises:
        ModelError: naming the node.
    """
    types = {call.tape.dtype(name) for name in call.node.input if name} - {0}
    if len(types) > 1:
        raise ModelError(
            f"{call.node.op_type} {call.node.name or call.output()!r} takes several element"
            " types: it has no gradient rule for that"
        )


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
    tape, axes = call.tape, other_axes(call.tape, call.input(0))
    third = second = ""
    if call.wants(2):
        third = tape.emit("ReduceSum", call.dy, axes, keepdims=0)
    if call.wants(1):
        second = tape.emit("ReduceSum", tape.emit("Mul", call.dy, hat), axes, keepdims=0)
    return third, second


def other_axes(tape: Tape, name: str) -> str:
    """Return all axes but that of the channels, as a constant."""
    return tape.ints(0, *range(2, tape.rank(name)))


def column_of(tape: Tape, like: str) -> list[int]:
    """Return the shape of one number a channel that broadcasts to a tensor."""
    return [1, -1, *[1] * (tape.rank(like) - 2)]


def as_channels(tape: Tape, vector: str, like: str) -> str:
    """Give one number a channel the shape that broadcasts to a tensor."""
    return tape.emit("Reshape", vector, tape.ints(*column_of(tape, like)))


RULES: Mapping[str, Rule] = {
    "GroupNormalization": group_normalization,
    "InstanceNormalization": instance_normalization,
    "LayerNormalization": layer_normalization,
    "LpNormalization": lp_normalization,
    "MeanVarianceNormalization": mean_variance_normalization,
    "RMSNormalization": rms_normalization,
}
"""The rule of each operator of this family."""
