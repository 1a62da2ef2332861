"""Outputs of runs: kept in files, and compared bit for bit. NaN equals NaN; -0.0 is not 0.0.

One model's outputs lie in files while the other model runs, so that no process holds both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from memplan_cli.core.results.observations import Difference

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from memplan_cli.core.check import Tolerance

_CHUNK = 1 << 20
"""Elements that are compared at a time."""

_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def save(folder: Path, numbered: list[str], names: list[str], values: list[Any]) -> None:
    """Write values to files, each named by its place among ``numbered``."""
    for number, _, leaf in _leaves(numbered, names, values):
        np.save(folder / f"{number}.npy", leaf)


def against(
    folder: Path,
    saved: list[str],
    names: list[str],
    values: list[Any],
    tolerance: Tolerance,
) -> list[Difference]:
    """Compare values by name with files; ``saved`` are the names that were saved."""
    found = []
    for number, name, leaf in _leaves(saved, names, values):
        file = folder / f"{number}.npy"
        if not file.exists():
            found.append(Difference(name, leaf.size, 0.0, 1, "the original has no such part"))
            continue
        # Scalars and empty arrays cannot be mapped.
        mode = "r" if leaf.size and leaf.ndim else None
        reference = np.load(file, mmap_mode=mode)  # type: ignore[arg-type]
        apart = difference(name, leaf, reference, tolerance)
        found += [apart] if apart else []
    return found


def _leaves(
    saved: list[str], names: list[str], values: list[Any]
) -> Iterator[tuple[str, str, NDArray[Any]]]:
    """Yield ``(file name, name, array)``: a sequence's elements one by one."""
    for name, value in zip(names, values, strict=True):
        number = saved.index(name)
        if isinstance(value, list):
            length = np.array(len(value))
            yield f"{number}", f"len({name})", length
            for index, item in enumerate(value):
                yield f"{number}.{index}", f"{name}[{index}]", _array(item)
        else:
            yield f"{number}", name, _array(value)


def _array(value: Any) -> NDArray[Any]:  # noqa: ANN401 - ONNX Runtime has no types
    if value is None:
        return np.zeros((0,), np.bool_)
    array = np.asarray(value)
    return array.astype(np.str_) if array.dtype.kind == "O" else array


def worst(found: list[Difference]) -> list[Difference]:
    """Keep the worst difference of each output over all runs."""
    kept: dict[str, Difference] = {}
    for item in found:
        old = kept.get(item.output)
        if old is None or (item.beyond, item.elements) > (old.beyond, old.elements):
            kept[item.output] = item
    return list(kept.values())


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
