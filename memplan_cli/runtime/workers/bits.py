"""Arrays compared bit for bit: NaN equals NaN, -0.0 does not equal 0.0."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from memplan_cli.core.check import Tolerance
from memplan_cli.core.deserialization import from_json
from memplan_cli.core.results.observations import Difference

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

_CHUNK = 1 << 20
"""Elements that are compared at a time."""

_NOISE_MARGIN = 4.0
"""What a provider cannot repeat itself, the rewritten model need not repeat better."""

_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def difference(
    name: str, got: NDArray[Any], wanted: NDArray[Any], tolerance: Tolerance
) -> Difference | None:
    """Return how two arrays differ, or None where every bit is the same.

    A megabyte-sized piece at a time, so that two mapped files are never both in memory.
    ``beyond`` counts the elements that the tolerance does not excuse.
    """
    if got.dtype != wanted.dtype or got.shape != wanted.shape:
        reason = f"{got.dtype}{list(got.shape)} instead of {wanted.dtype}{list(wanted.shape)}"
        return Difference(name, wanted.size, float("inf"), wanted.size or 1, reason)
    elements = beyond = 0
    farthest = 0.0
    for left, right in _pieces(got, wanted):
        unequal = _unequal(left, right)
        count = int(np.count_nonzero(unequal))
        if not count:
            continue
        elements += count
        distance, excused = _distance(left[unequal], right[unequal], tolerance)
        beyond += count - excused
        farthest = max(farthest, distance)
    return Difference(name, elements, farthest, beyond) if elements else None


def differences(result: Mapping[str, Any]) -> tuple[Difference, ...]:
    """Return what a job has found to differ; nothing where it has no result."""
    return tuple(
        from_json(Difference, entry, "the job's result")
        for entry in result.get("differences", ())
    )


def widened(tolerance: Tolerance, noise: Sequence[Difference]) -> Tolerance:
    """Widen a tolerance to what the provider itself does not repeat, ``noise``."""
    if not noise:
        return tolerance
    widest = _NOISE_MARGIN * max(item.max_abs_diff for item in noise)
    return Tolerance(tolerance.rtol, max(tolerance.atol, widest))


def _pieces(
    got: NDArray[Any], wanted: NDArray[Any]
) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    left, right = got.reshape(-1), wanted.reshape(-1)
    for start in range(0, left.size, _CHUNK):
        yield left[start : start + _CHUNK], right[start : start + _CHUNK]


def _unequal(left: NDArray[Any], right: NDArray[Any]) -> NDArray[np.bool_]:
    word = _WORDS.get(left.dtype.itemsize)
    if left.dtype.kind not in "fV" or word is None:
        return np.asarray(left != right, dtype=np.bool_)
    bits = np.ascontiguousarray(left).view(word) != np.ascontiguousarray(right).view(word)
    if left.dtype.kind == "f" and bits.any():
        bits &= ~(np.isnan(left) & np.isnan(right))
    return np.asarray(bits, dtype=np.bool_)


def _distance(
    left: NDArray[Any], right: NDArray[Any], tolerance: Tolerance
) -> tuple[float, int]:
    """Return the largest distance and the number of elements within the tolerance."""
    if left.dtype.kind not in "fiub":
        return float("inf"), 0
    a, b = left.astype(np.float64), right.astype(np.float64)
    with np.errstate(invalid="ignore"):
        apart = np.abs(a - b)
    apart[np.isnan(apart)] = np.inf
    if tolerance.exact:
        return float(apart.max()), 0
    allowed = tolerance.atol + tolerance.rtol * np.abs(b)
    return float(apart.max()), int(np.count_nonzero(apart <= allowed))
