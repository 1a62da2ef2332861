"""Gradients of convolutions, as convolutions.

No ConvGrad exists in standard ONNX: the gradient of the data is a transposed convolution,
that of the kernel is a convolution of the data with the gradient, strides and dilations
exchanged.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memplan_cli.errors import ModelError
from memplan_cli.features.training.rules.windows import Window, windows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.features.training.tape import Call, Rule, Tape

    Gradients = tuple[str, ...]


def conv(call: Call) -> Gradients:
    """Y = X * W + B: dX = transposed conv of dY with W, dW = X * dY, dB = sum of dY."""
    x, weight = call.input(0), call.input(1)
    slides = windows(call, call.tape.shape(weight)[2:], x, call.output())
    group = call.attribute("group", 1)
    third = _bias_gradient(call) if call.wants(2) else ""
    second = first = ""
    if call.wants(1):
        second = kernel_gradient(call, (x, x), (call.dy, call.output()), slides)
    if call.wants(0):
        first = spread_windows(call.tape, (call.dy, weight), x, slides, group)
    return (first, second, third)


def conv_transpose(call: Call) -> Gradients:
    """Y is the data gradient of a conv: dX = dY * W, dW = dY * X, dB = sum of dY."""
    tape, x, weight, out = call.tape, call.input(0), call.input(1), call.output()
    slides = _transposed_windows(call)
    third = _bias_gradient(call) if call.wants(2) else ""
    second = first = ""
    if call.wants(1):
        second = kernel_gradient(call, (call.dy, out), (x, x), slides)
    if call.wants(0):
        first = tape.emit(
            "Conv",
            call.dy,
            weight,
            kernel_shape=[s.kernel for s in slides],
            strides=[s.stride for s in slides],
            dilations=[s.dilation for s in slides],
            pads=_pads(slides),
            group=call.attribute("group", 1),
        )
        if any(s.tail is not None and s.tail >= s.stride for s in slides):
            first = crop_to(tape, first, x)
    return (first, second, third)


def spread_windows(
    tape: Tape, operands: tuple[str, str], like: str, slides: tuple[Window, ...], group: int
) -> str:
    """Add each output's gradient, times the kernel, to the inputs that it was made from.

    The result has the shape of ``like``; inputs at the end that no window read get zero by
    output padding, and where sizes are unknown the surplus is cut off at run time.
    """
    tails = [s.tail for s in slides]
    exact = all(tail is not None for tail in tails)
    ends, extra = [], []
    for slide, tail in zip(slides, tails, strict=True):
        unread = slide.stride - 1 if tail is None else tail - (min(0, tail))
        ends.append(0 if tail is None else slide.end - min(tail, 0))
        extra.append(unread)
    crops = [max(e, 0) for e in ends]
    spread = tape.emit(
        "ConvTranspose",
        *operands,
        kernel_shape=[s.kernel for s in slides],
        strides=[s.stride for s in slides],
        dilations=[s.dilation for s in slides],
        pads=[*(s.begin for s in slides), *crops],
        output_padding=extra,
        group=group,
    )
    return spread if exact else crop_to(tape, spread, like)


def crop_to(tape: Tape, name: str, like: str) -> str:
    """Cut the spatial axes of a tensor to those of a forward tensor."""
    rank = tape.rank(like)
    axes = list(range(2, rank))
    ends = tape.emit("Slice", tape.shape_of(like), tape.ints(2), tape.ints(rank))
    return tape.emit("Slice", name, tape.ints(*[0] * len(axes)), ends, tape.ints(*axes))


def kernel_gradient(
    call: Call, data: tuple[str, str], steps: tuple[str, str], slides: tuple[Window, ...]
) -> str:
    """Return dW of a conv that reads ``data`` and gives ``steps`` (values, shape known of)."""
    tape, weight, group = call.tape, call.input(1), call.attribute("group", 1)
    if any(0 in tape.shape(known) for _, known in (data, steps)):
        # A Conv that has nothing to add up leaves its result as memory was (ONNX Runtime).
        return tape.zeros_like(weight)
    if group == 1 and all(_is_point(slide) for slide in slides):
        return _point_gradient(tape, data, steps, weight)
    rank = len(slides) + 2
    swap = [1, 0, *range(2, rank)]
    if group == 1:
        moved = tape.emit("Transpose", data[0], perm=swap)
    else:
        moved = _grouped(tape, data, group, _channels(call))
    ends, exact = [], True
    for slide in slides:
        tail = slide.tail
        end = slide.end if tail is None else slide.end - tail
        exact = exact and tail is not None and end >= 0
        ends.append(end if tail is not None and end >= 0 else slide.end)
    product = tape.emit(
        "Conv",
        moved,
        tape.emit("Transpose", steps[0], perm=swap),
        strides=[s.dilation for s in slides],
        dilations=[s.stride for s in slides],
        pads=[*(s.begin for s in slides), *ends],
        group=group,
    )
    if not exact:
        zeros, kernel = [0] * len(slides), [s.kernel for s in slides]
        axes = tape.ints(*range(2, rank))
        product = tape.emit("Slice", product, tape.ints(*zeros), tape.ints(*kernel), axes)
    return tape.emit("Transpose", product, perm=swap)


def _point_gradient(
    tape: Tape, data: tuple[str, str], steps: tuple[str, str], weight: str
) -> str:
    """A kernel of one tap is a matrix: dW = dY X^T over all positions."""
    rank = tape.rank(weight)
    swap = [1, 0, *range(2, rank)]
    rows = [
        tape.emit("Flatten", tape.emit("Transpose", name, perm=swap), axis=1)
        for name in (steps[0], data[0])
    ]
    return tape.reshape_like(tape.emit("Gemm", *rows, transB=1), weight)


def _grouped(tape: Tape, data: tuple[str, str], group: int, width: int) -> str:
    """[N, G C, ...] -> [C, G N, ...] with ``width`` C: each group's channels become a batch."""
    shape = tape.shape(data[1])
    rank = len(shape)
    if width == 1:
        moved = tape.emit("Transpose", data[0], perm=[1, 0, *range(2, rank)])
    else:
        split = _with_front(tape, data[0], (0, group, width), data[1])
        moved = tape.emit("Transpose", split, perm=[2, 1, 0, *range(3, rank + 1)])
    return _with_front(tape, moved, (width, -1), data[1])


