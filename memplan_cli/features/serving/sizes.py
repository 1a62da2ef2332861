"""Sizes of requests within bounds, and sequences of requests."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice, product
from math import prod
from typing import TYPE_CHECKING

from memplan_cli.core.serialization import json_form

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memplan_cli.core.symbolic.bounds import Bounds

BOUNDS_FORM = json_form(
    type_hint=Mapping[str, tuple[int, ...]],
    write=lambda bounds: {
        name: tuple(limits) if limits.step != 1 else limits[:2]
        for name, limits in sorted(bounds.items())
    },
)
"""Metadata of a field with bounds: ``[low, high]`` by name, with the step as a third number if it is not 1."""

Point = tuple[int, ...]
"""One size of a request: a number for each dim of an `Extent`, in the order of its names."""

_MAX_CORNERS = 64
"""Limit of corners: there are two to the power of the number of dims."""


@dataclass(frozen=True, slots=True)
class Extent:
    """All sizes that a request may have: every combination of the numbers of each dim, or some of them.

    Attributes:
        bounds: the numbers of each dim.
        allowed: the only sizes that may occur, the largest first, if the model does not run at every
            combination; empty: every combination.
    """

    bounds: Bounds
    allowed: tuple[Point, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The dims in the order in which a point has their numbers."""
        return tuple(sorted(self.bounds))

    @property
    def count(self) -> int:
        """The number of sizes."""
        return len(self.allowed) or prod(len(limits.values) for limits in self.bounds.values())

    @property
    def largest(self) -> Point:
        """The size at which every dim has its upper bound, or the largest that is allowed."""
        if self.allowed:
            return self.allowed[0]
        return tuple(self.bounds[name].high for name in self.names)

    def dims(self, point: Point) -> dict[str, int]:
        """Return the number of each dim at a point."""
        return dict(zip(self.names, point, strict=True))

    def corners(self) -> tuple[Point, ...]:
        """Return the distinct sizes at which every dim has its lower or upper bound, the smallest first.

        If only some sizes are ``allowed``, these are the smallest and the largest of them. Of more than 64
        corners, the first 64 are returned, in which the dims that come first by name have their lower bound.
        """
        if self.allowed:
            smallest, largest = self.allowed[-1], self.allowed[0]  # sorted, the largest first
            return tuple(dict.fromkeys((smallest, largest)))
        limits = (self.bounds[name] for name in self.names)
        ends = [dict.fromkeys((each.low, each.high)) for each in limits]
        return tuple(islice(product(*ends), _MAX_CORNERS))

    def draw(self, rng: random.Random) -> Point:
        """Draw a size, all with the same probability."""
        if self.allowed:
            return rng.choice(self.allowed)
        return tuple(rng.choice(self.bounds[name].values) for name in self.names)

    def points(self, max_count: int) -> tuple[Point, ...]:
        """Return all sizes, but no more than ``max_count``; the first is `largest`.

        Of more sizes, the corners come next, then sizes that are drawn with a fixed seed.
        """
        if self.count <= max_count:
            if self.allowed:
                return self.allowed
            ranges = (self.bounds[name].values for name in self.names)
            return tuple(dict.fromkeys((self.largest, *product(*ranges))))
        rng = random.Random(0)  # noqa: S311 - a seeded draw, no secret
        corners = tuple(dict.fromkeys((self.largest, *self.corners())))[:max_count]
        points = dict.fromkeys(corners)
        while len(points) < max_count:
            points[self.draw(rng)] = None
        return tuple(points)


def _growing(points: Sequence[Point]) -> tuple[Point, ...]:
    return tuple(sorted(points, key=lambda point: (prod(point), point)))


def _alternating(points: Sequence[Point]) -> tuple[Point, ...]:
    """Return the largest, the smallest, the second largest, and so on."""
    growing = _growing(points)
    pairs = zip(reversed(growing), growing, strict=True)
    return tuple(point for pair in pairs for point in pair)[: len(points)]


SEQUENCES: Mapping[str, Callable[[Sequence[Point]], tuple[Point, ...]]] = {
    "random": tuple,
    "growing": _growing,
    "shrinking": lambda points: _growing(points)[::-1],
    "alternating": _alternating,
}
"""Orders in which requests arrive: functions that put drawn sizes into this order."""


def request_sizes(extent: Extent, sequence: str, count: int, seed: int) -> tuple[Point, ...]:
    """Return a seeded sequence of request sizes. The largest size is always among them."""
    rng = random.Random(seed)  # noqa: S311 - a seeded draw, no secret
    points = [extent.draw(rng) for _ in range(count)]
    points[rng.randrange(count)] = extent.largest
    return SEQUENCES[sequence](points)


def request_sizes_among(
    points: Sequence[Point], sequence: str, count: int
) -> tuple[Point, ...]:
    """Return a sequence of requests whose sizes are among ``points``, drawn with a fixed seed."""
    rng = random.Random(0)  # noqa: S311 - a seeded draw, no secret
    return SEQUENCES[sequence]([rng.choice(points) for _ in range(count)])
