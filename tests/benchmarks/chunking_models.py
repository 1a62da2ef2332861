"""Models with long activations, of real widths and few layers: weights are seeded.

Written node by node as exporters do: attention and normalization unfused where they are so in
files that people have.
"""

from __future__ import annotations

from functools import partial
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


def vit(
    path: Path, grid: tuple[int, int] = (32, 64), layers: int = 4, class_tokens: int = 0
) -> None:
    """A vision transformer on a grid of patches of 16 x 16 pixels, normalized before."""
    add, length, hidden = Writer(), grid[0] * grid[1], 768
    patches = add(
        "Conv", "image", add.matrix(hidden, 3, 16, 16), kernel_shape=(16, 16), strides=(16, 16)
    )
    x = add("Reshape", patches, add.shape(1, hidden, length))
    x = add("Transpose", x, perm=(0, 2, 1))
    if class_tokens:
        x = add("Concat", add.matrix(1, class_tokens, hidden), x, axis=1)
        length += class_tokens
    x = add("Add", x, add.matrix(length, hidden))
    for _ in range(layers):
        y = _self_attention(add, _norm(add, x, hidden), "", (1, length), (hidden, 12))
        x = add("Add", x, y)
        x = add("Add", x, _mlp(add, _norm(add, x, hidden), hidden))
    pooled = add("ReduceMean", _norm(add, x, hidden), add.shape(1), keepdims=0)
    add.save(
        path, {"image": (1, 3, 16 * grid[0], 16 * grid[1])}, _linear(add, pooled, hidden, 1000)
    )


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


