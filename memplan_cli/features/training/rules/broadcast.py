"""Gradients of broadcasting and its inverse: sum over what was repeated, repeat what was summed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memplan_cli.core.program import Dim, Shape
    from memplan_cli.features.training.tape import Tape


def unbroadcast(tape: Tape, gradient: str, out: str, like: str) -> str:
    """Sum a gradient shaped as ``out`` to the shape of ``like``, which was broadcast to it.

    dX = sum of dY over every axis along which X was repeated. Axes are known beforehand
    where shapes are; else they are found at run time.
    """
    target, full = tape.shape(like), tape.shape(out)
    lead = len(full) - len(target)
    axes = repeated_axes(target, full)
    if axes is None:
        return _unbroadcast_at_run_time(tape, gradient, out, like)
    if not axes:
        return gradient
    if axes == tuple(range(lead)):
        return tape.emit("ReduceSum", gradient, tape.ints(*axes), keepdims=0)
    summed = tape.emit("ReduceSum", gradient, tape.ints(*axes), keepdims=1)
    if not lead:
        return summed
    return tape.emit("Squeeze", summed, tape.ints(*range(lead)))


def repeated_axes(target: Shape, full: Shape) -> tuple[int, ...] | None:
    """Return the axes of ``full`` along which ``target`` is repeated; None: not known."""
    lead = len(full) - len(target)
    axes = list(range(lead))
    for axis, (small, large) in enumerate(zip(target, full[lead:], strict=True), lead):
        repeated = _is_repeated(small, large)
        if repeated is None:
            return None
        if repeated:
            axes.append(axis)
    return tuple(axes)


def _is_repeated(small: Dim, large: Dim) -> bool | None:
    if small == 1:
        return large != 1
    if isinstance(small, int):
        return False
    return None if small is None or small != large else False


def _unbroadcast_at_run_time(tape: Tape, gradient: str, out: str, like: str) -> str:
    lead = tape.rank(out) - tape.rank(like)
    shape = tape.shape_of(like)
    padded = tape.emit("Concat", tape.ints(*[1] * lead), shape, axis=0) if lead else shape
    differs = tape.emit("Not", tape.emit("Equal", padded, tape.shape_of(out)))
    axes = tape.emit("Reshape", tape.emit("NonZero", differs), tape.ints(-1))
    summed = tape.emit("ReduceSum", gradient, axes, keepdims=1, noop_with_empty_axes=1)
    return tape.emit("Reshape", summed, shape, allowzero=1)
