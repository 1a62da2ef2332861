"""What operators do to memory and to order, written down apart from the planner's tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

STANDARD = frozenset({"", "ai.onnx"})
"""The domains whose operators are known."""

REPEATING = frozenset({"Loop", "Scan", "SequenceMap"})
"""They run their subgraph any number of times."""

SAME_BYTES = frozenset({"Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze"})
"""The first result is the first input's bytes in the same order."""

_UNARY = """
    Abs Acos Acosh Asin Asinh Atan Atanh BitwiseNot Cast Ceil Celu Clip Cos Cosh Elu Erf Exp Floor
    Gelu HardSigmoid HardSwish LeakyRelu Log Mish Neg Not Reciprocal Relu Round Selu Shrink Sigmoid
    Sign Sin Sinh Softplus Softsign Sqrt Swish Tan Tanh ThresholdedRelu
"""

OVERWRITES: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(_UNARY.split(), (0,)),
    **dict.fromkeys(("Add", "Div", "Mul", "Pow", "Sub"), (0, 1)),
    **dict.fromkeys(("Max", "Mean", "Min", "Sum"), (0, 1)),
    **dict.fromkeys(("LogSoftmax", "Softmax", "PRelu"), (0,)),
    **dict.fromkeys(("ScatterElements", "ScatterND", "Trilu"), (0,)),
}
"""Operator -> the inputs that its first result may be written over."""

DRAWING = frozenset(
    {
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
        "Bernoulli",
        "Multinomial",
    }
)
"""They draw from one generator; so does a Dropout that is told whether it trains."""

DROPOUT_TRAINS = 3
"""A Dropout with so many inputs is told."""

STATISTICS = ((3, 1), (4, 2))
"""Where a BatchNormalization reads its running mean and variance, and gives the new ones."""

OPTIONAL_RESULTS = frozenset({"Dropout", "LayerNormalization", "MaxPool"})
"""They may be asked for their first result alone."""
