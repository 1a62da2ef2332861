"""Models with long activations, of real widths and few layers: weights are seeded.

Written node by node as exporters do: attention and normalization unfused where they are so in
files that people have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    Array = np.ndarray[Any, Any]

    Dims = tuple[int | str, ...]


class Writer:
    """Adds nodes one by one; what each makes has the next free name."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def __call__(self, kind: str, *inputs: str, **attributes: Any) -> str:  # noqa: ANN401
        name = f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], f"n_{name}", **attributes))
        return name

    def matrix(self, *dims: int) -> str:
        """Return a weight whose products keep the size of what they are given."""
        values = self.rng.standard_normal(dims, np.float32)
        values /= np.sqrt(np.prod(dims[1:]) if len(dims) > 2 else dims[0])
        return self.constant(values)

    def ones(self, count: int) -> str:
        return self.constant(np.ones(count, np.float32))

    def zeros(self, count: int) -> str:
        return self.constant(np.zeros(count, np.float32))

    def shape(self, *dims: int) -> str:
        return self.constant(np.array(dims, np.int64))

    def number(self, value: float) -> str:
        return self.constant(np.array(value, np.float32))

    def constant(self, values: Array) -> str:
        name = f"w_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def save(self, path: Path, given: Mapping[str, Dims], *results: str) -> None:
        """Write the model, weights beside it."""
        inputs = [_value(name, dims) for name, dims in given.items()]
        outputs = [helper.make_empty_tensor_value_info(name) for name in results]
        graph = helper.make_graph(self.nodes, path.stem, inputs, outputs, self.weights)
        opset = [helper.make_opsetid("", 20)]
        model = helper.make_model(graph, opset_imports=opset, ir_version=10)
        data = f"{path.name}.data"
        path.with_name(data).unlink(missing_ok=True)
        onnx.save_model(model, path, save_as_external_data=True, location=data)
        onnx.shape_inference.infer_shapes_path(path, data_prop=True)


def _value(name: str, dims: Dims) -> onnx.ValueInfoProto:
    kind = TensorProto.INT64 if name.endswith("ids") else TensorProto.FLOAT
    return helper.make_tensor_value_info(name, kind, dims)


def super_resolution(path: Path, size: int = 512) -> None:
    """Eight convolutions of 64 channels, a pixel shuffle, and the enlarged image added."""
    add, x, before = Writer(), "image", 3
    for width in (*(64,) * 7, 12):
        weight = add.matrix(width, before, 3, 3)
        x = add("Conv", x, weight, add.zeros(width), pads=(1, 1, 1, 1), kernel_shape=(3, 3))
        x = add("Relu", x) if width == 64 else x
        before = width
    x = add("DepthToSpace", x, blocksize=2, mode="CRD")
    large = add(
        "Resize", "image", "", add.constant(np.array((1, 1, 2, 2), np.float32)), mode="linear"
    )
    add.save(path, {"image": (1, 3, size, size)}, add("Add", x, large))


def _linear(add: Writer, x: str, read: int, made: int) -> str:
    return add("Add", add("MatMul", x, add.matrix(read, made)), add.zeros(made))


def _heads(add: Writer, x: str, tokens: tuple[int, int], heads: int, width: int) -> str:
    parted = add("Reshape", x, add.shape(*tokens, heads, width))
    return add("Transpose", parted, perm=(0, 2, 1, 3))


def _attention(add: Writer, given: Sequence[str], mask: str, width: int) -> str:
    """Write attention over heads [1, heads, length, width]; results lie side by side."""
    q, k, v = given
    scores = add("MatMul", q, add("Transpose", k, perm=(0, 1, 3, 2)))
    scores = add("Div", scores, add.number(width**0.5))
    scores = add("Add", scores, mask) if mask else scores
    mixed = add("MatMul", add("Softmax", scores, axis=-1), v)
    return add("Transpose", mixed, perm=(0, 2, 1, 3))


def _gelu(add: Writer, x: str) -> str:
    erf = add("Erf", add("Div", x, add.number(2**0.5)))
    return add("Mul", add("Mul", x, add("Add", erf, add.number(1.0))), add.number(0.5))


def _norm(add: Writer, x: str, width: int) -> str:
    return add("LayerNormalization", x, add.ones(width), add.zeros(width), axis=-1)


def _self_attention(
    add: Writer, x: str, mask: str, tokens: tuple[int, int], sizes: tuple[int, int]
) -> str:
    hidden, heads = sizes
    width = hidden // heads
    given = [
        _heads(add, _linear(add, x, hidden, hidden), tokens, heads, width) for _ in range(3)
    ]
    flat = add("Reshape", _attention(add, given, mask, width), add.shape(*tokens, hidden))
    return _linear(add, flat, hidden, hidden)


