"""Quantized operators: split as the float operators that they stand for.

A quantized operator has the operands of its float operator among scales and zero points, which stay
whole. Sums of integers are exact, so any chunk keeps the bits: splits have `Role.FREE`, except
columns, for which a weight would be sliced.

DynamicQuantizeLinear, and operators that contain it, have no rules: their scale depends on all
elements.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING

from memplan_cli.core.operators import MICROSOFT
from memplan_cli.features.chunking.axes import elements, normalization, products, windows
from memplan_cli.features.chunking.axes.split import (
    AxisMap,
    ChunkEdit,
    Role,
    same_axis_splits,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memplan_cli.features.chunking.axes.split import (
        EditRule,
        Node,
        Range,
        Split,
        SplitRule,
    )


def _operands_only(node: Node, operands: Sequence[int]) -> Node:
    """Return the node with these inputs alone, as its float operator has them."""
    return replace(node, inputs=tuple(node.input_shape(at) for at in operands), constants={})


def _quantized_splits(
    node: Node, rule: SplitRule, operands: Sequence[int]
) -> tuple[Split, ...]:
    """Return the splits that ``rule`` gives for the float operator of a quantized one.

    ``operands`` are the positions of the float operator's inputs. The other inputs are scales and zero
    points, which stay whole.
    """
    float_splits = rule(_operands_only(node, operands))
    parameters = [
        shape for at, shape in enumerate(node.inputs) if at not in operands and shape
    ]  # without scalars and omitted inputs
    # ONNX Runtime allows several scales, one per channel, only for the weight, which is not the first operand.
    weight_has_scale_per_channel = any(prod(shape) > 1 for shape in parameters)
    splits = []
    for split in float_splits:
        slices_weight = any(read is not None for read in split.inputs[1:])
        if weight_has_scale_per_channel and slices_weight:
            continue  # the chunk of the weight would need a chunk of its scales
        # A role decides which lengths of chunks keep the bits. Sums of integers are exact, so all do: the role is FREE.
        # But `Graph` lets a FREE split slice a weight at run time, which costs too much for COLUMNS of a matrix.
        role = Role.COLUMNS if split.role is Role.COLUMNS else Role.FREE
        reads = dict(zip(operands, split.inputs, strict=True))
        splits.append(node.split(split.extent, reads, dict(enumerate(split.outputs)), role))
    return tuple(splits)


def _quantized_edit(
    node: Node, split: Split, chunk: Range, edit: EditRule, operands: Sequence[int]
) -> ChunkEdit:
    """Return the edit of the float operator, whose inputs are at positions ``operands`` of ``node``."""
    reads = tuple(split.inputs[at] if at < len(split.inputs) else None for at in operands)
    return edit(_operands_only(node, operands), split._replace(inputs=reads), chunk)


def _concat_splits(node: Node) -> tuple[Split, ...]:
    """Return the splits of a QLinearConcat along the axes that are not joined.

    Each tensor is followed by its scale and zero point, and those of the output come first.
    """
    tensors = range(2, len(node.inputs), 3)
    rank = len(node.output_shape)
    joined = node.int_attribute("axis", 0) % rank
    return tuple(
        node.split(
            node.output_shape[axis], dict.fromkeys(tensors, AxisMap(axis)), {0: AxisMap(axis)}
        )
        for axis in range(rank)
        if axis != joined
    )


def _linear_splits(node: Node) -> tuple[Split, ...]:
    """Return the splits of QuantizeLinear or DequantizeLinear along every axis.

    A tensor has one scale and zero point, which stay whole, or one for each element of one axis. In chunks
    along this axis they are sliced too. Blocks of several elements with one scale are not split.
    """
    data, scale = node.data_shape, node.required_shape(1)
    if node.int_attribute("block_size", 0) or len(scale) > 1:
        return ()
    scaled_axis = node.int_attribute("axis", 1) % max(len(data), 1)
    splits = []
    for axis, dim in enumerate(data):
        reads = {0: AxisMap(axis)}
        if axis == scaled_axis and prod(scale) > 1:
            reads |= {1: AxisMap(0), 2: AxisMap(0)}  # the scales and zero points
        splits.append(node.split(dim, reads, {0: AxisMap(axis)}))
    return tuple(splits)


_ELEMENTWISE, _PRODUCT = elements.RULES["Add"], products.RULES["MatMul"]
_CONVOLUTION, _AVERAGE = windows.RULES["Conv"], windows.RULES["AveragePool"]

_BETWEEN, _BEHIND = (0, 3), (0, 1)
"""Positions of two operands: each followed by its scale and zero point, or zero points behind both."""

_FLOAT_RULES: Mapping[str, tuple[SplitRule, Sequence[int]]] = {
    "QLinearConv": (_CONVOLUTION, _BETWEEN),
    f"{MICROSOFT}.QLinearConv": (_CONVOLUTION, _BETWEEN),
    "ConvInteger": (_CONVOLUTION, _BEHIND),
    "QLinearMatMul": (_PRODUCT, _BETWEEN),
    "MatMulInteger": (_PRODUCT, _BEHIND),
    f"{MICROSOFT}.MatMulIntegerToFloat": (_PRODUCT, _BEHIND),
    f"{MICROSOFT}.QGemm": (products.RULES["Gemm"], (0, 3, 6)),
    f"{MICROSOFT}.QLinearAdd": (_ELEMENTWISE, _BETWEEN),
    f"{MICROSOFT}.QLinearMul": (_ELEMENTWISE, _BETWEEN),
    f"{MICROSOFT}.QLinearSigmoid": (_ELEMENTWISE, (0,)),
    f"{MICROSOFT}.QLinearLeakyRelu": (_ELEMENTWISE, (0,)),
    f"{MICROSOFT}.QLinearSoftmax": (normalization.RULES["Softmax"], (0,)),
    f"{MICROSOFT}.QLinearAveragePool": (_AVERAGE, (0,)),
    f"{MICROSOFT}.QLinearGlobalAveragePool": (partial(same_axis_splits, axes=(0,)), (0,)),
}
"""For each operator the rule of its float operator, and the positions of that operator's inputs."""

RULES: Mapping[str, SplitRule] = {
    **{
        name: partial(_quantized_splits, rule=rule, operands=operands)
        for name, (rule, operands) in _FLOAT_RULES.items()
    },
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), _linear_splits),
    f"{MICROSOFT}.QLinearConcat": _concat_splits,
}

EDITS: Mapping[str, EditRule] = {
    name: partial(_quantized_edit, edit=windows.EDITS["Conv"], operands=operands)
    for name, (rule, operands) in _FLOAT_RULES.items()
    if rule in {_CONVOLUTION, _AVERAGE}
}
