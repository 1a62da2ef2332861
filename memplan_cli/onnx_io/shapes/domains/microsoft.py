"""The rest of ONNX Runtime's domain: activations, quantised elements, lookups, searches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.operators import MICROSOFT, OPERATORS
from memplan_cli.core.symbolic.dims import as_dim
from memplan_cli.core.symbolic.polynomials import floored, multiplied, total
from memplan_cli.onnx_io.shapes.domains.made import (
    INT8,
    UINT8,
    UINT32,
    Made,
    Node,
    Rule,
    broadcasting,
    last_as,
    like,
    part,
)
from memplan_cli.onnx_io.shapes.symbolic.elements import terms_of
from memplan_cli.onnx_io.shapes.symbolic.rules import padded, summed
from memplan_cli.onnx_io.shapes.symbolic.values import BOOL, INT32, product

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memplan_cli.core.program import Dim, Shape

_MATRIX = 2


def _quantized(node: Node) -> Sequence[Made]:
    """QuantizeLinear: of the zero point's type."""
    return [Made(node.element(2) if node.has(2) else UINT8, node.shape(0))]


def _dropped(node: Node) -> Sequence[Made]:
    """BiasDropout: the tensor, and what was kept of it."""
    return [Made(node.element(0), node.shape(0)), Made(BOOL, node.shape(0))]


def _halved(node: Node) -> Sequence[Made]:
    """BiasSplitGelu: one half gates the other."""
    shape = node.shape(0)
    return [Made(node.element(0), last_as(shape, part(shape[-1], 2)) if shape else None)]


def _reduced(elements: Mapping[int, int]) -> Rule:
    """Return the rule of a reduction over the axes that an attribute says, or over all."""

    def rule(node: Node) -> Sequence[Made]:
        shape = node.shape(0)
        kind = elements.get(node.element(0), node.element(0))
        if shape is None:
            return [Made(kind, None)]
        axes = {axis % len(shape) for axis in node.numbers("axes")} or set(range(len(shape)))
        keeps = node.number("keepdims", 1)
        kept = [1 if at in axes else dim for at, dim in enumerate(shape)]
        left = [dim for at, dim in enumerate(kept) if keeps or at not in axes]
        return [Made(kind, tuple(left))]

    return rule


def _gathered_rows(node: Node) -> Sequence[Made]:
    """GatherND: what each index leads to."""
    data, indices = node.shape(0), node.shape(1)
    depth = indices[-1] if indices else None
    if data is None or indices is None or not isinstance(depth, int) or depth > len(data):
        return [Made(node.element(0), None)]
    return [Made(node.element(0), (*indices[:-1], *data[depth:]))]


