"""Sizes of requests within bounds, and seeded sequences of them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import islice, product
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from memplan_cli.core.symbolic.bounds import Bounds

Point = tuple[int, ...]
"""A number for each dim of a `Extent`, in the order of its names."""


_MOST_CORNERS = 64
"""There are two to the power of the number of dims."""


@dataclass(frozen=True, slots=True)
class Extent:
    """All sizes that a request may have: an interval for each dim, both ends in it."""

    bounds: Bounds

    @property
    def names(self) -> tuple[str, ...]:
        """Return the dims in the order in which a point has their numbers."""
        return tuple(sorted(self.bounds))

    @property
    def count(self) -> int:
        """Return how many sizes there are."""
        return prod(high - low + 1 for low, high in self.bounds.values())

    @property
    def largest(self) -> Point:
        """Return the size at which every dim is at its most."""
        return tuple(self.bounds[name][1] for name in self.names)

    def dims(self, point: Point) -> dict[str, int]:
        """Return a point as numbers for dims."""
        return dict(zip(self.names, point, strict=True))

    def corners(self) -> tuple[Point, ...]:
        """Return the sizes at which every dim is at one of its ends, each once; the first ones."""
        ends = [self.bounds[name] for name in self.names]
        return tuple(dict.fromkeys(islice(product(*ends), _MOST_CORNERS)))

    def drawn(self, generator: random.Random) -> Point:
        """Return a size, every one as probable as any other."""
        return tuple(generator.randint(*self.bounds[name]) for name in self.names)

    def points(self, most: int) -> tuple[Point, ...]:
        """Return all sizes where they are no more than ``most``, else corners and drawn ones."""
        if self.count <= most:
            ends = (self.bounds[name] for name in self.names)
            ranges = (range(low, high + 1) for low, high in ends)
            return tuple(dict.fromkeys((self.largest, *product(*ranges))))
        generator = random.Random(0)  # noqa: S311 - a seeded draw, no secret
        found = dict.fromkeys(_first(self.corners(), most, self.largest))
        while len(found) < most:
            found[self.drawn(generator)] = None
        return tuple(found)


def _first(corners: Sequence[Point], most: int, largest: Point) -> tuple[Point, ...]:
    """Return no more corners than asked for, the largest one first."""
    return tuple(dict.fromkeys((largest, *corners)))[:most]


def _as_drawn(points: Sequence[Point]) -> tuple[Point, ...]:
    return tuple(points)


def _growing(points: Sequence[Point]) -> tuple[Point, ...]:
    return tuple(sorted(points, key=lambda point: (prod(point), point)))


def _shrinking(points: Sequence[Point]) -> tuple[Point, ...]:
    return tuple(reversed(_growing(points)))


def _alternating(points: Sequence[Point]) -> tuple[Point, ...]:
    """Return the largest, the smallest, the next largest, and so on."""
    small, large = _growing(points), _shrinking(points)
    return tuple(both[at % 2] for at, both in enumerate(_doubled(large, small)))[: len(points)]


def _doubled(large: Sequence[Point], small: Sequence[Point]) -> list[tuple[Point, Point]]:
    return [pair for pair in zip(large, small, strict=True) for _ in range(2)]


SEQUENCES: Mapping[str, Callable[[Sequence[Point]], tuple[Point, ...]]] = {
    "random": _as_drawn,
    "growing": _growing,
    "shrinking": _shrinking,
    "alternating": _alternating,
}
"""Orders in which requests come, by name."""


def requests(extent: Extent, sequence: str, count: int, seed: int) -> tuple[Point, ...]:
    """Return the sizes of requests in turn; the largest size is always among them."""
    generator = random.Random(seed)  # noqa: S311 - a seeded draw, no secret
    drawn = [extent.drawn(generator) for _ in range(count)]
    drawn[generator.randrange(count)] = extent.largest
    return SEQUENCES[sequence](drawn)


def among(points: Sequence[Point], sequence: str, count: int, seed: int) -> tuple[Point, ...]:
    """Return requests of sizes that are among given ones."""
    generator = random.Random(seed)  # noqa: S311 - a seeded draw, no secret
    return SEQUENCES[sequence]([generator.choice(points) for _ in range(count)])
