"""One random case for each operator that can be split: attributes, shapes and values."""

from __future__ import annotations

from functools import partial
from operator import ge
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from features.chunk_cases import CONTRIB, NCHWC, Case
from memplan_cli.core.operators import Family, names_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Array = np.ndarray[Any, Any]


class Draw:
    """Random shapes and values; sums of few whole numbers are exact in any order."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self._dims = list(self.rng.permutation([2, 3, 4, 5, 6, 7, 8, 9]))

    def dim(self) -> int:
        """Return a length that no other axis of the case has."""
        return int(self._dims.pop())

    def one_of(self, *options: Any) -> Any:  # noqa: ANN401 - of whatever is offered
        return options[int(self.rng.integers(len(options)))]

    def coin(self) -> bool:
        return bool(self.rng.integers(2))

    def floats(self, *shape: int) -> Array:
        return self.rng.uniform(0.1, 2, shape).astype(np.float32)

    def doubles(self, *shape: int) -> Array:
        return self.rng.uniform(0.1, 2, shape)

    def whole(self, *shape: int) -> Array:
        return self.rng.integers(-8, 9, shape).astype(np.float32)

    def dims(self, rank: int) -> tuple[int, ...]:
        return tuple(self.dim() for _ in range(rank))


def _unary(draw: Draw, kind: str, domain: str = "") -> Case:
    x = draw.floats(*draw.dims(3))
    if kind == "Not":
        return Case(kind, (x > 1,))
    if kind == "BitwiseNot":
        return Case(kind, (x.astype(np.int32),))
    attributes = {"to": onnx.TensorProto.FLOAT16} if kind == "Cast" else {}
    x = x / 3 if kind in {"Acos", "Asin", "Atanh"} else x
    return Case(kind, (x + 1 if kind == "Acosh" else x,), attributes, domain=domain)


def _binary(draw: Draw, kind: str) -> Case:
    dims = draw.dims(3)
    other = draw.one_of(dims, dims[1:], (dims[0], 1, dims[2]), (1, dims[2]), (1,))
    dtype: Any = np.float32
    if kind in {"And", "Or", "Xor"}:
        dtype = np.bool_
    if kind.startswith("Bit"):
        dtype = np.uint8
    x, y = draw.floats(*dims) * 2, draw.floats(*other) * 2
    attributes: dict[str, Any] = {"direction": "LEFT"} if kind == "BitShift" else {}
    attributes = {"fmod": 1} if kind == "Mod" else attributes
    if kind in {"Equal", "LessOrEqual", "GreaterOrEqual"}:
        x, y = np.floor(x), np.floor(y)
    pair = (x > 2, y > 2) if dtype is np.bool_ else (x.astype(dtype), y.astype(dtype))
    if kind == "PRelu":
        pair = pair[0] - 2, pair[1]
    # The reference evaluator cannot broadcast the first input of Mean.
    if kind not in {"PRelu", "Mean"} and draw.coin():
        pair = pair[::-1]
    return Case(kind, pair, attributes)


def _matmul(draw: Draw) -> Case:
    b, m, k, n = draw.dims(4)
    left = draw.one_of((m, k), (b, m, k), (1, m, k))
    right = draw.one_of((k, n), (b, k, n), (k,))
    return Case("MatMul", (draw.whole(*left), draw.whole(*right)))


def _fused_matmul(draw: Draw) -> Case:
    b, m, k, n = draw.dims(4)
    flags = {"transA": draw.one_of(0, 1), "transB": draw.one_of(0, 1), "alpha": 0.5}
    left = (b, k, m) if flags["transA"] else (b, m, k)
    right = draw.one_of((b, n, k) if flags["transB"] else (b, k, n), (k,))
    return Case("FusedMatMul", (draw.whole(*left), draw.whole(*right)), flags, domain=CONTRIB)


def _recurrent(draw: Draw, kind: str) -> Case:
    steps, samples, width = draw.dims(3)
    hidden, gates, sides = 3, {"RNN": 1, "GRU": 3, "LSTM": 4}[kind], draw.one_of(1, 2)
    x = draw.floats(steps, samples, width)
    weights = (draw.floats(sides, gates * hidden, each) / 4 for each in (width, hidden))
    lengths = (
        draw.rng.integers(1, steps + 1, samples).astype(np.int32) if draw.coin() else None
    )
    states = [draw.floats(sides, samples, hidden) for _ in range(2 if kind == "LSTM" else 1)]
    direction = "bidirectional" if sides == 2 else "forward"
    attributes = {"hidden_size": hidden, "direction": direction}
    inputs = (x, *weights, None, lengths, *states)
    return Case(kind, inputs, attributes, outputs=len(states) + 1)


def _fused_gemm(draw: Draw) -> Case:
    case = _gemm(draw)
    attributes = {**case.attributes, "activation": "Relu"}
    return Case("FusedGemm", case.inputs, attributes, domain=CONTRIB)


def _gemm(draw: Draw) -> Case:
    m, k, n = draw.dims(3)
    flags = {"transA": draw.one_of(0, 1), "transB": draw.one_of(0, 1)}
    left = (k, m) if flags["transA"] else (m, k)
    right = (n, k) if flags["transB"] else (k, n)
    added = draw.one_of((m, n), (n,), (m, 1), (1,))
    return Case("Gemm", (draw.whole(*left), draw.whole(*right), draw.whole(*added)), flags)


def _attention(draw: Draw) -> Case:
    b, kv, s, t, d = draw.dims(5)
    group = 2
    heads = group * kv
    q, k, v = (
        draw.doubles(b, heads, s, d),
        draw.doubles(b, kv, t, d),
        draw.doubles(b, kv, t, d),
    )
    mask = draw.one_of(
        None, draw.doubles(s, t), draw.doubles(b, 1, s, t), draw.doubles(b, heads, 1, t)
    )
    attributes = {"is_causal": draw.one_of(0, 1) if mask is None else 0}
    if draw.coin():
        q, k, v = (x.transpose(0, 2, 1, 3).reshape(b, x.shape[2], -1) for x in (q, k, v))
        attributes |= {"q_num_heads": heads, "kv_num_heads": kv}
    return Case("Attention", (q, k, v, mask), attributes)


def _softmax(draw: Draw, kind: str) -> Case:
    axis = draw.one_of(0, 1, 2, -1)
    return Case(
        kind, (draw.doubles(*draw.dims(3)),), {"axis": axis}, opset=draw.one_of(11, 24)
    )


def _layer_norm(draw: Draw, kind: str) -> Case:
    dims, axis = draw.dims(3), draw.one_of(1, 2, -1)
    over = dims[axis:]
    x, scale, shift = draw.floats(*dims), draw.floats(*over), draw.floats(*over)
    if kind == "RMSNormalization":
        return Case(kind, (x, scale), {"axis": axis})
    return Case(kind, (x, scale, shift), {"axis": axis}, outputs=draw.one_of(1, 3))


def _skip_layer_norm(draw: Draw) -> Case:
    dims = draw.dims(3)
    x, skip = draw.floats(*dims), draw.floats(*dims)
    last = [draw.floats(dims[2]) for _ in range(3)]
    return Case("SkipLayerNormalization", (x, skip, *last), domain=CONTRIB)


def _normalized(draw: Draw, kind: str) -> Case:
    n, _, h, w = draw.dims(4)
    c = 4
    x = draw.whole(n, c, h, w)
    per_channel = [draw.floats(c) for _ in range(4)]
    if kind == "BatchNormalization":
        return Case(kind, (x, *per_channel))
    if kind == "LpNormalization":
        return Case(
            kind, (x.astype(np.float64) + 0.5,), {"axis": draw.one_of(0, 1, -1), "p": 2}
        )
    if kind.startswith("Global"):
        return Case(kind, (x,))
    if kind == "LRN":
        return Case(kind, (x,), {"size": 3})
    if kind == "InstanceNormalization":
        return Case(kind, (x, *per_channel[:2]))
    x = draw.whole(n, 12, h, w)
    own = draw.floats(12), draw.floats(12)
    return Case(kind, (x, *own), {"num_groups": draw.one_of(3, 4, 6)})


def _reduce(draw: Draw, kind: str) -> Case:
    dims = draw.dims(4)
    x = draw.doubles(*dims) if kind[6:9] in {"Log", "Pro"} else draw.whole(*dims)
    attributes = {"keepdims": draw.one_of(0, 1)}
    if kind.startswith("Arg"):
        return Case(kind, (x,), {**attributes, "axis": draw.one_of(0, 2, -1)})
    axes = draw.one_of(None, (0,), (-1,), (1, 2), (0, -1))
    if axes is None:
        return Case(kind, (x,), attributes)
    return Case(kind, (x, np.array(axes, np.int64)), attributes, constants=(1,))


def _reshape(draw: Draw, kind: str) -> Case:
    a, b, c = draw.dims(3)
    if kind == "Flatten":
        return Case(kind, (draw.floats(a, b, c),), {"axis": draw.one_of(1, 2, -1)})
    if kind == "Unsqueeze":
        axes = np.array(draw.one_of((0,), (2,), (1, 4)), np.int64)
        return Case(kind, (draw.floats(a, b, c), axes), constants=(1,))
    if kind == "Squeeze":
        axes = np.array((1,), np.int64)
        return Case(kind, (draw.floats(a, 1, b, c), axes), constants=(1,))
    read, made = draw.one_of(
        ((a, b, c), (a * b, c)), ((a * b, c), (a, b, c)), ((1, a, b * c), (a, b, c)),
        ((a, b, c), (1, a, b * c)), ((4, 3, b), (6, 2, b)), ((a, 2, b), (1, 2 * a, 1, b)),
    )  # fmt: skip
    return Case(kind, (draw.floats(*read), np.array(made, np.int64)), constants=(1,))


def _move(draw: Draw, kind: str) -> Case:
    a, b, c = draw.dims(3)
    x, axis = draw.floats(a, b, c), draw.one_of(0, 1, -1)
    if kind == "Transpose":
        return Case(kind, (x,), draw.one_of({}, {"perm": (1, 2, 0)}, {"perm": (0, 2, 1)}))
    if kind == "Concat":
        return Case(kind, (x, *np.split(x + 1, [1], axis)), {"axis": axis})
    if kind == "Split":
        sizes = np.array((1, x.shape[axis] - 1), np.int64)
        return Case(kind, (x, sizes), {"axis": axis}, outputs=2, constants=(1,))
    if kind == "Expand":
        shape = draw.one_of((a, b, c), (4, 1, b, 1), (1,))
        read = draw.one_of((a, b, c), (a, 1, c), (1, b, c))
        full = np.array(np.broadcast_shapes(read, (a, b, c)), np.int64)
        del shape
        return Case(kind, (draw.floats(*read), full), constants=(1,))
    if kind == "Slice":
        bounds = draw.one_of(
            ((1,), (3,), (axis,)),
            ((1,), (-1,), (axis,), (2,)),
            ((0, -2), (9, 9), (0, axis or 1)),
        )
        whole = [np.array(each, np.int64) for each in bounds]
        return Case(kind, (x, *whole), constants=tuple(range(1, len(whole) + 1)))
    if kind == "Pad":
        pads = np.array(draw.one_of((0, 1, 0, 0, 2, 0), (0, 1, 1, 0, 0, 3)), np.int64)
        mode = draw.one_of("constant", "edge", "reflect" if min(x.shape) > 3 else "edge")
        return Case(kind, (x, pads), {"mode": mode}, constants=(1,))
    if kind == "CumSum":
        return Case(kind, (x, np.array(axis, np.int64)), constants=(1,))
    if kind == "Tile":
        return Case(kind, (x, np.array((1, 2, 1), np.int64)), constants=(1,))
    if kind == "Trilu":
        return Case(kind, (x,), {"upper": draw.one_of(0, 1)})
    if kind == "ReverseSequence":
        lengths = draw.rng.integers(1, a + 1, b).astype(np.int64)
        return Case(kind, (x, lengths))
    if kind == "TopK":
        return Case(
            kind, (x, np.array([2], np.int64)), {"axis": axis}, outputs=2, constants=(1,)
        )
    if kind == "GatherND":
        at = draw.rng.integers(0, 2, draw.one_of((4, 2), (3, 4, 1)))
        return Case(kind, (x, at))
    at = draw.rng.integers(0, x.shape[axis], draw.one_of((4,), (3, 4), (), (1, 5)))
    return Case("Gather", (x, np.asarray(at, np.int64)), {"axis": axis})


def _by_index(draw: Draw, kind: str) -> Case:
    dims, axis = draw.dims(3), draw.one_of(0, 1, -1)
    x, shape = draw.floats(*dims), list(dims)
    shape[axis] = draw.one_of(1, 3, 5)
    at = draw.rng.integers(0, dims[axis], shape).astype(np.int64)
    if kind == "GatherElements":
        return Case(kind, (x, at), {"axis": axis})
    updates = draw.floats(*shape)
    return Case(kind, (x, at, updates), {"axis": axis, "reduction": "add"})


def _window(draw: Draw, kind: str) -> Case:
    x = draw.whole(2, 4, int(draw.rng.integers(9, 14)), int(draw.rng.integers(9, 14)))
    attributes: dict[str, Any] = {
        "kernel_shape": (draw.one_of(1, 2, 3), draw.one_of(1, 3)),
        "strides": (draw.one_of(1, 2), draw.one_of(1, 2, 3)),
    }
    # With gaps between windows SAME is less than nothing, which kernels reject.
    overlaps = all(map(ge, attributes["kernel_shape"], attributes["strides"]))
    if overlaps and draw.coin():
        attributes |= {"auto_pad": draw.one_of("SAME_UPPER", "SAME_LOWER", "VALID")}
    elif min(attributes["kernel_shape"]) > 1:
        attributes |= {
            "pads": (1, 1, draw.one_of(0, 1), 0),
            "dilations": (draw.one_of(1, 2), 1),
        }
    if kind == "Conv":
        weight = draw.whole(6, 2, *attributes["kernel_shape"])
        return Case(kind, (x, weight, draw.whole(6)), {**attributes, "group": 2})
    attributes.pop("dilations", None)
    if kind == "AveragePool":
        attributes["count_include_pad"] = draw.one_of(0, 1)
    if "auto_pad" not in attributes and not attributes.get("count_include_pad"):
        attributes["ceil_mode"] = draw.one_of(0, 1)
    return Case(kind, (x,), attributes)


def _in_blocks(draw: Draw, kind: str) -> Case:
    """Return a convolution over blocks of channels; 16 are whole blocks on any machine."""
    case = _window(draw, kind)
    x = draw.whole(2, 16, *(case.inputs[0].shape[2:] if case.inputs[0] is not None else ()))
    attributes = {name: case.attributes[name] for name in case.attributes if name != "group"}
    if kind.startswith("Global"):
        return Case(kind, (x,), domain=NCHWC)
    if kind != "Conv":
        return Case(kind, (x,), {"ceil_mode": 0, **attributes}, domain=NCHWC)
    weight, bias = draw.whole(16, 16, *attributes["kernel_shape"]), draw.whole(16)
    plain = Case(kind, (x, weight, bias), attributes, domain=NCHWC)
    if draw.coin():
        return plain
    added = draw.whole(*plain.run_in_runtime()[0].shape)
    return Case(kind, (x, weight, bias, added), attributes, domain=NCHWC)


def _fused_conv(draw: Draw) -> Case:
    case = _window(draw, "Conv")
    attributes = {**case.attributes, "activation": "Relu"}
    plain = Case("FusedConv", case.inputs, attributes, domain=CONTRIB)
    if draw.coin():
        return plain
    added = draw.whole(*plain.run_in_runtime()[0].shape)
    return Case("FusedConv", (*case.inputs, added), attributes, domain=CONTRIB)


def _reorder(draw: Draw, kind: str) -> Case:
    n, h, w = 3, *draw.dims(2)
    is_last = draw.one_of(0, 1)
    if kind == "ReorderInput":
        x = draw.floats(n, h, w, 16) if is_last else draw.floats(n, 16, h, w)
        return Case(kind, (x,), {"channels_last": is_last}, domain=NCHWC)
    said = {"channels_last": is_last, "channels": 16}
    return Case(kind, (draw.floats(n, 16, h, w),), said, domain=NCHWC)


def _conv_transpose(draw: Draw) -> Case:
    rank, group = draw.one_of(1, 2, 2, 3), draw.one_of(1, 2)
    kernel, stride, dilation, pads, added = (
        tuple(draw.one_of(*options) for _ in range(rank))
        for options in ((2, 3, 4), (1, 2, 3), (1, 1, 2), (0, 1, 2), (0, 1))
    )
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    before = tuple(map(min, pads, [each - 1 for each in reach]))
    after = tuple(draw.one_of(0, each) for each in before)
    added = tuple(map(min, added, [each - 1 for each in stride]))
    dims = [int(draw.rng.integers(5, 12)) for _ in range(rank)]
    x, weight = draw.whole(2, 4, *dims), draw.whole(4, 3, *kernel)
    attributes = {
        "group": group, "strides": stride, "dilations": dilation, "pads": (*before, *after),
        "output_padding": added,
    }  # fmt: skip
    return Case("ConvTranspose", (x, weight), attributes)


def _depth_to_space(draw: Draw, kind: str) -> Case:
    return Case(kind, (draw.floats(3, 4, 6, 8),), {"blocksize": 2})


def _upsample(draw: Draw) -> Case:
    """Return an enlarged image over blocks of channels."""
    mode, scale = draw.one_of("nearest", "linear"), draw.one_of(2, 4)
    places = "asymmetric" if mode == "nearest" else draw.one_of("asymmetric", "half_pixel")
    attributes = {
        "mode": mode, "coordinate_transformation_mode": places, "scales": (1, 1, scale, 2),
    }  # fmt: skip
    return Case("Upsample", (draw.floats(2, 16, 9, 7),), attributes, domain=NCHWC)


_PLACES = ("half_pixel", "pytorch_half_pixel", "asymmetric")


def _resize(draw: Draw) -> Case:
    x = draw.floats(3, 2, 8, 6)
    factor = draw.one_of(2, 3, 4)
    attributes = draw.one_of(
        {
            "mode": "nearest",
            "coordinate_transformation_mode": "asymmetric",
            "nearest_mode": "floor",
        },
        {"mode": "nearest"},
        {"mode": "linear", "coordinate_transformation_mode": draw.one_of(*_PLACES)},
        {"mode": "cubic", "coordinate_transformation_mode": draw.one_of(*_PLACES)},
    )
    if draw.coin():
        sizes = np.array((3, 2, 8 * factor, 12), np.int64)
        return Case("Resize", (x, None, None, sizes), attributes, constants=(3,))
    scales = np.array((1, 1, factor, 2), np.float32)
    return Case("Resize", (x, None, scales), attributes, constants=(2,))


def _bytes(draw: Draw, *shape: int) -> Array:
    return draw.rng.integers(0, 256, shape).astype(np.uint8)


def _scale(draw: Draw, *shape: int) -> tuple[Array, Array]:
    """Return a scale and a zero point."""
    scale = draw.rng.uniform(0.01, 0.1, shape).astype(np.float32)
    return scale, np.full(shape, draw.one_of(0, 3, 128), np.uint8)


_WIDE = np.array(20, np.float32), np.array(100, np.uint8)
"""The scale and zero point of a sum of products, few of which are cut off at 0 or 255."""


def _quantized(draw: Draw, kind: str, domain: str) -> Case:
    """Return a quantized operator: tensors among their scales and zero points."""
    a, b, c = draw.dims(3)
    x, y, result = _bytes(draw, 2, a, b, c), _bytes(draw, a, 1, c), _scale(draw)
    attributes: dict[str, Any] = {}
    inputs: tuple[Array | None, ...] = (x, *_scale(draw), *result)
    if kind in {"QLinearAdd", "QLinearMul"}:
        inputs = (x, *_scale(draw), y, *_scale(draw), *result)
    elif kind == "QLinearConcat":
        inputs, attributes = (*result, x, *_scale(draw), x, *_scale(draw)), {"axis": 2}
    elif kind == "QLinearSoftmax":
        attributes = {"axis": draw.one_of(-1, 3), "opset": 13}
    elif "Pool" in kind or "Conv" in kind:
        case = _window(draw, "Conv" if "Conv" in kind else "MaxPool")
        attributes = {n: v for n, v in case.attributes.items() if n != "ceil_mode"}
        image = _bytes(draw, *(case.inputs[0].shape if case.inputs[0] is not None else ()))
        if domain and (draw.coin() or "Conv" in kind):
            attributes["channels_last"], image = (
                1,
                np.ascontiguousarray(image.transpose(0, 2, 3, 1)),
            )
        attributes = {} if "Global" in kind else attributes
        weight = _bytes(draw, 6, 2, *case.attributes["kernel_shape"])
        inputs = (image, *_scale(draw), *result)
        if kind == "QLinearConv":
            bias = draw.rng.integers(-99, 99, 6).astype(np.int32)
            inputs = (image, *_scale(draw), weight, *_scale(draw), *_WIDE, bias)
        if kind == "ConvInteger":
            inputs = (image, weight, _scale(draw)[1], _scale(draw)[1])
    elif kind in {"QuantizeLinear", "DequantizeLinear"}:
        data = draw.floats(2, a, b, c) if kind == "QuantizeLinear" else x
        inputs, attributes = (data, *_scale(draw, *draw.one_of((), (b,)))), {"axis": 2}
    return Case(kind, inputs, attributes, domain=domain, opset=19)


def _quantized_product(draw: Draw, kind: str, domain: str) -> Case:
    m, k, n = draw.dims(3)
    left = draw.one_of((m, k), (2, m, k)) if kind != "QGemm" else (m, k)
    columns = draw.one_of((), (n,))
    (scale, zero), (scales, zeros) = _scale(draw), _scale(draw, *columns)
    first, second = _bytes(draw, *left), _bytes(draw, k, n)
    if kind == "MatMulInteger":
        return Case(kind, (first, second, zero, zeros), opset=19)
    if kind == "MatMulIntegerToFloat":
        return Case(kind, (first, second, scale, scales, zero, zeros), domain=domain, opset=19)
    inputs = first, scale, zero, second, scales, zeros
    if kind == "QLinearMatMul":
        return Case(kind, (*inputs, *_WIDE), opset=19)
    bias = draw.rng.integers(-99999, 99999, (n,)).astype(np.int32)
    return Case(kind, (*inputs, bias, *_WIDE), domain=domain, opset=19)


QUANTIZED: Mapping[str, Callable[[Draw], Case]] = {
    f"{domain}.{kind}" if domain else kind: partial(made, kind=kind, domain=domain)
    for made, domain, kinds in (
        (_quantized, "", ("QLinearConv", "ConvInteger", "QuantizeLinear", "DequantizeLinear")),
        (_quantized, CONTRIB, (
            "QLinearConv", "QLinearAdd", "QLinearMul", "QLinearSigmoid", "QLinearLeakyRelu",
            "QLinearSoftmax", "QLinearAveragePool", "QLinearGlobalAveragePool", "QLinearConcat",
        )),
        (_quantized_product, "", ("QLinearMatMul", "MatMulInteger")),
        (_quantized_product, CONTRIB, ("MatMulIntegerToFloat", "QGemm")),
    )
    for kind in kinds
}  # fmt: skip


def _with_bias(draw: Draw, kind: str) -> Case:
    dims = draw.dims(3)
    return Case(kind, (draw.floats(*dims), draw.floats(dims[2])), domain=CONTRIB)


def _skip_simplified(draw: Draw) -> Case:
    dims = draw.dims(3)
    inputs = draw.floats(*dims), draw.floats(*dims), draw.floats(dims[2])
    return Case("SkipSimplifiedLayerNormalization", inputs, domain=CONTRIB)


def _simplified(draw: Draw) -> Case:
    dims = draw.dims(3)
    inputs = draw.floats(*dims), draw.floats(dims[2])
    return Case("SimplifiedLayerNormalization", inputs, {"axis": -1, "stash_type": 1})


def _clip(draw: Draw) -> Case:
    return Case(
        "Clip",
        (draw.floats(*draw.dims(3)), np.array(0.5, np.float32), np.array(1.5, np.float32)),
    )


def _where(draw: Draw) -> Case:
    a, b, c = draw.dims(3)
    return Case("Where", (draw.floats(a, 1, c) > 1, draw.floats(a, b, c), draw.floats(b, 1)))


def _cast_like(draw: Draw) -> Case:
    dims = draw.dims(3)
    like = draw.floats(*dims).astype(np.float16)
    return Case("CastLike", (draw.floats(*dims), like), ignored=(1,))


def _dropout(draw: Draw) -> Case:
    return Case("Dropout", (draw.floats(*draw.dims(3)), np.array(0.5, np.float32)), outputs=2)


FAMILIES: tuple[tuple[Callable[[Draw, str], Case], Sequence[str]], ...] = (
    (_unary, names_of(lambda each: each.family is Family.UNARY)),
    (_binary, (*names_of(lambda each: each.broadcasts), "PRelu")),
    (_reduce, (*names_of(lambda each: each.family is Family.REDUCTION), "ArgMax", "ArgMin")),
    (_softmax, ("Softmax", "LogSoftmax", "Hardmax")),
    (_layer_norm, ("LayerNormalization", "RMSNormalization")),
    (_reshape, ("Reshape", "Flatten", "Unsqueeze", "Squeeze")),
    (
        _move,
        (
            "Transpose", "Concat", "Split", "Expand", "Slice", "Pad", "TopK", "Gather", "GatherND",
            "CumSum", "Tile", "Trilu", "ReverseSequence",
        ),
    ),
    (_by_index, ("GatherElements", "ScatterElements")),
    (_window, ("Conv", "MaxPool", "AveragePool", "LpPool")),
    (
        _normalized,
        (
            "BatchNormalization", "InstanceNormalization", "GroupNormalization",
            "LpNormalization", "GlobalAveragePool", "GlobalMaxPool", "LRN",
        ),
    ),
)  # fmt: skip


def _of(made: Callable[[Draw, str], Case], kind: str, draw: Draw) -> Case:
    return made(draw, kind)


CASES: Mapping[str, Callable[[Draw], Case]] = {
    **{kind: partial(_of, made, kind) for made, kinds in FAMILIES for kind in kinds},
    **{
        f"{CONTRIB}.{kind}": partial(_with_bias, kind=kind)
        for kind in ("BiasGelu", "FastGelu")
    },
    **{
        f"{CONTRIB}.{kind}": partial(_unary, kind=kind, domain=CONTRIB)
        for kind in ("Gelu", "QuickGelu")
    },
    **{
        f"{NCHWC}.{kind}": partial(_in_blocks, kind=kind)
        for kind in ("Conv", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool")
    },
    **{
        f"{NCHWC}.{kind}": partial(_reorder, kind=kind)
        for kind in ("ReorderInput", "ReorderOutput")
    },
    f"{CONTRIB}.FusedConv": _fused_conv,
    **QUANTIZED,
    "MatMul": _matmul,
    f"{CONTRIB}.FusedMatMul": _fused_matmul,
    "Gemm": _gemm,
    f"{CONTRIB}.FusedGemm": _fused_gemm,
    **{kind: partial(_recurrent, kind=kind) for kind in ("RNN", "GRU", "LSTM")},
    "Attention": _attention,
    f"{CONTRIB}.SkipLayerNormalization": _skip_layer_norm,
    f"{CONTRIB}.SkipSimplifiedLayerNormalization": _skip_simplified,
    "SimplifiedLayerNormalization": _simplified,
    "ConvTranspose": _conv_transpose,
    "DepthToSpace": partial(_depth_to_space, kind="DepthToSpace"),
    "SpaceToDepth": partial(_depth_to_space, kind="SpaceToDepth"),
    f"{NCHWC}.Upsample": _upsample,
    "Resize": _resize,
    "Clip": _clip,
    "Where": _where,
    "CastLike": _cast_like,
    "Dropout": _dropout,
}
"""A random case of each operator, by its name in the table."""

ONLY_IN_RUNTIME = frozenset(kind for kind in CASES if "." in kind) | QUANTIZED.keys() | {
    "SimplifiedLayerNormalization", "AveragePool", "MaxPool", "LpPool", "GatherElements",
    "ConvTranspose", "LRN", "ReverseSequence", "RNN", "GRU", "LSTM",
}  # fmt: skip
"""Operators that the reference evaluator does not know, or pads wrongly (onnx 1.23)."""
