"""Bytes of tensors: sums over symbols, the storages of a plan, and the live bytes at each tick.

A byte sum maps units to coefficients: ``{"1": 64, "batch": 4096}`` is 64 + 4096*batch bytes.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.checking.operators import ELEMENT_BITS
from memplan_cli.core.symbolic.bounds import largest_size
from memplan_cli.core.symbolic.dims import bind_dim, canonical_dim, symbols_of
from memplan_cli.core.symbolic.sizes import size_of, unit_value

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from memplan_cli.core.program import Shape
    from memplan_cli.core.results.placements import Placement
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.core.symbolic.bounds import Bounds


ByteSum = dict[str, int]
"""Unit, a product of symbols such as ``batch*seq``, or ``1`` for bytes -> its coefficient."""


def add_sums(*sums: Mapping[str, int]) -> ByteSum:
    """Return the sum of byte sums. Units whose coefficient becomes 0 are left out."""
    result: defaultdict[str, int] = defaultdict(int)
    for byte_sum in sums:
        for unit, coefficient in byte_sum.items():
            result[unit] += coefficient
    return {unit: coefficient for unit, coefficient in result.items() if coefficient}


def evaluate_sum(byte_sum: Mapping[str, int] | None, dims: Mapping[str, int]) -> int | None:
    """Return a sum in bytes at these dims; None if the sum is None or depends on a symbol without a value."""
    if byte_sum is None:
        return None
    total = 0
    for unit, coefficient in byte_sum.items():
        factor = evaluate_unit(unit, dims) if coefficient else 0
        if factor is None:
            return None
        total += coefficient * factor
    return total


def evaluate_unit(unit: str, dims: Mapping[str, int]) -> int | None:
    """Return the value of a unit such as ``"batch*seq"``, or None if a symbol has no value."""
    try:
        return unit_value(unit, dims)
    except ValueError:
        return None


def evaluate_expression(text: str, dims: Mapping[str, int]) -> int | None:
    """Return the value of an expression such as ``"2*n + 1"``; None if a symbol has no value."""
    value = bind_dim(canonical_dim(text), dims)
    return value if isinstance(value, int) else None


def is_symbolic(byte_sum: Mapping[str, int]) -> bool:
    """Return whether a sum depends on a symbol."""
    return any(unit != "1" and coefficient for unit, coefficient in byte_sum.items())


def canonical_expression(byte_sum: Mapping[str, int]) -> int | str:
    """Return the canonical form of a sum as an expression, equal for equal sums."""
    terms = sorted(byte_sum.items(), key=lambda term: (term[0] == "1", term[0]))
    return canonical_dim(
        " + ".join(str(n) if unit == "1" else f"{n}*{unit}" for unit, n in terms) or "0"
    )


def sample_dims(units: Iterable[str]) -> Iterator[dict[str, int]]:
    """Yield three assignments of values to the symbols in some units, such as ``batch*seq``.

    Two expressions with equal values at all three assignments are taken to be equal. To tell
    different expressions apart, each symbol has another value: ``a=384, b=640, c=896``, then larger
    ones. All are multiples of 128, so that quotients by usual numbers are neither 0 nor rounded.
    """
    names = sorted({name for unit in units if unit != "1" for name in symbols_of(unit)})
    for first in (3, 11, 40):
        yield {name: 128 * (first + 2 * index) for index, name in enumerate(names)}


def tensor_bytes(shape: Shape | None, dtype: str, bounds: Bounds) -> tuple[int, str] | None:
    """Return a tensor's bytes as coefficient and unit, None if unknown: ``(96, "1")``, or ``(4, "batch*seq")``.

    A dim with bounds counts with its largest value.
    """
    if shape is None or dtype not in ELEMENT_BITS:
        return None
    fixed_dims = [dim for dim in shape if isinstance(dim, int) and dim >= 0]
    if len(fixed_dims) == len(shape):  # counted without `size_of`, which the planner uses
        return -(-prod(fixed_dims) * ELEMENT_BITS[dtype] // 8), "1"
    size = size_of(shape, dtype)
    if size is None:
        return None
    largest = largest_size(size, bounds)
    return largest.coefficient, largest.unit


@dataclass(frozen=True, slots=True)
class Storage:
    """Bytes of one tensor or of several that share them, live from the first use to the last.

    Offset and bytes are in the arena's unit; the live range ``[first, end)`` is in ticks.

    Attributes:
        name: the id of the tensor, or of the first one that has these bytes.
        tensors: the tensors with these bytes.
    """

    name: str
    arena: int
    offset: int
    bytes: int
    first: int
    end: int
    tensors: list[Placement]


def tensor_storages(rows: Iterable[Placement]) -> list[Storage]:
    """Return the storages of a plan's tensors: a tensor and its aliases share one."""
    return merge_storages((row.alias_of or row.id, row) for row in rows)


def merge_storages(named_rows: Iterable[tuple[str, Placement]]) -> list[Storage]:
    """Return the storages of tensors that come with the name of their storage.

    Tensors with equal names share one storage. It has the arena and offset of the first of them,
    the bytes of the largest, and lasts from the first tick of any to the last. The ``last`` of a
    placement is the tick after its last use, as the ``end`` of a storage.
    """
    rows_by_name: defaultdict[str, list[Placement]] = defaultdict(list)
    for name, row in named_rows:
        rows_by_name[name].append(row)
    return [
        Storage(
            name=name,
            arena=rows[0].arena,
            offset=rows[0].offset,
            bytes=max(row.bytes for row in rows),
            first=min(row.first for row in rows),
            end=max(row.last for row in rows),
            tensors=rows,
        )
        for name, rows in rows_by_name.items()
    ]


class LiveBytes(NamedTuple):
    """A number of bytes that are live in the ticks ``[first, end)``."""

    first: int
    end: int
    bytes: int


def live_bytes_at(
    plan: Plan, storages: Iterable[Storage], dims: Mapping[str, int]
) -> list[LiveBytes] | None:
    """Return the bytes of each storage at these dims, or None if a symbol has no value."""
    factors = {arena.id: evaluate_unit(arena.unit, dims) for arena in plan.arenas}
    intervals = []
    for storage in storages:
        # A storage without bytes takes none, whatever the value of the unit is.
        factor = factors.get(storage.arena) if storage.bytes else 1
        if factor is None:
            return None
        intervals.append(LiveBytes(storage.first, storage.end, storage.bytes * factor))
    return intervals


def live_curve(intervals: Iterable[LiveBytes]) -> dict[int, int]:
    """Return the live bytes by tick, for each tick at which an interval starts or ends.

    ``[(0, 3, 10), (1, 2, 5)]`` gives ``{0: 10, 1: 15, 2: 10, 3: 0}``.
    """
    changes: defaultdict[int, int] = defaultdict(int)
    for first, end, size in intervals:
        changes[first] += size
        changes[end] -= size
    ticks = sorted(changes)
    return dict(zip(ticks, accumulate(changes[tick] for tick in ticks), strict=True))


def peak_bytes(intervals: Iterable[LiveBytes]) -> int:
    """Return the most bytes that are live at one tick."""
    return max(live_curve(intervals).values(), default=0)


def align(size: int, alignment: int) -> int:
    """Return the smallest multiple of ``alignment`` that is not below ``size``."""
    return -(-size // alignment) * alignment
