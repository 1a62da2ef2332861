"""Convolutions and pools in ONNX Runtime's blocked layouts, and the ways in and out of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.onnx_io.shapes.domains.made import Made, Node
from memplan_cli.onnx_io.shapes.symbolic.values import product
from memplan_cli.onnx_io.shapes.symbolic.windows import convolution, pool

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memplan_cli.core.program import Shape
    from memplan_cli.onnx_io.shapes.domains.made import Rule

_RANK = 4
_BLOCK = 16
"""Channels of the largest block; of fewer the graph does not say how wide they are padded."""


def _last_to_second(shape: Shape) -> Shape:
    return (shape[0], shape[-1], *shape[1:-1])


def _into(node: Node) -> Sequence[Made]:
    """ReorderInput: channels first; those that fill no block are padded, nobody says how far."""
    shape = node.ranked(0, _RANK)
    if shape is not None and node.number("channels_last"):
        shape = _last_to_second(shape)
    if shape is None or not isinstance(shape[1], int) or shape[1] % _BLOCK:
        return [Made(node.element(0), None)]
    return [Made(node.element(0), shape)]


def _out_of(node: Node) -> Sequence[Made]:
    """ReorderOutput: as many channels as an attribute says, first or last."""
    shape, channels = node.ranked(0, _RANK), node.number("channels")
    if shape is None or channels < 1:
        return [Made(node.element(0), None)]
    last = node.number("channels_last")
    found = (shape[0], *shape[2:], channels) if last else (shape[0], channels, *shape[2:])
    return [Made(node.element(0), found)]


def _convolved(node: Node) -> Sequence[Made]:
    """Conv: as many channels as the reordered filters, padding included."""
    shape, filters = node.ranked(0, _RANK), node.ranked(1, _RANK)
    if shape is None or filters is None:
        return [Made(node.element(0), None)]
    return [Made(node.element(0), convolution(node.proto, shape, filters))]


def _pooled(node: Node) -> Sequence[Made]:
    shape = node.ranked(0, _RANK)
    return [Made(node.element(0), None if shape is None else pool(node.proto, shape))]


def _whole(node: Node) -> Sequence[Made]:
    """A pool over all of each channel."""
    shape = node.ranked(0, _RANK)
    return [Made(node.element(0), None if shape is None else (*shape[:2], 1, 1))]


def _enlarged(node: Node) -> Sequence[Made]:
    """Upsample: each dim so many times."""
    shape, scales = node.ranked(0, _RANK), node.numbers("scales")
    if shape is None or len(scales) != _RANK:
        return [Made(node.element(0), None)]
    dims = tuple(product((dim, scale)) for dim, scale in zip(shape, scales, strict=True))
    return [Made(node.element(0), dims)]


RULES: Mapping[str, Rule] = {
    "AveragePool": _pooled,
    "Conv": _convolved,
    "GlobalAveragePool": _whole,
    "GlobalMaxPool": _whole,
    "MaxPool": _pooled,
    "ReorderInput": _into,
    "ReorderOutput": _out_of,
    "Upsample": _enlarged,
}
"""Of com.microsoft.nchwc."""
