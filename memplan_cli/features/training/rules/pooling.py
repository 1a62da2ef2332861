"""Gradients of pools."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np
from onnx import TensorProto

from memplan_cli.errors import ModelError
from memplan_cli.features.training.forward.tensors import Tensor
from memplan_cli.features.training.rules.conv import spread_windows
from memplan_cli.features.training.rules.windows import Window, windows
from memplan_cli.features.training.tape import UnknownShapeError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from memplan_cli.features.training.tape import Call, Rule, Tape

    Gradients = tuple[str, ...]


def max_pool(call: Call) -> Gradients:
    """Y = X at the largest of each window: dX = dY added at the indices that the pool saved.

    Windows overlap, so indices repeat: ScatterElements adds them in order, where ScatterND
    races on the CPU provider.

    Raises:
        UnknownShapeError: the pool saves its indices in column-major order.
    """
    tape, x = call.tape, call.input(0)
    if call.attribute("storage_order", 0):
        raise UnknownShapeError(f"MaxPool {call.node.name!r} counts in column-major order")
    indices = call.saved(1, Tensor(TensorProto.INT64, tape.tensor(call.output()).shape))
    flat = tape.ints(-1)
    spread = tape.emit(
        "ScatterElements",
        _flat_zeros(tape, x),
        tape.emit("Reshape", indices, flat),
        tape.emit("Reshape", call.dy, flat),
        axis=0,
        reduction="add",
    )
    return (tape.reshape_like(spread, x),)


def average_pool(call: Call) -> Gradients:
    """Y = mean over each window: dX = sum of dY / n over the windows that read X.

    The sum is a transposed convolution with ones, each channel by itself.
    """
    tape, x = call.tape, call.input(0)
    kernel = tuple(call.attribute("kernel_shape"))
    slides = windows(call, kernel, x, call.output())
    share = tape.emit("Div", call.dy, _counts(call, slides))
    ones = tape.constant(np.ones((1, 1, *kernel)), tape.dtype(x))
    alone = _channels_as_batch(tape, share, call.output())
    spread = spread_windows(tape, (alone, ones), x, slides, 1)
    return (tape.reshape_like(spread, x),)


def global_average_pool(call: Call) -> Gradients:
    """Y = mean over all positions: dX = dY / n everywhere."""
    tape, x = call.tape, call.input(0)
    sizes = tape.tensor(x).sizes
    if sizes is not None:
        share = tape.divided(call.dy, prod(sizes[2:]), x)
    else:
        part = tape.emit("Slice", tape.shape_of(x), tape.ints(2), tape.ints(tape.rank(x)))
        count = tape.emit("ReduceProd", part, keepdims=0)
        share = tape.divided_at_run_time(call.dy, count, x)
    return (tape.emit("Expand", share, tape.shape_of(x)),)


def global_max_pool(call: Call) -> Gradients:
    """Y = the largest of all positions: dY is shared by the elements equal to Y."""
    tape, x = call.tape, call.input(0)
    mask = tape.emit("Cast", tape.emit("Equal", x, call.output()), to=tape.dtype(x))
    axes = tape.ints(*range(2, tape.rank(x)))
    count = tape.emit("ReduceSum", mask, axes, keepdims=1)
    return (tape.emit("Mul", mask, tape.emit("Div", call.dy, count)),)


_POOLS_OF_BFLOAT16 = 22
"""The opset from which AveragePool takes bfloat16."""


def local_response(call: Call) -> Gradients:
    """Y = X S^-b, S = k + a/n sum of X^2 over n channels: with P the same sum reversed,
    dX = dY S^-b - 2ab/n X P(dY Y / S).

    Raises:
        ModelError: X is of bfloat16, of which no pool takes means before opset 22.
    """  # noqa: D205 - one formula
    tape, x = call.tape, call.input(0)
    if tape.dtype(x) == TensorProto.BFLOAT16 and tape.opset < _POOLS_OF_BFLOAT16:
        raise ModelError(
            f"LRN {call.node.name or call.output()!r} is of bfloat16: its gradient takes means"
            f" that need opset {_POOLS_OF_BFLOAT16}"
        )
    size, bias = call.attribute("size"), call.attribute("bias", 1.0)
    alpha, beta = call.attribute("alpha", 1e-4), call.attribute("beta", 0.75)
    before, behind = (size - 1) // 2, size - 1 - (size - 1) // 2
    square = tape.emit("Mul", x, x)
    mean = _channel_mean(call, square, (size, before, behind))
    scaled = tape.emit("Mul", mean, tape.scalar(alpha, x))
    base = tape.emit("Add", scaled, tape.scalar(bias, x))
    direct = tape.emit("Mul", call.dy, tape.emit("Pow", base, tape.scalar(-beta, x)))
    ratio = tape.emit("Div", tape.emit("Mul", call.dy, call.output()), base)
    spread = _channel_mean(call, ratio, (size, behind, before))
    scaled = tape.emit("Mul", spread, tape.scalar(2 * alpha * beta, x))
    return (tape.emit("Sub", direct, tape.emit("Mul", x, scaled)),)


def _channel_mean(call: Call, name: str, window: tuple[int, int, int]) -> str:
    """Mean over neighbouring channels, those beyond the edge counted as zero.

    [N, C, ...] is read as images [N, 1, C, positions], of which AveragePool takes columns.
    """
    tape, x = call.tape, call.input(0)
    size, before, behind = window
    channels = tape.sizes(x)[1] if tape.tensor(x).sizes else tape.shape(x)[1]
    if not isinstance(channels, int):
        raise UnknownShapeError(f"the number of channels of {x!r} is not known")
    image = tape.emit("Reshape", name, tape.ints(0, 1, channels, -1))
    mean = tape.emit(
        "AveragePool",
        image,
        kernel_shape=[size, 1],
        pads=[before, 0, behind, 0],
        count_include_pad=1,
    )
    return tape.reshape_like(mean, x)


def _flat_zeros(tape: Tape, like: str) -> str:
    sizes = tape.tensor(like).sizes
    if sizes is not None:
        return tape.emit("Expand", tape.scalar(0, like), tape.ints(prod(sizes)))
    total = tape.emit("ReduceProd", tape.shape_of(like), tape.ints(0), keepdims=1)
    return tape.emit("Expand", tape.scalar(0, like), total)


def _channels_as_batch(tape: Tape, name: str, like: str) -> str:
    shape = tape.shape(like)
    if all(isinstance(dim, int) for dim in shape[2:]):
        sizes = [dim for dim in shape[2:] if isinstance(dim, int)]
        return tape.emit("Reshape", name, tape.ints(-1, 1, *sizes))
    lengths = tape.emit("Slice", tape.shape_of(like), tape.ints(2), tape.ints(len(shape)))
    return tape.emit("Reshape", name, tape.emit("Concat", tape.ints(-1, 1), lengths, axis=0))


def _counts(call: Call, slides: tuple[Window, ...]) -> str:
    """Return how many elements each mean is of, as a scalar where all agree."""
    tape, x = call.tape, call.input(0)
    if call.attribute("count_include_pad", 0):
        reach = [(s.begin, s.end) for s in slides]
    else:
        reach = [(0, 0)] * len(slides)
    padded = any(s.begin or s.end for s in slides) or call.attribute("ceil_mode", 0)
    if not padded or (
        call.attribute("count_include_pad", 0) and not call.attribute("ceil_mode", 0)
    ):
        return tape.scalar(prod(s.kernel for s in slides), x)
    if any(s.size is None or s.steps is None for s in slides):
        raise UnknownShapeError(
            f"the size of {x!r} is not known, and its padded averages count unevenly",
            hint="export the model with fixed image sizes",
        )
    per_axis = [_axis_counts(s, edge) for s, edge in zip(slides, reach, strict=True)]
    counts = per_axis[0]
    for axis in per_axis[1:]:
        counts = counts[..., None] * axis
    return tape.constant(counts[None, None], tape.dtype(x))


def _axis_counts(slide: Window, reach: tuple[int, int]) -> NDArray[np.float64]:
    size, steps = slide.size or 0, slide.steps or 0
    counts = [
        sum(
            -reach[0]
            <= step * slide.stride + tap * slide.dilation - slide.begin
            < size + reach[1]
            for tap in range(slide.kernel)
        )
        for step in range(steps)
    ]
    return np.array(counts, np.float64)


RULES: Mapping[str, Rule] = {
    "AveragePool": average_pool,
    "GlobalAveragePool": global_average_pool,
    "GlobalMaxPool": global_max_pool,
    "LRN": local_response,
    "MaxPool": max_pool,
}
"""The rule of each operator of this family."""