def _gathered_blocks(node: Node) -> Sequence[Made]:
    """GatherBlockQuantized: rows of a table, several elements of which may lie in a byte."""
    data, indices = node.shape(0), node.shape(1)
    if data is None or indices is None or not data:
        return [Made(node.element(2), None)]
    rows = list(data)
    axis = node.number("quantize_axis", 1) % len(data)
    if node.element(0) == UINT8:
        rows[-1] = product((rows[-1], 8 // node.number("bits", 4)))
        if axis != len(data) - 1:
            return [Made(node.element(2), None)]
    at = node.number("gather_axis", 0) % len(data)
    return [Made(node.element(2), (*rows[:at], *indices, *rows[at + 1 :]))]


def _expanded(node: Node) -> Sequence[Made]:
    """ExpandDims: a dim of 1 more."""
    shape, axis = node.shape(0), node.scalar(1)
    if shape is None or not isinstance(axis, int):
        return [Made(node.element(0), None)]
    at = axis + len(shape) + 1 if axis < 0 else axis
    return [Made(node.element(0), (*shape[:at], 1, *shape[at:]))]


def _cropped(node: Node) -> Sequence[Made]:
    """CropAndResize: one picture for each region."""
    shape, regions, size = node.ranked(0, 4), node.ranked(1, 2), node.dims(3)
    if shape is None or regions is None or size is None or len(size) != _MATRIX:
        return [Made(node.element(0), None)]
    return [Made(node.element(0), (regions[0], shape[1], *size))]


def _distances(node: Node) -> Sequence[Made]:
    """CDist: from each row to each row."""
    a, b = node.ranked(0, 2), node.ranked(1, 2)
    return [Made(node.element(0), None if a is None or b is None else (a[0], b[0]))]


def _unfolded(node: Node) -> Sequence[Made]:
    """UnfoldTensor: windows of a dim, as a dim more."""
    shape = node.shape(0)
    size, step = node.number("size"), node.number("step", 1)
    if not shape or size < 1 or step < 1:
        return [Made(node.element(0), None)]
    axis = node.number("dim", -1) % len(shape)
    dim = shape[axis]
    count = _steps(dim, size, step)
    return [Made(node.element(0), (*shape[:axis], count, *shape[axis + 1 :], size))]


def _steps(dim: Dim, size: int, step: int) -> Dim:
    if dim is None:
        return None
    return as_dim(floored(total([terms_of(dim), {(): step - size}]), step))


def _looked_up(node: Node) -> Sequence[Made]:
    """TorchEmbedding: a row for each index."""
    table, indices = node.ranked(0, 2), node.shape(1)
    if table is None or indices is None:
        return [Made(node.element(0), None)]
    return [Made(node.element(0), (*indices, table[1]))]


def _transformed(node: Node) -> Sequence[Made]:
    """Rfft: half of a spectrum, and one, in real and imaginary parts."""
    shape = node.shape(0)
    if not shape or shape[-1] is None or node.number("signal_ndim", 1) != 1:
        return [Made(node.element(0), None)]
    half = as_dim(total([floored(terms_of(shape[-1]), 2), {(): 1}]))
    return [
        Made(node.element(0), (*shape[:-1], half if node.number("onesided", 1) else None, 2))
    ]


def _restored(node: Node) -> Sequence[Made]:
    """Irfft: from half of a spectrum back."""
    shape = node.shape(0)
    if shape is None or len(shape) < _MATRIX or shape[-2] is None:
        return [Made(node.element(0), None)]
    if node.number("signal_ndim", 1) != 1 or not node.number("onesided", 1):
        return [Made(node.element(0), None)]
    whole = as_dim(total([multiplied([terms_of(shape[-2])], 2), {(): -2}]))
    return [Made(node.element(0), (*shape[:-2], whole))]


def _hashed(node: Node) -> Sequence[Made]:
    """MurmurHash3: a number for each element."""
    return [Made(UINT32 if node.number("positive", 1) else INT32, node.shape(0))]


def _padded(node: Node) -> Sequence[Made]:
    """Pad: as ONNX's."""
    return [Made(node.element(0), padded(node.values, node.proto))]


def _searched(returned: int | None) -> Rule:
    """Return the rule of a search: sequences as long as an input says, several for each row."""

    def rule(node: Node) -> Sequence[Made]:
        ids = node.ranked(0, 2)
        batch = ids[0] if ids else None
        several = () if returned is None else (node.scalar(returned),)
        return [Made(INT32, (batch, *several, node.scalar(1)))]

    return rule


def _recurrent(node: Node) -> Sequence[Made]:
    """DynamicQuantizeLSTM: as LSTM."""
    shape, hidden = node.ranked(0, 3), node.number("hidden_size")
    if shape is None or not hidden:
        return []
    way = node.attribute("direction")
    ways = 2 if way is not None and way.s == b"bidirectional" else 1
    kept = Made(node.element(0), (ways, shape[1], hidden))
    return [Made(node.element(0), (shape[0], ways, shape[1], hidden)), kept, kept]


def _state_kept(node: Node) -> Sequence[Made]:
    """CausalConvWithState: as its input, and the last rows of it."""
    shape, kernel = node.shape(0), node.ranked(1, 3)
    plain = node.number("ndim", 1) == 1 and not node.number("state_window")
    is_first = not node.number("channels_last") and node.number("dilation", 1) == 1
    state: Shape | None = None
    if shape is not None and kernel is not None and plain and is_first:
        state = (*shape[:2], summed((kernel[2], -1)))
    return [Made(node.element(0), shape), Made(node.element(0), state)]


RULES: Mapping[str, Rule] = {
    # Dims of the first input.
    **{each.name: like(0) for each in OPERATORS if each.domain == MICROSOFT and each.keeps_shape},
    **dict.fromkeys(
        (
            "BiasAdd", "BiasSoftmax", "BranchwiseRMSNorm", "GatedAdd",
            "GatedRMSNorm", "GroupNorm", "Inverse", "MoE", "QLinearLeakyRelu",
            "QLinearSigmoid", "QLinearSoftmax", "QMoE", "SampleOp", "ScaledSiLU", "Trilu",
        ),
        like(0),
    ),
    "BiasDropout": _dropped,
    "DequantizeLinear": lambda node: [Made(node.element(1), node.shape(0))],
    "MurmurHash3": _hashed,
    "NGramRepeatBlock": like(1),
    "QuantizeLinear": _quantized,
    "SkipGroupNorm": like(0, 0),
    # Pairs of elements.
    "ComplexMul": broadcasting(0, 1),
    "ComplexMulConj": broadcasting(0, 1),
    "MulInteger": broadcasting(0, 2, element=INT32),
    "QLinearAdd": broadcasting(0, 3),
    "QLinearMul": broadcasting(0, 3),
    "QLinearWhere": lambda node: [
        Made(node.element(1), broadcasting(0, 1, 4)(node)[0].shape)
    ],
    # Dims left out, added or cut.
    "BiasSplitGelu": _halved,
    "CropAndResize": _cropped,
    "ExpandDims": _expanded,
    "Irfft": _restored,
    "IsAllFinite": lambda _: [Made(BOOL, ())],
    "Pad": _padded,
    "QLinearReduceMean": _reduced({}),
    "ReduceSumInteger": _reduced({UINT8: UINT32, INT8: INT32}),
    "Rfft": _transformed,
    "UnfoldTensor": _unfolded,
    # Tables.
    "CDist": _distances,
    "GatherBlockQuantized": _gathered_blocks,
    "GatherND": _gathered_rows,
    "TorchEmbedding": _looked_up,
    # Sequences.
    "BeamSearch": _searched(4),
    "CausalConvWithState": _state_kept,
    "DynamicQuantizeLSTM": _recurrent,
    "GreedySearch": _searched(None),
    "Sampling": _searched(None),
}  # fmt: skip
"""Of com.microsoft."""
