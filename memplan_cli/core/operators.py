"""The registry of operators: one row for each operator, with its traits.

A trait is a property of the operator's definition in every opset, which more than one sub-package
needs. Functions for one purpose (a shape rule, a gradient, a cost) are in the table ``RULES`` of a file
for their family, which takes the names of the family's operators from here.

An operator without a row has no traits: nothing is assumed about it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

ONNX = ""
ONNX_LONG_NAME = "ai.onnx"
ML = "ai.onnx.ml"
MICROSOFT = "com.microsoft"
NCHWC = "com.microsoft.nchwc"
"""Operators on tensors with blocked channels, into which ONNX Runtime's optimizer for CPUs rewrites."""

STANDARD_DOMAINS = frozenset({ONNX, ONNX_LONG_NAME})
"""Both names of the standard domain."""


def canonical_domain(domain: str) -> str:
    """Return ``""`` for both names of the standard domain, and any other domain unchanged."""
    return ONNX if domain == ONNX_LONG_NAME else domain


class Family(Enum):
    """What an operator computes. Each operator belongs to one family."""

    # Elementwise: an element of the result depends on one element of each input.
    UNARY = "function of the first input; further inputs are parameters"
    ARITHMETIC = "arithmetic of broadcast tensors"
    COMPARISON = "comparison of broadcast tensors"
    LOGIC = "logic of broadcast tensors"
    BITWISE = "bitwise operation on broadcast tensors"
    SELECTION = "choice between broadcast tensors"
    # Data movement.
    RESHAPE = "the same elements in the same order, in another shape"
    PERMUTATION = "all elements in another order"
    REPETITION = "all elements, some more than once"
    SLICE = "elements at regular positions"
    GATHER = "elements at positions that another input lists"
    SCATTER = "a copy of the first input with some elements replaced"
    MASK = "a copy of the first input with some elements zeroed"
    JOIN = "several tensors, concatenated"
    PADDING = "a tensor with elements added around it"
    # Sums over axes.
    REDUCTION = "reduction of axes"
    ARG_REDUCTION = "index of an axis's extreme element"
    CUMULATION = "running reduction along an axis"
    SORTING = "sorting"
    MATRIX_PRODUCT = "product of two matrices"
    CONTRACTION = "sum of products over indices of an equation"
    CONVOLUTION = "convolution"
    ATTENTION = "attention"
    RECURRENT = "recurrent layer"
    POOLING = "reduction of windows"
    GLOBAL_POOLING = "reduction of all spatial axes"
    SOFTMAX = "exponential normalization of an axis"
    NORMALIZATION = "normalization by statistics"
    LOSS = "loss"
    # Everything else.
    RESIZING = "interpolation to another size"
    GENERATOR = "new tensor from a few parameters"
    SHAPE_QUERY = "dims of a tensor"
    RANDOM = "random numbers"
    CONTROL_FLOW = "subgraphs"
    SEQUENCE = "sequences and optional values"
    OTHER = "anything else"


_BROADCASTING = frozenset(
    {Family.ARITHMETIC, Family.COMPARISON, Family.LOGIC, Family.BITWISE, Family.SELECTION}
)


class Exactness(Enum):
    """The element types for which an operator has the same bits in every correct implementation."""

    NONE = "none: kernels may round differently"
    INTEGERS = "integers and bool"
    NUMBERS = "integers, bool and IEEE floats"
    ALL = "all: no arithmetic is done on elements"


EVERY_INPUT: Sequence[int] = range(sys.maxsize)
"""The positions of all inputs, for operators with any number of inputs."""


