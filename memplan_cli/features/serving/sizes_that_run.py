"""Sizes within bounds at which a model runs, found by running it.

A model may not run at every size within the bounds: an image side must be a multiple of 32, or two
inputs have a dim of one length under two names. Sizes are drawn until some are found; `dim_constraints`
tell beforehand which of many drawn sizes are likely to run.
"""

from __future__ import annotations

import random
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

from memplan_cli.analysis.dim_constraints import dim_constraints
from memplan_cli.core.symbolic.dims import binding_text
from memplan_cli.errors import RuntimeUnavailableError
from memplan_cli.runtime.run.size_probe import all_that_run

if TYPE_CHECKING:
    from memplan_cli.core.program import Program
    from memplan_cli.features.serving.loads import Service
    from memplan_cli.features.serving.sizes import Extent, Point

_FIRST_DRAWS = 6
"""Sizes that are run besides the largest and the smallest. If all run, every size is taken to run."""

_DRAWS = 2000
"""Sizes that are drawn if some do not run, of which the most likely are run."""

_MAX_TRIALS = 64
"""Drawn sizes that are run."""

_MAX_INPUT_ELEMENTS = 2**24
"""A size whose inputs have more elements in total is not drawn; the machine may not have the memory."""

_STRIDES = (32, 1, 16, 8)
"""Numbers of which drawn dims are multiples, in turn: 1 for any number, the others of image sides."""

_MAX_REASON = 400
"""Characters of an error message of ONNX Runtime."""


def with_sizes_that_run(service: Service, program: Program) -> tuple[Service, tuple[str, ...]]:
    """Return a service whose extent has only sizes at which the model runs, and a note if some do not.

    ``program`` is the model's, with the dims of requests as symbols.

    Raises:
        RuntimeUnavailableError: the model does not load, or runs at none of the sizes that were tried.
    """
    extent = service.extent
    rng = random.Random(0)  # noqa: S311 - a seeded draw, no secret
    draws = (extent.draw(rng) for _ in range(_FIRST_DRAWS))
    smallest = extent.corners()[0]
    points = tuple(dict.fromkeys((extent.largest, smallest, *draws)))
    ran, failures = _run_at(service, points)
    if not failures:
        return service, ()
    trials = tuple(p for p in _likely_points(service, program) if p not in points)
    ran_later, other_failures = _run_at(service, trials)
    ran = (*ran, *ran_later)
    failures |= other_failures
    tried = len(ran) + len(failures)
    reasons = [f"{binding_text(extent.dims(point))}: {why}" for point, why in failures.items()]
    if not ran:
        first_reasons = "; ".join(f"at {reason}" for reason in reasons[:2])
        raise RuntimeUnavailableError(
            f"{service.model} runs at none of {tried} sizes within the bounds; {first_reasons}",
            hint="--bounds NAME=A..B:STEP gives a dim a step, --dim NAME=N one number",
        )
    # `Extent.allowed` has the largest size first.
    largest_first = tuple(sorted(ran, key=lambda point: (prod(point), point), reverse=True))
    note = (
        f"the model runs at {len(ran)} of {tried} sizes that were tried within the bounds, and only these "
        f"are used; --bounds NAME=A..B:STEP gives a dim a step. It does not run at {reasons[0]}"
    )
    return replace(service, extent=replace(extent, allowed=largest_first)), (note,)


def _run_at(
    service: Service, points: tuple[Point, ...]
) -> tuple[tuple[Point, ...], dict[Point, str]]:
    """Run the model once at each size; return the sizes at which it ran, and why it failed at others.

    The last sizes are in neither if the time was over before they were run.

    Raises:
        RuntimeUnavailableError: the model does not load.
    """
    result = all_that_run(service.model, service.specs(points))
    if not result.loaded:
        raise RuntimeUnavailableError(f"{service.model} does not load: {result.reasons[0]}")
    ran = tuple(points[index] for index in result.ran)
    did_not_run = [point for point in points if point not in ran]
    # Reasons are in the order of sizes, and those of sizes that were not begun, the last, are missing.
    failures = zip(did_not_run, result.reasons, strict=False)
    return ran, {point: reason[:_MAX_REASON] for point, reason in failures}


def _likely_points(service: Service, program: Program) -> list[Point]:
    """Return at most `_MAX_TRIALS` sizes of requests at which the model is likely to run, the likeliest first.

    A size, or point, has a number for each free dim of the inputs. The points are corners of the bounds and
    drawn ones, without those whose inputs are too large. Those that violate fewer constraints of the model's
    ops come first.
    """
    extent, rng = service.extent, random.Random(0)  # noqa: S311 - a seeded draw, no secret
    points = dict.fromkeys(extent.corners())
    points |= dict.fromkeys(_drawn_point(extent, rng, number) for number in range(_DRAWS))
    constraints = dim_constraints(program)

    def violations(point: Point) -> int:
        dims = service.dims(point)
        return sum(not constraint.is_satisfied(dims) for constraint in constraints)

    small_enough = [
        point
        for point in points
        if sum(prod(spec.shape) for spec in service.specs((point,))[0]) <= _MAX_INPUT_ELEMENTS
    ]
    return sorted(small_enough, key=violations)[:_MAX_TRIALS]


def _drawn_point(extent: Extent, rng: random.Random, number: int) -> Point:
    """Draw a size, which depends on its ``number``.

    Sizes with an even number have all dims at the same place of their ranges: equal ranges give equal
    numbers. Dims are multiples of one of `_STRIDES`, taken in turn, where their range has such numbers.
    """
    stride = _STRIDES[number // 2 % len(_STRIDES)]
    common_place = rng.random()
    point = []
    for name in extent.names:
        values = extent.bounds[name].values
        place = rng.random() if number % 2 else common_place
        value = values[int(place * len(values))]
        multiple = value - value % stride
        point.append(multiple if multiple in values else value)
    return tuple(point)
