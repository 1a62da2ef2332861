"""Sizes of requests within bounds, sequences of them, and the bytes of tensors at each size."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import islice, product
from math import prod
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from memplan_cli.core.program import VarId
    from memplan_cli.core.symbolic.bounds import Bounds

Point = tuple[int, ...]
"""One size of a request: a number for each dim of an `Extent`, in the order of its names."""

_MAX_CORNERS = 64
"""There are two to the power of the number of dims."""

_MAX_POWER, _MAX_DEGREE = 2, 3
"""Highest power of one dim in a tensor's size, and of all dims together (scores of attention)."""

_SPARE_POINTS = 4
"""Points beyond the number of unknowns, so that a polynomial that fits them all is no accident."""


@dataclass(frozen=True, slots=True)
class Extent:
    """All sizes that a request may have: an interval for each dim, both ends included."""

    bounds: Bounds

    @property
    def names(self) -> tuple[str, ...]:
        """The dims in the order in which a point has their numbers."""
        return tuple(sorted(self.bounds))

    @property
    def count(self) -> int:
        """The number of sizes."""
        return prod(high - low + 1 for low, high in self.bounds.values())

    @property
    def largest(self) -> Point:
        """The size at which every dim has its upper bound."""
        return tuple(self.bounds[name][1] for name in self.names)

    def dims(self, point: Point) -> dict[str, int]:
        """Return the number of each dim at a point."""
        return dict(zip(self.names, point, strict=True))

    def corners(self) -> tuple[Point, ...]:
        """Return the distinct sizes at which every dim has one of its bounds, at most 64 of them."""
        ends = [self.bounds[name] for name in self.names]
        return tuple(dict.fromkeys(islice(product(*ends), _MAX_CORNERS)))

    def draw(self, generator: random.Random) -> Point:
        """Draw a size, all with the same probability."""
        return tuple(generator.randint(*self.bounds[name]) for name in self.names)

    def points(self, count: int) -> tuple[Point, ...]:
        """Return ``count`` sizes, the largest first: all if there are no more, else corners and draws."""
        if self.count <= count:
            ends = (self.bounds[name] for name in self.names)
            ranges = (range(low, high + 1) for low, high in ends)
            return tuple(dict.fromkeys((self.largest, *product(*ranges))))
        generator = random.Random(0)  # noqa: S311 - a seeded draw, no secret
        corners = tuple(dict.fromkeys((self.largest, *self.corners())))[:count]
        points = dict.fromkeys(corners)
        while len(points) < count:
            points[self.draw(generator)] = None
        return tuple(points)


def _as_drawn(points: Sequence[Point]) -> tuple[Point, ...]:
    return tuple(points)


def _growing(points: Sequence[Point]) -> tuple[Point, ...]:
    return tuple(sorted(points, key=lambda point: (prod(point), point)))


def _shrinking(points: Sequence[Point]) -> tuple[Point, ...]:
    return tuple(reversed(_growing(points)))


def _alternating(points: Sequence[Point]) -> tuple[Point, ...]:
    """Return the largest, the smallest, the second largest, and so on."""
    pairs = zip(_shrinking(points), _growing(points), strict=True)
    return tuple(point for pair in pairs for point in pair)[: len(points)]


SEQUENCES: Mapping[str, Callable[[Sequence[Point]], tuple[Point, ...]]] = {
    "random": _as_drawn,
    "growing": _growing,
    "shrinking": _shrinking,
    "alternating": _alternating,
}
"""Orders in which requests arrive, by name."""


def requests(extent: Extent, sequence: str, count: int, seed: int) -> tuple[Point, ...]:
    """Return a seeded sequence of request sizes. The largest size is always among them."""
    generator = random.Random(seed)  # noqa: S311 - a seeded draw, no secret
    points = [extent.draw(generator) for _ in range(count)]
    points[generator.randrange(count)] = extent.largest
    return SEQUENCES[sequence](points)


def requests_among(
    points: Sequence[Point], sequence: str, count: int, seed: int
) -> tuple[Point, ...]:
    """Return a seeded sequence of requests whose sizes are among ``points``."""
    generator = random.Random(seed)  # noqa: S311 - a seeded draw, no secret
    return SEQUENCES[sequence]([generator.choice(points) for _ in range(count)])


@dataclass(frozen=True, slots=True)
class SizeFormulas:
    """Polynomials in the dims of requests, one for the bytes of each tensor.

    Attributes:
        variables: the tensors.
        powers: the exponents of each monomial.
        scale: numbers by which the dims are divided first.
        factors: coefficients, a row for each monomial and a column for each tensor.
    """

    variables: tuple[VarId, ...]
    powers: tuple[Point, ...]
    scale: Point
    factors: NDArray[np.float64]

    def at(self, points: Sequence[Point]) -> NDArray[np.int64]:
        """Return the bytes of each tensor (column) at each size (row)."""
        values = _monomials(points, self.powers, self.scale) @ self.factors
        return np.rint(values).astype(np.int64)


def fit_formulas(known: Mapping[Point, Mapping[VarId, int]]) -> SizeFormulas | None:
    """Return polynomials that give the bytes of every tensor at all known sizes, or None.

    Sizes that are rounded (strides, pooling) are no polynomials, and too few points prove nothing.
    """
    points, rows = tuple(known), list(known.values())
    variables = tuple(rows[0])
    powers = tuple(
        exponents
        for exponents in product(range(_MAX_POWER + 1), repeat=len(points[0]))
        if sum(exponents) <= _MAX_DEGREE
    )
    has_too_few = len(points) < len(powers) + _SPARE_POINTS
    if has_too_few or any(row.keys() != rows[0].keys() for row in rows):
        return None
    scale = tuple(max(*numbers, 1) for numbers in zip(*points, strict=True))
    wanted = np.array([[row[var] for var in variables] for row in rows], np.float64)
    factors, *_ = np.linalg.lstsq(_monomials(points, powers, scale), wanted, rcond=None)
    formulas = SizeFormulas(variables, powers, scale, factors.astype(np.float64))
    is_exact = np.array_equal(formulas.at(points), wanted.astype(np.int64))
    return formulas if is_exact else None


def _monomials(
    points: Sequence[Point], powers: Sequence[Point], scale: Point
) -> NDArray[np.float64]:
    """Return each monomial (column) of the scaled dims at each size (row)."""
    values = np.array(points, np.float64) / np.array(scale, np.float64)
    monomials: NDArray[np.float64] = np.prod(
        values[:, None, :] ** np.array(powers, np.float64)[None, :, :], axis=2
    )
    return monomials