def _conv(
    add: Writer,
    x: str,
    channels: tuple[int, int],
    kernel: tuple[int, ...],
    **window: Any,  # noqa: ANN401
) -> str:
    """Write a convolution with a bias between so many channels."""
    weight = add.matrix(channels[1], channels[0] // window.get("group", 1), *kernel)
    return add("Conv", x, weight, add.zeros(channels[1]), kernel_shape=kernel, **window)


def _same(kernel: int, dilation: int = 1, rank: int = 1) -> dict[str, Any]:
    """Return the attributes of a window that keeps the length of axes, of which there are ``rank``."""
    reach = (kernel - 1) * dilation
    return {
        "pads": (reach // 2,) * rank + (reach - reach // 2,) * rank,
        "dilations": (dilation,) * rank,
    }


def _groups(add: Writer, x: str, image: Dims, groups: int) -> str:
    """Write a normalization by groups of channels as exporters do: of rows, between two views."""
    flat = add("Reshape", x, add.shape(0, groups, -1))
    normal = add("InstanceNormalization", flat, add.ones(groups), add.zeros(groups))
    normal = add("Reshape", normal, add.shape(*map(int, image)))
    ones = (int(image[1]), *(1,) * (len(image) - 2))
    scale, shift = (add.constant(f(ones, np.float32)) for f in (np.ones, np.zeros))
    return add("Add", add("Mul", normal, scale), shift)


def _silu(add: Writer, x: str) -> str:
    return add("Mul", x, add("Sigmoid", x))


def diffusion_decoder(path: Path, size: int = 64) -> None:
    """Latents of ``size`` to an image eight times as large, of the widths of Stable Diffusion's, one block each."""
    add, before = Writer(), 512

    def block(x: str, read: int, made: int, side: int) -> str:
        y = _silu(add, _groups(add, x, (1, read, side, side), 32))
        y = _conv(add, y, (read, made), (3, 3), **_same(3, rank=2))
        y = _silu(add, _groups(add, y, (1, made, side, side), 32))
        y = _conv(add, y, (made, made), (3, 3), **_same(3, rank=2))
        return add("Add", x if read == made else _conv(add, x, (read, made), (1, 1)), y)

    x = _conv(add, "latent", (4, before), (3, 3), **_same(3, rank=2))
    tokens = _groups(add, x, (1, before, size, size), 32)
    tokens = add("Transpose", add("Reshape", tokens, add.shape(1, before, -1)), perm=(0, 2, 1))
    y = _self_attention(add, tokens, "", (1, size * size), (before, 1))
    y = add("Transpose", y, perm=(0, 2, 1))
    x = add("Add", x, add("Reshape", y, add.shape(1, before, size, size)))
    for step, width in enumerate((512, 512, 256, 128)):
        x = block(x, before, width, size << step)
        before = width
        if width > 128:
            scales = add.constant(np.array((1, 1, 2, 2), np.float32))
            x = add("Resize", x, "", scales, mode="nearest", nearest_mode="floor",
                    coordinate_transformation_mode="asymmetric")  # fmt: skip
            x = _conv(add, x, (width, width), (3, 3), **_same(3, rank=2))
    x = _silu(add, _groups(add, x, (1, before, size << 3, size << 3), 32))
    image = _conv(add, x, (before, 3), (3, 3), **_same(3, rank=2))
    add.save(path, {"latent": (1, 4, size, size)}, image)


def wave_encoder(path: Path, seconds: int = 10, layers: int = 2) -> None:
    """A speech encoder on a waveform, of wav2vec 2.0's widths: seven convolutions, then attention.

    The first convolution is normalized over time.
    """
    add, length, hidden = Writer(), seconds * 16000, 768
    x, before = "wave", 1
    for kernel, stride in ((10, 5), (3, 2), (3, 2), (3, 2), (3, 2), (2, 2), (2, 2)):
        x = _conv(add, x, (before, 512), (kernel,), strides=(stride,))
        length = (length - kernel) // stride + 1
        if before == 1:
            x = add("InstanceNormalization", x, add.ones(512), add.zeros(512))
        x, before = _gelu(add, x), 512
    x = _norm(add, add("Transpose", x, perm=(0, 2, 1)), 512)
    x = _linear(add, x, 512, hidden)
    y = _conv(
        add, add("Transpose", x, perm=(0, 2, 1)), (hidden, hidden), (128,), group=16,
        **_same(128),
    )  # fmt: skip
    x = add("Add", x, add("Transpose", _gelu(add, y), perm=(0, 2, 1)))
    for _ in range(layers):
        x = _norm(
            add, add("Add", x, _self_attention(add, x, "", (1, length), (hidden, 12))), hidden
        )
        x = _norm(add, add("Add", x, _mlp(add, x, hidden)), hidden)
    add.save(path, {"wave": (1, 1, seconds * 16000)}, x)


def vocoder(path: Path, frames: int = 400) -> None:
    """A HiFi-GAN: transposed convolutions from a spectrogram to a waveform, dilated ones between."""
    add, width = Writer(), 512
    x = _conv(add, "mel", (80, width), (7,), **_same(7))
    for kernel, stride in ((16, 8), (16, 8), (4, 2), (4, 2)):
        x = add("LeakyRelu", x, alpha=0.1)
        weight, bias = add.matrix(width, width // 2, kernel), add.zeros(width // 2)
        pad = (kernel - stride) // 2
        x = add("ConvTranspose", x, weight, bias, strides=(stride,), pads=(pad, pad))
        width //= 2
        branches = []
        for size in (3, 7, 11):
            y = x
            for dilation in (1, 3, 5):
                z = add("LeakyRelu", y, alpha=0.1)
                z = _conv(add, z, (width, width), (size,), **_same(size, dilation))
                z = _conv(
                    add, add("LeakyRelu", z, alpha=0.1), (width, width), (size,), **_same(size)
                )
                y = add("Add", y, z)
            branches.append(y)
        x = add("Div", add("Add", add("Add", *branches[:2]), branches[2]), add.number(3.0))
    x = _conv(add, add("LeakyRelu", x), (width, 1), (7,), **_same(7))
    add.save(path, {"mel": (1, 80, frames)}, add("Tanh", x))


def audio_separation(path: Path, samples: int = 1 << 18) -> None:
    """A U-Net on a waveform of two channels as Demucs: strided and transposed convolutions, gates, skips."""
    add, x, skips, width = Writer(), "mix", list[str](), 2

    def gated(x: str, channels: int) -> str:
        wide = _conv(add, x, (channels, 2 * channels), (1,))
        half = [add.shape(at) for at in (0, channels, 2 * channels)]
        value, gate = (add("Slice", wide, *half[at : at + 2], add.shape(1)) for at in (0, 1))
        return add("Mul", value, add("Sigmoid", gate))

    for made in (48, 96, 192, 384):
        x = add("Relu", _conv(add, x, (width, made), (8,), strides=(4,), pads=(2, 2)))
        x, width = gated(x, made), made
        skips.append(x)
    for skip, made in zip(reversed(skips), (192, 96, 48, 8), strict=True):
        x = gated(add("Add", x, skip), width)
        weight, bias = add.matrix(width, made, 8), add.zeros(made)
        x = add("ConvTranspose", x, weight, bias, strides=(4,), pads=(2, 2))
        x, width = add("Relu", x) if made > 8 else x, made
    add.save(path, {"mix": (1, 2, samples)}, x)


def masking_separation(path: Path, samples: int = 64000, blocks: int = 8) -> None:
    """A Conv-TasNet: a learned filter bank, dilated blocks normalized over time and channels, masks."""
    add, narrow, wide = Writer(), 128, 512
    bank = add("Relu", _conv(add, "mix", (1, wide), (16,), strides=(8,)))
    frames = (samples - 16) // 8 + 1
    x = _conv(add, bank, (wide, narrow), (1,))
    for number in range(blocks):
        y = add(
            "PRelu",
            _conv(add, x, (narrow, wide), (1,)),
            add.constant(np.full((1, 1), 0.2, np.float32)),
        )
        y = _groups(add, y, (1, wide, frames), 1)
        y = _conv(add, y, (wide, wide), (3,), group=wide, **_same(3, 2**number))
        y = _groups(
            add,
            add("PRelu", y, add.constant(np.full((1, 1), 0.2, np.float32))),
            (1, wide, frames),
            1,
        )
        x = add("Add", x, _conv(add, y, (wide, narrow), (1,)))
    masks = add("Sigmoid", _conv(add, x, (narrow, 2 * wide), (1,)))
    masks = add("Reshape", masks, add.shape(1, 2, wide, frames))
    sources = add("Mul", masks, add("Unsqueeze", bank, add.shape(1)))
    sources = add("Reshape", sources, add.shape(2, wide, frames))
    add.save(path, {"mix": (1, 1, samples)},
             add("ConvTranspose", sources, add.matrix(wide, 1, 16), strides=(8,)))  # fmt: skip


def detector(path: Path, size: int = 640) -> None:
    """A one-stage detector: a network with skips, a pyramid of three maps, a head with boxes and classes."""
    add, width, maps = Writer(), 32, list[str]()

    def layer(x: str, read: int, made: int, kernel: int = 3, stride: int = 1) -> str:
        pads = (kernel // 2,) * 4
        return _silu(
            add, _conv(add, x, (read, made), (kernel,) * 2, strides=(stride,) * 2, pads=pads)
        )

    x = layer("image", 3, width, stride=2)
    for _ in range(4):
        x, width = layer(x, width, 2 * width, stride=2), 2 * width
        for _ in range(2):
            x = add("Add", x, layer(layer(x, width, width // 2, 1), width // 2, width))
        maps.append(x)
    pooled = [x]
    for _ in range(3):
        pooled.append(add("MaxPool", pooled[-1], kernel_shape=(5, 5), pads=(2,) * 4))
    x = layer(add("Concat", *pooled, axis=1), 4 * width, width, 1)
    results, side = list[str](), size // 32
    for lower, channels in ((maps[2], 256), (maps[1], 128), ("", 0)):
        y = layer(x, width, 64)
        y = _conv(add, y, (64, 84), (1, 1))
        results.append(add("Reshape", y, add.shape(1, 84, side * side)))
        if lower:
            scales = add.constant(np.array((1, 1, 2, 2), np.float32))
            x = add("Resize", layer(x, width, channels, 1), "", scales, mode="nearest",
                    nearest_mode="floor", coordinate_transformation_mode="asymmetric")  # fmt: skip
            x = layer(add("Concat", x, lower, axis=1), 2 * channels, channels)
            width, side = channels, 2 * side
    boxes = add("Transpose", add("Concat", *results, axis=2), perm=(0, 2, 1))
    add.save(path, {"image": (1, 3, size, size)}, add("Sigmoid", boxes))


def plain_convolutions(path: Path, size: int = 224) -> None:
    """A VGG: convolutions without skips, halved by pooling."""
    add, x, before = Writer(), "image", 3
    for width, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            x = add("Relu", _conv(add, x, (before, width), (3, 3), **_same(3, rank=2)))
            before = width
        x = add("MaxPool", x, kernel_shape=(2, 2), strides=(2, 2))
    pooled = add("Flatten", add("GlobalAveragePool", x))
    add.save(path, {"image": (1, 3, size, size)}, _linear(add, pooled, before, 1000))


def enhancement(path: Path, size: int = 256) -> None:
    """An RRDB network: dense blocks of convolutions, enlarged by four at the end."""
    add, wide, grown = Writer(), 64, 32

    def conv(x: str, read: int, made: int) -> str:
        return _conv(add, x, (read, made), (3, 3), **_same(3, rank=2))

    x = first = conv("image", 3, wide)
    for _ in range(3):
        parts = [x]
        for number in range(4):
            joined = add("Concat", *parts, axis=1) if number else x
            parts.append(
                add("LeakyRelu", conv(joined, wide + number * grown, grown), alpha=0.2)
            )
        y = conv(add("Concat", *parts, axis=1), wide + 4 * grown, wide)
        x = add("Add", x, add("Mul", y, add.number(0.2)))
    x = add("Add", first, conv(x, wide, wide))
    for _ in range(2):
        scales = add.constant(np.array((1, 1, 2, 2), np.float32))
        x = add("Resize", x, "", scales, mode="nearest", nearest_mode="floor",
                coordinate_transformation_mode="asymmetric")  # fmt: skip
        x = add("LeakyRelu", conv(x, wide, wide), alpha=0.2)
    add.save(path, {"image": (1, 3, size, size)}, conv(x, wide, 3))


GENERATED: Mapping[str, Callable[[Path], None]] = {
    "super_resolution": super_resolution,
    "vit_2048": vit,
    "bert_2048": bert,
    "llama_prefill_2048": llama,
    "gpt2_loss_1024": gpt2_loss,
    "vit_197": partial(vit, grid=(14, 14), layers=12, class_tokens=1),
    "diffusion_decoder": diffusion_decoder,
    "wave_encoder": wave_encoder,
    "vocoder": vocoder,
    "audio_separation": audio_separation,
    "masking_separation": masking_separation,
    "detector": detector,
    "plain_convolutions": plain_convolutions,
    "enhancement": enhancement,
}
"""Models that no folder holds, each by what writes it."""
