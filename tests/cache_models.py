"""Small decoders with caches, in the ways in which exporters write them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

if TYPE_CHECKING:
    from collections.abc import Sequence

WORDS = 11

Layout = Literal["heads", "rows", "moved", "columns"]
"""``heads``: [b, h, t, d]. ``rows``: [b, t, h, d], moved after the Concat. ``moved``: [b, t, h, d],
moved before the Concat and back after it. ``columns``: keys as [b, h, d, t]."""

Means = Literal["concat", "cast", "attention", "multihead", "grouped"]


@dataclass(frozen=True)
class Shape:
    """What a decoder is like."""

    layers: int = 1
    heads: int = 2
    groups: int = 1
    size: int = 4
    layout: Layout = "heads"
    means: Means = "concat"
    mask: Literal["none", "input", "past"] = "past"
    opset: int = 20
    crossed: bool = False
    identity: bool = False
    words: int = WORDS
    whole: bool = False
    """Whether layers have norms and a feed-forward part, as published ones have."""


@dataclass
class _Graph:
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    outputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))

    def __call__(self, kind: str, *inputs: str, domain: str = "", **attributes: object) -> str:
        name = f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(kind, inputs, [name], f"n_{name}", domain=domain, **attributes)
        )
        return name

    def weight(self, *shape: int) -> str:
        drawn = self.rng.standard_normal(shape, dtype=np.float32) * np.float32(
            min(0.5, shape[0] ** -0.5)
        )
        return self.constant(drawn)

    def constant(self, values: object) -> str:
        array = np.asarray(values)
        name = f"w_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def given(
        self, name: str, dims: Sequence[int | str], kind: int = TensorProto.FLOAT
    ) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, kind, dims))
        return name

    def made(self, name: str, value: str, dims: Sequence[int | str], kind: int) -> None:
        self.nodes.append(helper.make_node("Identity", [value], [name], f"out_{name}"))
        self.outputs.append(helper.make_tensor_value_info(name, kind, dims))

    def renamed(self, value: str, name: str, dims: Sequence[int | str], kind: int) -> None:
        """Give a value the name of an output, wherever it is read."""
        for node in self.nodes:
            node.input[:] = [name if each == value else each for each in node.input]
            node.output[:] = [name if each == value else each for each in node.output]
        self.outputs.append(helper.make_tensor_value_info(name, kind, dims))


def decoder(like: Shape = Shape()) -> onnx.ModelProto:
    """Build a decoder; its caches' names say nothing."""
    g = _Graph()
    wide = like.heads * like.groups * like.size
    ids = g.given("ids", ["batch", "new"], TensorProto.INT64)
    mask = g.given("mask", ["batch", 1, "new", "total"]) if like.mask == "input" else ""
    hidden = g("Gather", g.weight(like.words, wide), ids)
    for layer in range(like.layers):
        read = _normed(g, hidden, wide) if like.whole else hidden
        hidden = g("Add", hidden, _layer(g, read, mask, layer, like))
        hidden = _fed_forward(g, hidden, wide) if like.whole else hidden
    logits = g("MatMul", hidden, g.weight(wide, like.words))
    g.made("logits", logits, ["batch", "new", like.words], TensorProto.FLOAT)
    graph = helper.make_graph(g.nodes, "decoder", g.inputs, g.outputs, g.weights)
    opsets = [helper.make_opsetid("", like.opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _normed(g: _Graph, hidden: str, wide: int) -> str:
    ones, zeros = np.ones(wide, np.float32), np.zeros(wide, np.float32)
    return g("LayerNormalization", hidden, g.constant(ones), g.constant(zeros), axis=-1)


def _fed_forward(g: _Graph, hidden: str, wide: int) -> str:
    inner = g("Gelu", g("MatMul", _normed(g, hidden, wide), g.weight(wide, 4 * wide)))
    return g("Add", hidden, g("MatMul", inner, g.weight(4 * wide, wide)))


def _layer(g: _Graph, hidden: str, mask: str, layer: int, like: Shape) -> str:
    wide, narrow = like.heads * like.groups * like.size, like.heads * like.size
    query = g("MatMul", hidden, g.weight(wide, wide))
    key = g("MatMul", hidden, g.weight(wide, narrow))
    value = g("MatMul", hidden, g.weight(wide, narrow))
    if like.means in ("attention", "multihead", "grouped"):
        found = _fused(g, (query, key, value), layer, like)
    else:
        found = _written_out(g, (query, key, value), mask, layer, like)
    if like.crossed:
        found = g("Add", found, _crossed(g, hidden, layer, like))
    return g("MatMul", found, g.weight(wide, wide))


def _heads(g: _Graph, value: str, heads: int, size: int) -> str:
    """Return rows apart by heads: [b, t, h, d]."""
    return g("Reshape", value, g.constant(np.array([0, 0, heads, size])))


def _cached(g: _Graph, new: str, name: str, like: Shape, *, keys: bool) -> tuple[str, str]:
    """Return a cache with its new rows as [b, h, t, d], and the past; ``new`` is [b, t, h, d]."""
    h, d = like.heads, like.size
    swapped, past = g("Transpose", new, perm=[0, 2, 1, 3]), f"{name}_past"
    half = like.means == "cast"
    kind = TensorProto.FLOAT16 if half else TensorProto.FLOAT
    if like.layout == "rows":
        g.given(past, ["batch", past, h, d], kind)
        joined = _joined(g, (past, new), 1, (name, ["batch", f"{past}+new", h, d]), like)
        return g("Transpose", joined, perm=[0, 2, 1, 3]), past
    if like.layout == "moved":
        g.given(past, ["batch", past, h, d], kind)
        moved = g("Transpose", past, perm=[0, 2, 1, 3])
        moved = g("Cast", moved, to=TensorProto.FLOAT) if half else moved
        joined = g("Concat", moved, swapped, axis=2)
        back = g("Transpose", joined, perm=[0, 2, 1, 3])
        back = g("Cast", back, to=TensorProto.FLOAT16) if half else back
        g.made(f"{name}_now", back, ["batch", f"{past}+new", h, d], kind)
        return joined, past
    if like.layout == "columns" and keys:
        g.given(past, ["batch", h, d, past], kind)
        new = g("Transpose", swapped, perm=[0, 1, 3, 2])
        joined = _joined(g, (past, new), 3, (name, ["batch", h, d, f"{past}+new"]), like)
        return g("Transpose", joined, perm=[0, 1, 3, 2]), past
    g.given(past, ["batch", h, past, d], kind)
    joined = _joined(g, (past, swapped), -2, (name, ["batch", h, f"{past}+new", d]), like)
    return joined, past


def _joined(
    g: _Graph, pair: tuple[str, str], axis: int, made: tuple[str, list[int | str]], like: Shape
) -> str:
    (past, new), (name, dims) = pair, made
    if like.means == "cast":
        joined = g("Concat", g("Cast", past, to=TensorProto.FLOAT), new, axis=axis)
        g.made(
            f"{name}_now", g("Cast", joined, to=TensorProto.FLOAT16), dims, TensorProto.FLOAT16
        )
        return joined
    joined = g("Concat", past, new, axis=axis)
    if like.identity:
        g.made(f"{name}_now", joined, dims, TensorProto.FLOAT)
        return joined
    g.renamed(joined, f"{name}_now", dims, TensorProto.FLOAT)
    return f"{name}_now"


def _written_out(
    g: _Graph, qkv: tuple[str, str, str], mask: str, layer: int, like: Shape
) -> str:
    heads, many, d = like.heads, like.heads * like.groups, like.size
    query, key, value = qkv
    q = g("Transpose", _heads(g, query, many, d), perm=[0, 2, 1, 3])
    k, past = _cached(g, _heads(g, key, heads, d), f"a{layer}", like, keys=True)
    v, _ = _cached(g, _heads(g, value, heads, d), f"b{layer}", like, keys=False)
    k, v = _repeated(g, k, like), _repeated(g, v, like)
    scores = g("MatMul", q, g("Transpose", k, perm=[0, 1, 3, 2]))
    scores = g("Mul", scores, g.constant(np.float32(like.size**-0.5)))
    if mask:
        scores = g("Add", scores, mask)
    elif like.mask == "past":
        scores = _masked(g, scores, past, layer, like)
    probabilities = g("Softmax", scores, axis=-1)
    found = g("Transpose", g("MatMul", probabilities, v), perm=[0, 2, 1, 3])
    return g("Reshape", found, g.constant(np.array([0, 0, many * d])))


def _repeated(g: _Graph, value: str, like: Shape) -> str:
    if like.groups == 1:
        return value
    batch = g("Shape", value, start=0, end=1)
    length = g("Shape", value, start=2, end=3)
    heads, groups, size = (
        g.constant(np.array([n])) for n in (like.heads, like.groups, like.size)
    )
    many = g.constant(np.array([like.heads * like.groups]))
    shape = g("Concat", batch, heads, groups, length, size, axis=0)
    wide = g("Expand", g("Unsqueeze", value, g.constant(np.array([2]))), shape)
    return g("Reshape", wide, g("Concat", batch, many, length, size, axis=0))


def _masked(g: _Graph, scores: str, past: str, layer: int, like: Shape) -> str:
    """Mask what is later than a query, by the length that the past has."""
    del layer
    axis = {"rows": 1, "moved": 1, "columns": 3}.get(like.layout, 2)
    zero, one = g.constant(np.int64(0)), g.constant(np.int64(1))
    before = g("Squeeze", g("Shape", past, start=axis, end=axis + 1))
    new = g("Squeeze", g("Shape", "ids", start=1, end=2))
    rows = g("Add", g("Range", zero, new, one), before)
    columns = g("Range", zero, g("Add", before, new), one)
    late = g("Greater", columns, g("Unsqueeze", rows, g.constant(np.array([1]))))
    return g("Where", late, g.constant(np.float32(-1e9)), scores)


def _fused(g: _Graph, qkv: tuple[str, str, str], layer: int, like: Shape) -> str:
    h, d = like.heads, like.size
    dims: list[list[int | str]] = []
    pasts, names = [], [f"a{layer}", f"b{layer}"]
    for name in names:
        past = f"{name}_past"
        pasts.append(g.given(past, ["batch", h, past, d]))
        dims.append(["batch", h, f"{past}+new", d])
    outputs = [f"fused_{layer}", *(f"{name}_now" for name in names)]
    many = like.heads * like.groups
    if like.means == "attention":
        node = helper.make_node(
            "Attention",
            [*qkv, "", *pasts],
            outputs,
            f"fuse_{layer}",
            q_num_heads=many,
            kv_num_heads=h,
            is_causal=1,
        )
    elif like.means == "multihead":
        node = helper.make_node(
            "MultiHeadAttention",
            [*qkv, "", "", "", *pasts],
            outputs,
            f"fuse_{layer}",
            domain="com.microsoft",
            num_heads=many,
            unidirectional=1,
        )
    else:
        new, past = g("Shape", "ids", start=1, end=2), g("Shape", pasts[0], start=2, end=3)
        total = g("Cast", g("Add", new, past), to=TensorProto.INT32)
        batch = g("Shape", "ids", start=0, end=1)
        last = g("Sub", total, g.constant(np.array([1], np.int32)))
        lengths = g("Expand", last, batch)
        node = helper.make_node(
            "GroupQueryAttention",
            [*qkv, *pasts, lengths, g("Squeeze", total)],
            outputs,
            f"fuse_{layer}",
            domain="com.microsoft",
            num_heads=many,
            kv_num_heads=h,
        )
    g.nodes.append(node)
    for name, each in zip(names, dims, strict=True):
        g.outputs.append(helper.make_tensor_value_info(f"{name}_now", TensorProto.FLOAT, each))
    return f"fused_{layer}"


def _crossed(g: _Graph, hidden: str, layer: int, like: Shape) -> str:
    """Attend to keys and values that were computed once and are handed on."""
    many, d = like.heads * like.groups, like.size
    dims: list[int | str] = ["batch", many, "heard", d]
    pair = []
    for name in (f"c{layer}", f"d{layer}"):
        pair.append(g.given(f"{name}_past", dims))
        g.made(f"{name}_now", f"{name}_past", dims, TensorProto.FLOAT)
    query = g("MatMul", hidden, g.weight(many * d, many * d))
    q = g("Transpose", _heads(g, query, many, d), perm=[0, 2, 1, 3])
    scores = g("MatMul", q, g("Transpose", pair[0], perm=[0, 1, 3, 2]))
    found = g("MatMul", g("Softmax", scores, axis=-1), pair[1])
    rows = g("Transpose", found, perm=[0, 2, 1, 3])
    return g("Reshape", rows, g.constant(np.array([0, 0, many * d])))
