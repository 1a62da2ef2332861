"""Packed weights: which kernels keep a packed copy of a constant operand, and its bytes.

Measured by a log of every block that a session allocates while it is made, for models whose kernels
and shapes are known. Filters of convolutions in blocked layouts are not packed by kernels: the
optimizer makes new initializers of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.core.operators import MICROSOFT, ONNX
from memplan_cli.core.program import Origin, walk
from memplan_cli.core.symbolic.sizes import size_of
from memplan_cli.runtime.profile.record import PROFILE
from memplan_cli.runtime.profile.workspace import Dims

if TYPE_CHECKING:
    from memplan_cli.core.program import Op, Program, VarId

_FLOAT = 4

_LARGE = 64 << 10
"""A constant operand of at least this many bytes is large: its packed copy matters."""


def panel_bytes(rows: int, columns: int) -> int:
    """Return the bytes of a float matrix in panels of whole columns."""
    return rows * -(-columns // PROFILE.matrix_panel) * PROFILE.matrix_panel * _FLOAT


def _matrix_bytes(op: Op, dims: Dims) -> int:
    """Return the bytes of a packed matrix, transposed first if the op has ``transB``; 0 for another rank."""
    if len(dims) != 2:
        return 0
    rows, columns = reversed(dims) if op.attributes.get("transB") else dims
    return panel_bytes(rows, columns)


def _recurrent_bytes(_: Op, dims: Dims) -> int:
    """Return the bytes of packed weights with dims ``directions, gates * hidden, inputs``."""
    if len(dims) != 3:
        return 0
    directions, columns, rows = dims
    return directions * panel_bytes(rows, columns)


def _transposed_bytes(op: Op, dims: Dims) -> int:
    """Return the bytes of ConvTranspose filters, transposed for each group unless one dim is 1."""
    groups = op.attributes.get("group", 1)
    rows = dims[0] // groups if isinstance(groups, int) and groups and dims else 0
    return prod(dims) * _FLOAT if rows > 1 and prod(dims[1:]) > 1 else 0


PackingRule = Callable[["Op", Dims], int]
"""Return the bytes of the packed copy of an operand, given its dims."""

PACKED_OPERANDS: Mapping[tuple[str, str], Mapping[int, PackingRule]] = {
    (ONNX, "MatMul"): {1: _matrix_bytes},
    (ONNX, "Gemm"): {1: _matrix_bytes},
    (MICROSOFT, "FusedMatMul"): {1: _matrix_bytes},
    (MICROSOFT, "FusedGemm"): {1: _matrix_bytes},
    (MICROSOFT, "Attention"): {1: _matrix_bytes},
    (ONNX, "ConvTranspose"): {1: _transposed_bytes},
    (ONNX, "LSTM"): {1: _recurrent_bytes, 2: _recurrent_bytes},
    (ONNX, "GRU"): {1: _recurrent_bytes, 2: _recurrent_bytes},
}
"""Rules by domain and operator, then by position of the operand: a float32 constant."""

_UNMEASURED = frozenset(
    {
        "ConvInteger",
        "DynamicQuantizeLSTM",
        "DynamicQuantizeMatMul",
        "MatMulBnb4",
        "MatMulFpQ4",
        "MatMulInteger",
        "MatMulIntegerToFloat",
        "MatMulNBits",
        "MoE",
        "QAttention",
        "QEmbedLayerNormalization",
        "QGemm",
        "QLinearConv",
        "QLinearMatMul",
        "QMoE",
    }
)
"""Operators whose kernels pack in a way that was not measured."""


def packed_bytes(op: Op, operand: VarId, program: Program) -> int:
    """Return the bytes of the packed copy of a constant operand, 0 if there is none."""
    rules = PACKED_OPERANDS.get((op.domain, op.type))
    var = program.vars[operand]
    if rules is None or var.dtype != "float32" or var.shape is None:
        return 0
    dims = tuple(dim for dim in var.shape if isinstance(dim, int))
    if len(dims) != len(var.shape):
        return 0
    return sum(
        rule(op, dims)
        for position, rule in rules.items()
        if op.inputs[position : position + 1] == (operand,)
    )


class WeightRead(NamedTuple):
    """An op that reads a weight, and the bytes of the copy of the weight that its kernel packs; 0: none."""

    op: Op
    weight: VarId
    packed_bytes: int


def weight_reads(program: Program) -> Iterator[WeightRead]:
    """Yield each read of a weight by an op, in file order.

    A kernel packs constants of its own block and of the block around it, but none further out.
    """
    outer_path: dict[str, str] = {}  # the path of the block around each body
    for block, op in walk(program.body):
        outer_path.update((body.path, block.path) for body in op.bodies)
        for var in op.inputs:
            if var and program.vars[var].origin is Origin.WEIGHT:
                near_blocks = (block.path, outer_path.get(block.path))
                is_near = program.vars[var].block in near_blocks
                yield WeightRead(op, var, packed_bytes(op, var, program) if is_near else 0)


def unmeasured_kernels(program: Program) -> tuple[str, ...]:
    """Return the operators with a large constant operand whose packing was not measured."""
    operators = {
        op.type
        for _, op in walk(program.body)
        if op.type in _UNMEASURED and any(_is_large(program, var) for var in op.inputs if var)
    }
    return tuple(sorted(operators))


def _is_large(program: Program, operand: VarId) -> bool:
    """Return whether an operand is a constant of at least `_LARGE` bytes."""
    var = program.vars[operand]
    size = size_of(var.shape, var.dtype) if var.origin is Origin.WEIGHT else None
    return size is not None and not size.symbols and size.coefficient >= _LARGE
