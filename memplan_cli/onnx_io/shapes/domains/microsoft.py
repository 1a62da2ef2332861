"""Shape rules of ``com.microsoft`` besides products and attention: elementwise, lookups, sequences."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from memplan_cli.core.operators import MICROSOFT, OPERATORS
from memplan_cli.core.symbolic.dims import as_dim
from memplan_cli.core.symbolic.polynomials import (
    add_polynomials,
    floor_divide,
    multiply_polynomials,
)
from memplan_cli.onnx_io.shapes.domains.rule_node import (
    INT8,
    UINT8,
    UINT32,
    OutputType,
    Rule,
    RuleNode,
    broadcasting,
    last_as,
    like,
    part,
)
from memplan_cli.onnx_io.shapes.symbolic.dim_rules import pad_shape, sum_dims
from memplan_cli.onnx_io.shapes.symbolic.elements import polynomial_of
from memplan_cli.onnx_io.shapes.symbolic.values import BOOL, INT32, product

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memplan_cli.core.program import Dim, Shape

_MATRIX = 2


def _quantize_linear(node: RuleNode) -> Sequence[OutputType]:
    """QuantizeLinear: shape of x, element type of the zero point (uint8 if it is left out)."""
    return [OutputType(node.elem_type(2) if node.has_input(2) else UINT8, node.input_shape(0))]


def _bias_dropout(node: RuleNode) -> Sequence[OutputType]:
    """BiasDropout: the output and its boolean mask, both with the shape of x."""
    return [
        OutputType(node.elem_type(0), node.input_shape(0)),
        OutputType(BOOL, node.input_shape(0)),
    ]


def _bias_split_gelu(node: RuleNode) -> Sequence[OutputType]:
    """BiasSplitGelu: (.., 2 n) -> (.., n)."""
    shape = node.input_shape(0)
    return [
        OutputType(node.elem_type(0), last_as(shape, part(shape[-1], 2)) if shape else None)
    ]


def _reduction(node: RuleNode, *, elem_types: Mapping[int, int]) -> Sequence[OutputType]:
    """ReduceSumInteger, QLinearReduceMean: reduced axes become 1, or are removed with ``keepdims=0``.

    Without the attribute ``axes`` all axes are reduced.

    Args:
        node: the node.
        elem_types: by element type of the input, that of the output; one that is missing stays the same.
    """
    shape = node.input_shape(0)
    elem_type = elem_types.get(node.elem_type(0), node.elem_type(0))
    if shape is None:
        return [OutputType(elem_type, None)]
    axes = {axis % len(shape) for axis in node.ints_attribute("axes")} or set(
        range(len(shape))
    )
    keeps = node.int_attribute("keepdims", 1)
    reduced_dims = [1 if index in axes else dim for index, dim in enumerate(shape)]
    output_dims = [dim for index, dim in enumerate(reduced_dims) if keeps or index not in axes]
    return [OutputType(elem_type, tuple(output_dims))]


def _gather_nd(node: RuleNode) -> Sequence[OutputType]:
    """GatherND: data (d1 .. dr), indices (.., q) -> (.., d(q+1) .. dr)."""
    data, indices = node.input_shape(0), node.input_shape(1)
    depth = indices[-1] if indices else None
    if data is None or indices is None or not isinstance(depth, int) or depth > len(data):
        return [OutputType(node.elem_type(0), None)]
    return [OutputType(node.elem_type(0), (*indices[:-1], *data[depth:]))]


def _gather_block_quantized(node: RuleNode) -> Sequence[OutputType]:
    """GatherBlockQuantized: the gathered axis of a table is replaced by the indices' dims.

    In a uint8 table ``8 / bits`` elements of the last axis are packed into a byte. The shape is unknown
    if such a table is quantized along another axis.
    """
    data, indices = node.input_shape(0), node.input_shape(1)
    if data is None or indices is None or not data:
        return [OutputType(node.elem_type(2), None)]
    rows = list(data)
    axis = node.int_attribute("quantize_axis", 1) % len(data)
    if node.elem_type(0) == UINT8:
        rows[-1] = product((rows[-1], 8 // node.int_attribute("bits", 4)))
        if axis != len(data) - 1:
            return [OutputType(node.elem_type(2), None)]
    index = node.int_attribute("gather_axis", 0) % len(data)
    return [OutputType(node.elem_type(2), (*rows[:index], *indices, *rows[index + 1 :]))]


def _expand_dims(node: RuleNode) -> Sequence[OutputType]:
    """ExpandDims: inserts a dim of 1 at the axis that input 1 holds."""
    shape, axis = node.input_shape(0), node.scalar_dim(1)
    if shape is None or not isinstance(axis, int):
        return [OutputType(node.elem_type(0), None)]
    index = axis + len(shape) + 1 if axis < 0 else axis
    return [OutputType(node.elem_type(0), (*shape[:index], 1, *shape[index:]))]


def _crop_and_resize(node: RuleNode) -> Sequence[OutputType]:
    """CropAndResize: x (n, c, h, w), regions (r, 4), size (h', w') -> (r, c, h', w')."""
    shape, regions, size = (
        node.shape_of_rank(0, 4),
        node.shape_of_rank(1, 2),
        node.input_dims(3),
    )
    if shape is None or regions is None or size is None or len(size) != _MATRIX:
        return [OutputType(node.elem_type(0), None)]
    return [OutputType(node.elem_type(0), (regions[0], shape[1], *size))]


def _cdist(node: RuleNode) -> Sequence[OutputType]:
    """CDist: a (m, k), b (n, k) -> (m, n)."""
    a, b = node.shape_of_rank(0, 2), node.shape_of_rank(1, 2)
    return [OutputType(node.elem_type(0), None if a is None or b is None else (a[0], b[0]))]


def _unfold_tensor(node: RuleNode) -> Sequence[OutputType]:
    """UnfoldTensor: dim d at axis ``dim`` -> number of windows, and a last dim ``size``."""
    shape = node.input_shape(0)
    size, step = node.int_attribute("size"), node.int_attribute("step", 1)
    if not shape or size < 1 or step < 1:
        return [OutputType(node.elem_type(0), None)]
    axis = node.int_attribute("dim", -1) % len(shape)
    dim = shape[axis]
    count = _window_count(dim, size, step)
    return [OutputType(node.elem_type(0), (*shape[:axis], count, *shape[axis + 1 :], size))]


def _window_count(dim: Dim, size: int, step: int) -> Dim:
    """Return ``floor((dim - size) / step) + 1``, the number of windows; None if the dim is unknown."""
    if dim is None:
        return None
    return as_dim(floor_divide(add_polynomials([polynomial_of(dim), {(): step - size}]), step))


def _torch_embedding(node: RuleNode) -> Sequence[OutputType]:
    """TorchEmbedding: table (v, e), indices (..) -> (.., e)."""
    table, indices = node.shape_of_rank(0, 2), node.input_shape(1)
    if table is None or indices is None:
        return [OutputType(node.elem_type(0), None)]
    return [OutputType(node.elem_type(0), (*indices, table[1]))]


def _rfft(node: RuleNode) -> Sequence[OutputType]:
    """Rfft of one dim: (.., n) -> (.., floor(n / 2) + 1, 2); the last dim is real and imaginary part.

    The dim before the last is unknown with ``onesided=0``.
    """
    shape = node.input_shape(0)
    if not shape or shape[-1] is None or node.int_attribute("signal_ndim", 1) != 1:
        return [OutputType(node.elem_type(0), None)]
    half = as_dim(add_polynomials([floor_divide(polynomial_of(shape[-1]), 2), {(): 1}]))
    return [
        OutputType(
            node.elem_type(0),
            (*shape[:-1], half if node.int_attribute("onesided", 1) else None, 2),
        )
    ]


def _irfft(node: RuleNode) -> Sequence[OutputType]:
    """Irfft of one dim: (.., n, 2) -> (.., 2 n - 2)."""
    shape = node.input_shape(0)
    if shape is None or len(shape) < _MATRIX or shape[-2] is None:
        return [OutputType(node.elem_type(0), None)]
    if node.int_attribute("signal_ndim", 1) != 1 or not node.int_attribute("onesided", 1):
        return [OutputType(node.elem_type(0), None)]
    length = as_dim(
        add_polynomials([multiply_polynomials([polynomial_of(shape[-2])], 2), {(): -2}])
    )
    return [OutputType(node.elem_type(0), (*shape[:-2], length))]


def _murmur_hash(node: RuleNode) -> Sequence[OutputType]:
    """MurmurHash3: a uint32 for each element, int32 with ``positive=0``."""
    return [
        OutputType(UINT32 if node.int_attribute("positive", 1) else INT32, node.input_shape(0))
    ]


def _pad(node: RuleNode) -> Sequence[OutputType]:
    """Pad: as ONNX's."""
    return [OutputType(node.elem_type(0), pad_shape(node.values, node.proto))]


