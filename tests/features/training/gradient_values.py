"""Random shapes, and values away from the places where a function has a kink."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Array = NDArray[Any]
    Draw = Callable[[st.SearchStrategy[Any]], Any]


def integer(draw: Draw, low: int, high: int) -> int:
    """Return a number from ``low`` to ``high``, both included."""
    return int(draw(st.integers(low, high)))


def pick(draw: Draw, *choices: Any) -> Any:  # noqa: ANN401 - whatever is given
    """Return one of the choices."""
    return draw(st.sampled_from(choices))


def shape(draw: Draw, low: int = 1, high: int = 3) -> tuple[int, ...]:
    """Return a shape of ``low`` to ``high`` axes."""
    return tuple(draw(st.lists(st.integers(1, 4), min_size=low, max_size=high)))


def values(draw: Draw, *dims: int, scale: float = 1.0) -> Array:
    """Return distinct values, none of them 0 or a multiple of a tenth."""
    count = int(np.prod(dims))
    rng = np.random.default_rng(integer(draw, 0, 10**6))
    grid = (np.arange(count) - count // 2) * 0.1 + 0.05
    if count > 30:
        grid = grid * 30 / count
    return np.asarray(rng.permutation(grid).reshape(dims) * scale)


def positive(draw: Draw, *dims: int) -> Array:
    """Return distinct values between 0.5 and 2.5."""
    rng = np.random.default_rng(integer(draw, 0, 10**6))
    count = int(np.prod(dims))
    return np.asarray((0.5 + 2 * rng.permutation(count) / max(count, 1)).reshape(dims))


def broadcast_pair(draw: Draw) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return two shapes that broadcast, with axes of size 1 and missing ones."""
    full = shape(draw, 1, 4)
    first, second = list(full), list(full)
    for axis in range(len(full)):
        which = integer(draw, 0, 3)
        if which == 0:
            first[axis] = 1
        elif which == 1:
            second[axis] = 1
    if integer(draw, 0, 1):
        second = second[integer(draw, 0, len(second)) :]
    return tuple(first), tuple(second)


def indices(draw: Draw, high: int, *dims: int) -> Array:
    """Return indices below ``high``, negative ones too, repeated ones likely."""
    rng = np.random.default_rng(integer(draw, 0, 10**6))
    return rng.integers(-high, high, dims)


def ints(*numbers: int) -> Array:
    """Return a one-dimensional int64 array."""
    return np.array(numbers, np.int64)
