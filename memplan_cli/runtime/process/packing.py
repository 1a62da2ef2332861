"""Which kernels keep a packed copy of a constant operand, and how many bytes it has.

Measured on ONNX Runtime 1.31.1, CPU provider: every block that a session asks for while it
is made was logged, for models whose kernels and shapes are known. Filters of convolutions
in blocked layouts are not packed by kernels: optimisation has made new weights of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import TYPE_CHECKING

from memplan_cli.core.program import Origin, walk
from memplan_cli.core.symbolic.sizes import size_of

if TYPE_CHECKING:
    from memplan_cli.core.program import Op, Program, VarId

_COLUMNS = 16
"""MLAS packs float matrices for SGEMM in panels of so many columns."""

_FLOAT = 4

_LARGE = 64 << 10
"""Bytes of a constant that must not be missed."""

Dims = tuple[int, ...]


def panels(rows: int, columns: int) -> int:
    """Return the bytes of a float matrix in panels."""
    return rows * -(-columns // _COLUMNS) * _COLUMNS * _FLOAT


def _matrix(op: Op, dims: Dims) -> int:
    if len(dims) != 2:
        return 0
    rows, columns = dims
    return panels(columns, rows) if op.attributes.get("transB") else panels(rows, columns)


def _recurrent(_: Op, dims: Dims) -> int:
    """Weights of recurrent layers have dims ``directions, gates * hidden, inputs``."""
    if len(dims) != 3:
        return 0
    directions, columns, rows = dims
    return directions * panels(rows, columns)


def _transposed(op: Op, dims: Dims) -> int:
    """Filters of a ConvTranspose are kept transposed, group by group, unless one dim is 1."""
    groups = op.attributes.get("group", 1)
    rows = dims[0] // groups if isinstance(groups, int) and groups and dims else 0
    return prod(dims) * _FLOAT if rows > 1 and prod(dims[1:]) > 1 else 0


Rule = Callable[["Op", Dims], int]

PACKED_OPERANDS: Mapping[tuple[str, str], Mapping[int, Rule]] = {
    ("", "MatMul"): {1: _matrix},
    ("", "Gemm"): {1: _matrix},
    ("com.microsoft", "FusedMatMul"): {1: _matrix},
    ("com.microsoft", "FusedGemm"): {1: _matrix},
    ("com.microsoft", "Attention"): {1: _matrix},
    ("", "ConvTranspose"): {1: _transposed},
    ("", "LSTM"): {1: _recurrent, 2: _recurrent},
    ("", "GRU"): {1: _recurrent, 2: _recurrent},
}
"""By operator and place of the operand; each is a float32 constant."""

_UNKNOWN = frozenset(
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
"""Kernels that pack in a way that was not measured."""


def packed_bytes(op: Op, operand: VarId, program: Program) -> int:
    """Return the bytes of the packed copy of a constant operand, 0 where there is none."""
    rules = PACKED_OPERANDS.get((op.domain, op.type))
    var = program.vars[operand]
    if rules is None or var.dtype != "float32" or var.shape is None:
        return 0
    dims = tuple(dim for dim in var.shape if isinstance(dim, int))
    if len(dims) != len(var.shape):
        return 0
    return sum(
        rules[place](op, dims) for place in rules if op.inputs[place : place + 1] == (operand,)
    )


def read_weights(program: Program) -> Iterator[tuple[Op, VarId, int]]:
    """Yield each op with each weight that it reads, in the order of the run.

    And the bytes of the packed copy: a kernel looks for a constant in its own graph and in the
    one around it, and packs none that lies further out.
    """
    around: dict[str, str] = {}
    for block, op in walk(program.body):
        around.update((body.path, block.path) for body in op.bodies)
        for var in op.inputs:
            if var and program.vars[var].origin is Origin.WEIGHT:
                near = (block.path, around.get(block.path))
                found = program.vars[var].block in near
                yield op, var, packed_bytes(op, var, program) if found else 0


def unknown_kernels(program: Program) -> tuple[str, ...]:
    """Return the operators with a large constant operand whose packing was not measured."""
    found = {
        op.type
        for _, op in walk(program.body)
        if op.type in _UNKNOWN and any(_is_large(program, var) for var in op.inputs if var)
    }
    return tuple(sorted(found))


def _is_large(program: Program, operand: VarId) -> bool:
    var = program.vars[operand]
    size = size_of(var.shape, var.dtype) if var.origin is Origin.WEIGHT else None
    return size is not None and not size.symbols and size.coefficient >= _LARGE
