"""Attention, expanded with as few tensors as its gradient needs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from onnx import TensorProto

from memplan_cli.errors import ModelError
from memplan_cli.features.training.expansion.bodies import give

if TYPE_CHECKING:
    from memplan_cli.features.training.tape import Call


def attention(call: Call) -> None:
    """Y = softmax(s Q K^T + mask) V for each head; heads of K and V may be shared.

    Raises:
        ModelError: it keeps past keys, looks through a window, gives more than Y, or mixes
            element types.
    """
    tape, node = call.tape, call.node
    windows = [call.attribute(f"{side}_window_size", -1) for side in ("left", "right")]
    rare = any(node.input[4:]) or any(node.output[1:]) or windows != [-1, -1]
    types = {tape.dtype(call.input(i)) for i in range(3)}
    mask = tape.dtype(call.input(3)) if call.input(3) else TensorProto.BOOL
    if rare or len(types) > 1 or mask not in {TensorProto.BOOL, *types}:
        raise ModelError(
            f"Attention {node.name or node.output[0]!r} has past keys, several outputs, a"
            " window or operands of several types: it has no gradient rule for that"
        )
    _refuse_short_mask(call)
    q, k, v = (_heads(call, i) for i in range(3))
    width = _head_width(call)
    scale = call.attribute("scale", 1 / math.sqrt(width))
    scaled = tape.emit("Mul", q, tape.scalar(scale, call.input(0)))
    turned = tape.emit("Transpose", k, perm=[0, 1, 3, 2])
    scores = _masked(call, _capped(call, tape.emit("MatMul", scaled, turned)))
    weights = tape.emit("Softmax", scores, axis=-1)
    result = _where_seen(call, tape.emit("MatMul", weights, v))
    if tape.rank(call.input(0)) == 3:
        result = tape.emit("Transpose", result, perm=[0, 2, 1, 3])
        result = tape.emit("Reshape", result, tape.ints(0, 0, -1))
    give(tape, result, call.output())


def _head_counts(call: Call) -> tuple[int, int]:
    if call.tape.rank(call.input(0)) == 3:
        return call.attribute("q_num_heads"), call.attribute("kv_num_heads")
    counts = [call.tape.shape(call.input(i))[1] for i in range(2)]
    if not all(isinstance(count, int) for count in counts):
        raise ModelError(f"the number of heads of {call.node.name!r} is not known")
    return int(str(counts[0])), int(str(counts[1]))


def _head_width(call: Call) -> int:
    shape = call.tape.shape(call.input(0))
    width = shape[-1]
    if not isinstance(width, int):
        raise ModelError(f"the width of the heads of {call.node.name!r} is not known")
    return width // _head_counts(call)[0] if len(shape) == 3 else width


def _heads(call: Call, index: int) -> str:
    """Return Q, K or V as [batch, heads, length, width], heads repeated where shared."""
    tape, name = call.tape, call.input(index)
    queries, keys = _head_counts(call)
    own = queries if index == 0 else keys
    shape = tape.shape(name)
    if len(shape) == 3:
        split = tape.emit("Reshape", name, tape.ints(0, 0, own, -1))
        name = tape.emit("Transpose", split, perm=[0, 2, 1, 3])
    if own == queries:
        return name
    width = shape[-1]
    if not isinstance(width, int):
        raise ModelError(f"the width of the heads of {call.node.name!r} is not known")
    width = width // own if len(shape) == 3 else width
    apart = tape.emit("Unsqueeze", name, tape.ints(2))
    repeated = tape.emit("Expand", apart, tape.ints(1, 1, queries // own, 1, 1))
    return tape.emit("Reshape", repeated, tape.ints(0, queries, -1, width))


def _capped(call: Call, scores: str) -> str:
    """C tanh(scores / c), where a cap is set."""
    tape, cap = call.tape, call.attribute("softcap", 0.0)
    if not cap:
        return scores
    limit = tape.scalar(cap, call.input(0))
    return tape.emit("Mul", tape.emit("Tanh", tape.emit("Div", scores, limit)), limit)


_LEAST = {
    TensorProto.FLOAT: float(np.finfo(np.float32).min),
    TensorProto.DOUBLE: float(np.finfo(np.float64).min),
    TensorProto.FLOAT16: float(np.finfo(np.float16).min),
    TensorProto.BFLOAT16: -(2 - 2.0**-7) * 2.0**127,  # NumPy itself does not know the type
}
"""The least number of each type that may be trained."""


def _masked(call: Call, scores: str) -> str:
    """Add the mask and the causal one; what is not seen gets a finite number, however small.

    Minus infinity would make nothing of a row that sees no key at all.
    """
    tape, mask = call.tape, call.input(3)
    dtype = tape.dtype(call.input(0))
    least = _LEAST[dtype]
    if mask and tape.dtype(mask) == TensorProto.BOOL:
        scores = tape.emit("Where", mask, scores, tape.constant(least, dtype))
    elif mask:
        finite = tape.emit("Max", mask, tape.constant(least / 2, dtype))
        scores = tape.emit("Add", scores, finite)
    if not call.attribute("is_causal", 0):
        return scores
    return tape.emit("Where", _causal(call), scores, tape.constant(least, dtype))


def _causal(call: Call) -> str:
    axis = 1 if call.tape.rank(call.input(0)) == 3 else 2
    rows, columns = (
        call.tape.sizes(call.input(i), "the causal mask is a constant")[axis] for i in (0, 1)
    )
    return call.tape.constant(np.tril(np.ones((rows, columns), bool)), TensorProto.BOOL)


def _where_seen(call: Call, result: str) -> str:
    """Give 0 for queries that see no key: all are masked, by minus infinity or by false."""
    tape, mask = call.tape, call.input(3)
    if not mask:
        return result
    dtype = tape.dtype(call.input(0))
    zero, never = tape.constant(0, dtype), tape.constant(-math.inf, dtype)
    if tape.dtype(mask) == TensorProto.BOOL:
        mask = tape.emit("Where", mask, zero, never)
    if call.attribute("is_causal", 0):
        mask = tape.emit("Where", _causal(call), mask, never)
    best = tape.emit("ReduceMax", mask, tape.ints(-1), keepdims=1)
    return tape.emit("Where", tape.emit("Greater", best, never), result, zero)


def _refuse_short_mask(call: Call) -> None:
    """Stop where a mask is shorter than the keys, which since opset 24 hides the rest of them."""
    tape, mask = call.tape, call.input(3)
    if not mask or tape.opset < _PADDED_MASKS:
        return
    keys = tape.shape(call.input(1))[-2]
    length = tape.shape(mask)[-1]
    if isinstance(length, int) and length != keys:
        raise ModelError(
            f"the mask of Attention {call.node.name or call.output()!r} is for {length} of"
            f" {keys} keys: it has no gradient rule for that"
        )


_PADDED_MASKS = 24
"""The opset from which a short mask is continued by what is not seen, never repeated."""
