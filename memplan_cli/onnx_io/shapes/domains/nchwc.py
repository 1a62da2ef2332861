"""Shape rules of ``com.microsoft.nchwc``: operators on tensors whose channels are stored in blocks.

ONNX Runtime's optimizer writes them for CPUs. Shapes stay (batch, channels, height, width).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from memplan_cli.onnx_io.shapes.domains.products import conv, move_channels, pool
from memplan_cli.onnx_io.shapes.domains.rule_node import OutputType, RuleNode
from memplan_cli.onnx_io.shapes.symbolic.values import product

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memplan_cli.core.program import Shape
    from memplan_cli.onnx_io.shapes.domains.rule_node import Rule

_RANK = 4
_BLOCK = 16
"""Channels of the largest block."""


def _reorder_input(node: RuleNode) -> Sequence[OutputType]:
    """ReorderInput: (n, c, h, w), or (n, h, w, c) with ``channels_last`` -> (n, c, h, w) in blocks.

    Channels that are no multiple of the largest block are padded, and the node does not say to which
    block size. Then their number is left open, and taken from the type that the runtime declares.
    """
    shape = node.shape_of_rank(0, _RANK)
    if shape is not None and node.int_attribute("channels_last"):
        shape = move_channels(shape, to_last=False)
    if shape is not None and (not isinstance(shape[1], int) or shape[1] % _BLOCK):
        shape = (shape[0], None, *shape[2:])
    return [OutputType(node.elem_type(0), shape)]


def _reorder_output(node: RuleNode) -> Sequence[OutputType]:
    """ReorderOutput: (n, c, h, w) in blocks -> (n, channels, h, w), or (n, h, w, channels)."""
    shape, channels = node.shape_of_rank(0, _RANK), node.int_attribute("channels")
    if shape is None or channels < 1:
        return [OutputType(node.elem_type(0), None)]
    output_shape: Shape | None = (shape[0], channels, *shape[2:])
    if node.int_attribute("channels_last"):
        output_shape = move_channels(output_shape, to_last=True)
    return [OutputType(node.elem_type(0), output_shape)]


def _global_pool(node: RuleNode) -> Sequence[OutputType]:
    """GlobalAveragePool, GlobalMaxPool: (n, c, h, w) -> (n, c, 1, 1)."""
    shape = node.shape_of_rank(0, _RANK)
    return [OutputType(node.elem_type(0), None if shape is None else (*shape[:2], 1, 1))]


def _upsample(node: RuleNode) -> Sequence[OutputType]:
    """Upsample: each dim times its entry in ``scales``."""
    shape, scales = node.shape_of_rank(0, _RANK), node.ints_attribute("scales")
    if shape is None or len(scales) != _RANK:
        return [OutputType(node.elem_type(0), None)]
    dims = tuple(product((dim, scale)) for dim, scale in zip(shape, scales, strict=True))
    return [OutputType(node.elem_type(0), dims)]


RULES: Mapping[str, Rule] = {
    "AveragePool": partial(pool, channels_last=False),
    "Conv": partial(conv, kernel=1, channels_last=False),
    "GlobalAveragePool": _global_pool,
    "GlobalMaxPool": _global_pool,
    "MaxPool": partial(pool, channels_last=False),
    "ReorderInput": _reorder_input,
    "ReorderOutput": _reorder_output,
    "Upsample": _upsample,
}
"""The rules of ``com.microsoft.nchwc``, by operator."""
