"""Gradients of pools."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np
from onnx import TensorProto

from memplan_cli.errors import ModelError
from memplan_cli.features.training.rules.conv import (
    Window,
    spatial_windows,
    transposed_conv,
    with_leading_dims,
)
from memplan_cli.features.training.tape import UnknownShapeError
from memplan_cli.features.training.tensors import Tensor

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
        ModelError: the pool saves its indices in column-major order.
    """
    tape, x = call.tape, call.input(0)
    if call.attribute("storage_order", 0):
        # Such indices do not count the elements of X in their order in memory.
        raise ModelError(
            f"MaxPool {call.label!r} has storage_order 1: it has no gradient rule for that"
        )
    shape = tape.tensor(call.output()).shape
    indices = call.optional_output(1, Tensor(TensorProto.INT64, shape))
    flat = tape.ints(-1)
    dx = tape.emit(
        "ScatterElements",
        _flat_zeros(tape, x),
        tape.emit("Reshape", indices, flat),
        tape.emit("Reshape", call.dy, flat),
        axis=0,
        reduction="add",
    )
    return (tape.reshape_like(dx, x),)


def _flat_zeros(tape: Tape, like: str) -> str:
    """Return a vector of zeros with as many elements as a forward tensor."""
    sizes = tape.tensor(like).sizes
    if sizes is not None:
        return tape.emit("Expand", tape.scalar(0, like), tape.ints(prod(sizes)))
    count = tape.emit("ReduceProd", tape.shape_of(like), tape.ints(0), keepdims=1)
    return tape.emit("Expand", tape.scalar(0, like), count)


def average_pool(call: Call) -> Gradients:
    """Y = mean over each window: dX = sum of dY / n over the windows that read X.

    The sum is a transposed convolution with a kernel of ones. Channels become samples of one channel,
    so that one kernel serves each of them by itself.
    """
    tape, x = call.tape, call.input(0)
    kernel = tuple(call.attribute("kernel_shape"))
    windows = spatial_windows(call, kernel, x, call.output())
    quotient = tape.emit("Div", call.dy, _window_counts(call, windows))
    samples = with_leading_dims(tape, quotient, (-1, 1), call.output())
    ones = tape.constant(np.ones((1, 1, *kernel)), tape.dtype(x))
    dx = transposed_conv(tape, samples, ones, windows, group=1)
    return (tape.reshape_like(dx, x),)


def _window_counts(call: Call, windows: tuple[Window, ...]) -> str:
    """Return how many elements each mean counts: a scalar if all windows count alike, else [1, 1, outputs, ...].

    Padding counts with ``count_include_pad``. A window of ``ceil_mode`` may end beyond the padding: what is
    there never counts.

    Raises:
        UnknownShapeError: windows may count different numbers, and the sizes are not known.
    """
    tape, x = call.tape, call.input(0)
    counts_padding = bool(call.attribute("count_include_pad", 0))
    ceil_mode = call.attribute("ceil_mode", 0)
    has_padding = any(window.begin or window.end for window in windows)
    counts_all_taps = not ceil_mode and (counts_padding or not has_padding)
    if counts_all_taps:
        return tape.scalar(prod(window.kernel for window in windows), x)
    if any(window.input_size is None or window.output_size is None for window in windows):
        raise UnknownShapeError(
            f"the size of {x!r} is not known, and its averages may count unevenly",
            hint="export the model with fixed image sizes",
        )
    counts: NDArray[np.float64] = np.ones(())
    for window in windows:  # the counts along the axes are multiplied
        begin, end = (window.begin, window.end) if counts_padding else (0, 0)
        counts = counts[..., None] * _axis_counts(window, begin, end)
    return tape.constant(counts[None, None], tape.dtype(x))


def _axis_counts(window: Window, begin: int, end: int) -> NDArray[np.float64]:
    """Return how many elements each output reads along an axis of known sizes.

    Of the padding, ``begin`` elements before the input and ``end`` behind it count.
    """
    input_size, output_size = window.input_size or 0, window.output_size or 0
    counts = []
    for output in range(output_size):
        first = output * window.stride - window.begin
        taps = range(first, first + window.span, window.dilation)
        counts.append(sum(-begin <= tap < input_size + end for tap in taps))
    return np.array(counts, np.float64)


def global_average_pool(call: Call) -> Gradients:
    """Y = mean over all positions: dX = dY / n everywhere."""
    tape, x = call.tape, call.input(0)
    sizes = tape.tensor(x).sizes
    if sizes is not None:
        share = tape.divide(call.dy, prod(sizes[2:]), x)
    else:
        spatial = tape.emit("Slice", tape.shape_of(x), tape.ints(2), tape.ints(tape.rank(x)))
        count = tape.emit("ReduceProd", spatial, keepdims=0)
        share = tape.divide_by_tensor(call.dy, count, x)
    return (tape.emit("Expand", share, tape.shape_of(x)),)


def global_max_pool(call: Call) -> Gradients:
    """Y = the largest of all positions: dY is shared by the elements equal to Y."""
    tape, x = call.tape, call.input(0)
    mask = tape.emit("Cast", tape.emit("Equal", x, call.output()), to=tape.dtype(x))
    axes = tape.ints(*range(2, tape.rank(x)))
    count = tape.emit("ReduceSum", mask, axes, keepdims=1)
    return (tape.emit("Mul", mask, tape.emit("Div", call.dy, count)),)


RULES: Mapping[str, Rule] = {
    "AveragePool": average_pool,
    "GlobalAveragePool": global_average_pool,
    "GlobalMaxPool": global_max_pool,
    "MaxPool": max_pool,
}
"""The rule of each operator of this family."""
