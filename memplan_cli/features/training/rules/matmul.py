"""Gradients of matrix products."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.features.training.rules.broadcast import sum_to_shape, unbroadcast

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.core.program import Dim
    from memplan_cli.features.training.tape import Call, Rule, Tape

    Gradients = tuple[str, ...]


def matmul(call: Call) -> Gradients:
    """Y = A B: dA = dY B^T, dB = A^T dY, summed over the batches that were repeated."""
    tape, a, b = call.tape, call.input(0), call.input(1)
    if tape.rank(a) == 1 or tape.rank(b) == 1:
        return _vector_product(call)
    if tape.rank(b) == 2:  # one product for all batches of A
        return _linear(call)
    da = db = ""
    if call.wants(1):
        product = tape.emit("MatMul", _transposed(tape, a), call.dy)
        db = _sum_batches(tape, product, b, call.output())
    if call.wants(0):
        product = tape.emit("MatMul", call.dy, _transposed(tape, b))
        da = _sum_batches(tape, product, a, call.output())
    return (da, db)


def _transposed(tape: Tape, name: str) -> str:
    """Return a tensor of rank 2 or more with its last two axes exchanged."""
    rank = tape.rank(name)
    return tape.emit("Transpose", name, perm=[*range(rank - 2), rank - 1, rank - 2])


def _sum_batches(tape: Tape, product: str, like: str, out: str) -> str:
    """Return a gradient of ``like`` summed over the batch axes along which ``like`` was repeated.

    The batch axes of ``product`` are those of the forward tensor ``out``.
    """
    target, batch = tape.shape(like), tape.shape(out)[:-2]
    return sum_to_shape(tape, product, (*batch, *target[-2:]), like)


def _linear(call: Call) -> Gradients:
    """Y = A B with a matrix B and all batches of A as rows: dA = dY B^T, dB = A^T dY by Gemm.

    Gemm transposes without a copy.
    """
    tape, a, b = call.tape, call.input(0), call.input(1)
    rows, columns = tape.shape(b)
    is_matrix = tape.rank(a) == 2
    dy = call.dy if is_matrix else _as_rows(tape, call.dy, columns)
    da = db = ""
    if call.wants(1):
        a_rows = a if is_matrix else _as_rows(tape, a, rows)
        db = tape.emit("Gemm", a_rows, dy, transA=1, transB=0, alpha=1.0)
    if call.wants(0):
        da = tape.emit("Gemm", dy, b, transA=0, transB=1, alpha=1.0)
        da = da if is_matrix else tape.reshape_like(da, a)
    return (da, db)


def _as_rows(tape: Tape, name: str, width: Dim) -> str:
    """Return a tensor [..., width] as a matrix [rows, width]."""
    if isinstance(width, int):
        return tape.emit("Reshape", name, tape.ints(-1, width))
    return tape.emit("Flatten", name, axis=-1)


def _vector_product(call: Call) -> Gradients:
    """Y = A B with a vector A (a row) or B (a column): dA = dY B^T, dB = A^T dY as for matrices.

    The axis that makes a vector a matrix is added to dY, and removed from the vector's gradient.
    """
    tape, a, b = call.tape, call.input(0), call.input(1)
    a_is_row, b_is_column = tape.rank(a) == 1, tape.rank(b) == 1
    if a_is_row and b_is_column:  # Y is a number
        return (tape.emit("Mul", call.dy, b), tape.emit("Mul", call.dy, a))
    da = db = ""
    if a_is_row:  # A [k], B [.., k, n], Y [.., n]
        dy = tape.emit("Unsqueeze", call.dy, tape.ints(-2))  # [.., 1, n]
        if call.wants(1):
            db = tape.emit("MatMul", tape.emit("Unsqueeze", a, tape.ints(1)), dy)
        if call.wants(0):
            da = _vector_gradient(tape, tape.emit("MatMul", dy, _transposed(tape, b)), a, -2)
        return (da, db)
    dy = tape.emit("Unsqueeze", call.dy, tape.ints(-1))  # A [.., m, k], B [k], dY [.., m, 1]
    if call.wants(1):
        db = _vector_gradient(tape, tape.emit("MatMul", _transposed(tape, a), dy), b, -1)
    if call.wants(0):
        da = tape.emit("MatMul", dy, tape.emit("Unsqueeze", b, tape.ints(0)))
    return (da, db)


def _vector_gradient(tape: Tape, product: str, vector: str, axis: int) -> str:
    """Return [..., n, 1] (axis -1) or [..., 1, n] (axis -2) summed over its batches to a vector [n]."""
    squeezed = tape.emit("Squeeze", product, tape.ints(axis))
    rows = _as_rows(tape, squeezed, tape.shape(vector)[0])
    return tape.emit("ReduceSum", rows, tape.ints(0), keepdims=0)


def gemm(call: Call) -> Gradients:
    """Y = alpha A' B' + beta C: dA' = alpha dY B'^T, dB' = alpha A'^T dY, dC = beta dY.

    A' is A or A^T. If it is A^T, dA = dA'^T = alpha B' dY^T; likewise for B.
    """
    tape, a, b, c = call.tape, call.input(0), call.input(1), call.input(2)
    alpha = float(call.attribute("alpha", 1.0))
    trans_a, trans_b = int(call.attribute("transA", 0)), int(call.attribute("transB", 0))
    da = db = dc = ""
    if call.wants(2):
        dc = unbroadcast(tape, call.dy, call.output(), c)
        beta = float(call.attribute("beta", 1.0))
        if beta != 1.0:
            dc = tape.emit("Mul", dc, tape.scalar(beta, c))
    if call.wants(1):
        if trans_b:
            db = tape.emit("Gemm", call.dy, a, transA=1, transB=trans_a, alpha=alpha)
        else:
            db = tape.emit("Gemm", a, call.dy, transA=1 - trans_a, transB=0, alpha=alpha)
    if call.wants(0):
        if trans_a:
            da = tape.emit("Gemm", b, call.dy, transA=trans_b, transB=1, alpha=alpha)
        else:
            da = tape.emit("Gemm", call.dy, b, transA=0, transB=1 - trans_b, alpha=alpha)
    return (da, db, dc)


RULES: Mapping[str, Rule] = {
    "Gemm": gemm,
    "MatMul": matmul,
}
"""The rule of each operator of this family."""
