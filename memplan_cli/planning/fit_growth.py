"""Extrapolation of memory needs from runs at small values of a dim.

A run of thousands of examples takes minutes, and more memory than the limit that is asked about.
So the values 1, 2, 4, ... are run until they need `SMALL` more than the first, and larger ones are
extrapolated by the power of the dim that the last of them show.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from memplan_cli.planning.fit import Need

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from memplan_cli.planning.fit import Evaluate, Point

Numbers = tuple[tuple[str, int], ...]
"""Numbers of dims, by name; samples go by those of the other dims."""

Samples = list[tuple[int, Need]]
"""Values that were run, each twice the one before, and what they need."""

SMALL = 128 << 20
"""Bytes that a run may need more than the first one."""

_LEAST, _MOST = 3, 5
"""Samples from which growth is seen."""

_MOST_POWER = 3.0
_WHOLE = 0.1
"""A power so near to a whole number is that number: the rest is padding and whole regions."""


@dataclass(slots=True)
class Growth:
    """What bindings need, by runs of the small ones.

    Attributes:
        run: What a binding needs, by a run; None where it does not run.
        symbol: The dim that grows.
    """

    run: Evaluate
    symbol: str
    samples: dict[Numbers, Samples] = field(default_factory=dict)
    known: dict[Numbers, Need | None] = field(default_factory=dict)

    def need(self, dims: Mapping[str, int]) -> Need | None:
        """Return what a binding needs, by its own run or by those of smaller values.

        None where it does not run, or a power of two from one that does up to it does not.
        """
        value, samples = dims[self.symbol], self._samples(dims)
        following = 2 * samples[-1][0] if samples else 1
        while following <= value and _are_small(samples):
            found = self._ran({**dims, self.symbol: following})
            if found is not None:
                samples.append((following, found))
            elif samples:
                return None
            following *= 2
        if _are_small(samples) or value <= samples[-1][0]:
            return self._ran(dims)
        return _extrapolated(samples, value)

    def _ran(self, dims: Mapping[str, int]) -> Need | None:
        key = tuple(sorted(dims.items()))
        if key not in self.known:
            self.known[key] = self.run(dims)
        return self.known[key]

    def said(self, points: Iterable[Point]) -> tuple[str, ...]:
        """Return of which runs answers are that were not run themselves."""
        said = []
        for point in points:
            value, samples = point.dims[self.symbol], self._samples(point.dims)
            if not _are_small(samples) and value > samples[-1][0]:
                said.append(
                    f"{self.symbol}={value} was not run: what it needs follows from runs at up to"
                    f" {samples[-1][0]}; --confirm runs it"
                )
        return tuple(said)

    def _samples(self, dims: Mapping[str, int]) -> Samples:
        others = {name: number for name, number in dims.items() if name != self.symbol}
        return self.samples.setdefault(tuple(sorted(others.items())), [])


def _are_small(samples: Samples) -> bool:
    more = samples[-1][1].total - samples[0][1].total if samples else 0
    return len(samples) < _LEAST or more <= SMALL


def _extrapolated(samples: Samples, value: int) -> Need:
    """Return what a value above all that were run needs."""
    last = samples[-1][0]
    before = [need for _, need in samples[-_MOST:]]
    rows = zip(*(_numbers(need) for need in before), strict=True)
    weights, inputs, outputs, planned, process = (
        _continued(row, value / last) for row in rows
    )
    return Need(weights, inputs, outputs, planned, process if before[-1].process else None)


def _numbers(need: Need) -> tuple[int, ...]:
    return need.weights, need.inputs, need.outputs, need.planned, need.process or 0


def _continued(numbers: tuple[int, ...], ratio: float) -> int:
    """Return the number at a multiple of the last of some values, each twice the one before.

    ``k v^p`` beside something fixed, with the ``p`` by which steps between the values grow and the
    ``k`` of all of them together: a single step has whole regions of an arena in it.
    """
    steps = [after - before for before, after in pairwise(numbers)]
    if min(steps) <= 0:
        steps = steps[-1:]
    if steps[-1] <= 0:
        return numbers[-1]
    power = 1.0
    if len(steps) > 1:
        power = math.log2(steps[-1] / steps[0]) / (len(steps) - 1)
    if abs(power - round(power)) < _WHOLE:
        power = round(power)
    power = min(max(power, 1.0), _MOST_POWER)
    share = sum(steps) / (1 - 2 ** (-power * len(steps)))
    return numbers[-1] + math.ceil(share * (math.pow(ratio, power) - 1))
