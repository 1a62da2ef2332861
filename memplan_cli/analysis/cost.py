"""Cost model of ops: FLOPs and bytes moved, from shapes alone.

A formula counts the operations in the operator's definition (a multiplication and an addition
are two), not those of a particular kernel. In the formulas ``n`` is the number of elements of
the first output, ``m`` that of the first input, ``k`` the length of the axis that a product sums
over.

=====================================  ===================================================
operators                              FLOPs
=====================================  ===================================================
MatMul, Gemm, MatMulInteger            ``2 n k``; Gemm ``+ n`` for its third input
Conv, ConvInteger                      ``2 n`` x (channels / groups) x kernel positions
ConvTranspose                          ``2 m`` x (results / groups) x kernel positions
Einsum                                 2 x product of all the equation's indices
LSTM, GRU, RNN                         ``2 s b d g h (i + h)``: steps, batch, directions,
                                       gates (4, 3, 1), hidden, input
Attention                              ``4`` x batch x heads x queries x keys x head size
AveragePool, MaxPool, LpPool           ``n`` x kernel positions
Reduce*, Global*Pool, ArgMax, CumSum   ``m``
Softmax, LogSoftmax, Hardmax           ``5 m``
LayerNormalization and other norms     ``8 m``
BatchNormalization                     ``2 m``
SoftmaxCrossEntropyLoss                ``8 m``
Exp, Log, Erf, Tanh, Sigmoid, Gelu..   ``10 n``
Div, Sqrt, Pow, Reciprocal             ``4 n``
Resize, Upsample                       ``8 n``
TopK, Sort, NonMaxSuppression          ``m log2 m``
moves (Transpose, Concat ...), casts   0
views (Reshape, Squeeze ...), Shape    0, and no bytes
ops with subgraphs                     the cost of the subgraphs, each run once
anything else                          ``n``
=====================================  ===================================================

Bytes moved: every input is read once and every output is written once. Ops that read only the
selected elements (Gather, Slice, Split) move their outputs twice; scatters move the data twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import log2, prod
from typing import TYPE_CHECKING

from memplan_cli.core.operators import MICROSOFT, Family, lookup
from memplan_cli.core.symbolic.sizes import BITS

if TYPE_CHECKING:
    from memplan_cli.core.operators import Operator
    from memplan_cli.core.program import Op, Program, Var, VarId

FLOPS_PER_BYTE = 8
"""FLOPs that a core computes in the time of moving one byte: about 80 GFLOP/s and 10 GB/s."""

KERNEL_LAUNCH = 20_000
"""FLOPs that a core computes in the time of one kernel call: a quarter of a microsecond."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of an op. Unknown dims count as 1.

    Attributes:
        flops: floating-point operations.
        moved: bytes that are read and written.
    """

    flops: int
    moved: int

    @property
    def work(self) -> int:
        """FLOPs and bytes moved as one number, in FLOPs (`FLOPS_PER_BYTE`)."""
        return self.flops + FLOPS_PER_BYTE * self.moved

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.flops + other.flops, self.moved + other.moved)


def total_cost(program: Program) -> Cost:
    """Return the cost of all ops of the main graph, their subgraphs included."""
    return sum((op_cost(op, program.vars) for op in program.body.ops), Cost(0, 0))


def op_cost(op: Op, variables: Mapping[VarId, Var]) -> Cost:
    """Return the cost of an op, by the table of this module.

    An op with subgraphs costs the sum of them: both branches of an If, one iteration of a Loop.
    """
    if op.bodies:
        inner = (op_cost(each, variables) for body in op.bodies for each in body.ops)
        return sum(inner, Cost(0, 0))
    traits = lookup(op.domain, op.type)
    if traits.is_view or traits.family is Family.SHAPE_QUERY or traits.name == "Constant":
        return Cost(0, 0)
    shapes = _Shapes(op, variables)
    return Cost(_flops(traits, shapes), _moved(traits.family, shapes))


def node_work(op: Op, variables: Mapping[VarId, Var]) -> int:
    """Return the modeled time of a node in FLOPs: work and kernel calls, each subgraph run once."""
    if not op.bodies:
        return op_cost(op, variables).work + KERNEL_LAUNCH
    inner = (node_work(each, variables) for body in op.bodies for each in body.ops)
    return sum(inner) + KERNEL_LAUNCH


class _Shapes:
    """The numeric shapes of an op's inputs and outputs, as the formulas read them.

    Symbolic dims count as 1; an omitted tensor, or one of unknown rank, is a scalar.

    Attributes:
        inputs, outputs: the shapes.
        read, written: total bytes of the inputs (each once) and of the outputs.
    """

    def __init__(self, op: Op, variables: Mapping[VarId, Var]) -> None:
        self.op = op
        self.inputs = tuple(_dims(variables.get(var)) for var in op.inputs)
        self.outputs = tuple(_dims(variables.get(var)) for var in op.outputs)
        self.read = sum(_bytes(variables[var]) for var in dict.fromkeys(op.inputs) if var)
        self.written = sum(_bytes(variables[var]) for var in op.outputs if var)

    @property
    def n(self) -> int:
        """The number of elements of the first output."""
        return prod(self.outputs[0]) if self.outputs else 0

    @property
    def m(self) -> int:
        """The number of elements of the first input."""
        return prod(self.inputs[0]) if self.inputs else 0

    def size(self, position: int) -> int:
        """Return the number of elements of an input, 0 if the op does not have it."""
        return prod(self.inputs[position]) if position < len(self.inputs) else 0

    def attribute(self, name: str, default: int) -> int:
        """Return an int attribute of the op."""
        value = self.op.attributes.get(name, default)
        return value if isinstance(value, int) else default

    def kernel(self) -> int:
        """Return the number of positions of a pooling kernel."""
        value = self.op.attributes.get("kernel_shape", ())
        return prod(int(v) for v in value) if isinstance(value, tuple) else 1


Formula = Callable[[_Shapes], int]


def _dims(var: Var | None) -> tuple[int, ...]:
    if var is None or var.shape is None:
        return ()
    return tuple(dim if isinstance(dim, int) else 1 for dim in var.shape)


def _bytes(var: Var) -> int:
    """Return the bytes of a var; 0 for types without a known size, such as strings."""
    return prod(_dims(var)) * BITS.get(var.dtype, 0) // 8


def _flops(traits: Operator, s: _Shapes) -> int:
    """Return the FLOPs of an op: by the formula of its operator, of its family, or by its trait."""
    formula = _FORMULAS.get(traits.qualified_name) or _FORMULAS_OF_FAMILIES.get(traits.family)
    if formula is not None:
        return formula(s)
    return traits.flops * (s.m if traits.family in _BY_INPUT else s.n)


def _moved(family: Family, s: _Shapes) -> int:
    """Return the bytes that an op reads and writes."""
    if family is Family.GATHER or family is Family.SLICE:  # only selected elements are read
        return 2 * s.written
    if family is Family.SCATTER:  # the output is written as a copy of the data, then updated
        return s.read + 2 * s.written
    return s.read + s.written


def _matmul(s: _Shapes) -> int:
    return 2 * s.n * (s.inputs[0][-1] if s.inputs[0] else 1)


def _gemm(s: _Shapes) -> int:
    left = s.inputs[0] or (1,)
    summed_length = left[0] if s.attribute("transA", 0) else left[-1]
    has_addend = len(s.inputs) > 2
    return s.n * (2 * summed_length + has_addend)


def _conv(s: _Shapes) -> int:
    # The weight has the shape (results, channels / groups, *kernel).
    return 2 * s.n * prod(s.inputs[1][1:])


def _conv_transpose(s: _Shapes) -> int:
    # The weight has the shape (channels, results / groups, *kernel).
    return 2 * s.m * prod(s.inputs[1][1:])


def _pool(s: _Shapes) -> int:
    return s.n * s.kernel()


def _einsum(s: _Shapes) -> int:
    """Return the FLOPs of an equation: a product and a sum for each combination of its indices."""
    equation = str(s.op.attributes.get("equation", "")).replace(" ", "")
    terms = equation.split("->")[0].split(",")
    length: dict[str, int] = {}
    for term, dims in zip(terms, s.inputs, strict=False):
        for index, dim in zip(_einsum_indices(term, len(dims)), dims, strict=False):
            length[index] = max(dim, length.get(index, 0))  # dims of ``...`` broadcast
    return 2 * prod(length.values())


def _einsum_indices(term: str, rank: int) -> list[str]:
    """Return the index of each dim of an input, such as ``...2, ...1, i, j`` for ``...ij`` of rank 4.

    The dims of ``...`` are numbered from the last one on, because they broadcast in this way.
    """
    leading, _, trailing = term.partition("...")
    unnamed = rank - len(leading) - len(trailing)
    return [*leading, *(f"...{number}" for number in range(unnamed, 0, -1)), *trailing]


def _recurrent(s: _Shapes) -> int:
    # Each weight of every gate and direction is used once per step and sequence.
    return 2 * prod(s.inputs[0][:2]) * (s.size(1) + s.size(2))


def _attention(s: _Shapes) -> int:
    # Two products, of queries with keys and of weights with values, each 2 * m * keys.
    keys = s.inputs[1][-2] if len(s.inputs) > 1 and len(s.inputs[1]) > 1 else 1
    return 4 * s.m * keys


def _sorting(s: _Shapes) -> int:
    return int(s.m * log2(max(s.m, 2)))


_BY_INPUT = frozenset(
    {Family.ARG_REDUCTION, Family.GLOBAL_POOLING, Family.LOSS, Family.REDUCTION}
)
"""Families whose cost grows with the elements of the input, of which the output has fewer."""

_FORMULAS_OF_FAMILIES: Mapping[Family, Formula] = {
    Family.MATRIX_PRODUCT: _matmul,
    Family.CONTRACTION: _einsum,
    Family.CONVOLUTION: _conv,
    Family.ATTENTION: _attention,
    Family.RECURRENT: _recurrent,
    Family.POOLING: _pool,
    Family.SORTING: _sorting,
}

_FORMULAS: Mapping[str, Formula] = {
    "Gemm": _gemm,
    f"{MICROSOFT}.FusedGemm": _gemm,
    "ConvTranspose": _conv_transpose,
}
"""Operators whose formula differs from that of their family.

An operator without any formula costs its trait ``flops`` per element.
"""
