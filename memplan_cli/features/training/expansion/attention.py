"""Attention, decomposed into as few tensors as its gradient needs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from onnx import TensorProto

from memplan_cli.errors import ModelError

if TYPE_CHECKING:
    from memplan_cli.features.training.tape import Call


def attention(call: Call) -> None:
    """Y = softmax(s Q K^T + mask) V for each head; heads of K and V may be shared.

    The nodes are written to the call's tape, the last one gives the node's output.

    Raises:
        ModelError: the node has past keys, a window or further outputs, or operands of several
            element types.
    """
    tape = call.tape
    _reject_unsupported(call)
    q, k, v = (_heads(call, i) for i in range(3))
    scale = call.attribute("scale", 1 / math.sqrt(_head_width(call, 0)))
    scaled_q = tape.emit("Mul", q, tape.scalar(scale, call.input(0)))
    k_transposed = tape.emit("Transpose", k, perm=[0, 1, 3, 2])
    scores = _with_cap(call, tape.emit("MatMul", scaled_q, k_transposed))
    weights = tape.emit("Softmax", _with_mask(call, scores), axis=-1)
    y = _zero_where_all_masked(call, tape.emit("MatMul", weights, v))
    if tape.rank(call.input(0)) == 3:
        y = tape.emit("Transpose", y, perm=[0, 2, 1, 3])
        y = tape.emit("Reshape", y, tape.ints(0, 0, -1))
    tape.copy_to(call.output(), y)


_PADDED_MASKS_OPSET = 24
"""From this opset a mask that is shorter than the keys hides the remaining keys."""


def _reject_unsupported(call: Call) -> None:
    """Raise ModelError for a form of Attention that has no decomposition here."""
    tape, node = call.tape, call.node
    has_past_or_lengths, has_further_outputs = any(node.input[4:]), any(node.output[1:])
    windows = [call.attribute(f"{side}_window_size", -1) for side in ("left", "right")]
    has_window = windows != [-1, -1]
    types = {tape.dtype(call.input(i)) for i in range(3)}
    mask_type = tape.dtype(call.input(3)) if call.input(3) else TensorProto.BOOL
    has_mixed_types = len(types) > 1 or mask_type not in {TensorProto.BOOL, *types}
    if has_past_or_lengths or has_further_outputs or has_window or has_mixed_types:
        raise ModelError(
            f"Attention {call.label!r} has past keys, several outputs, a"
            " window or operands of several types: it has no gradient rule for that"
        )
    _reject_short_mask(call)


def _reject_short_mask(call: Call) -> None:
    """Raise ModelError if the mask of an Attention may be shorter than its keys, and so hide the rest.

    A mask of symbolic length is taken to be as long as the keys.
    """
    tape = call.tape
    if not call.input(3) or tape.opset < _PADDED_MASKS_OPSET:
        return  # a mask, if any, broadcasts to all keys
    key_count = tape.shape(call.input(1))[-2]
    mask_length = tape.shape(call.input(3))[-1]
    if isinstance(mask_length, int) and mask_length != key_count:
        raise ModelError(
            f"the mask of Attention {call.label!r} is for {mask_length} keys, which may be too few:"
            " it has no gradient rule for that"
        )


def _head_count(call: Call, index: int) -> int:
    """Return the number of heads of Q (index 0), K (1) or V (2).

    Raises:
        ModelError: it is a dim of unknown size.
    """
    if call.tape.rank(call.input(0)) == 3:
        return int(call.attribute("kv_num_heads" if index else "q_num_heads"))
    counts = [call.tape.shape(call.input(i))[1] for i in range(2)]
    count = counts[min(index, 1)]  # V has as many heads as K
    if not isinstance(count, int):
        raise ModelError(f"the number of heads of {call.node.name!r} is not known")
    return count


def _head_width(call: Call, index: int) -> int:
    """Return the number of elements of a head of Q (index 0), K (1) or V (2).

    In an operand of rank 3 the last axis holds all heads.

    Raises:
        ModelError: it is a dim of unknown size.
    """
    shape = call.tape.shape(call.input(index))
    width = shape[-1]
    if not isinstance(width, int):
        raise ModelError(f"the width of the heads of {call.node.name!r} is not known")
    return width // _head_count(call, index) if len(shape) == 3 else width


def _heads(call: Call, index: int) -> str:
    """Return Q, K or V as [batch, heads of Q, length, width]; shared heads of K and V are repeated."""
    tape, name = call.tape, call.input(index)
    query_heads, heads = _head_count(call, 0), _head_count(call, index)
    if tape.rank(name) == 3:
        split = tape.emit("Reshape", name, tape.ints(0, 0, heads, -1))
        name = tape.emit("Transpose", split, perm=[0, 2, 1, 3])
    if heads == query_heads:
        return name
    width = _head_width(call, index)
    # Each head is repeated for a group of heads of Q that follow each other.
    with_group_axis = tape.emit("Unsqueeze", name, tape.ints(2))
    group_size = query_heads // heads
    repeated = tape.emit("Expand", with_group_axis, tape.ints(1, 1, group_size, 1, 1))
    return tape.emit("Reshape", repeated, tape.ints(0, query_heads, -1, width))


def _with_cap(call: Call, scores: str) -> str:
    """Return c tanh(scores / c) if the node has a cap c, else the scores."""
    tape, cap = call.tape, call.attribute("softcap", 0.0)
    if not cap:
        return scores
    c = tape.scalar(cap, call.input(0))
    return tape.emit("Mul", tape.emit("Tanh", tape.emit("Div", scores, c)), c)


_LOWEST = {
    TensorProto.FLOAT: float(np.finfo(np.float32).min),
    TensorProto.DOUBLE: float(np.finfo(np.float64).min),
    TensorProto.FLOAT16: float(np.finfo(np.float16).min),
    TensorProto.BFLOAT16: -(2 - 2.0**-7) * 2.0**127,  # NumPy itself does not have the type
}
"""The lowest finite number of each element type that may be trained."""


def _with_mask(call: Call, scores: str) -> str:
    """Return the scores with the node's mask and the causal mask applied.

    Masked scores get the lowest finite number: with minus infinity, softmax would give NaN in a row
    in which all keys are masked.
    """
    tape, mask = call.tape, call.input(3)
    dtype = tape.dtype(call.input(0))
    lowest = _LOWEST[dtype]
    if mask and tape.dtype(mask) == TensorProto.BOOL:
        scores = tape.emit("Where", mask, scores, tape.constant(lowest, dtype))
    elif mask:
        # Half of the lowest number, so that its sum with a score is finite too.
        finite_mask = tape.emit("Max", mask, tape.constant(lowest / 2, dtype))
        scores = tape.emit("Add", scores, finite_mask)
    if not call.attribute("is_causal", 0):
        return scores
    return tape.emit("Where", _causal_mask(call), scores, tape.constant(lowest, dtype))


def _causal_mask(call: Call) -> str:
    """Return a bool constant [queries, keys]: whether key j is not after query i.

    Raises:
        UnknownShapeError: the number of queries or keys is not known.
    """
    # Operands are [batch, length, width] or [batch, heads, length, width].
    axis = 1 if call.tape.rank(call.input(0)) == 3 else 2
    queries, keys = (
        call.tape.sizes(call.input(i), why="the causal mask is a constant")[axis]
        for i in (0, 1)
    )
    return call.tape.constant(np.tril(np.ones((queries, keys), bool)), TensorProto.BOOL)


def _zero_where_all_masked(call: Call, result: str) -> str:
    """Return the result with zeros for queries whose keys are all masked by minus infinity or False.

    With the finite numbers of `_with_mask`, softmax gives such a query equal weights instead.
    """
    tape, mask = call.tape, call.input(3)
    if not mask:  # the causal mask alone leaves each query the first key
        return result
    dtype = tape.dtype(call.input(0))
    zero, minus_infinity = tape.constant(0, dtype), tape.constant(-math.inf, dtype)
    if tape.dtype(mask) == TensorProto.BOOL:
        mask = tape.emit("Where", mask, zero, minus_infinity)
    if call.attribute("is_causal", 0):
        mask = tape.emit("Where", _causal_mask(call), mask, minus_infinity)
    # The mask is a summand of the scores now: minus infinity for each masked key.
    highest = tape.emit("ReduceMax", mask, tape.ints(-1), keepdims=1)
    return tape.emit("Where", tape.emit("Greater", highest, minus_infinity), result, zero)
