"""Gradients of matrix products."""

from __future__ import annotations

import string
from typing import TYPE_CHECKING

import numpy as np

from memplan_cli.features.training.rules.broadcast import repeated_axes, unbroadcast
from memplan_cli.features.training.tensors import Tensor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.core.program import Dim, Shape
    from memplan_cli.features.training.tape import Call, Rule, Tape

    Gradients = tuple[str, ...]


def matmul(call: Call) -> Gradients:
    """Y = A B: dA = dY B^T, dB = A^T dY, summed over the batches that were repeated."""
    tape, a, b = call.tape, call.input(0), call.input(1)
    ranks = tape.rank(a), tape.rank(b)
    if ranks[0] == 1 or ranks[1] == 1:
        return _vector_product(call)
    if ranks[1] == 2:
        return _linear(call)
    second = first = ""
    if call.wants(1):
        product = tape.emit("MatMul", _swapped(tape, a, ranks[0]), call.dy)
        second = _unbatched(tape, product, b, call.output())
    if call.wants(0):
        product = tape.emit("MatMul", call.dy, _swapped(tape, b, ranks[1]))
        first = _unbatched(tape, product, a, call.output())
    return (first, second)


def gemm(call: Call) -> Gradients:
    """Y = alpha A' B' + beta C: dA' = alpha dY B'^T, dB' = alpha A'^T dY, dC = beta dY."""
    tape, a, b = call.tape, call.input(0), call.input(1)
    alpha = float(call.attribute("alpha", 1.0))
    turned = bool(call.attribute("transA", 0)), bool(call.attribute("transB", 0))
    third = second = first = ""
    if call.wants(2):
        third = unbroadcast(tape, call.dy, call.output(), call.input(2))
        beta = float(call.attribute("beta", 1.0))
        if beta != 1.0:
            third = tape.emit("Mul", third, tape.scalar(beta, call.input(2)))
    if call.wants(1):
        left, right, flips = (call.dy, a, (True, turned[0]))
        if not turned[1]:
            left, right, flips = (a, call.dy, (not turned[0], False))
        second = _product(tape, left, right, flips, alpha)
    if call.wants(0):
        left, right, flips = (b, call.dy, (turned[1], True))
        if not turned[0]:
            left, right, flips = (call.dy, b, (False, not turned[1]))
        first = _product(tape, left, right, flips, alpha)
    return (first, second, third)


def einsum(call: Call) -> Gradients:
    """Y = sum of products over named axes: dX is the same with Y's and X's names exchanged.

    A name that X has twice is a diagonal: dX gets a name of its own for each axis and a
    factor of ones on the diagonal.
    """
    terms, result = _equation(call)
    found: list[str] = []
    for index, term in enumerate(terms):
        if not call.wants(index):
            found.append("")
            continue
        own, diagonals = _apart(call, index, (term, "".join([result, *terms])))
        rest = [(t, call.input(i)) for i, t in enumerate(terms) if i != index]
        rest.extend(diagonals)
        given = set(result).union(*(t for t, _ in rest))
        present = "".join(letter for letter in own if letter in given)
        left = ",".join([result, *(t for t, _ in rest)])
        names = [call.dy, *(name for _, name in rest)]
        part = call.tape.emit("Einsum", *names, equation=f"{left}->{present}")
        found.append(_in_shape_of(call, index, (own, present, part), (terms, result)))
    return tuple(found)


def _product(
    tape: Tape, left: str, right: str, flips: tuple[bool, bool], alpha: float = 1.0
) -> str:
    return tape.emit(
        "Gemm", left, right, transA=int(flips[0]), transB=int(flips[1]), alpha=alpha
    )


def _linear(call: Call) -> Gradients:
    """One matrix for all rows: two products of matrices, without a transposed copy."""
    tape, a, b = call.tape, call.input(0), call.input(1)
    rows, columns = tape.shape(b)
    flat = tape.rank(a) == 2
    dy = call.dy if flat else _flattened(tape, call.dy, columns, b)
    second = first = ""
    if call.wants(1):
        left = a if flat else _flattened(tape, a, rows, b)
        second = _product(tape, left, dy, (True, False))
    if call.wants(0):
        first = _product(tape, dy, b, (False, True))
        first = first if flat else tape.reshape_like(first, a)
    return (first, second)


def _flattened(tape: Tape, name: str, width: int | str | None, weight: str) -> str:
    """Return a tensor as rows of the given width, whatever was in front."""
    if isinstance(width, int):
        return tape.emit("Reshape", name, tape.ints(-1, width))
    return tape.emit("Flatten", name, axis=-1) if weight else name


def _vector_product(call: Call) -> Gradients:
    """A vector counts as a row in front, as a column behind; the added axis goes again."""
    tape, a, b = call.tape, call.input(0), call.input(1)
    row, column = tape.rank(a) == 1, tape.rank(b) == 1
    axes = [axis for axis, added in ((-2, row), (-1, column)) if added]
    if row and column:
        dy = call.dy
        return (tape.emit("Mul", dy, b), tape.emit("Mul", dy, a))
    dy = tape.emit("Unsqueeze", call.dy, tape.ints(*axes))
    first = second = ""
    if call.wants(1):
        left = (
            tape.emit("Unsqueeze", a, tape.ints(1)) if row else _swapped(tape, a, tape.rank(a))
        )
        product = tape.emit("MatMul", left, dy)
        second = _without(tape, product, b, -1) if column else product
    if call.wants(0):
        right = (
            tape.emit("Unsqueeze", b, tape.ints(0))
            if column
            else _swapped(tape, b, tape.rank(b))
        )
        product = tape.emit("MatMul", dy, right)
        first = _without(tape, product, a, -2) if row else product
    return (first, second)


