"""Gradient of broadcasting: sum over the axes along which an operand was repeated."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memplan_cli.core.program import Dim, Shape
    from memplan_cli.features.training.tape import Tape


def unbroadcast(tape: Tape, gradient: str, out: str, like: str) -> str:
    """Return a gradient summed to the shape of the forward tensor ``like``.

    The gradient has the shape of the forward tensor ``out``, to which ``like`` was broadcast:
    dX = sum of dY over every axis along which X was repeated. If these axes are not known, nodes
    compute them at run time.
    """
    full = tape.shape(out)
    axes = repeated_axes(tape.shape(like), full)
    if axes is None:
        return _sum_at_run_time(tape, gradient, tape.shape_of(out), len(full), like)
    return _sum_axes(tape, gradient, axes, len(full) - tape.rank(like))


def sum_to_shape(tape: Tape, gradient: str, full: Shape, like: str) -> str:
    """Do as `unbroadcast` for a gradient of a shape that no forward tensor has, ``full``."""
    axes = repeated_axes(tape.shape(like), full)
    if axes is None:
        full_shape = tape.emit("Shape", gradient)
        return _sum_at_run_time(tape, gradient, full_shape, len(full), like)
    return _sum_axes(tape, gradient, axes, len(full) - tape.rank(like))


def _sum_axes(tape: Tape, gradient: str, axes: tuple[int, ...], added_rank: int) -> str:
    """Return a gradient summed over axes, of which the first ``added_rank`` go; others keep size 1."""
    if not axes:
        return gradient
    if axes == tuple(range(added_rank)):
        return tape.emit("ReduceSum", gradient, tape.ints(*axes), keepdims=0)
    summed = tape.emit("ReduceSum", gradient, tape.ints(*axes))
    if not added_rank:
        return summed
    return tape.emit("Squeeze", summed, tape.ints(*range(added_rank)))


def repeated_axes(target: Shape, full: Shape) -> tuple[int, ...] | None:
    """Return the axes of ``full`` along which a tensor of shape ``target`` is repeated.

    None if that depends on dims of unknown size. ([3, 1] in [2, 3, 4] is repeated along axes 0 and 2.)
    """
    added_rank = len(full) - len(target)
    axes = list(range(added_rank))
    for axis, (dim, full_dim) in enumerate(
        zip(target, full[added_rank:], strict=True), added_rank
    ):
        repeated = _is_repeated(dim, full_dim)
        if repeated is None:
            return None
        if repeated:
            axes.append(axis)
    return tuple(axes)


def _is_repeated(dim: Dim, full_dim: Dim) -> bool | None:
    """Whether an axis of size ``dim`` is broadcast to ``full_dim``; None: depends on unknown sizes."""
    if dim == 1:
        # True for an unknown ``full_dim`` too: if it is 1, the sum over it changes nothing.
        return full_dim != 1
    if isinstance(dim, int):  # broadcasting repeats axes of size 1 only
        return False
    is_same_symbol = dim is not None and dim == full_dim
    return False if is_same_symbol else None


def _sum_at_run_time(
    tape: Tape, gradient: str, full_shape: str, full_rank: int, like: str
) -> str:
    """Do as `unbroadcast`, by nodes that find the axes in which two shapes differ.

    ``full_shape`` is an int64 vector with the shape of the gradient.
    """
    added_rank = full_rank - tape.rank(like)
    shape = tape.shape_of(like)
    padded_shape = shape
    if added_rank:
        padded_shape = tape.emit("Concat", tape.ints(*[1] * added_rank), shape, axis=0)
    differs = tape.emit("Not", tape.emit("Equal", padded_shape, full_shape))
    axes = tape.emit("Reshape", tape.emit("NonZero", differs), tape.ints(-1))
    # With no axes, ReduceSum would sum over all of them.
    summed = tape.emit("ReduceSum", gradient, axes, noop_with_empty_axes=1)
    return tape.emit("Reshape", summed, shape, allowzero=1)
