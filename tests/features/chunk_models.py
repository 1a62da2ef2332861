"""Models with long activations: attention, MLPs, chains of convolutions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]


class Maker:
    """Adds nodes one by one; what each makes has the next free name."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:  # noqa: ANN401
        name = f"{kind.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], f"n_{name}", **attributes))
        return name

    def weight(self, *dims: int) -> str:
        values = self.rng.standard_normal(dims).astype(np.float32) / np.sqrt(dims[0])
        return self.constant(values.astype(np.float32))

    def constant(self, values: Array) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def model(
        self, given: dict[str, tuple[int, ...]], result: str, opset: int = 20
    ) -> onnx.ModelProto:
        inputs = [
            helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, dims)
            for name, dims in given.items()
        ]
        output = helper.make_tensor_value_info(result, onnx.TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, "chunks", inputs, [output], self.weights)
        made = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10
        )
        return onnx.shape_inference.infer_shapes(made, data_prop=True)


def _heads(make: Maker, x: str, length: int, heads: int, width: int) -> str:
    shape = make.constant(np.array((1, length, heads, width), np.int64))
    return make.node("Transpose", make.node("Reshape", x, shape), perm=(0, 2, 1, 3))


def attention_layer(make: Maker, x: str, length: int, heads: int = 2, width: int = 16) -> str:
    """Add attention and an MLP, each with its normalization and residual, unfused."""
    hidden = heads * width
    scale, shift = make.weight(hidden), make.weight(hidden)
    normal = make.node("LayerNormalization", x, scale, shift, axis=-1)
    q, k, v = (
        _heads(
            make,
            make.node("MatMul", normal, make.weight(hidden, hidden)),
            length,
            heads,
            width,
        )
        for _ in range(3)
    )
    scores = make.node("MatMul", q, make.node("Transpose", k, perm=(0, 1, 3, 2)))
    scaled = make.node("Div", scores, make.constant(np.array(np.sqrt(width), np.float32)))
    mixed = make.node("MatMul", make.node("Softmax", scaled, axis=-1), v)
    joined = make.constant(np.array((1, length, hidden), np.int64))
    flat = make.node("Reshape", make.node("Transpose", mixed, perm=(0, 2, 1, 3)), joined)
    x = make.node("Add", x, make.node("MatMul", flat, make.weight(hidden, hidden)))
    normal = make.node("LayerNormalization", x, scale, shift, axis=-1)
    wide = make.node("MatMul", normal, make.weight(hidden, 4 * hidden))
    gelu = make.node("Mul", wide, make.node("Sigmoid", wide))
    return make.node("Add", x, make.node("MatMul", gelu, make.weight(4 * hidden, hidden)))


def transformer(length: int = 256, layers: int = 2) -> onnx.ModelProto:
    """Return layers of attention over so many rows."""
    make, x = Maker(), "x"
    for _ in range(layers):
        x = attention_layer(make, x, length)
    return make.model({"x": (1, length, 32)}, x)


def causal(length: int = 256, opset: int = 23, heads: int = 2) -> onnx.ModelProto:
    """Return attention as the operator with a causal mask of its own, keys for two heads each."""
    make, hidden, shared = Maker(), 16 * heads, 16 * (heads // 2)
    normal = make.node("LayerNormalization", "x", make.weight(hidden), make.weight(hidden))
    q = make.node("MatMul", normal, make.weight(hidden, hidden))
    k, v = (make.node("MatMul", normal, make.weight(hidden, shared)) for _ in range(2))
    numbers = {"q_num_heads": heads, "kv_num_heads": heads // 2, "is_causal": 1}
    mixed = make.node("Attention", q, k, v, **numbers)
    wide = make.node("Sigmoid", make.node("MatMul", mixed, make.weight(hidden, 8 * hidden)))
    x = make.node("MatMul", wide, make.weight(8 * hidden, hidden))
    return make.model({"x": (1, length, hidden)}, x, opset)


def convolutions(size: int = 64, layers: int = 4) -> onnx.ModelProto:
    """Return a chain of convolutions between few channels, which upsamples at the end."""
    make, x, before = Maker(), "x", 3
    for width in (16,) * (layers - 1) + (3,):
        weight = make.weight(width, before, 3, 3)
        x = make.node("Conv", x, weight, make.weight(width), pads=(1, 1, 1, 1))
        x = make.node("Relu", x)
        before = width
    scales = make.constant(np.array((1, 1, 2, 2), np.float32))
    x = make.node("Resize", x, "", scales, mode="nearest")
    return make.model({"x": (1, 3, size, size)}, x)


def segmentation(size: int = 64) -> onnx.ModelProto:
    """Return a head that enlarges maps of several sizes, joins them and mixes their channels."""
    make, maps = Maker(), list[str]()
    for stride in (1, 2, 4):
        told = {"pads": (1, 1, 1, 1), "strides": (stride, stride)}
        x = make.node("Relu", make.node("Conv", "x", make.weight(24, 8, 3, 3), **told))
        scales = make.constant(np.array((1, 1, stride, stride), np.float32))
        maps.append(make.node("Resize", x, "", scales, mode="linear") if stride > 1 else x)
    joined = make.node("Concat", *maps, axis=1)
    mixed = make.node("Relu", make.node("Conv", joined, make.weight(4, 72, 1, 1)))
    return make.model({"x": (1, 8, size, size)}, mixed)


def two_readers(size: int = 32) -> onnx.ModelProto:
    """Return a graph where one reader of a tensor needs a halo and the other does not."""
    make = Maker()
    x = make.node("Conv", "x", make.weight(16, 3, 3, 3), pads=(1, 1, 1, 1))
    plain = make.node("Relu", x)
    wide = make.node("Conv", x, make.weight(16, 16, 3, 3), pads=(1, 1, 1, 1))
    x = make.node("Conv", make.node("Add", plain, wide), make.weight(3, 16, 1, 1))
    return make.model({"x": (1, 3, size, size)}, x)


def language_model(tokens: int, hidden: int, vocabulary: int) -> onnx.ModelProto:
    """Return an MLP over tokens, and the logits of the next one."""
    make = Maker()
    wide = make.node("Relu", make.node("MatMul", "x", make.weight(hidden, 2 * hidden)))
    x = make.node("Add", "x", make.node("MatMul", wide, make.weight(2 * hidden, hidden)))
    x = make.node("MatMul", x, make.weight(hidden, vocabulary))
    return make.model({"x": (1, tokens, hidden)}, x)
