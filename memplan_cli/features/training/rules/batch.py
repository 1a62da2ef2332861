"""Gradients of batch normalisation: by the batch's own statistics, or by given ones.

The formulas are those of the other normalisations; the forward node is expanded, so that
its mean and 1 / s are there to keep, and the running statistics are updated.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from onnx import NodeProto, TensorProto

from memplan_cli.errors import ModelError
from memplan_cli.features.training.rules.normalization import (
    as_channels,
    column_of,
    other_axes,
    refuse_several_types,
)
from memplan_cli.features.training.tape import Phase, mark

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.features.training.tape import Call, Rule, Tape

    Gradients = tuple[str, ...]


def batch_normalization(call: Call) -> Gradients:
    """Y = x^ S + B over all but axis 1: dS = sum of dY x^, dB = sum of dY.

    In use, m and s are given: dX = dY S / s, dm = -dB S / s, d(s^2) = -dS S / (2 s^2).

    Raises:
        ModelError: X has no channels, or not all inputs are of one element type.
    """
    refuse_several_types(call)
    if call.tape.rank(call.input(0)) < 2:
        raise ModelError(
            f"BatchNormalization {call.node.name or call.output()!r} of a tensor without"
            " channels has no gradient rule"
        )
    if call.attribute("training_mode", 0):
        return _batch_in_training(call)
    tape, x, scale = call.tape, call.input(0), call.input(1)
    axes = other_axes(tape, x)
    inverse = _inverse_root(call, call.input(4))
    first = second = third = fourth = fifth = ""
    if call.wants(2) or call.wants(3):
        third = tape.emit("ReduceSum", call.dy, axes, keepdims=0)
    if call.wants(1) or call.wants(4):
        centred = tape.emit("Sub", x, as_channels(tape, call.input(3), x))
        product = tape.emit("Mul", call.dy, centred)
        total = tape.emit("ReduceSum", product, axes, keepdims=0)
        second = tape.emit("Mul", total, inverse)
    if call.wants(0):
        factor = as_channels(tape, tape.emit("Mul", scale, inverse), x)
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
    axes = other_axes(tape, x)
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
        square = tape.emit("Mul", inverse, inverse)
        slope = tape.emit("Mul", _averaged(tape, moment, x), square)
        rest = tape.emit("Sub", call.dy, tape.emit("Mul", centred, slope))
        rest = tape.emit("Sub", rest, _averaged(tape, total, x))
        first = tape.emit("Mul", rest, factor)
    return (first, second, third)


def _write_batch_forward(call: Call) -> tuple[str, str, str]:
    """Expand the forward node, so that its mean and 1 / s are there to keep.

    Returns the names of both and of S / s, each [1, C, 1, ...].
    """
    tape, x = call.tape, call.input(0)
    axes, nodes = other_axes(tape, x), list[NodeProto]()

    def emit(kind: str, *inputs: str, **attributes: object) -> str:
        nodes.append(tape.make(kind, inputs, 1, **attributes))
        return str(nodes[-1].output[0])

    def column(name: str) -> str:
        return emit("Reshape", name, tape.ints(*column_of(tape, x)))

    mean = emit("ReduceMean", x, axes, keepdims=1)
    centred = emit("Sub", x, mean)
    if tape.dtype(x) == TensorProto.FLOAT16:  # a sum of squares soon leaves its range
        variance = emit("ReduceMean", emit("Mul", centred, centred), axes, keepdims=1)
    else:
        squares = emit("ReduceSumSquare", centred, axes, keepdims=1)
        variance = emit("Div", squares, _positions(tape, x))
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


def _inverse_root(call: Call, variance: str) -> str:
    tape = call.tape
    epsilon = tape.scalar(call.attribute("epsilon", 1e-5), variance)
    return tape.emit("Reciprocal", tape.emit("Sqrt", tape.emit("Add", variance, epsilon)))


def _averaged(tape: Tape, total: str, like: str) -> str:
    """Divide by how many values each channel has, batch included."""
    sizes = tape.tensor(like).sizes
    if sizes is not None:
        return tape.divided(total, prod(sizes[:1] + sizes[2:]), like)
    return tape.divided_at_run_time(total, _counted(tape, like), like)


def _positions(tape: Tape, name: str) -> str:
    """Return how many values each channel has, batch included, as a scalar."""
    sizes = tape.tensor(name).sizes
    if sizes is not None:
        return tape.scalar(prod(sizes[:1] + sizes[2:]), name)
    number = tape.make("Cast", [_counted(tape, name)], to=tape.dtype(name))
    tape.place_after(name, number)
    return str(number.output[0])


def _counted(tape: Tape, name: str) -> str:
    """As an int64 scalar, made in the forward pass."""
    axes = tape.ints(0, *range(2, tape.rank(name)))
    part = tape.make("Gather", [tape.shape_of(name), axes])
    count = tape.make("ReduceProd", [part.output[0]], keepdims=0)
    for node in (part, count):
        tape.place_after(name, node)
    return str(count.output[0])


RULES: Mapping[str, Rule] = {
    "BatchNormalization": batch_normalization,
}
"""The rule of each operator of this family."""