def _search(node: RuleNode, *, returned: int | None) -> Sequence[OutputType]:
    """A search that generates sequences of ids.

    ids (n, s), maximum length l in input 1 -> (n, k, l), where k is the number of sequences per row
    in input ``returned``; (n, l) if ``returned`` is None.
    """
    ids = node.shape_of_rank(0, 2)
    batch = ids[0] if ids else None
    sequences = () if returned is None else (node.scalar_dim(returned),)
    return [OutputType(INT32, (batch, *sequences, node.scalar_dim(1)))]


def _dynamic_quantize_lstm(node: RuleNode) -> Sequence[OutputType]:
    """DynamicQuantizeLSTM: as LSTM. x (s, n, i) -> y (s, d, n, h), final states (d, n, h) twice."""
    shape, hidden = node.shape_of_rank(0, 3), node.int_attribute("hidden_size")
    if shape is None or not hidden:
        return []
    direction = node.attribute("direction")
    directions = 2 if direction is not None and direction.s == b"bidirectional" else 1
    state = OutputType(node.elem_type(0), (directions, shape[1], hidden))
    return [
        OutputType(node.elem_type(0), (shape[0], directions, shape[1], hidden)),
        state,
        state,
    ]


def _causal_conv_with_state(node: RuleNode) -> Sequence[OutputType]:
    """CausalConvWithState: x (n, c, s), kernel (m, 1, k) -> y as x, state (n, c, k - 1).

    The state is unknown with ``ndim``, ``state_window``, ``channels_last`` or ``dilation`` set.
    """
    shape, kernel = node.input_shape(0), node.shape_of_rank(1, 3)
    is_plain = (
        node.int_attribute("ndim", 1) == 1
        and not node.int_attribute("state_window")
        and not node.int_attribute("channels_last")
        and node.int_attribute("dilation", 1) == 1
    )
    state: Shape | None = None
    if shape is not None and kernel is not None and is_plain:
        state = (*shape[:2], sum_dims((kernel[2], -1)))
    return [OutputType(node.elem_type(0), shape), OutputType(node.elem_type(0), state)]