@dataclass(frozen=True, slots=True)
class Operator:
    """The traits of one operator.

    Attributes:
        name: ``op_type``.
        domain: by its short name.
        is_view: the first output has the bytes of the first input, in the same order.
        in_place: positions of inputs over which the first output may be written. Each element of
            the output depends on the element of such an input at the same position only, or on
            elements that are read before it is written.
        moves: positions of the inputs of whose unchanged elements the outputs consist.
        keeps_shape: the first output has the dims of the first input.
        shape_from: position of the first input whose values, not only its dims, decide the dims
            of the outputs; None if there is none.
        size_from_data: the number of output elements depends on the values of the inputs; there
            are no more than in the data.
        optional_outputs: positions of outputs that need not be computed if they are omitted.
        flops: operations for each element of the output, or of the first input in families that
            reduce; see `memplan_cli.analysis.cost`.
        exact: the element types for which all implementations give the same bits.
        has_scalar_tail: ONNX Runtime's CPU kernel computes the last elements, which do not fill a
            vector register, by another formula, so that a chunk may have other bits than the whole.
        has_zero_gradient: the outputs are piecewise constant, or do not depend on input values.
        is_random: the outputs are random numbers.
        random_with_input: it is random only if it has the input at this position.
        repeats_body: it may run its subgraph more than once.
    """

    name: str
    family: Family = Family.OTHER
    domain: str = ONNX
    is_view: bool = False
    in_place: tuple[int, ...] = ()
    moves: Sequence[int] = ()
    keeps_shape: bool = False
    shape_from: int | None = None
    size_from_data: bool = False
    optional_outputs: tuple[int, ...] = ()
    flops: int = 1
    exact: Exactness = Exactness.NONE
    has_scalar_tail: bool = False
    has_zero_gradient: bool = False
    is_random: bool = False
    random_with_input: int | None = None
    repeats_body: bool = False

    @property
    def qualified_name(self) -> str:
        """``Conv``, or ``com.microsoft.FusedConv`` for an operator of another domain."""
        return f"{self.domain}.{self.name}" if self.domain else self.name

    @property
    def runs_one_body(self) -> bool:
        """Whether one of the subgraphs runs once, and its outputs are the op's: an If."""
        return self.family is Family.CONTROL_FLOW and not self.repeats_body

    @property
    def broadcasts(self) -> bool:
        """Whether all inputs are broadcast to the shape of the output."""
        return self.family in _BROADCASTING

    @property
    def is_elementwise(self) -> bool:
        """Whether each element of the outputs depends on one element of each input."""
        return self.family is Family.UNARY or self.broadcasts


class ProgramOp(Protocol):
    """An op of a `Program`."""

    @property
    def type(self) -> str: ...  # noqa: D102
    @property
    def domain(self) -> str: ...  # noqa: D102
    @property
    def inputs(self) -> Sequence[str]: ...  # noqa: D102


class ProtoNode(Protocol):
    """A ``NodeProto``."""

    @property
    def op_type(self) -> str: ...  # noqa: D102
    @property
    def domain(self) -> str: ...  # noqa: D102
    @property
    def input(self) -> Sequence[str]: ...  # noqa: D102


def operator(op: ProgramOp | ProtoNode) -> Operator:
    """Return the traits of the operator of an op or a node."""
    return lookup(op.domain, op.type if hasattr(op, "type") else op.op_type)


def lookup(domain: str, name: str) -> Operator:
    """Return the traits of an operator; an operator without a row has the default traits."""
    return _REGISTRY.get((domain, name)) or Operator(name, domain=canonical_domain(domain))


def qualified_name(op: ProgramOp | ProtoNode) -> str:
    """Return the operator of an op or a node: ``Conv``, ``com.microsoft.FusedConv``."""
    name = op.type if hasattr(op, "type") else op.op_type
    return name if op.domain in STANDARD_DOMAINS else f"{op.domain}.{name}"


def is_random(op: ProgramOp | ProtoNode) -> bool:
    """Return whether two runs of an op may have different outputs for the same inputs.

    A Dropout is random only if it has an input for the training mode. Subgraphs are not examined.
    """
    traits = operator(op)
    position = traits.random_with_input
    if not traits.is_random or position is None:
        return traits.is_random
    inputs = op.inputs if hasattr(op, "inputs") else op.input
    return position < len(inputs) and inputs[position] != ""  # an omitted input is ""


_NONE, _INTEGERS, _NUMBERS, _ALL = Exactness

_FIRST, _BOTH = (0,), (0, 1)

# Constructors of rows with common traits. The numbers of operations are estimates.

