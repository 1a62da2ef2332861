"""One node of each operator of other domains that ONNX Runtime has on the CPU."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

F = np.float32
LEARNING, RUNTIME = "ai.onnx.ml", "com.microsoft"


@dataclass(frozen=True)
class Case:
    """A node: what it is fed, what is constant, and which results it gives.

    ``numbers`` are the sizes that the model says; other sizes are names there.
    """

    op: str
    fed: dict[str, Any]
    constants: dict[str, Any] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)
    inputs: str = ""
    outputs: int = 1
    domain: str = RUNTIME
    opset: int = 1
    numbers: tuple[int, ...] = (8, 12, 16, 32, 48, 64)

    def __str__(self) -> str:
        return self.op


def real(*shape: int) -> Any:  # noqa: ANN401 - an array
    return np.random.default_rng(0).normal(size=shape).astype(F)


def whole(*shape: int, dtype: str = "int64", high: int = 3) -> Any:  # noqa: ANN401 - an array
    return np.random.default_rng(0).integers(0, high, shape).astype(dtype)


X = {"x": real(5, 7)}
ROWS = {"x": real(5, 3)}
CUBE = {"x": real(2, 5, 8)}
IMAGE = {"x": real(2, 3, 9, 11)}
LAST = {"x": real(2, 9, 11, 3)}
QUANTIZED = {"s": np.float32(0.1), "z": np.uint8(3)}


def learning(
    op: str, fed: dict[str, Any], outputs: int = 1, opset: int = 3, **attributes: object
) -> Case:
    return Case(op, fed, {}, attributes, "", outputs, LEARNING, opset)


TREE: dict[str, Any] = {
    "nodes_treeids": [0, 0, 0],
    "nodes_nodeids": [0, 1, 2],
    "nodes_featureids": [0, 0, 0],
    "nodes_values": [0.5, 0.0, 0.0],
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
    "nodes_truenodeids": [1, 0, 0],
    "nodes_falsenodeids": [2, 0, 0],
}
CLASS: dict[str, Any] = {
    "class_treeids": [0, 0, 0],
    "class_nodeids": [1, 2, 2],
    "class_ids": [0, 1, 2],
    "class_weights": [1.0, 0.5, 0.5],
}
ONE_CLASS: dict[str, Any] = {
    "class_treeids": [0, 0],
    "class_nodeids": [1, 2],
    "class_ids": [0, 0],
    "class_weights": [0.2, 0.7],
}
VECTORS: dict[str, Any] = {
    "kernel_type": "RBF",
    "kernel_params": [0.5, 0.0, 3.0],
    "support_vectors": [float(n) for n in range(12)],
}

LEARNING_CASES = (
    learning("ArrayFeatureExtractor", {**X, "y": np.array([[1, 4, 2]])}),
    learning("ArrayFeatureExtractor", {"x": real(7), "y": np.array([1, 2])}),
    learning("Imputer", X, imputed_value_floats=[0.0], replaced_value_float=float("nan")),
    learning("LinearRegressor", ROWS, coefficients=[0.1] * 6, intercepts=[0.1] * 2, targets=2),
    learning("LinearRegressor", ROWS, coefficients=[0.1] * 3),
    learning("Normalizer", X, norm="L2"),
    learning("Scaler", {"x": real(5, 7).astype("float64")}, offset=[0.5], scale=[2.0]),
    learning("Scaler", {"x": whole(5, 7)}, offset=[0.5], scale=[2.0]),
    learning("SVMRegressor", ROWS, coefficients=[0.1] * 4, rho=[0.2], n_supports=4, **VECTORS),
    learning("SVMClassifier", ROWS, 2, coefficients=[0.1] * 4, rho=[0.2], vectors_per_class=[2, 2], classlabels_ints=[0, 1], **VECTORS),
    learning("SVMClassifier", ROWS, 2, coefficients=[0.1] * 4, rho=[0.2], vectors_per_class=[2, 2], classlabels_ints=[0, 1], prob_a=[0.1], prob_b=[0.2], **VECTORS),
    learning("SVMClassifier", ROWS, 2, coefficients=[0.1] * 8, rho=[0.2] * 3, vectors_per_class=[2, 1, 1], classlabels_ints=[0, 1, 2], **VECTORS),
    learning("SVMClassifier", ROWS, 2, coefficients=[0.1] * 8, rho=[0.2] * 3, vectors_per_class=[2, 1, 1], classlabels_ints=[0, 1, 2], prob_a=[0.1] * 3, prob_b=[0.2] * 3, **VECTORS),
    learning("SVMClassifier", ROWS, 2, coefficients=[0.1] * 12, rho=[0.2] * 6, vectors_per_class=[1, 1, 1, 1], classlabels_strings=["a", "b", "c", "d"], **VECTORS),
    *(learning("SVMClassifier", ROWS, 2, coefficients=[0.1] * 3 * count, rho=[0.2], classlabels_ints=list(range(count)), kernel_type="LINEAR", kernel_params=[0.5, 0.0, 3.0]) for count in (2, 4)),
    learning("TreeEnsembleClassifier", ROWS, 2, classlabels_int64s=[0, 1, 2], **TREE, **CLASS),
    learning("TreeEnsembleClassifier", ROWS, 2, classlabels_strings=["a", "b", "c"], **TREE, **CLASS),
    learning("TreeEnsembleClassifier", ROWS, 2, classlabels_int64s=[0, 1], post_transform="LOGISTIC", **TREE, **ONE_CLASS),
    learning("TreeEnsembleClassifier", {"x": real(5, 3).astype("float64")}, 2, 1, classlabels_int64s=[0, 1], **TREE, **ONE_CLASS),
)  # fmt: skip


def runtime(
    op: str,
    fed: dict[str, Any],
    inputs: str = "",
    outputs: int = 1,
    *,
    constants: dict[str, Any] | None = None,
    **attributes: object,
) -> Case:
    return Case(op, fed, constants or {}, attributes, inputs, outputs)


QX = {"x": whole(2, 3, 9, 11, dtype="uint8")}
QROWS = {"x": whole(5, 8, dtype="uint8")}
HEADS = {"q": real(2, 5, 8), "k": real(2, 7, 8), "v": real(2, 7, 12)}
CACHE = {"pk": real(2, 2, 3, 4), "pv": real(2, 2, 3, 4)}
GROUPS = {"q": real(2, 5, 32), "k": real(2, 5, 16), "v": real(2, 5, 16)}
TOTAL = {"lengths": np.array([4, 4], "int32"), "total": np.array(5, "int32")}
SINES = {"c": real(16, 2), "n": real(16, 2)}


def blocked(
    op: str,
    fed: dict[str, Any],
    constants: dict[str, Any] | None = None,
    **attributes: object,
) -> Case:
    """Return a case of the domain of blocked layouts; channels are a number."""
    return Case(
        op, fed, constants or {}, attributes, domain="com.microsoft.nchwc", numbers=(32,)
    )


CHANNELS = {"x": real(2, 32, 9, 11)}

RUNTIME_CASES = (
    *(runtime(op, X) for op in ("Gelu", "FastGelu", "QuickGelu")),
    runtime("BiasGelu", X, constants={"b": real(7)}),
    runtime("FastGelu", X, constants={"b": real(7)}),
    runtime("Trilu", {"x": real(2, 5, 7)}),
    runtime("SkipLayerNormalization", {"x": real(2, 5, 8), "y": real(2, 5, 8)}, "x y g h", 4, constants={"g": real(8), "h": real(8)}),
    runtime("SkipSimplifiedLayerNormalization", {"x": real(2, 5, 8), "y": real(2, 5, 8)}, "x y g", 4, constants={"g": real(8)}),
    runtime("EmbedLayerNormalization", {"i": whole(2, 5, dtype="int32"), "j": whole(2, 5, dtype="int32", high=2)}, "i j w p t g h", 2, constants={"w": real(9, 8), "p": real(16, 8), "t": real(2, 8), "g": real(8), "h": real(8)}),
    runtime("EmbedLayerNormalization", {"i": whole(2, 5, dtype="int32"), "m": whole(2, 5, dtype="int32", high=2)}, "i  w p  g h m", 3, constants={"w": real(9, 8), "p": real(16, 8), "g": real(8), "h": real(8)}),
    # Products.
    runtime("FusedMatMul", {"a": real(2, 5, 7), "b": real(2, 7, 3)}, alpha=0.5),
    runtime("FusedMatMul", {"a": real(2, 7, 5), "b": real(2, 3, 7)}, transA=1, transB=1),
    runtime("FusedMatMul", {"a": real(5, 2, 7), "b": real(7, 2, 3)}, transBatchA=1, transBatchB=1),
    runtime("FusedMatMul", {"a": real(5, 2, 7), "b": real(3, 2, 7)}, transBatchA=1, transBatchB=1, transB=1),
    runtime("TransposeMatMul", {"a": real(7, 5), "b": real(7, 3)}, transA=1),
    runtime("FusedGemm", {"a": real(7, 5), "b": real(3, 7)}, transA=1, transB=1, activation="Relu"),
    runtime("DynamicQuantizeMatMul", {"a": real(2, 5, 7)}, "a b s", constants={"b": whole(7, 3, dtype="uint8"), "s": np.float32(0.1)}),
    runtime("MatMulIntegerToFloat", {"a": whole(2, 5, 7, dtype="uint8")}, "a b s t", constants={"b": whole(7, 3, dtype="uint8"), "s": np.float32(0.1), "t": np.float32(0.1)}),
    runtime("MatMulNBits", {"a": real(2, 5, 32)}, constants={"b": whole(6, 1, 16, dtype="uint8", high=256), "s": real(6)}, K=32, N=6, bits=4, block_size=32),
    runtime("MatMulBnb4", {"a": real(2, 5, 32)}, constants={"b": whole(96, dtype="uint8", high=256), "s": real(6)}, K=32, N=6, quant_type=1, block_size=32),
    runtime("QGemm", {"a": whole(5, 8, dtype="uint8")}, "a s z b t w", constants={"s": F(0.1), "z": np.uint8(3), "b": whole(8, 3, dtype="uint8"), "t": F(0.1), "w": np.uint8(1)}),
    runtime("QGemm", {"a": whole(5, 8, dtype="uint8")}, "a s z b t w  u y", constants={"s": F(0.1), "z": np.uint8(3), "b": whole(3, 8, dtype="uint8"), "t": F(0.1), "w": np.uint8(1), "u": F(0.2), "y": np.uint8(5)}, transB=1),
    # Windows.
    runtime("FusedConv", IMAGE, constants={"w": real(4, 3, 3, 3)}, activation="Relu", pads=[1, 1, 1, 1], strides=[2, 2]),
    runtime("QLinearConv", {"x": whole(2, 9, 11, 3, dtype="uint8")}, "x s z w s z s z", constants={**QUANTIZED, "w": whole(4, 3, 3, 3, dtype="uint8")}, channels_last=1, strides=[2, 1]),
    runtime("QLinearAveragePool", QX, "x s z s z", constants=QUANTIZED, kernel_shape=[3, 3], strides=[2, 2]),
    runtime("QLinearAveragePool", {"x": whole(2, 9, 11, 3, dtype="uint8")}, "x s z s z", constants=QUANTIZED, kernel_shape=[3, 3], channels_last=1),
    runtime("QLinearGlobalAveragePool", QX, "x s z s z", constants=QUANTIZED),
    runtime("QLinearGlobalAveragePool", {"x": whole(2, 9, 11, 3, dtype="uint8")}, "x s z s z", constants=QUANTIZED, channels_last=1),
    runtime("NhwcMaxPool", {"x": whole(2, 9, 11, 3, dtype="uint8")}, kernel_shape=[3, 3], strides=[2, 2]),
    # Quantized.
    runtime("QLinearAdd", {"x": whole(5, 8, dtype="uint8"), "y": whole(2, 1, 8, dtype="uint8")}, "x s z y s z s z", constants=QUANTIZED),
    runtime("QLinearMul", {"x": whole(5, 8, dtype="uint8"), "y": whole(2, 1, 8, dtype="uint8")}, "x s z y s z s z", constants=QUANTIZED),
    *(runtime(op, QROWS, "x s z s z", constants=QUANTIZED) for op in ("QLinearLeakyRelu", "QLinearSigmoid")),
    runtime("QLinearSoftmax", QROWS, "x s z s z", constants=QUANTIZED, opset=13),
    runtime("QLinearConcat", {"x": whole(5, 8, dtype="uint8"), "y": whole(5, 3, dtype="uint8")}, "s z x s z y s z", constants=QUANTIZED, axis=1),
    runtime("QLinearConcat", {"x": whole(5, 8, dtype="uint8")}, "s z x s z", constants=QUANTIZED, axis=0),
    runtime("QLinearWhere", {"c": whole(5, 1, dtype="bool", high=2), "x": whole(5, 8, dtype="uint8"), "y": whole(8, dtype="uint8")}, "c x s z y s z s z", constants=QUANTIZED),
    runtime("QuantizeLinear", X, "x s z", constants=QUANTIZED),
    runtime("QuantizeLinear", X, "x s z", constants={"s": F(0.1), "z": np.int16(0)}),
    runtime("DequantizeLinear", QROWS, "x s z", constants=QUANTIZED),
    runtime("GatherBlockQuantized", {"i": whole(2, 3)}, "d i s", constants={"d": whole(9, 16, dtype="uint8", high=256), "s": real(9, 2)}, bits=4, block_size=16, gather_axis=0, quantize_axis=1),
    runtime("GatherBlockQuantized", {"i": whole(2, 3)}, "d i s", constants={"d": whole(9, 4, 16, dtype="uint8", high=256), "s": real(9, 4, 2)}, bits=4, block_size=16, gather_axis=0, quantize_axis=2),
    runtime("DynamicQuantizeLSTM", {"x": real(5, 2, 3)}, "x w r      t u v y", 3, constants={"w": whole(2, 3, 16, dtype="uint8"), "r": whole(2, 4, 16, dtype="uint8"), "t": np.full(2, 0.1, F), "u": np.zeros(2, "uint8"), "v": np.full(2, 0.1, F), "y": np.zeros(2, "uint8")}, hidden_size=4, direction="bidirectional"),
    # Attention.
    runtime("Attention", CUBE, "x w b", 2, constants={"w": real(8, 24), "b": real(24)}, num_heads=2),
    runtime("Attention", CUBE, "x w b", constants={"w": real(8, 28), "b": real(28)}, num_heads=2, qkv_hidden_sizes=[8, 8, 12]),
    runtime("Attention", {**CUBE, "p": real(2, 2, 2, 3, 4)}, "x w b  p", 2, constants={"w": real(8, 24), "b": real(24)}, num_heads=2, unidirectional=1),
    runtime("QAttention", {"x": whole(2, 5, 8, dtype="uint8")}, "x w b s s  z z", 1, constants={**QUANTIZED, "w": whole(8, 24, dtype="uint8"), "b": real(24)}, num_heads=2),
    runtime("QAttention", {"x": whole(2, 5, 8, dtype="uint8"), "p": real(2, 2, 2, 3, 4)}, "x w b s s  z z p", 2, constants={**QUANTIZED, "w": whole(8, 24, dtype="uint8"), "b": real(24)}, num_heads=2, unidirectional=1),
    runtime("MultiHeadAttention", HEADS, num_heads=2),
    runtime("MultiHeadAttention", {"q": real(2, 5, 8), "k": real(2, 5, 8), "v": real(2, 5, 8), **CACHE}, "q k v    pk pv", 3, num_heads=2),
    runtime("MultiHeadAttention", {"q": real(2, 5, 8), "k": real(2, 2, 7, 4), "v": real(2, 2, 7, 4)}, num_heads=2),
    runtime("MultiHeadAttention", {"q": real(2, 5, 8), "k": real(2, 7, 8), "v": real(2, 7, 8)}, "q k v", 3, num_heads=2),
    runtime("GroupQueryAttention", {**GROUPS, "pk": real(2, 2, 0, 8), "pv": real(2, 2, 0, 8)}, "q k v pk pv lengths total", 3, constants=TOTAL, num_heads=4, kv_num_heads=2),
    runtime("GroupQueryAttention", {"q": real(2, 1, 32), "k": real(2, 1, 16), "v": real(2, 1, 16), "pk": real(2, 2, 4, 8), "pv": real(2, 2, 4, 8)}, "q k v pk pv lengths total", 3, constants=TOTAL, num_heads=4, kv_num_heads=2),
    runtime("GroupQueryAttention", {"q": real(2, 5, 64), "pk": real(2, 2, 9, 8), "pv": real(2, 2, 9, 8)}, "q   pk pv lengths total", 3, constants=TOTAL, num_heads=4, kv_num_heads=2),
    runtime("GroupQueryAttention", {"q": real(2, 5, 48), "pk": real(2, 1, 9, 8), "pv": real(2, 1, 9, 8)}, "q   pk pv lengths total", 3, constants=TOTAL, num_heads=4, kv_num_heads=1),
    runtime("RotaryEmbedding", {"x": real(2, 5, 8)}, "x p c n", constants={"p": np.tile(np.arange(5), (2, 1)), **SINES}, num_heads=2),
    # The rest.
    runtime("Pad", X, constants={"p": np.array([1, 2, 3, 4])}),
    runtime("MoE", {"x": real(6, 8), "r": real(6, 4)}, "x r a  b", constants={"a": real(4, 8, 16), "b": real(4, 16, 8)}, k=1, activation_type="gelu"),
    Case("FusedConv", IMAGE, {"w": real(4, 3, 3, 3)}, {"activation": "Relu"}, domain=RUNTIME),
    Case("Attention", HEADS, {}, {"q_num_heads": 2, "kv_num_heads": 2}, domain="", opset=23),
    Case("Attention", {"q": real(2, 6, 5, 8), "k": real(2, 3, 7, 8), "v": real(2, 3, 7, 12)}, domain="", opset=23),
    Case("Attention", {"q": real(2, 5, 24), "k": real(2, 7, 8), "v": real(2, 7, 12), "pk": real(2, 2, 3, 4), "pv": real(2, 2, 3, 6)}, {}, {"q_num_heads": 6, "kv_num_heads": 2}, "q k v  pk pv", 4, "", 23, numbers=(8, 12, 24, 4, 6)),
    Case("Dropout", X, outputs=2, domain=""),
    Case("GroupNormalization", IMAGE, {"g": real(3), "h": real(3)}, {"num_groups": 3}, domain="", opset=21),
    Case("MeanVarianceNormalization", IMAGE, {}, {"axes": [0, 2, 3]}, domain="", opset=13),
    Case("SimplifiedLayerNormalization", CUBE, {"g": real(8)}, {"axis": -1}, domain=""),
)  # fmt: skip

DECLARED_CASES: tuple[tuple[Case, list[tuple[str, Any]]], ...] = (
    (runtime("BiasSoftmax", {"x": real(2, 3, 5, 7), "y": real(2, 1, 1, 7)}, axis=3, is_inner_broadcast=0), [("float32", ("d2", "d3", "d5", "d7"))]),
    (runtime("MultiHeadAttention", {"q": real(2, 5, 8), "k": real(2, 6, 8), "v": real(2, 6, 8), **CACHE}, "q k v    pk pv", 4, num_heads=2), [("float32", ("d2", "d5", 8)), *[("float32", ("d2", 2, "d3 + d6", 4))] * 2, ("float32", ("d2", 2, "d5", "d3 + d6"))]),
    (runtime("BiasDropout", X, outputs=2, constants={"b": real(7)}), [("float32", ("d5", "d7")), ("bool", ("d5", "d7"))]),
    (runtime("BiasSplitGelu", {"x": real(2, 5, 16), "y": real(16)}), [("float32", ("d2", "d5", 8))]),
    (runtime("GroupNorm", {"x": real(2, 5, 7, 8)}, "x g h", constants={"g": real(8), "h": real(8)}, groups=2), [("float32", ("d2", "d5", "d7", 8))]),
    (runtime("SkipGroupNorm", {"x": real(2, 5, 7, 8), "s": real(2, 5, 7, 8)}, "x g h s", 2, constants={"g": real(8), "h": real(8)}, groups=2), [("float32", ("d2", "d5", "d7", 8))] * 2),
    (runtime("NhwcConv", LAST, constants={"w": real(4, 3, 3, 3)}, pads=[1, 1, 1, 1]), [("float32", ("d2", "d9", "d11", 4))]),
    (runtime("NhwcFusedConv", {"x": real(2, 9, 11, 3).astype("float16")}, constants={"w": real(4, 3, 3, 3).astype("float16")}, strides=[2, 2]), [("float16", ("d2", "floor((d9 + 1)/2) - 1", "floor((d11 + 1)/2) - 1", 4))]),
    (Case("FusedConv", IMAGE, {"w": real(4, 3, 3, 3)}, {"activation": "Relu"}, domain=""), [("float32", ("d2", 4, "d9 - 2", "d11 - 2"))]),
    *((runtime(op, {"x": real(2, 5, 8), "y": real(2, 5, 8), "g": real(2, 5, 1)}), [("float32", ("d2", "d5", 8))]) for op in ("QMoE",)),
    (blocked("ReorderInput", CHANNELS), [("float32", ("d2", 32, "d9", "d11"))]),
    (blocked("ReorderInput", {"x": real(2, 9, 11, 32)}, channels_last=1), [("float32", ("d2", 32, "d9", "d11"))]),
    (blocked("ReorderOutput", CHANNELS, channels=20), [("float32", ("d2", 20, "d9", "d11"))]),
    (blocked("ReorderOutput", CHANNELS, channels=20, channels_last=1), [("float32", ("d2", "d9", "d11", 20))]),
    (blocked("Conv", CHANNELS, {"w": real(48, 32, 3, 3)}, kernel_shape=[3, 3], pads=[1, 1, 1, 1]), [("float32", ("d2", 48, "d9", "d11"))]),
    *((blocked(op, CHANNELS, kernel_shape=[3, 3]), [("float32", ("d2", 32, "d9 - 2", "d11 - 2"))]) for op in ("AveragePool", "MaxPool")),
    *((blocked(op, CHANNELS), [("float32", ("d2", 32, 1, 1))]) for op in ("GlobalAveragePool", "GlobalMaxPool")),
    (blocked("Upsample", CHANNELS, scales=[1, 1, 2, 3]), [("float32", ("d2", 32, "2*d9", "3*d11"))]),
    (runtime("FusedMatMulActivation", {"a": real(7, 5), "b": real(7, 3)}, transA=1), [("float32", ("d5", "d3"))]),
)  # fmt: skip
"""Operators that no CPU kernel is there for, and what their schemas say of their results."""
