"""Proof of a file in loops at a size at which its loops have several pieces.

A comparison runs at the least sizes within the bounds, where every loop has one piece. A second
one runs at the smallest size at which all of them have two or more.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice, product
from math import prod
from typing import TYPE_CHECKING

from memplan_cli.core.symbolic.dims import bind_dim, binding_text
from memplan_cli.workflows.files.binding import binding_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from memplan_cli.core.check import Check
    from memplan_cli.core.results.observations import Validation
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.workflows.files.rewriting import Rewriting

_MOST_SIZES = 4096

_MOST_BYTES = 2 << 30
"""What the original may need there, as far as that grows with the product of the dims."""


def with_turns(
    rewriting: Rewriting, path: Path, verdict: Validation, check: Check
) -> Validation:
    """Add the verdict on a size at which every loop has several pieces."""
    plan, settings = rewriting.planned.plan, rewriting.settings
    trips = [each.trips for each in plan.report.chunked.regions if each.trips]
    if not trips or not settings.bounds or not verdict.passed or settings.inputs.given:
        return verdict
    dims = _turning(plan, trips, settings.bounds)
    if dims is None:
        note = "loops were compared with one piece each: sizes of several are too large to run"
        return replace(verdict, notes=(*verdict.notes, note))
    from memplan_cli.core.results.observations import UNOPTIMISED
    from memplan_cli.runtime.run.verify import compare_models
    from memplan_cli.runtime.settings_search.written_model import WrittenModel

    written = WrittenModel(path, as_written=True, base=UNOPTIMISED)
    binding = binding_of(settings).at(dims)
    original = rewriting.compared_with
    found = compare_models(original, written, check, binding, UNOPTIMISED).verdict
    at = binding_text(dims)
    if not found.passed:
        return replace(
            found, notes=(*found.notes, f"at {at}, where loops have several pieces")
        )
    same = "the same" if found.bit_identical else "equal within the tolerance"
    note = f"at {at}, where every loop has several pieces, outputs are {same}"
    return replace(
        verdict,
        bit_identical=verdict.bit_identical and found.bit_identical,
        notes=(*verdict.notes, note),
    )


def _turning(
    plan: Plan, trips: list[str], bounds: Mapping[str, tuple[int, int]]
) -> Mapping[str, int] | None:
    """Return the smallest size at which all loops have several pieces; None of too large ones."""
    most = prod(high for _, high in bounds.values())
    whole = plan.report.original_resident or 0
    found: Mapping[str, int] | None = None
    for values in islice(product(*map(_ladder, bounds.values())), _MOST_SIZES):
        dims = dict(zip(bounds, values, strict=True))
        if whole * prod(values) // most > _MOST_BYTES:
            continue
        is_less = found is None or prod(values) < prod(found.values())
        if is_less and all(_number(each, dims) > 1 for each in trips):
            found = dims
    return found


def _number(text: str, dims: Mapping[str, int]) -> int:
    value = int(text) if text.isdigit() else bind_dim(text, dims)
    return value if isinstance(value, int) else 0


def _ladder(interval: tuple[int, int]) -> Iterator[int]:
    """Yield sizes between two, each about twice the one before, odd so that pieces are uneven."""
    low, high = interval
    yield low
    step = 2
    while low + step - 1 < high:
        yield low + step - 1
        step *= 2
    if high > low:
        yield high
