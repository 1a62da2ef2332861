"""Cases of products, convolutions, pools, normalizations and losses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from features.training.gradient_checks import Case
from features.training.gradient_values import (
    indices,
    integer,
    ints,
    pick,
    positive,
    shape,
    values,
)
from memplan_cli.features.training.train_step import Statistics

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from features.training.gradient_values import Array, Draw

    Build = Callable[[Draw], Case]


def matmul(draw: Draw) -> Case:
    m, k, n = (integer(draw, 1, 4) for _ in range(3))
    batch = shape(draw, 0, 2)
    a = (*(d if integer(draw, 0, 2) else 1 for d in batch), m, k)
    b = (*batch[integer(draw, 0, len(batch)) :], k, n)
    return Case("y = MatMul(a, b)", {"a": values(draw, *a), "b": values(draw, *b)})


def vectors(draw: Draw) -> Case:
    k, rest = integer(draw, 1, 4), shape(draw, 1, 2)
    a, b = pick(
        draw, ((k,), (k,)), ((k,), (*rest, k, 3)), ((*rest, 2, k), (k,)), ((k,), (k, 2))
    )
    return Case("y = MatMul(a, b)", {"a": values(draw, *a), "b": values(draw, *b)})


def gemm(draw: Draw) -> Case:
    m, k, n = (integer(draw, 1, 4) for _ in range(3))
    flips = integer(draw, 0, 1), integer(draw, 0, 1)
    a = (k, m) if flips[0] else (m, k)
    b = (n, k) if flips[1] else (k, n)
    c = pick(draw, (m, n), (n,), (1, n), (m, 1), (1,), ())
    inputs = {"a": values(draw, *a), "b": values(draw, *b), "c": values(draw, *c)}
    how = f"transA={flips[0]}, transB={flips[1]}, alpha=0.7, beta=1.3"
    return Case(f"y = Gemm<{how}>(a, b, c)", inputs)


def window(draw: Draw, rank: int) -> tuple[str, list[int], list[int]]:
    """Return attributes, a kernel and an image that it fits in."""
    kernel = [integer(draw, 1, 3) for _ in range(rank)]
    strides = [integer(draw, 1, 3) for _ in range(rank)]
    dilations = [integer(draw, 1, 2) for _ in range(rank)]
    pads = [integer(draw, 0, 1) for _ in range(2 * rank)]
    size = [
        (k - 1) * d + 1 + integer(draw, 0, 4) for k, d in zip(kernel, dilations, strict=True)
    ]
    text = f"strides={strides}, dilations={dilations}"
    mode = pick(draw, "NOTSET", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")
    text += f", pads={pads}" if mode == "NOTSET" else f', auto_pad="{mode}"'
    return text, kernel, size


def conv(draw: Draw) -> Case:
    rank, group = integer(draw, 1, 3), pick(draw, 1, 1, 2, 3)
    how, kernel, size = window(draw, rank)
    own, out = integer(draw, 1, 2), group * integer(draw, 1, 2)
    inputs = {
        "x": values(draw, integer(draw, 1, 2), group * own, *size),
        "w": values(draw, out, own, *kernel),
    }
    if integer(draw, 0, 1):
        inputs["b"] = values(draw, out)
    return Case(f"y = Conv<{how}, group={group}>({', '.join(inputs)})", inputs)


def point_conv(draw: Draw) -> Case:
    inputs = {"x": values(draw, 2, 3, 2, 3), "w": values(draw, 4, 3, 1, 1)}
    return Case("y = Conv(x, w)", inputs)


def conv_transpose(draw: Draw) -> Case:
    rank, group = integer(draw, 1, 3), pick(draw, 1, 1, 2)
    kernel = [integer(draw, 1, 3) for _ in range(rank)]
    strides = [integer(draw, 1, 3) for _ in range(rank)]
    dilations = [integer(draw, 1, 2) for _ in range(rank)]
    extra = [integer(draw, 0, stride - 1) for stride in strides]
    size = [integer(draw, 2, 3) for _ in range(rank)]
    how = f"strides={strides}, dilations={dilations}, output_padding={extra}, group={group}"
    if all(k > 1 for k in kernel):
        how += f", pads={[integer(draw, 0, 1) for _ in range(2 * rank)]}"
    own, out = integer(draw, 1, 2), integer(draw, 1, 2)
    inputs = {
        "x": values(draw, 2, group * own, *size),
        "w": values(draw, group * own, out, *kernel),
        "b": values(draw, out * group),
    }
    return Case(f"y = ConvTranspose<{how}>(x, w, b)", inputs)


def pool(kind: str) -> Build:
    def build(draw: Draw) -> Case:
        rank = integer(draw, 1, 3)
        kernel = [integer(draw, 1, 3) for _ in range(rank)]
        strides = [integer(draw, 1, 3) for _ in range(rank)]
        pads = [integer(draw, 0, k // 2) for k in kernel] * 2
        size = [k + integer(draw, 0, 3) for k in kernel]
        how = f"kernel_shape={kernel}, strides={strides}, pads={pads}"
        if kind == "AveragePool":
            how += f", count_include_pad={integer(draw, 0, 1)}"
        x = values(draw, integer(draw, 1, 2), 2, *size)
        return Case(f"y = {kind}<{how}>(x)", {"x": x})

    return build


def ceil_pool(draw: Draw) -> Case:
    kind = pick(draw, "AveragePool", "MaxPool")
    x = values(draw, 1, 2, integer(draw, 3, 6), 5)
    return Case(f"y = {kind}<kernel_shape=[2, 3], strides=[2, 2], ceil_mode=1>(x)", {"x": x})


def image(body: str, opset: int = 20) -> Build:
    def build(draw: Draw) -> Case:
        x = values(draw, integer(draw, 1, 2), integer(draw, 2, 5), *shape(draw, 2, 2))
        return Case(body, {"x": x}, opset=opset)

    return build


def resize(draw: Draw) -> Case:
    mode = pick(draw, "nearest", "linear")
    places = pick(
        draw,
        "half_pixel",
        "align_corners",
        "asymmetric",
        "pytorch_half_pixel",
    )
    how = f'mode="{mode}", coordinate_transformation_mode="{places}"'
    if mode == "nearest":
        nearest = pick(draw, "floor", "ceil", "round_prefer_floor", "round_prefer_ceil")
        how += f', nearest_mode="{nearest}"'
    rank = pick(draw, 3, 4, 5)
    dims = [integer(draw, 2, 4) for _ in range(rank - 2)]
    x = values(draw, 1, 2, *dims)
    scales = np.array([1, 1, *(pick(draw, 1.0, 2.0, 1.5, 0.5) for _ in dims)], np.float32)
    sizes = ints(1, 2, *(integer(draw, 2, 7) for _ in dims))
    if integer(draw, 0, 1):
        return Case(f"y = Resize<{how}>(x, , scales)", {"x": x}, constants={"scales": scales})
    return Case(f"y = Resize<{how}>(x, , , sizes)", {"x": x}, constants={"sizes": sizes})


def batch_norm(mode: Statistics) -> Build:
    def build(draw: Draw) -> Case:
        channels = integer(draw, 1, 3)
        x = values(draw, integer(draw, 2, 3), channels, *(shape(draw, 0, 2)))
        inputs = {"x": x, "s": values(draw, channels), "b": values(draw, channels)}
        constants = {"m": values(draw, channels), "v": positive(draw, channels)}
        training = int(mode is Statistics.BATCH)
        names = "y, rm, rv" if training else "y"
        body = f"{names} = BatchNormalization<training_mode={training}>(x, s, b, m, v)"
        wanted = ("x", "s", "b")
        return Case(body, inputs, constants=constants, statistics=mode, wanted=wanted)

    return build


def layer_norm(draw: Draw) -> Case:
    full = shape(draw, 2, 4)
    axis = integer(draw, 1, len(full) - 1)
    scale = full[axis:]
    inputs = {"x": values(draw, *full), "s": values(draw, *scale), "b": values(draw, *scale)}
    axis -= len(full) * integer(draw, 0, 1)
    return Case(f"y = LayerNormalization<axis={axis}, epsilon=0.01>(x, s, b)", inputs)


def channel_norm(kind: str, channels: int) -> Build:
    def build(draw: Draw) -> Case:
        x = values(draw, 2, channels, *shape(draw, 1, 2), 2)
        inputs = {"x": x, "s": values(draw, channels), "b": values(draw, channels)}
        return Case(f"y = {kind}(x, s, b)", inputs, opset=21)

    return build


def loss(kind: str) -> Build:
    def build(draw: Draw) -> Case:
        rows, classes, rest = integer(draw, 1, 3), integer(draw, 2, 4), shape(draw, 0, 1)
        labels = abs(indices(draw, classes, rows, *rest)) % classes
        reduction = pick(draw, "mean", "sum", "none")
        how = f'reduction="{reduction}"'
        ignored = integer(draw, 0, 1) and labels.size > 1
        if ignored:
            how += ", ignore_index=-1"
            labels.flat[0] = -1
        operands = "x, t"
        constants: dict[str, Array] = {}
        # onnx's own evaluator divides by all rows, ignored ones too, where nothing weighs them
        if integer(draw, 0, 1) or (ignored and reduction == "mean"):
            operands, constants = "x, t, w", {"w": positive(draw, classes)}
        inputs = {"x": values(draw, rows, classes, *rest), "t": labels}
        return Case(f"y = {kind}<{how}>({operands})", inputs, constants=constants)

    return build


LAYERS: Mapping[str, Build] = {
    "AveragePool": pool("AveragePool"),
    "AveragePool-ceil": ceil_pool,
    "BatchNormalization": batch_norm(Statistics.BATCH),
    "BatchNormalization-running": batch_norm(Statistics.RUNNING),
    "Conv": conv,
    "Conv-point": point_conv,
    "ConvTranspose": conv_transpose,
    "Gemm": gemm,
    "GlobalAveragePool": image("y = GlobalAveragePool(x)"),
    "GlobalMaxPool": image("y = GlobalMaxPool(x)"),
    "GroupNormalization": channel_norm("GroupNormalization<num_groups=2, epsilon=0.01>", 4),
    "InstanceNormalization": channel_norm("InstanceNormalization<epsilon=0.01>", 3),
    "LayerNormalization": layer_norm,
    "MatMul": matmul,
    "MatMul-vectors": vectors,
    "MaxPool": pool("MaxPool"),
    "NegativeLogLikelihoodLoss": loss("NegativeLogLikelihoodLoss"),
    "Resize": resize,
    "SoftmaxCrossEntropyLoss": loss("SoftmaxCrossEntropyLoss"),
}
