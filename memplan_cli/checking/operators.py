"""What ONNX operators do to memory, to the order of nodes and to copies of nodes.

These tables repeat facts of the planner's operator registry on purpose. A wrong entry there would
let two tensors share bytes that must not, and the check would not find it with the same table.
A test compares both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

STANDARD = frozenset({"", "ai.onnx"})
"""The names of the standard ONNX domain. Nothing is assumed about operators of other domains."""

REPEATED_SUBGRAPH = frozenset({"Loop", "Scan", "SequenceMap"})
"""Operators that run their subgraph any number of times."""

SELECTED_SUBGRAPH = frozenset({"If"})
"""Operators that run exactly one of their subgraphs, once, and return its outputs."""

VIEWS = frozenset({"Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze"})
"""Operators whose first output has the bytes of their first input, in the same order."""

_UNARY = """
    Abs Acos Acosh Asin Asinh Atan Atanh BitwiseNot Cast Ceil Celu Clip Cos Cosh Elu Erf Exp Floor
    Gelu HardSigmoid HardSwish LeakyRelu Log Mish Neg Not Reciprocal Relu Round Selu Shrink Sigmoid
    Sign Sin Sinh Softplus Softsign Sqrt Swish Tan Tanh ThresholdedRelu
"""
_BINARY = "Add Div Mul Pow Sub"
_VARIADIC = "Max Mean Min Sum"
_ROW_WISE = "LogSoftmax Softmax"
_PARTIAL_UPDATES = "ScatterElements ScatterND TensorScatter Trilu"

IN_PLACE_INPUTS: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(_UNARY.split(), (0,)),
    # Element-wise: an input of the output's size is read at the element that is written.
    **dict.fromkeys(_BINARY.split(), (0, 1)),
    "PRelu": (0,),
    # Inputs 0 and 1 are combined first. Later inputs are read after the output was written.
    **dict.fromkeys(_VARIADIC.split(), (0, 1)),
    # A whole row is read before any element of it is written.
    **dict.fromkeys(_ROW_WISE.split(), (0,)),
    # The output starts as a copy of the first input.
    **dict.fromkeys(_PARTIAL_UPDATES.split(), (0,)),
}
"""Operator -> positions of the inputs over which its first output may be written."""

ELEMENT_BITS: Mapping[str, int] = {
    **dict.fromkeys(("int2", "uint2"), 2),
    **dict.fromkeys(("int4", "uint4", "float4e2m1"), 4),
    **dict.fromkeys(("bool", "int8", "uint8", "float8e8m0"), 8),
    **dict.fromkeys(("float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz"), 8),
    **dict.fromkeys(("int16", "uint16", "float16", "bfloat16"), 16),
    **dict.fromkeys(("int32", "uint32", "float32"), 32),
    **dict.fromkeys(("int64", "uint64", "float64", "complex64"), 64),
    "complex128": 128,
}
"""Dtype -> bits of one element."""

RANDOM = frozenset(
    {
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
        "Bernoulli",
        "Multinomial",
    }
)
"""Operators that draw from the random generator of the run."""

DROPOUT_INPUTS_WITH_TRAINING_MODE = 3
"""A Dropout with this many inputs has ``training_mode`` and can draw random numbers too."""

BATCH_NORM_STATISTICS = ((3, 1), (4, 2))
"""BatchNormalization: (input, output) positions of the running mean and variance."""
