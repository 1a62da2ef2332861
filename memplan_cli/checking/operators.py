"""What operators do to memory: statements on their definitions, made here a second time.

The planner has tables of its own. A wrong entry there lets two tensors share bytes that must
not, so these are written apart from them, and a test compares the two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

STANDARD = frozenset({"", "ai.onnx"})
"""The domains whose operators are known."""

REPEATING = frozenset({"Loop", "Scan", "SequenceMap"})
"""They run their subgraph any number of times."""

EITHER = frozenset({"If"})
"""They run one of their subgraphs, once, and give what it gives."""

SAME_BYTES = frozenset({"Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze"})
"""The first result is the first input's bytes in the same order."""

_UNARY = """
    Abs Acos Acosh Asin Asinh Atan Atanh BitwiseNot Cast Ceil Celu Clip Cos Cosh Elu Erf Exp Floor
    Gelu HardSigmoid HardSwish LeakyRelu Log Mish Neg Not Reciprocal Relu Round Selu Shrink Sigmoid
    Sign Sin Sinh Softplus Softsign Sqrt Swish Tan Tanh ThresholdedRelu
"""
_BINARY = "Add Div Mul Pow Sub"
_FOLDS = "Max Mean Min Sum"
_BY_ROW = "LogSoftmax Softmax"
_COPY_AND_CHANGE = "ScatterElements ScatterND TensorScatter Trilu"

OVERWRITES: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(_UNARY.split(), (0,)),
    # Element by element; an input of the result's size is read at the place that is written.
    **dict.fromkeys(_BINARY.split(), (0, 1)),
    "PRelu": (0,),
    # The first two are added up first; a third is read when the result is half made.
    **dict.fromkeys(_FOLDS.split(), (0, 1)),
    # A row is read whole before any of it is written.
    **dict.fromkeys(_BY_ROW.split(), (0,)),
    # The result starts as the first input.
    **dict.fromkeys(_COPY_AND_CHANGE.split(), (0,)),
}
"""Operator -> the inputs that its first result may be written over."""

WIDTHS: Mapping[str, int] = {
    **dict.fromkeys(("int2", "uint2"), 2),
    **dict.fromkeys(("int4", "uint4", "float4e2m1"), 4),
    **dict.fromkeys(("bool", "int8", "uint8", "float8e8m0"), 8),
    **dict.fromkeys(("float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz"), 8),
    **dict.fromkeys(("int16", "uint16", "float16", "bfloat16"), 16),
    **dict.fromkeys(("int32", "uint32", "float32"), 32),
    **dict.fromkeys(("int64", "uint64", "float64", "complex64"), 64),
    "complex128": 128,
}
"""Bits of an element."""