def _with_front(tape: Tape, name: str, front: tuple[int, ...], like: str) -> str:
    """Give a tensor other leading axes, and the spatial ones of a forward tensor."""
    shape = tape.shape(like)
    sizes = [dim for dim in shape[2:] if isinstance(dim, int)]
    if len(sizes) == len(shape) - 2:
        return tape.emit("Reshape", name, tape.ints(*front, *sizes))
    lengths = tape.emit("Slice", tape.shape_of(like), tape.ints(2), tape.ints(len(shape)))
    whole = tape.emit("Concat", tape.ints(*front), lengths, axis=0)
    return tape.emit("Reshape", name, whole)


def _bias_gradient(call: Call) -> str:
    axes = [0, *range(2, call.tape.rank(call.output()))]
    return call.tape.emit("ReduceSum", call.dy, call.tape.ints(*axes), keepdims=0)


def _transposed_windows(call: Call) -> tuple[Window, ...]:
    """Return the windows of the conv whose data gradient this is, from its output's size."""
    tape, x, weight, out = call.tape, call.input(0), call.input(1), call.output()
    found = windows(call, tape.shape(weight)[2:], out, x)
    extra = call.attribute("output_padding", [0] * len(found))
    mode = call.attribute("auto_pad", "NOTSET")
    if not call.attribute("output_shape") and mode in ("NOTSET", "VALID"):
        return tuple(replace(slide, unread=n) for slide, n in zip(found, extra, strict=True))
    sizes, steps = tape.sizes(out), tape.sizes(x)
    resolved = []
    for axis, slide in enumerate(found):
        size, step = sizes[axis + 2], steps[axis + 2]
        total = max((step - 1) * slide.stride + slide.span + extra[axis] - size, 0)
        half = total // 2
        begin = half if mode == "SAME_UPPER" else total - half
        resolved.append(replace(slide, begin=begin, end=total - begin, size=size, steps=step))
    return tuple(resolved)


def _channels(call: Call) -> int:
    """Return how many channels of the data each group reads: the weight's second axis."""
    channels = call.tape.shape(call.input(1))[1]
    if not isinstance(channels, int):
        raise ModelError(f"the channels of {call.node.op_type} {call.node.name!r} are dynamic")
    return channels


def _is_point(slide: Window) -> bool:
    unpadded = not (slide.begin or slide.end or slide.tail)
    return slide.kernel == slide.stride == 1 and unpadded


def _pads(slides: tuple[Window, ...]) -> list[int]:
    return [*(s.begin for s in slides), *(s.end for s in slides)]


RULES: Mapping[str, Rule] = {
    "Conv": conv,
    "ConvTranspose": conv_transpose,
}
"""The rule of each operator of this family."""