def _mlp(add: Writer, x: str, hidden: int) -> str:
    return _linear(add, _gelu(add, _linear(add, x, hidden, 4 * hidden)), 4 * hidden, hidden)


def vit(path: Path, layers: int = 4, hidden: int = 768) -> None:
    """A vision transformer on 512 x 1024 pixels: 2,048 patches, normalized before."""
    add, length = Writer(), 2048
    patches = add(
        "Conv", "image", add.matrix(hidden, 3, 16, 16), kernel_shape=(16, 16), strides=(16, 16)
    )
    x = add("Reshape", patches, add.shape(1, hidden, length))
    x = add("Transpose", x, perm=(0, 2, 1))
    x = add("Add", x, add.matrix(length, hidden))
    for _ in range(layers):
        y = _self_attention(add, _norm(add, x, hidden), "", (1, length), (hidden, 12))
        x = add("Add", x, y)
        x = add("Add", x, _mlp(add, _norm(add, x, hidden), hidden))
    pooled = add("ReduceMean", _norm(add, x, hidden), add.shape(1), keepdims=0)
    add.save(path, {"image": (1, 3, 512, 1024)}, _linear(add, pooled, hidden, 1000))


def bert(path: Path, layers: int = 4, hidden: int = 768, length: int = 2048) -> None:
    """A text encoder of 2,048 tokens with a mask of them, normalized behind."""
    add = Writer()
    x = add("Gather", add.matrix(30522, hidden), "input_ids")
    x = _norm(add, add("Add", x, add.matrix(length, hidden)), hidden)
    away = add("Sub", add.number(1.0), "mask")
    mask = add("Mul", away, add.number(-10000.0))
    for _ in range(layers):
        y = _self_attention(add, x, mask, (1, length), (hidden, 12))
        x = _norm(add, add("Add", x, y), hidden)
        x = _norm(add, add("Add", x, _mlp(add, x, hidden)), hidden)
    add.save(path, {"input_ids": (1, length), "mask": (1, 1, 1, length)}, x)


def bert_of_any_length(
    path: Path, layers: int = 1, hidden: int = 64, heads: int = 2, longest: int = 8192
) -> None:
    """A text encoder of dynamic axes with a mask of its tokens: narrow, its attention as long."""
    add, width = Writer(), hidden // heads
    x = add("Gather", add.matrix(1000, hidden), "input_ids")
    length = add("Shape", "input_ids", start=1, end=2)
    places = add("Slice", add.matrix(longest, hidden), add.shape(0), length, add.shape(0))
    x = _norm(add, add("Add", x, places), hidden)
    there = add("Unsqueeze", add("Cast", "mask_ids", to=TensorProto.FLOAT), add.shape(1, 2))
    mask = add("Mul", add("Sub", add.number(1.0), there), add.number(-10000.0))
    for _ in range(layers):
        given = [
            add(
                "Transpose",
                add(
                    "Reshape", _linear(add, x, hidden, hidden), add.shape(0, -1, heads, width)
                ),
                perm=(0, 2, 1, 3),
            )
            for _ in range(3)
        ]
        mixed = _attention(add, given, mask, width)
        flat = add("Reshape", mixed, add.shape(0, -1, hidden))
        x = _norm(add, add("Add", x, _linear(add, flat, hidden, hidden)), hidden)
        x = _norm(add, add("Add", x, _mlp(add, x, hidden)), hidden)
    sizes = ("batch", "seq")
    add.save(path, {"input_ids": sizes, "mask_ids": sizes}, x)


def _rms(add: Writer, x: str, width: int) -> str:
    square = add("ReduceMean", add("Pow", x, add.number(2.0)), add.shape(-1))
    root = add("Sqrt", add("Add", square, add.number(1e-5)))
    return add("Mul", add("Mul", x, add("Reciprocal", root)), add.ones(width))


