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

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.core.program import Shape
    from memplan_cli.features.training.tape import Call, Rule, Tape

    Gradients = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Window:
    """One spatial axis of a convolution or pool.

    A ConvTranspose from X to Y has the window of the convolution from Y to X, see `conv_transpose`: Y is the
    input here, and X the output.

    Attributes:
        kernel: elements of the kernel.
        stride: inputs from one output to the next.
        dilation: inputs from one element of the kernel to the next.
        begin: padding before the first input.
        end: padding behind the last input.
        input_size: length of the input; None: unknown.
        output_size: length of the output; None: unknown.
        output_padding: of a ConvTranspose without ``output_shape``: the tail; else None.
    """

    kernel: int
    stride: int
    dilation: int
    begin: int
    end: int
    input_size: int | None
    output_size: int | None
    output_padding: int | None = None

    @property
    def span(self) -> int:
        """Inputs from the first to the last element of the kernel, both included."""
        return (self.kernel - 1) * self.dilation + 1

    @property
    def tail(self) -> int | None:
        """Padded inputs behind the last one that an output reads; None: unknown.

            |-- begin --|-- input_size --|-- end --|
            |-- read by the outputs ----|-- tail --|

        It is negative if the last output reads beyond the padding (``ceil_mode`` of a pool).
        """
        if self.output_padding is not None:  # the last elements of a ConvTranspose's Y
            return self.output_padding
        if self.input_size is None or self.output_size is None:
            return 0 if self.stride == 1 else None  # a stride of 1 skips no input
        read = (self.output_size - 1) * self.stride + self.span
        return self.begin + self.input_size + self.end - read


