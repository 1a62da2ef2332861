"""Gradients of convolutions, as convolutions, and the geometry that pools share with them.

Standard ONNX has no ConvGrad. The gradient of the data is a transposed convolution; that of the kernel
is a convolution of the data with the gradient, strides and dilations exchanged.

Along one axis, output o of a convolution reads the inputs ``o * stride + tap * dilation - begin``, where
``tap`` counts the elements of the kernel and ``begin`` is the padding before the first input.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.errors import ModelError
from memplan_cli.features.training.tape import UnknownShapeError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.core.program import Shape
    from memplan_cli.features.training.tape import Call, Rule, Tape

    Gradients = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Window:
    """One spatial axis of a convolution or pool.

    Attributes:
        kernel: elements of the kernel.
        stride: inputs from one output to the next.
        dilation: inputs from one element of the kernel to the next.
        begin: padding before the first input.
        end: padding behind the last input.
        input_size: length of the input; None: unknown, and the stride is 1.
        output_size: length of the output; None: likewise.
    """

    kernel: int
    stride: int
    dilation: int
    begin: int
    end: int
    input_size: int | None
    output_size: int | None

    @property
    def span(self) -> int:
        """Inputs from the first to the last element of the kernel, both included."""
        return (self.kernel - 1) * self.dilation + 1

    @property
    def tail(self) -> int:
        """Padded inputs behind the last one that an output reads.

            |-- begin --|-- input_size --|-- end --|
            |-- read by the outputs ----|-- tail --|

        It is negative if the last output reads beyond the padding (``ceil_mode`` of a pool).
        """
        if self.input_size is None or self.output_size is None:
            return 0  # sizes are unknown only with a stride of 1, which skips no input
        read = (self.output_size - 1) * self.stride + self.span
        return self.begin + self.input_size + self.end - read


def spatial_windows(call: Call, kernel: Shape, data: str, result: str) -> tuple[Window, ...]:
    """Return the window of each spatial axis of a convolution or pool from ``data`` to ``result``.

    Strides, dilations and padding are the attributes of the node; ``kernel`` has the spatial dims.

    Raises:
        ModelError: the kernel's size is not known.
        UnknownShapeError: the sizes of an axis with strides are not known.
    """
    rank = len(kernel)
    strides = call.attribute("strides", [1] * rank)
    dilations = call.attribute("dilations", [1] * rank)
    pads = call.attribute("pads", [0] * (2 * rank))
    auto_pad = call.attribute("auto_pad", "NOTSET")
    input_sizes, output_sizes = (
        [dim if isinstance(dim, int) else None for dim in call.tape.shape(name)[2:]]
        for name in (data, result)
    )
    result_windows = []
    for axis, taps in enumerate(kernel):
        if not isinstance(taps, int):
            raise ModelError(
                f"the kernel of {call.node.op_type} {call.node.name!r} is dynamic"
            )
        if strides[axis] != 1 and (input_sizes[axis] is None or output_sizes[axis] is None):
            raise UnknownShapeError(
                f"the size of {data!r} is not known, and the gradient of {call.node.op_type}"
                f" {call.label!r}, which has strides, depends on it",
                hint="export the model with fixed image sizes",
            )
        begin, end = (0, 0) if auto_pad == "VALID" else (pads[axis], pads[axis + rank])
        window = Window(
            kernel=taps,
            stride=strides[axis],
            dilation=dilations[axis],
            begin=begin,
            end=end,
            input_size=input_sizes[axis],
            output_size=output_sizes[axis],
        )
        result_windows.append(
            _with_same_padding(window, auto_pad) if auto_pad.startswith("SAME") else window
        )
    return tuple(result_windows)


def _with_same_padding(window: Window, auto_pad: str) -> Window:
    """Return a window with the padding for which the output has ceil(input / stride) elements."""
    if window.input_size is None:  # then the stride is 1 (`Window`)
        total = window.span - 1
    else:
        output_size = -(-window.input_size // window.stride)
        total = max((output_size - 1) * window.stride + window.span - window.input_size, 0)
    smaller, larger = total // 2, total - total // 2
    if auto_pad == "SAME_LOWER":
        return replace(window, begin=larger, end=smaller)
    return replace(window, begin=smaller, end=larger)


def conv(call: Call) -> Gradients:
    """Y = X * W + B: dX = transposed conv of dY with W, dW = X * dY, dB = sum of dY.

    ``*`` is a convolution. In that of dW, strides and dilations are exchanged, see `_kernel_gradient`.
    """
    x, w, y = call.input(0), call.input(1), call.output()
    windows = spatial_windows(call, call.tape.shape(w)[2:], x, y)
    dx = dw = db = ""
    if call.wants(2):
        db = _bias_gradient(call)
    if call.wants(1):
        dw = _kernel_gradient(call, _Operand(x, like=x), _Operand(call.dy, like=y), windows)
    if call.wants(0):
        dx = transposed_conv(call.tape, call.dy, w, windows, call.attribute("group", 1))
    return (dx, dw, db)


def conv_transpose(call: Call) -> Gradients:
    """Y = data gradient of a convolution Y -> X: dX = dY * W, dW = dY * X, dB = sum of dY.

    ``dY * W`` is this convolution, applied to dY. ``dY * X`` is its kernel gradient: its data are dY, and X is in
    the place of the gradient of its output.

    Raises:
        ModelError: the node has ``output_shape`` or pads to the SAME size, or an output padding is a
            stride or more.
    """
    tape, x, w, y = call.tape, call.input(0), call.input(1), call.output()
    auto_pad = call.attribute("auto_pad", "NOTSET")
    windows = spatial_windows(call, tape.shape(w)[2:], y, x)  # of the convolution Y -> X
    output_padding = call.attribute("output_padding", [0] * len(windows))
    # With an output padding of a stride or more, dY * W would have more elements than X.
    if (
        call.attribute("output_shape")
        or auto_pad.startswith("SAME")
        or any(n >= window.stride for n, window in zip(output_padding, windows, strict=True))
    ):
        raise ModelError(
            f"ConvTranspose {call.label!r} has output_shape, auto_pad SAME, or an output padding of a"
            " stride or more: it has no gradient rule for that",
            hint="export the model with explicit pads",
        )
    dx = dw = db = ""
    if call.wants(2):
        db = _bias_gradient(call)
    if call.wants(1):
        data = _Operand(call.dy, like=y)  # ``like`` is a forward tensor of the same shape
        output_gradient = _Operand(x, like=x)
        dw = _kernel_gradient(call, data, output_gradient, windows)
    if call.wants(0):
        dx = tape.emit(
            "Conv",
            call.dy,
            w,
            kernel_shape=[window.kernel for window in windows],
            strides=[window.stride for window in windows],
            dilations=[window.dilation for window in windows],
            pads=[*(window.begin for window in windows), *(window.end for window in windows)],
            group=call.attribute("group", 1),
        )
    return (dx, dw, db)


def _bias_gradient(call: Call) -> str:
    """Return dB = sum of dY over all axes but the channels."""
    axes = [0, *range(2, call.tape.rank(call.output()))]
    return call.tape.emit("ReduceSum", call.dy, call.tape.ints(*axes), keepdims=0)


def transposed_conv(
    tape: Tape, dy: str, kernel: str, windows: tuple[Window, ...], group: int
) -> str:
    """Return the data gradient of a convolution: each dY times the kernel, added to the inputs that Y read.

    ``windows`` are those of the convolution. Along an axis, its data X has this length:

        (len(dY) - 1) * stride + span - begin - end + tail

    ``span`` is the number of inputs from the first to the last tap of the kernel, and ``tail`` that of inputs,
    padding included, behind the last window. ConvTranspose calls the tail ``output_padding``.
    """
    # The tail is negative if the last window ends behind the padding, as in a pool with ``ceil_mode``.
    # ``output_padding`` cannot be negative, so the padding is made longer instead.
    return tape.emit(
        "ConvTranspose",
        dy,
        kernel,
        kernel_shape=[window.kernel for window in windows],
        strides=[window.stride for window in windows],
        dilations=[window.dilation for window in windows],
        pads=[
            *(window.begin for window in windows),
            *(window.end + max(-window.tail, 0) for window in windows),
        ],
        output_padding=[max(window.tail, 0) for window in windows],
        group=group,
    )


class _Operand(NamedTuple):
    """A tensor, which may be a gradient, and a forward tensor ``like`` of the same shape."""

    name: str
    like: str


def _kernel_gradient(
    call: Call, data: _Operand, dy: _Operand, windows: tuple[Window, ...]
) -> str:
    """Return the kernel gradient of a convolution of ``data`` whose output has the gradient ``dy``.

    It is a convolution of ``data`` too, with ``dy`` as its kernel, and has one output for each tap (element) of
    the forward kernel (input 1). For N samples and G groups of C input and C' output channels ("GC" is a product):

        data [N, GC, ...] as [C, GN, ...]  *  dy [N, GC', ...] as [GC', N, ...]
            ->  [C, GC', taps]  ->  transposed to the forward kernel [GC', C, taps]

    Samples take the place of channels because a convolution sums over channels.
    """
    tape, w, group = call.tape, call.input(1), call.attribute("group", 1)
    # ``like`` is a forward tensor with the shape of the operand, which may be a gradient.
    if any(0 in tape.shape(operand.like) for operand in (data, dy)):
        # ONNX Runtime leaves the output of a Conv of an empty tensor uninitialized.
        return tape.zeros_like(w)
    if group == 1 and all(map(_is_point, windows)):
        return _point_kernel_gradient(tape, data, dy, w)
    swapped = [1, 0, *range(2, len(windows) + 2)]
    # The tail is the end of the padded data, which no window of the forward convolution reads. It would add
    # outputs that belong to no tap, so the end padding is made shorter by the tail.
    begin_pads = [window.begin for window in windows]
    end_pads = [max(window.end - window.tail, 0) for window in windows]
    product = tape.emit(
        "Conv",
        _channels_to_batch(call, data, group),
        tape.emit("Transpose", dy.name, perm=swapped),
        # Outputs are taps here, and taps read data that lie ``dilation`` apart. The kernel is dY, whose elements
        # were computed from data that lie ``stride`` apart.
        strides=[window.dilation for window in windows],
        dilations=[window.stride for window in windows],
        pads=[*begin_pads, *end_pads],
        group=group,
    )
    # The part of a tail that is longer than the padding is data: its outputs are cut off.
    if any(window.tail > window.end for window in windows):
        product = _first_taps(tape, product, windows)
    return tape.emit("Transpose", product, perm=swapped)


def _first_taps(tape: Tape, product: str, windows: tuple[Window, ...]) -> str:
    """Return a kernel gradient cut behind the last element of the kernel on each spatial axis."""
    starts, ends = (
        tape.ints(*[0] * len(windows)),
        tape.ints(*(window.kernel for window in windows)),
    )
    return tape.emit("Slice", product, starts, ends, tape.ints(*range(2, len(windows) + 2)))


def _is_point(window: Window) -> bool:
    """Whether output o reads input o and no other, without padding."""
    is_unpadded = not (window.begin or window.end or window.tail)
    return window.kernel == window.stride == 1 and is_unpadded


def _point_kernel_gradient(tape: Tape, data: _Operand, dy: _Operand, w: str) -> str:
    """Return the kernel gradient dW = dY X^T, for one group and windows that are points (`_is_point`).

    Here W [C', C, 1, ...] is a matrix, and so are X = ``data`` [N, C, ...] and dY = ``dy`` [N, C', ...] with their
    channels as rows and all other axes as columns.
    """
    swapped = [1, 0, *range(2, tape.rank(w))]
    rows = [
        tape.emit("Flatten", tape.emit("Transpose", name, perm=swapped), axis=1)
        for name in (dy.name, data.name)
    ]
    return tape.reshape_like(tape.emit("Gemm", *rows, transB=1), w)


def _channels_to_batch(call: Call, data: _Operand, group: int) -> str:
    """Return data [N, GC, ...] as [C, GN, ...], for N samples and G groups of C channels.

    So samples take the place of channels, which a convolution sums over (`_kernel_gradient`). ``data`` is X of a
    Conv, or dY of a ConvTranspose. The forward tensor ``data.like`` has its shape.

    Raises:
        ModelError: there are several groups, and C is not known.
    """
    tape, rank = call.tape, call.tape.rank(data.like)
    swapped = [1, 0, *range(2, rank)]
    if group == 1:
        return tape.emit("Transpose", data.name, perm=swapped)
    # Axis 1 of the kernel has C: the channels of X in a group of a Conv, those of Y for a ConvTranspose.
    channels = tape.shape(call.input(1))[1]
    if not isinstance(channels, int):
        raise ModelError(f"the channels of {call.node.op_type} {call.node.name!r} are dynamic")
    if channels == 1:  # groups and channels are one axis already
        moved = tape.emit("Transpose", data.name, perm=swapped)
    else:
        # [N, GC, ...] to [N, G, C, ...] to [C, G, N, ...]; the 0 keeps the dim N.
        split = with_leading_dims(tape, data.name, (0, group, channels), data.like)
        moved = tape.emit("Transpose", split, perm=[2, 1, 0, *range(3, rank + 1)])
    # Before the spatial dims there are C and the rest, GN.
    return with_leading_dims(tape, moved, (channels, -1), data.like)


def with_leading_dims(tape: Tape, name: str, dims: tuple[int, ...], like: str) -> str:
    """Reshape a tensor to ``dims`` followed by the spatial dims, axes 2 and up, of a forward tensor ``like``."""
    shape = tape.shape(like)
    sizes = [dim for dim in shape[2:] if isinstance(dim, int)]
    if len(sizes) == len(shape) - 2:
        return tape.emit("Reshape", name, tape.ints(*dims, *sizes))
    spatial = tape.emit("Slice", tape.shape_of(like), tape.ints(2), tape.ints(len(shape)))
    target = tape.emit("Concat", tape.ints(*dims), spatial, axis=0)
    return tape.emit("Reshape", name, target)


RULES: Mapping[str, Rule] = {
    "Conv": conv,
    "ConvTranspose": conv_transpose,
}
"""The rule of each operator of this family."""
