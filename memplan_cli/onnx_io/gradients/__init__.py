"""Gradient rules: one function an operator, in tables by family.

A rule is given a `Call` (a forward node, the gradients of its outputs, the tape) and returns
the gradient of each input, ``""`` where there is none. It works on ONNX protos: gradients
need attributes and tensors that the block IR leaves out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from memplan_cli.onnx_io.gradients import (
    rules_activation,
    rules_batch,
    rules_control,
    rules_conv,
    rules_elementwise,
    rules_grid,
    rules_indexing,
    rules_loss,
    rules_matmul,
    rules_normalisation,
    rules_pooling,
    rules_reduction,
    rules_resize,
    rules_shape,
)

if TYPE_CHECKING:
    from memplan_cli.onnx_io.gradients.tape import Call

Rule = Callable[["Call"], tuple[str, ...]]

_ELEMENTWISE: Mapping[str, Rule] = {
    "Abs": rules_elementwise.absolute,
    "Acos": rules_elementwise.acos,
    "Acosh": rules_elementwise.acosh,
    "Add": rules_elementwise.add,
    "Asin": rules_elementwise.asin,
    "Asinh": rules_elementwise.asinh,
    "Atan": rules_elementwise.atan,
    "Atanh": rules_elementwise.atanh,
    "Cast": rules_elementwise.cast,
    "CastLike": rules_elementwise.cast_like,
    "Clip": rules_elementwise.clip,
    "Cos": rules_elementwise.cos,
    "Cosh": rules_elementwise.cosh,
    "Div": rules_elementwise.div,
    "Erf": rules_elementwise.erf,
    "Exp": rules_elementwise.exp,
    "Identity": rules_elementwise.identity,
    "Log": rules_elementwise.log,
    "Max": rules_elementwise.maximum,
    "Mean": rules_elementwise.mean,
    "Min": rules_elementwise.minimum,
    "Mod": rules_elementwise.modulo,
    "Mul": rules_elementwise.mul,
    "Neg": rules_elementwise.negate,
    "Pow": rules_elementwise.power,
    "Reciprocal": rules_elementwise.reciprocal,
    "Sin": rules_elementwise.sin,
    "Sinh": rules_elementwise.sinh,
    "Sqrt": rules_elementwise.sqrt,
    "Sub": rules_elementwise.sub,
    "Sum": rules_elementwise.add,
    "Tan": rules_elementwise.tan,
    "Where": rules_elementwise.where,
}

_ACTIVATION: Mapping[str, Rule] = {
    "Celu": rules_activation.celu,
    "Dropout": rules_activation.dropout,
    "Elu": rules_activation.elu,
    "Gelu": rules_activation.gelu,
    "HardSigmoid": rules_activation.hard_sigmoid,
    "HardSwish": rules_activation.hard_swish,
    "LeakyRelu": rules_activation.leaky_relu,
    "LogSoftmax": rules_activation.log_softmax,
    "Mish": rules_activation.mish,
    "PRelu": rules_activation.prelu,
    "Relu": rules_activation.relu,
    "Selu": rules_activation.selu,
    "Shrink": rules_activation.shrink,
    "Sigmoid": rules_activation.sigmoid,
    "Softmax": rules_activation.softmax,
    "Softplus": rules_activation.softplus,
    "Softsign": rules_activation.softsign,
    "Swish": rules_activation.swish,
    "Tanh": rules_activation.tanh,
    "ThresholdedRelu": rules_activation.thresholded_relu,
}

_REDUCTION: Mapping[str, Rule] = {
    "CumSum": rules_reduction.cumulative_sum,
    "ReduceL1": rules_reduction.reduce_l1,
    "ReduceL2": rules_reduction.reduce_l2,
    "ReduceLogSum": rules_reduction.reduce_log_sum,
    "ReduceLogSumExp": rules_reduction.reduce_log_sum_exp,
    "ReduceMax": rules_reduction.reduce_extreme,
    "ReduceMean": rules_reduction.reduce_mean,
    "ReduceMin": rules_reduction.reduce_extreme,
    "ReduceProd": rules_reduction.reduce_prod,
    "ReduceSum": rules_reduction.reduce_sum,
    "ReduceSumSquare": rules_reduction.reduce_sum_square,
}

_MATMUL: Mapping[str, Rule] = {
    "Einsum": rules_matmul.einsum,
    "Gemm": rules_matmul.gemm,
    "MatMul": rules_matmul.matmul,
}

_CONV: Mapping[str, Rule] = {
    "Conv": rules_conv.conv,
    "ConvTranspose": rules_conv.conv_transpose,
}

_POOLING: Mapping[str, Rule] = {
    "AffineGrid": rules_grid.affine_grid,
    "AveragePool": rules_pooling.average_pool,
    "GlobalAveragePool": rules_pooling.global_average_pool,
    "GlobalMaxPool": rules_pooling.global_max_pool,
    "LRN": rules_pooling.local_response,
    "MaxPool": rules_pooling.max_pool,
    "Resize": rules_resize.resize,
}

_CONTROL: Mapping[str, Rule] = {"If": rules_control.if_}

_NORMALISATION: Mapping[str, Rule] = {
    "BatchNormalization": rules_batch.batch_normalization,
    "GroupNormalization": rules_normalisation.group_normalization,
    "InstanceNormalization": rules_normalisation.instance_normalization,
    "LayerNormalization": rules_normalisation.layer_normalization,
    "LpNormalization": rules_normalisation.lp_normalization,
    "MeanVarianceNormalization": rules_normalisation.mean_variance_normalization,
    "RMSNormalization": rules_normalisation.rms_normalization,
}

_LOSS: Mapping[str, Rule] = {
    "NegativeLogLikelihoodLoss": rules_loss.negative_log_likelihood,
    "SoftmaxCrossEntropyLoss": rules_loss.softmax_cross_entropy,
}

_SHAPE: Mapping[str, Rule] = {
    "Concat": rules_shape.concat,
    "DepthToSpace": rules_shape.depth_to_space,
    "Expand": rules_shape.expand,
    "Flatten": rules_shape.reshape,
    "Pad": rules_shape.pad,
    "Reshape": rules_shape.reshape,
    "ReverseSequence": rules_shape.reverse_sequence,
    "Slice": rules_shape.slice_,
    "SpaceToDepth": rules_shape.space_to_depth,
    "Split": rules_shape.split,
    "Squeeze": rules_shape.reshape,
    "Tile": rules_shape.tile,
    "Transpose": rules_shape.transpose,
    "Trilu": rules_shape.trilu,
    "Unsqueeze": rules_shape.reshape,
}

_INDEXING: Mapping[str, Rule] = {
    "Gather": rules_indexing.gather,
    "GatherElements": rules_indexing.gather_elements,
    "GatherND": rules_indexing.gather_nd,
    "OneHot": rules_indexing.one_hot,
    "Range": rules_indexing.range_,
    "ScatterElements": rules_indexing.scatter_elements,
    "ScatterND": rules_indexing.scatter_nd,
    "TopK": rules_indexing.top_k,
}

FAMILIES: Mapping[str, Mapping[str, Rule]] = {
    "elementwise": _ELEMENTWISE,
    "activation": _ACTIVATION,
    "reduction": _REDUCTION,
    "matrix products": _MATMUL,
    "convolution": _CONV,
    "pooling and resizing": _POOLING,
    "normalisation": _NORMALISATION,
    "loss": _LOSS,
    "shape": _SHAPE,
    "indexing": _INDEXING,
    "control flow": _CONTROL,
}

RULES: Mapping[str, Rule] = {
    kind: rule for family in FAMILIES.values() for kind, rule in family.items()
}

WITHOUT_GRADIENT = frozenset(
    {
        "ArgMax",
        "ArgMin",
        "Bernoulli",
        "Ceil",
        "ConstantOfShape",
        "EyeLike",
        "Floor",
        "Hardmax",
        "Multinomial",
        "NonZero",
        "RandomNormalLike",
        "RandomUniformLike",
        "Round",
        "Shape",
        "Sign",
        "Size",
    }
)
"""Operators whose results do not change when their inputs change a little."""

UNFELT_INPUTS: Mapping[str, frozenset[int]] = {
    "CastLike": frozenset({1}),
    "OneHot": frozenset({0, 1}),
    "Range": frozenset({1}),
}
"""Inputs of operators with a rule of which the same is true: a type, a place, an end."""

RESULTS_WITH_RULES: Mapping[str, int] = {"If": 64, "SoftmaxCrossEntropyLoss": 2, "Split": 64}
"""How many results a rule goes back from, where that is more than the first; 64 stands for all."""