_unary = partial(Operator, family=Family.UNARY, keeps_shape=True)
_pointwise = partial(_unary, in_place=_FIRST)
_step_function = partial(_pointwise, has_zero_gradient=True)
_transcendental = partial(_pointwise, flops=10)
_arithmetic = partial(Operator, family=Family.ARITHMETIC)
_comparison = partial(Operator, family=Family.COMPARISON, exact=_NUMBERS)
_logic = partial(Operator, family=Family.LOGIC, exact=_INTEGERS)
_bitwise = partial(Operator, family=Family.BITWISE)
_move = partial(Operator, moves=_FIRST, flops=0, exact=_ALL)
_reshape = partial(_move, family=Family.RESHAPE, is_view=True)
_scatter = partial(
    Operator, family=Family.SCATTER, moves=(0, 2), in_place=_FIRST, keeps_shape=True, flops=0
)
_reduction = partial(Operator, family=Family.REDUCTION, shape_from=1)
_arg_reduction = partial(Operator, family=Family.ARG_REDUCTION, has_zero_gradient=True)
_product = partial(Operator, family=Family.MATRIX_PRODUCT)
_convolution = partial(Operator, family=Family.CONVOLUTION)
_recurrent = partial(Operator, family=Family.RECURRENT)
_pooling = partial(Operator, family=Family.POOLING)
_global_pooling = partial(Operator, family=Family.GLOBAL_POOLING)
_softmax = partial(Operator, family=Family.SOFTMAX, keeps_shape=True, flops=5)
_normalization = partial(Operator, family=Family.NORMALIZATION, keeps_shape=True, flops=8)
_generator = partial(Operator, family=Family.GENERATOR, flops=0)
_random = partial(Operator, family=Family.RANDOM, is_random=True, has_zero_gradient=True)
_shape_query = partial(
    Operator, family=Family.SHAPE_QUERY, flops=0, exact=_ALL, has_zero_gradient=True
)
_control_flow = partial(Operator, family=Family.CONTROL_FLOW)
_sequence = partial(Operator, family=Family.SEQUENCE)

