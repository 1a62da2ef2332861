"""The geometry of convolutions and pools: where each output reads its input.

An output o along one axis reads inputs ``o * stride + tap * dilation - begin`` for the taps
of the kernel; ``span`` is the distance between its first and last tap, plus one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan_cli.errors import ModelError

if TYPE_CHECKING:
    from memplan_cli.core.program import Shape
    from memplan_cli.features.training.tape import Call


@dataclass(frozen=True, slots=True)
class Window:
    """One axis of a sliding window; ``size`` and ``steps`` are input and output lengths."""

    kernel: int
    stride: int
    dilation: int
    begin: int
    end: int
    size: int | None
    steps: int | None
    unread: int | None = None
    """The tail, where it is known without the sizes."""

    @property
    def span(self) -> int:
        """How many inputs there are from the first to the last tap, both counted."""
        return (self.kernel - 1) * self.dilation + 1

    @property
    def tail(self) -> int | None:
        """How many padded inputs at the end no output reads (negative: it reads beyond)."""
        if self.unread is not None:
            return self.unread
        if self.size is None or self.steps is None:
            return 0 if self.stride == 1 else None
        read = (self.steps - 1) * self.stride + self.span
        return self.begin + self.size + self.end - read


def windows(call: Call, kernel: Shape, data: str, result: str) -> tuple[Window, ...]:
    """Return the window of each spatial axis, paddings resolved.

    ``data`` is the tensor that the window slides over, ``result`` has one element a step.

    Raises:
        ModelError: the kernel's size is not known, or SAME padding of unknown sizes.
    """
    count = len(kernel)
    strides = call.attribute("strides", [1] * count)
    dilations = call.attribute("dilations", [1] * count)
    pads = call.attribute("pads", [0] * (2 * count))
    mode = call.attribute("auto_pad", "NOTSET")
    sizes = _numbers(call.tape.shape(data)[2:])
    steps = _numbers(call.tape.shape(result)[2:])
    found = []
    for axis, taps in enumerate(kernel):
        if not isinstance(taps, int):
            raise ModelError(
                f"the kernel of {call.node.op_type} {call.node.name!r} is dynamic"
            )
        stride, dilation = strides[axis], dilations[axis]
        begin, end = (0, 0) if mode == "VALID" else (pads[axis], pads[axis + count])
        if mode.startswith("SAME"):
            span = (taps - 1) * dilation + 1
            begin, end = _same(call, (sizes[axis], stride, span))
        found.append(Window(taps, stride, dilation, begin, end, sizes[axis], steps[axis]))
    return tuple(found)


def _same(call: Call, axis: tuple[int | None, int, int]) -> tuple[int, int]:
    size, stride, span = axis
    if size is None:
        if stride != 1:
            raise ModelError(
                f"{call.node.op_type} {call.node.name!r} pads to the same size, but"
                " its input's size is not known",
                hint="export the model with fixed image sizes, or with explicit pads",
            )
        size = span
    total = max((-(-size // stride) - 1) * stride + span - size, 0)
    half, rest = total // 2, total - total // 2
    return (rest, half) if call.attribute("auto_pad") == "SAME_LOWER" else (half, rest)


def _numbers(shape: Shape) -> list[int | None]:
    return [dim if isinstance(dim, int) else None for dim in shape]