def windows(call: Call, kernel: Shape, data: str, result: str) -> tuple[Window, ...]:
    """Return the window of each spatial axis of a convolution or pool from ``data`` to ``result``.

    Strides, dilations and padding are the attributes of the node; ``kernel`` has the spatial dims.

    Raises:
        ModelError: the kernel's size is not known, or the padding is SAME for unknown sizes.
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
    axes = []
    for axis, taps in enumerate(kernel):
        if not isinstance(taps, int):
            raise ModelError(
                f"the kernel of {call.node.op_type} {call.node.name!r} is dynamic"
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
        axes.append(
            _with_same_padding(call, window) if auto_pad.startswith("SAME") else window
        )
    return tuple(axes)


def _with_same_padding(call: Call, window: Window) -> Window:
    """Return a window with the padding for which the output has ceil(input / stride) elements.

    Raises:
        ModelError: the padding depends on the input's size, which is not known.
    """
    size, stride = window.input_size, window.stride
    if size is None:
        if stride != 1:
            raise ModelError(
                f"{call.node.op_type} {call.node.name!r} pads to the same size, but"
                " its input's size is not known",
                hint="export the model with fixed image sizes, or with explicit pads",
            )
        size = window.span  # with stride 1 the padding is the same for all sizes
    output_size = -(-size // stride)
    total = max((output_size - 1) * stride + window.span - size, 0)
    smaller, larger = total // 2, total - total // 2
    if call.attribute("auto_pad") == "SAME_LOWER":
        return replace(window, begin=larger, end=smaller)
    return replace(window, begin=smaller, end=larger)


def conv(call: Call) -> Gradients:
    """Y = X * W + B: dX = transposed conv of dY with W, dW = X * dY, dB = sum of dY.

    ``*`` is a convolution. In that of dW, strides and dilations are exchanged, see `_kernel_gradient`.
    """
    x, w, y = call.input(0), call.input(1), call.output()
    axes = windows(call, call.tape.shape(w)[2:], x, y)
    dx = dw = db = ""
    if call.wants(2):
        db = _bias_gradient(call)
    if call.wants(1):
        dw = _kernel_gradient(call, _Operand(x, like=x), _Operand(call.dy, like=y), axes)
    if call.wants(0):
        dx = transposed_conv(call.tape, call.dy, w, x, axes, call.attribute("group", 1))
    return (dx, dw, db)


def conv_transpose(call: Call) -> Gradients:
    """Y is the data gradient of a convolution from Y to X: dX = dY * W, dW = dY * X, dB = sum of dY.

    ``*`` is a convolution. In that of dW, strides and dilations are exchanged (`_kernel_gradient`): dY is its
    data, and X is in the place of the result's gradient.
    """
    tape, x, w, y = call.tape, call.input(0), call.input(1), call.output()
    axes = _transposed_windows(call)
    dx = dw = db = ""
    if call.wants(2):
        db = _bias_gradient(call)
    if call.wants(1):
        dw = _kernel_gradient(call, _Operand(call.dy, like=y), _Operand(x, like=x), axes)
    if call.wants(0):
        dx = tape.emit(
            "Conv",
            call.dy,
            w,
            kernel_shape=[axis.kernel for axis in axes],
            strides=[axis.stride for axis in axes],
            dilations=[axis.dilation for axis in axes],
            pads=[*(axis.begin for axis in axes), *(axis.end for axis in axes)],
            group=call.attribute("group", 1),
        )
        # With a tail of a stride or more, this Conv has outputs behind the last element of X. An unknown tail
        # (None) may be so long.
        if any(axis.tail is None or axis.tail >= axis.stride for axis in axes):
            dx = _crop(tape, dx, x)
    return (dx, dw, db)


def _bias_gradient(call: Call) -> str:
    """Return dB = sum of dY over all axes but the channels."""
    axes = [0, *range(2, call.tape.rank(call.output()))]
    return call.tape.emit("ReduceSum", call.dy, call.tape.ints(*axes), keepdims=0)


def transposed_conv(
    tape: Tape, dy: str, kernel: str, like: str, axes: tuple[Window, ...], group: int
) -> str:
    """Return the data gradient of a convolution: each dY times the kernel, added to the inputs that Y read.

    ``axes`` are the windows of the convolution. The result has the spatial shape of the forward tensor
    ``like``, X. Along an axis, X has this length:

        (len(dY) - 1) * stride + span - begin - end + tail

    The tail are the elements of padded X behind the last one that Y read (`Window.tail`). ConvTranspose has
    the same formula with ``output_padding`` as the tail. If the tail is unknown, the result is at least as
    long as X, and is cropped at run time.
    """
    end_pads, output_padding = [], []
    for axis in axes:
        if axis.tail is None:
            # Long enough in any case: a tail of ``stride`` elements would have room for another output, and
            # end padding, which shortens the result, is left to the crop below.
            end_pads.append(0)
            output_padding.append(axis.stride - 1)
        else:
            # A negative tail: the last output read elements behind the end padding. ``output_padding`` cannot
            # be negative, so they are counted as more end padding, which shortens the result as much.
            end_pads.append(axis.end + max(-axis.tail, 0))
            output_padding.append(max(axis.tail, 0))
    result = tape.emit(
        "ConvTranspose",
        dy,
        kernel,
        kernel_shape=[axis.kernel for axis in axes],
        strides=[axis.stride for axis in axes],
        dilations=[axis.dilation for axis in axes],
        pads=[*(axis.begin for axis in axes), *end_pads],
        output_padding=output_padding,
        group=group,
    )
    has_exact_size = all(axis.tail is not None for axis in axes)
    return result if has_exact_size else _crop(tape, result, like)


def _crop(tape: Tape, name: str, like: str) -> str:
    """Return a tensor cut at the end of each spatial axis to the size of a forward tensor."""
    rank = tape.rank(like)
    axes = list(range(2, rank))
    ends = tape.emit("Slice", tape.shape_of(like), tape.ints(2), tape.ints(rank))
    return tape.emit("Slice", name, tape.ints(*[0] * len(axes)), ends, tape.ints(*axes))


class _Operand(NamedTuple):
    """A tensor, which may be a gradient, and a forward tensor ``like`` of the same shape."""

    name: str
    like: str


def _kernel_gradient(
    call: Call, data: _Operand, dy: _Operand, axes: tuple[Window, ...]
) -> str:
    """Return the kernel gradient of a convolution of ``data`` whose output has the gradient ``dy``.

    The kernel is input 1 of the call. With N samples and G groups of C input and C' output channels:

        data [N, G C, ...] as [C, G N, ...]  *  dy [N, G C', ...] as [G C', N, ...]
            ->  [C, G C', taps]  ->  transposed to the kernel [G C', C, taps]

    The convolution ``*`` with ``dy`` as its kernel sums over samples, so samples take the place of
    channels. Its strides are the dilations of the forward convolution, and the other way round. It has one
    output for each tap of the kernel.
    """
    tape, w, group = call.tape, call.input(1), call.attribute("group", 1)
    if any(0 in tape.shape(operand.like) for operand in (data, dy)):
        # ONNX Runtime leaves the output of a Conv of an empty tensor uninitialized.
        return tape.zeros_like(w)
    if group == 1 and all(map(_is_point, axes)):
        return _point_kernel_gradient(tape, data, dy, w)
    swapped = [1, 0, *range(2, len(axes) + 2)]
    # Each axis of the data is padded just to the last element that the forward convolution read: then
    # ``*`` has no output but those of the taps. None: the forward convolution skipped elements at the end,
    # which no padding takes away. Then the outputs behind the last tap are cut off.
    exact_end_pads = [_end_pad_to_last_read(axis) for axis in axes]
    end_pads = [
        axis.end if exact is None else exact
        for axis, exact in zip(axes, exact_end_pads, strict=True)
    ]
    product = tape.emit(
        "Conv",
        _channels_to_batch(call, data, group),
        tape.emit("Transpose", dy.name, perm=swapped),
        strides=[axis.dilation for axis in axes],
        dilations=[axis.stride for axis in axes],
        pads=[*(axis.begin for axis in axes), *end_pads],
        group=group,
    )
    if None in exact_end_pads:
        product = _first_taps(tape, product, axes)
    return tape.emit("Transpose", product, perm=swapped)


def _first_taps(tape: Tape, product: str, axes: tuple[Window, ...]) -> str:
    """Return a kernel gradient cut behind the last element of the kernel on each spatial axis."""
    starts, ends = tape.ints(*[0] * len(axes)), tape.ints(*(axis.kernel for axis in axes))
    return tape.emit("Slice", product, starts, ends, tape.ints(*range(2, len(axes) + 2)))


def _end_pad_to_last_read(axis: Window) -> int | None:
    """Return the end padding with which the padded input ends at the last element that an output reads.

    Behind that element lies the tail (`Window.tail`), so the padding is ``end - tail``. If the last output
    reads beyond the padding, the tail is negative, and the result is more than ``end``.

    None if the tail is unknown, or longer than the padding: the outputs then skip inputs at the end, which
    no padding can take away.
    """
    if axis.tail is None or axis.tail > axis.end:
        return None
    return axis.end - axis.tail


def _is_point(axis: Window) -> bool:
    """Whether output o reads input o and no other, without padding."""
    is_unpadded = not (axis.begin or axis.end or axis.tail)
    return axis.kernel == axis.stride == 1 and is_unpadded


def _point_kernel_gradient(tape: Tape, data: _Operand, result: _Operand, w: str) -> str:
    """Return dW = dY X^T over all positions, for a kernel of one element, which is a matrix."""
    swapped = [1, 0, *range(2, tape.rank(w))]
    rows = [
        tape.emit("Flatten", tape.emit("Transpose", name, perm=swapped), axis=1)
        for name in (result.name, data.name)
    ]
    return tape.reshape_like(tape.emit("Gemm", *rows, transB=1), w)


def _channels_to_batch(call: Call, data: _Operand, group: int) -> str:
    """Return data [N, G C, ...] as [C, G N, ...], for N samples and G groups of C channels.

    The convolution in `_kernel_gradient` sums over its channels, which have to be the samples then.

    ``data`` is X of a Conv, or dY of a ConvTranspose. The forward tensor ``data.like`` has its shape.

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
        # To [N, G, C, ...]: a Reshape keeps the dim N where its target has 0.
        split = _with_leading_dims(tape, data.name, (0, group, channels), data.like)
        moved = tape.emit("Transpose", split, perm=[2, 1, 0, *range(3, rank + 1)])
    return _with_leading_dims(tape, moved, (channels, -1), data.like)