RULES: Mapping[str, Rule] = {
    # Dims of the first input.
    **{op.name: like(0) for op in OPERATORS if op.domain == MICROSOFT and op.keeps_shape},
    **dict.fromkeys(
        (
            "BiasAdd", "BiasSoftmax", "BranchwiseRMSNorm", "GatedAdd",
            "GatedRMSNorm", "GroupNorm", "Inverse", "MoE", "QLinearLeakyRelu",
            "QLinearSigmoid", "QLinearSoftmax", "QMoE", "SampleOp", "ScaledSiLU", "Trilu",
        ),
        like(0),
    ),
    "BiasDropout": _bias_dropout,
    "DequantizeLinear": lambda node: [OutputType(node.elem_type(1), node.input_shape(0))],
    "MurmurHash3": _murmur_hash,
    "NGramRepeatBlock": like(1),
    "QuantizeLinear": _quantize_linear,
    "SkipGroupNorm": like(0, 0),
    # Pairs of elements.
    "ComplexMul": broadcasting(0, 1),
    "ComplexMulConj": broadcasting(0, 1),
    "MulInteger": broadcasting(0, 2, elem_type=INT32),
    "QLinearAdd": broadcasting(0, 3),
    "QLinearMul": broadcasting(0, 3),
    "QLinearWhere": lambda node: [
        OutputType(node.elem_type(1), broadcasting(0, 1, 4)(node)[0].shape)
    ],
    # Dims left out, added or cut.
    "BiasSplitGelu": _bias_split_gelu,
    "CropAndResize": _crop_and_resize,
    "ExpandDims": _expand_dims,
    "Irfft": _irfft,
    "IsAllFinite": lambda _: [OutputType(BOOL, ())],
    "Pad": _pad,
    "QLinearReduceMean": partial(_reduction, elem_types={}),
    "ReduceSumInteger": partial(_reduction, elem_types={UINT8: UINT32, INT8: INT32}),
    "Rfft": _rfft,
    "UnfoldTensor": _unfold_tensor,
    # Tables.
    "CDist": _cdist,
    "GatherBlockQuantized": _gather_block_quantized,
    "GatherND": _gather_nd,
    "TorchEmbedding": _torch_embedding,
    # Sequences.
    "BeamSearch": partial(_search, returned=4),
    "CausalConvWithState": _causal_conv_with_state,
    "DynamicQuantizeLSTM": _dynamic_quantize_lstm,
    "GreedySearch": partial(_search, returned=None),
    "Sampling": partial(_search, returned=None),
}  # fmt: skip
"""The rules of the other operators of ``com.microsoft``, by operator."""