def _without(tape: Tape, product: str, like: str, axis: int) -> str:
    """Sum the batches of a vector's gradient, [..., n, 1] or [..., 1, n], to a vector."""
    squeezed = tape.emit("Squeeze", product, tape.ints(axis))
    width = tape.shape(like)[0]
    if isinstance(width, int):
        squeezed = tape.emit("Reshape", squeezed, tape.ints(-1, width))
    else:
        squeezed = tape.emit("Flatten", squeezed, axis=-1)
    return tape.emit("ReduceSum", squeezed, tape.ints(0), keepdims=0)


def _swapped(tape: Tape, name: str, rank: int) -> str:
    order = [*range(rank - 2), rank - 1, rank - 2]
    return tape.emit("Transpose", name, perm=order)


def _unbatched(tape: Tape, product: str, like: str, out: str) -> str:
    """Sum a product over the batch axes along which ``like`` was repeated."""
    target, batch = tape.shape(like), tape.shape(out)[:-2]
    full: Shape = (*batch, *target[-2:])
    return _summed(tape, product, like, full)


def _summed(tape: Tape, product: str, like: str, full: Shape) -> str:
    """Sum a product shaped as ``full`` over the axes along which ``like`` was repeated."""
    axes = repeated_axes(tape.shape(like), full)
    if axes == ():
        return product
    temporary = tape.pool.fresh(f"{product}:shape")
    tape.tensors[temporary] = Tensor(tape.dtype(like), full)
    if axes is None:
        tape.shape_tensors[temporary] = tape.emit("Shape", product)
    return unbroadcast(tape, product, temporary, like)


def _equation(call: Call) -> tuple[list[str], str]:
    """Return the equation's terms and result, ellipses expanded and the result explicit."""
    text = call.attribute("equation").replace(" ", "")
    left, arrow, result = text.partition("->")
    terms = left.split(",")
    if not arrow:
        letters = sorted(set(left) - set(",."))
        once = [letter for letter in letters if left.count(letter) == 1]
        result = ("..." if "..." in left else "") + "".join(once)
    spare = [chr(code) for code in range(ord("A"), ord("Z") + 1) if chr(code) not in text]
    widths = [
        call.tape.rank(call.input(i)) - len(term.replace("...", ""))
        for i, term in enumerate(terms)
        if "..." in term
    ]
    most = max(widths, default=0)
    dots = "".join(spare[:most])
    full_terms = []
    for index, term in enumerate(terms):
        width = call.tape.rank(call.input(index)) - len(term.replace("...", ""))
        full_terms.append(term.replace("...", dots[most - width :] if width else ""))
    return full_terms, result.replace("...", dots)


def _apart(
    call: Call, index: int, names: tuple[str, str]
) -> tuple[str, list[tuple[str, str]]]:
    """Return an operand's term with each name once, and the diagonals between the new ones."""
    tape, (term, used) = call.tape, names
    spare = (c for c in string.ascii_letters if c not in used)
    own, diagonals = "", list[tuple[str, str]]()
    for axis, letter in enumerate(term):
        if letter not in own:
            own += letter
            continue
        fresh = next(spare)
        own += fresh
        size = tape.sizes(call.input(index), "an einsum reads its diagonal")[axis]
        ones = tape.constant(np.eye(size), tape.dtype(call.input(index)))
        diagonals.append((letter + fresh, ones))
    return own, diagonals


def _in_shape_of(
    call: Call, index: int, made: tuple[str, str, str], equation: tuple[list[str], str]
) -> str:
    """Give a gradient its operand's shape.

    It is repeated along the axes that only this operand had, or that all others had as 1,
    and summed along those that this operand had as 1.
    """
    tape, name, (own, present, part) = call.tape, call.input(index), made
    terms, result = equation
    dims: dict[str, list[Dim]] = {}
    for other, term in enumerate(terms):
        if other != index:
            for letter, dim in zip(term, tape.shape(call.input(other)), strict=True):
                dims.setdefault(letter, []).append(dim)
    shape = tape.shape(name)
    full = tuple(
        _longest(dim, dims.get(letter, [])) for letter, dim in zip(own, shape, strict=True)
    )
    missing = [axis for axis, letter in enumerate(own) if letter not in present]
    short = [
        letter
        for letter, dim in zip(own, shape, strict=True)
        if letter not in result and any(d != dim or d is None for d in dims.get(letter, []))
    ]
    if missing:
        part = tape.emit("Unsqueeze", part, tape.ints(*missing))
    if missing or short:
        part = tape.emit("Expand", part, tape.shape_of(name))
    return _summed(tape, part, name, full)


def _longest(own: Dim, others: list[Dim]) -> Dim:
    """Return an axis's length in the product; None: not known."""
    if own == 1:
        return next((dim for dim in others if dim != 1), 1)
    if isinstance(own, int) or all(dim == own and dim is not None for dim in others):
        return own
    return None


RULES: Mapping[str, Rule] = {
    "Einsum": einsum,
    "Gemm": gemm,
    "MatMul": matmul,
}
"""The rule of each operator of this family."""