OPERATORS: tuple[Operator, ...] = (
    # Functions of each element.
    _pointwise("Abs", exact=_INTEGERS),
    _transcendental("Acos", has_scalar_tail=True),
    _transcendental("Acosh"),
    _transcendental("Asin", has_scalar_tail=True),
    _transcendental("Asinh"),
    _transcendental("Atan", has_scalar_tail=True),
    _transcendental("Atanh"),
    _pointwise("BitwiseNot", exact=_INTEGERS),
    _pointwise("Cast", flops=0),
    _unary("CastLike", flops=0),
    _step_function("Ceil"),
    _transcendental("Celu"),
    _pointwise("Clip"),
    _transcendental("Cos", has_scalar_tail=True),
    _transcendental("Cosh"),
    _unary("Dropout", is_random=True, random_with_input=2, optional_outputs=(1,)),
    _transcendental("Elu"),
    _transcendental("Erf"),
    _transcendental("Exp"),
    _step_function("Floor"),
    _transcendental("Gelu"),
    _pointwise("HardSigmoid"),
    _transcendental("HardSwish"),
    _unary("Identity", is_view=True, moves=_FIRST, flops=0, exact=_ALL),
    _unary("IsInf"),
    _unary("IsNaN"),
    _pointwise("LeakyRelu"),
    _transcendental("Log", has_scalar_tail=True),
    _transcendental("Mish", has_scalar_tail=True),
    _pointwise("Neg", exact=_INTEGERS),
    _pointwise("Not", exact=_INTEGERS),
    _pointwise("PRelu"),
    _pointwise("Reciprocal", flops=4),
    _pointwise("Relu"),
    _step_function("Round"),
    _transcendental("Selu"),
    _pointwise("Shrink"),
    _transcendental("Sigmoid"),
    _step_function("Sign", exact=_INTEGERS),
    _transcendental("Sin", has_scalar_tail=True),
    _transcendental("Sinh"),
    _transcendental("Softplus", has_scalar_tail=True),
    _pointwise("Softsign"),
    _pointwise("Sqrt", flops=4),
    _transcendental("Swish"),
    _transcendental("Tan", has_scalar_tail=True),
    _transcendental("Tanh"),
    _pointwise("ThresholdedRelu"),
    # Broadcast tensors. With more than two inputs, the first two are combined before the third is
    # read, so the output may be written over either of them.
    _arithmetic("Add", in_place=_BOTH, exact=_INTEGERS),
    _arithmetic("Div", in_place=_BOTH, flops=4),
    _arithmetic("Max", in_place=_BOTH, exact=_INTEGERS),
    _arithmetic("Mean", in_place=_BOTH),
    _arithmetic("Min", in_place=_BOTH, exact=_INTEGERS),
    _arithmetic("Mod"),
    _arithmetic("Mul", in_place=_BOTH, exact=_INTEGERS),
    _arithmetic("Pow", in_place=_BOTH, flops=4),
    _arithmetic("Sub", in_place=_BOTH, exact=_INTEGERS),
    _arithmetic("Sum", in_place=_BOTH),
    _comparison("Equal"),
    _comparison("Greater"),
    _comparison("GreaterOrEqual"),
    _comparison("Less"),
    _comparison("LessOrEqual"),
    _logic("And"),
    _logic("Or"),
    _logic("Xor"),
    _bitwise("BitShift"),  # a shift by more than the width has no defined result
    _bitwise("BitwiseAnd", exact=_INTEGERS),
    _bitwise("BitwiseOr", exact=_INTEGERS),
    _bitwise("BitwiseXor", exact=_INTEGERS),
    Operator("Where", Family.SELECTION, moves=(1, 2), flops=0, exact=_ALL),
    # Data movement.
    _reshape("Flatten"),
    _reshape("Reshape", shape_from=1),
    _reshape("Squeeze", shape_from=1),
    _reshape("Unsqueeze", shape_from=1),
    _move("DepthToSpace", Family.PERMUTATION),
    _move("ReverseSequence", Family.PERMUTATION, keeps_shape=True),
    _move("SpaceToDepth", Family.PERMUTATION),
    _move("Transpose", Family.PERMUTATION),
    _move("Expand", Family.REPETITION, shape_from=1),
    _move("Tile", Family.REPETITION, shape_from=1),
    _move("Slice", Family.SLICE, shape_from=1),
    _move("Split", Family.SLICE, shape_from=1),
    _move("CenterCropPad", Family.PADDING, shape_from=1, exact=_NONE),
    _move("Pad", Family.PADDING, moves=(0, 2), shape_from=1),
    _move("Concat", Family.JOIN, moves=EVERY_INPUT),
    _move("Compress", Family.GATHER, size_from_data=True),
    _move("Gather", Family.GATHER),
    _move("GatherElements", Family.GATHER),
    _move("GatherND", Family.GATHER),
    # Not exact: a scatter with `reduction` may add several updates at one position in any order.
    _scatter("Scatter", in_place=()),
    _scatter("ScatterElements"),
    _scatter("ScatterND"),
    _scatter("TensorScatter", moves=(0, 1)),
    _move("Trilu", Family.MASK, in_place=_FIRST, keeps_shape=True),
    # Reductions. Sums of integers are not exact: ONNX Runtime 1.31.1 computes them in another type.
    _reduction("ReduceL1"),
    _reduction("ReduceL2"),
    _reduction("ReduceLogSum"),
    _reduction("ReduceLogSumExp"),
    _reduction("ReduceMax", exact=_INTEGERS),
    _reduction("ReduceMean"),
    _reduction("ReduceMin", exact=_INTEGERS),
    _reduction("ReduceProd"),
    _reduction("ReduceSum"),
    _reduction("ReduceSumSquare"),
    _arg_reduction("ArgMax"),
    _arg_reduction("ArgMin"),
    Operator("CumSum", Family.CUMULATION, keeps_shape=True, exact=_INTEGERS),
    Operator("NonMaxSuppression", Family.SORTING),
    Operator("NonZero", size_from_data=True, has_zero_gradient=True),
    Operator("TopK", Family.SORTING, shape_from=1),
    Operator("Unique", Family.SORTING, size_from_data=True),
    # Products and recurrent layers.
    _product("Gemm"),
    _product("MatMul"),
    _product("MatMulInteger"),
    Operator("Einsum", Family.CONTRACTION),
    _convolution("Conv"),
    _convolution("ConvInteger"),
    _convolution("ConvTranspose"),
    Operator("Attention", Family.ATTENTION),
    _recurrent("GRU"),
    _recurrent("LSTM"),
    _recurrent("RNN"),
    # Windows, and operators with a shape or size as an input.
    _pooling("AveragePool"),
    _pooling("LpPool"),
    _pooling("MaxPool", optional_outputs=(1,)),
    _global_pooling("GlobalAveragePool"),
    _global_pooling("GlobalMaxPool"),
    Operator("AffineGrid", shape_from=1),
    Operator("Col2Im", shape_from=1),
    Operator("DFT", shape_from=1),
    Operator("MaxUnpool", shape_from=1),
    Operator("STFT", shape_from=1),
    Operator("Resize", Family.RESIZING, shape_from=1, flops=8),
    Operator("Upsample", Family.RESIZING, shape_from=1, flops=8),
    # Normalization. A row is reduced before any element of it is written. The statistics of a
    # BatchNormalization are optional by definition, but ONNX Runtime 1.31 always writes them.
    _softmax("Hardmax", has_zero_gradient=True),
    _softmax("LogSoftmax", in_place=_FIRST),
    _softmax("Softmax", in_place=_FIRST),
    _normalization("BatchNormalization", flops=2),
    _normalization("GroupNormalization"),
    _normalization("InstanceNormalization"),
    _normalization("LRN"),
    _normalization("LayerNormalization", optional_outputs=(1, 2)),
    _normalization("LpNormalization"),
    _normalization("MeanVarianceNormalization"),
    _normalization("RMSNormalization"),
    Operator("SoftmaxCrossEntropyLoss", Family.LOSS, flops=8),
    # Generated tensors.
    _generator("BlackmanWindow", shape_from=0),
    _generator("Constant", shape_from=0),
    _generator("ConstantOfShape", shape_from=0, exact=_ALL, has_zero_gradient=True),
    _generator("EyeLike", keeps_shape=True, exact=_ALL, has_zero_gradient=True),
    _generator("HammingWindow", shape_from=0),
    _generator("HannWindow", shape_from=0),
    _generator("MelWeightMatrix", shape_from=0),
    _generator("OneHot", shape_from=1),
    _generator("Range", shape_from=0, exact=_INTEGERS),
    _shape_query("Shape"),
    _shape_query("Size"),
    _random("Bernoulli", keeps_shape=True),
    _random("Multinomial"),
    _random("RandomNormal"),
    _random("RandomNormalLike", keeps_shape=True),
    _random("RandomUniform"),
    _random("RandomUniformLike", keeps_shape=True),
    # Subgraphs and sequences.
    _control_flow("If"),
    _control_flow("Loop", repeats_body=True),
    _control_flow("Scan", repeats_body=True),
    _control_flow("SequenceMap", repeats_body=True),
    _sequence("Optional", moves=_FIRST),
    _sequence("OptionalGetElement", moves=_FIRST),
    _sequence("SequenceAt", moves=_FIRST),
    _sequence("SequenceConstruct", moves=EVERY_INPUT),
    _sequence("SplitToSequence", moves=_FIRST, shape_from=1),
    # Operators of ONNX Runtime.
    _unary("BiasGelu", domain=MICROSOFT, flops=10),
    _unary("FastGelu", domain=MICROSOFT, flops=10),
    _unary("Gelu", domain=MICROSOFT, flops=10),
    _unary("QuickGelu", domain=MICROSOFT, flops=10),
    _convolution("FusedConv", domain=MICROSOFT),
    _product("FusedGemm", domain=MICROSOFT),
    _product("FusedMatMul", domain=MICROSOFT),
    _convolution("Conv", domain=NCHWC),
    _pooling("AveragePool", domain=NCHWC),
    _pooling("MaxPool", domain=NCHWC),
    _global_pooling("GlobalAveragePool", domain=NCHWC),
    _global_pooling("GlobalMaxPool", domain=NCHWC),
    Operator("Upsample", Family.RESIZING, domain=NCHWC, flops=8),
)
"""One row for each operator that has a trait."""

_REGISTRY: Mapping[tuple[str, str], Operator] = {
    (domain, traits.name): traits
    for traits in OPERATORS
    for domain in (STANDARD_DOMAINS if traits.domain == ONNX else (traits.domain,))
}


def names_of(trait: Callable[[Operator], object]) -> tuple[str, ...]:
    """Return the names of all operators of the standard domain for which ``trait`` is true."""
    return tuple(traits.name for traits in OPERATORS if not traits.domain and trait(traits))


CONTROL_FLOW = frozenset(names_of(lambda traits: traits.family is Family.CONTROL_FLOW))
SHAPE_QUERIES = frozenset(names_of(lambda traits: traits.family is Family.SHAPE_QUERY))