def _rotated(add: Writer, x: str, cos: str, sin: str, width: int) -> str:
    half = add.shape(width // 2), add.shape(width), add.shape(0), add.shape(-1)
    left = add("Slice", x, half[2], half[0], half[3])
    right = add("Slice", x, half[0], half[1], half[3])
    turned = add("Concat", add("Neg", right), left, axis=-1)
    return add("Add", add("Mul", x, cos), add("Mul", turned, sin))


def _llama_attention(add: Writer, x: str, length: int, rotation: tuple[str, str]) -> list[str]:
    hidden, heads, shared, width = 2048, 32, 8, 64
    q = _heads(add, add("MatMul", x, add.matrix(hidden, hidden)), (1, length), heads, width)
    k, v = (
        _heads(
            add,
            add("MatMul", x, add.matrix(hidden, shared * width)),
            (1, length),
            shared,
            width,
        )
        for _ in range(2)
    )
    q, k = _rotated(add, q, *rotation, width), _rotated(add, k, *rotation, width)
    repeated = [
        add(
            "Reshape",
            add(
                "Expand",
                add("Unsqueeze", each, add.shape(2)),
                add.shape(1, shared, heads // shared, length, width),
            ),
            add.shape(1, heads, length, width),
        )
        for each in (k, v)
    ]
    mixed = _attention(add, [q, *repeated], "causal", width)
    flat = add("Reshape", mixed, add.shape(1, length, hidden))
    return [add("MatMul", flat, add.matrix(hidden, hidden)), k, v]


def llama(path: Path, layers: int = 2, length: int = 2048) -> None:
    """A decoder of Llama's widths, 32 heads over 8 keys: the first pass over 2,048 tokens."""
    add, hidden, wide = Writer(), 2048, 5632
    angles = np.outer(np.arange(length), 10000.0 ** -(np.arange(0, 64, 2) / 64))
    angles = np.concatenate([angles, angles], axis=1)
    rotation = tuple(add.constant(f(angles).astype(np.float32)) for f in (np.cos, np.sin))
    x, caches = add("Gather", add.matrix(32000, hidden), "input_ids"), []
    for _ in range(layers):
        normal = _rms(add, x, hidden)
        y, *cache = _llama_attention(add, normal, length, (rotation[0], rotation[1]))
        caches += cache
        x = add("Add", x, y)
        normal = _rms(add, x, hidden)
        gate = add("MatMul", normal, add.matrix(hidden, wide))
        gate = add("Mul", gate, add("Sigmoid", gate))
        up = add("Mul", gate, add("MatMul", normal, add.matrix(hidden, wide)))
        x = add("Add", x, add("MatMul", up, add.matrix(wide, hidden)))
    last = add("Slice", x, add.shape(length - 1), add.shape(length), add.shape(1))
    logits = add("MatMul", _rms(add, last, hidden), add.matrix(hidden, 32000))
    given = {"input_ids": (1, length), "causal": (1, 1, length, length)}
    add.save(path, given, logits, *caches)


def _gpt2(add: Writer, tokens: tuple[int, int], hidden: int, layers: int, width: int) -> str:
    """Write a decoder with GPT-2's vocabulary, tied to its logits, and return these."""
    length, vocabulary = tokens[1], 50257
    away = np.triu(np.full((1, 1, length, length), -1e9, np.float32), 1)
    mask, words = add.constant(away), add.matrix(vocabulary, hidden)
    x = add("Add", add("Gather", words, "input_ids"), add.matrix(length, hidden))
    for _ in range(layers):
        normal, sizes = _norm(add, x, hidden), (hidden, hidden // width)
        x = add("Add", x, _self_attention(add, normal, mask, tokens, sizes))
        x = add("Add", x, _mlp(add, _norm(add, x, hidden), hidden))
    turned = add("Transpose", words, perm=(1, 0))
    return add("MatMul", _norm(add, x, hidden), turned)


def gpt2(path: Path, tokens: tuple[int, int], hidden: int, layers: int) -> None:
    """A decoder with GPT-2's vocabulary, on samples of some tokens."""
    add = Writer()
    add.save(path, {"input_ids": tokens}, _gpt2(add, tokens, hidden, layers, 32))


def gpt2_loss(path: Path, layers: int = 2, length: int = 1024) -> None:
    """GPT-2's widths and how likely each of 1,024 tokens is, as texts are scored."""
    add, tokens = Writer(), (1, length)
    logs = add("LogSoftmax", _gpt2(add, tokens, 768, layers, 64), axis=-1)
    likely = add("GatherElements", logs, add("Unsqueeze", "label_ids", add.shape(-1)), axis=-1)
    given = {"input_ids": tokens, "label_ids": tokens}
    add.save(path, given, add("Squeeze", likely, add.shape(-1)))


GENERATED: Mapping[str, Callable[[Path], None]] = {
    "super_resolution": super_resolution,
    "vit_2048": vit,
    "bert_2048": bert,
    "llama_prefill_2048": llama,
    "gpt2_loss_1024": gpt2_loss,
}
"""Models that no folder holds, each by what writes it."""