def _with_leading_dims(tape: Tape, name: str, dims: tuple[int, ...], like: str) -> str:
    """Reshape a tensor to ``dims`` followed by the spatial dims, axes 2 and up, of a forward tensor ``like``."""
    shape = tape.shape(like)
    sizes = [dim for dim in shape[2:] if isinstance(dim, int)]
    if len(sizes) == len(shape) - 2:
        return tape.emit("Reshape", name, tape.ints(*dims, *sizes))
    spatial = tape.emit("Slice", tape.shape_of(like), tape.ints(2), tape.ints(len(shape)))
    target = tape.emit("Concat", tape.ints(*dims), spatial, axis=0)
    return tape.emit("Reshape", name, target)


def _transposed_windows(call: Call) -> tuple[Window, ...]:
    """Return the windows of the convolution from Y to X whose data gradient a ConvTranspose computes.

    X is the input of the ConvTranspose and Y its output. The elements at the end of Y that no window of that
    convolution reads are its `Window.tail`. Without ``output_shape``, the pads are the node's or those of
    ``auto_pad`` (`windows` computes either), and the tail is the node's ``output_padding``. With
    ``output_shape``, the sum of the pads follows from the sizes of X and Y as in the standard:

        pads = max(stride (x_size - 1) + span + output_padding - y_size, 0)

    Raises:
        ModelError: these sizes are not known.
    """
    tape, x, w, y = call.tape, call.input(0), call.input(1), call.output()
    axes = windows(call, tape.shape(w)[2:], y, x)
    output_padding = call.attribute("output_padding", [0] * len(axes))
    if not call.attribute("output_shape"):
        return tuple(
            replace(axis, output_padding=padding)
            for axis, padding in zip(axes, output_padding, strict=True)
        )
    resolved = []
    for axis, padding, x_size, y_size in zip(
        axes, output_padding, tape.sizes(x)[2:], tape.sizes(y)[2:], strict=True
    ):
        pads = max((x_size - 1) * axis.stride + axis.span + padding - y_size, 0)
        is_upper = call.attribute("auto_pad") == "SAME_UPPER"
        begin = pads // 2 if is_upper else pads - pads // 2
        # The window gets no ``output_padding``: where the maximum made the pads 0, the tail is longer than the
        # node's. `Window.tail` computes it from the sizes and pads.
        resolved.append(replace(axis, begin=begin, end=pads - begin))
    return tuple(resolved)


RULES: Mapping[str, Rule] = {
    "Conv": conv,
    "ConvTranspose": conv_transpose,
}
"""The rule of each operator of this family."""
