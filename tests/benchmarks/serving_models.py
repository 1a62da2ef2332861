"""Models whose requests change size: of the shapes that people serve, small, with seeded weights.

Written node by node as exporters do: what is enlarged takes the size of what it is joined with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from onnx import TensorProto, helper

from .chunking_models import Writer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path


def _conv(add: Writer, x: str, widths: tuple[int, int], size: int = 3, stride: int = 1) -> str:
    read, made = widths
    return add(
        "Conv",
        x,
        add.matrix(made, read, size, size),
        add.zeros(made),
        kernel_shape=(size, size),
        pads=(size // 2,) * 4,
        strides=(stride, stride),
    )


def _block(add: Writer, x: str, widths: tuple[int, int], stride: int = 1) -> str:
    return add("Relu", _conv(add, x, widths, 3, stride))


def _silu(add: Writer, x: str, widths: tuple[int, int], stride: int = 1) -> str:
    y = _conv(add, x, widths, 3, stride)
    return add("Mul", y, add("Sigmoid", y))


def _enlarged(add: Writer, x: str, like: str) -> str:
    """Return an image as large as another one, of its own channels."""
    channels = add("Shape", x, start=0, end=2)
    sizes = add("Concat", channels, add("Shape", like, start=2, end=4), axis=0)
    return add("Resize", x, "", "", sizes, mode="nearest")


def unet(path: Path) -> None:
    """Three times smaller and three times larger, two convolutions each, of 16 to 128 channels."""
    add, x, before = Writer(), "image", 3
    left: list[tuple[str, int]] = []
    for width in (16, 32, 64):
        x = _block(add, _block(add, x, (before, width)), (width, width))
        left.append((x, width))
        x = add("MaxPool", x, kernel_shape=(2, 2), strides=(2, 2))
        before = width
    x = _block(add, _block(add, x, (before, 128)), (128, 128))
    before = 128
    for skip, width in reversed(left):
        x = add("Concat", skip, _enlarged(add, x, skip), axis=1)
        x = _block(add, _block(add, x, (before + width, width)), (width, width))
        before = width
    masks = add("Sigmoid", _conv(add, x, (before, 2), 1))
    add.save(path, {"image": (1, 3, "height", "width")}, masks)


def detector(path: Path) -> None:
    """A backbone of five strides, features joined from the smallest up, and boxes of three."""
    add, x, before = Writer(), "image", 3
    levels: list[tuple[str, int]] = []
    for width in (16, 32, 64, 96, 128):
        x = _silu(add, x, (before, width), 2)
        x = add("Add", x, _silu(add, x, (width, width)))
        levels.append((x, width))
        before = width
    joined, (top, wide) = [], levels[-1]
    joined.append(_silu(add, top, (wide, 64)))
    for level, width in reversed(levels[2:4]):
        larger = _enlarged(add, joined[-1], level)
        joined.append(_silu(add, add("Concat", larger, level, axis=1), (64 + width, 64)))
    rows = []
    for each in joined:
        boxes = _conv(add, each, (64, 85), 1)
        flat = add("Reshape", boxes, add.shape(0, 85, -1))
        rows.append(add("Transpose", flat, perm=(0, 2, 1)))
    found = add("Sigmoid", add("Concat", *rows, axis=1))
    add.save(path, {"image": (1, 3, "height", "width")}, found)


def recogniser(path: Path, hidden: int = 64, letters: int = 97) -> None:
    """Convolutions of a line 32 pixels high to one row, two LSTMs, and a letter for each column."""
    add, x, before = Writer(), "line", 1
    for width, pool in ((32, 2), (64, 2), (128, 1), (128, 1)):
        x = _block(add, x, (before, width))
        x = add("MaxPool", x, kernel_shape=(2, pool), strides=(2, pool))
        before = width
    x = add("ReduceMean", x, add.shape(2), keepdims=0)
    x, read = add("Transpose", x, perm=(2, 0, 1)), before
    for _ in range(2):
        x = add(
            "LSTM",
            x,
            add.matrix(2, 4 * hidden, read),
            add.matrix(2, 4 * hidden, hidden),
            hidden_size=hidden,
            direction="bidirectional",
        )
        x = add("Transpose", x, perm=(0, 2, 1, 3))
        x, read = add("Reshape", x, add.shape(0, 0, 2 * hidden)), 2 * hidden
    scores = add("Add", add("MatMul", x, add.matrix(read, letters)), add.zeros(letters))
    add.save(path, {"line": ("batch", 1, 32, "width")}, add("Softmax", scores, axis=-1))


def gru_loop(path: Path, hidden: int = 128, letters: int = 400) -> None:
    """A Loop of as many turns as the input is long, one step of a GRU and its logits in each."""
    add, body = Writer(), Writer()
    body.rng = np.random.default_rng(1)
    now = body("Gather", "series", "turn", axis=1)
    step = body(
        "GRU",
        body("Unsqueeze", now, body.shape(0)),
        body.matrix(1, 3 * hidden, hidden),
        body.matrix(1, 3 * hidden, hidden),
        "",
        "",
        "state",
        hidden_size=hidden,
    )
    last = body("Squeeze", step, body.shape(1))
    row = body("Squeeze", last, body.shape(0))
    logits = body("MatMul", row, body.matrix(hidden, letters))
    body.nodes.append(helper.make_node("Identity", ["go"], ["on"]))
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        body.nodes,
        "turn_body",
        [
            value("turn", TensorProto.INT64, ()),
            value("go", TensorProto.BOOL, ()),
            value("state", TensorProto.FLOAT, (1, "batch", hidden)),
        ],
        [
            value("on", TensorProto.BOOL, ()),
            value(last, TensorProto.FLOAT, (1, "batch", hidden)),
            value(logits, TensorProto.FLOAT, ("batch", letters)),
        ],
        body.weights,
    )
    wide = add("MatMul", "frames", add.matrix(40, hidden))
    add.nodes.append(helper.make_node("Tanh", [wide], ["series"]))
    batch = add("Shape", "frames", start=0, end=1)
    shape = add("Concat", add.shape(1), batch, add.shape(hidden), axis=0)
    zeros = add("Expand", add.number(0.0), shape)
    turns = add("Squeeze", add("Shape", "frames", start=1, end=2))
    outputs = ["last", "steps"]
    add.nodes.append(
        helper.make_node("Loop", [turns, "", zeros], outputs, "turns", body=graph)
    )
    add.save(path, {"frames": ("batch", "length", 40)}, add("Softmax", "steps", axis=-1))


WRITTEN: Mapping[str, Callable[[Path], None]] = {
    "unet": unet,
    "detector": detector,
    "recogniser": recogniser,
    "gru_loop": gru_loop,
}
"""Models that no folder holds, each by what writes it."""
