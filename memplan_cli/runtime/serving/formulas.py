"""Bytes of tensors at every size within bounds, from those at some sizes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from memplan_cli.core.program import VarId
    from memplan_cli.runtime.serving.sequences import Point

_MOST_OF_ONE, _MOST_OF_ALL = 2, 3
"""Highest power of one dim in a tensor's size, and of all together: scores of attention."""

_SPARE = 4
"""Sizes more than unknowns: a formula that is none would have to meet these by chance."""


@dataclass(frozen=True, slots=True)
class Formulas:
    """Polynomials in the dims of requests, one for the bytes of each tensor."""

    variables: tuple[VarId, ...]
    powers: tuple[Point, ...]
    scale: Point
    factors: NDArray[np.float64]

    def at(self, points: Sequence[Point]) -> NDArray[np.int64]:
        """Return the bytes of each variable (column) at each size (row)."""
        values = _monomials(points, self.powers, self.scale) @ self.factors
        return np.rint(values).astype(np.int64)


def fitted(seen: Mapping[Point, Mapping[VarId, int]]) -> Formulas | None:
    """Return polynomials that give every tensor's bytes at all sizes seen; None of others.

    Sizes that are rounded (strides, pooling) are none, and too few sizes show nothing.
    """
    points, rows = tuple(seen), list(seen.values())
    variables = tuple(rows[0])
    powers = tuple(
        found
        for found in product(range(_MOST_OF_ONE + 1), repeat=len(points[0]))
        if sum(found) <= _MOST_OF_ALL
    )
    if len(points) < len(powers) + _SPARE or any(row.keys() != rows[0].keys() for row in rows):
        return None
    scale = tuple(max(*numbers, 1) for numbers in zip(*points, strict=True))
    wanted = np.array([[row[var] for var in variables] for row in rows], np.float64)
    solved, *_ = np.linalg.lstsq(_monomials(points, powers, scale), wanted, rcond=None)
    found = Formulas(variables, powers, scale, solved.astype(np.float64))
    return found if np.array_equal(found.at(points), wanted.astype(np.int64)) else None


def _monomials(
    points: Sequence[Point], powers: Sequence[Point], scale: Point
) -> NDArray[np.float64]:
    """Return each product of powers (column) of the dims at each size (row), all up to 1."""
    values = np.array(points, np.float64) / np.array(scale, np.float64)
    found: NDArray[np.float64] = np.prod(
        values[:, None, :] ** np.array(powers, np.float64)[None, :, :], axis=2
    )
    return found
