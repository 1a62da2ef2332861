"""Save the outputs of runs to files, and compare them bit for bit. NaN equals NaN; -0.0 is not 0.0.

The outputs of one model are in files while the other model runs, so that no process holds both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from memplan_cli.core.results.observations import Difference

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from memplan_cli.core.check import Tolerance

_ELEMENTS_AT_ONCE = 1 << 20


def save_values(folder: Path, model_outputs: Sequence[str], values: Mapping[str, Any]) -> None:
    """Save values of outputs to a folder: arrays as ``<index>.npy``, elements of a sequence one by one.

    The index is the position of the output in ``model_outputs``, all outputs of the model: it does not
    depend on which of them have a value here.
    """
    for file, _, array in _named_arrays(model_outputs, values):
        np.save(folder / f"{file}.npy", array)


def compare_with_saved(
    folder: Path, model_outputs: Sequence[str], values: Mapping[str, Any], tolerance: Tolerance
) -> list[Difference]:
    """Return how values of outputs differ from those that `save_values` saved in a folder.

    ``model_outputs`` are the names of the model's outputs, as given to `save_values`. The length of a sequence is
    compared as an array of its own, so elements that only the saved sequence has are not needed.
    """
    differences = []
    for file, name, array in _named_arrays(model_outputs, values):
        path = folder / f"{file}.npy"
        if not path.exists():  # an element behind the end of the saved sequence
            reason = "the original has no such part"
            # No value to subtract; one element beyond the tolerance suffices to fail the comparison.
            differences.append(
                Difference(name, array.size, max_abs_diff=0.0, beyond=1, reason=reason)
            )
            continue
        # Scalars and empty arrays cannot be mapped.
        mode = "r" if array.size and array.ndim else None
        reference = np.load(path, mmap_mode=mode)  # type: ignore[arg-type]
        difference = array_difference(name, array, reference, tolerance)
        if difference is not None:
            differences.append(difference)
    return differences


def _named_arrays(
    model_outputs: Sequence[str], values: Mapping[str, Any]
) -> Iterator[tuple[str, str, NDArray[Any]]]:
    """Yield the file name, the name in reports, and the array of each part of the outputs.

    A sequence has its length as the first part, and then its elements.
    """
    index_of = {name: index for index, name in enumerate(model_outputs)}
    for name, value in values.items():
        index = index_of[name]
        if isinstance(value, list):
            yield f"{index}", f"len({name})", np.array(len(value))
            for position, element in enumerate(value):
                yield f"{index}.{position}", f"{name}[{position}]", _storable_array(element)
        else:
            yield f"{index}", name, _storable_array(value)


def _storable_array(value: Any) -> NDArray[Any]:  # noqa: ANN401 - ONNX Runtime has no types
    """Return a value as an array that numpy can save: None as an empty one, text without objects."""
    if value is None:
        return np.zeros((0,), np.bool_)
    array = np.asarray(value)
    return array.astype(np.str_) if array.dtype.kind == "O" else array


def worst_by_output(differences: Sequence[Difference]) -> list[Difference]:
    """Return the worst difference of each output.

    That is the one with the most elements beyond the tolerance, then with the most that differ.
    """
    worst: dict[str, Difference] = {}
    for difference in differences:
        pair = worst.get(difference.output, difference), difference
        worst[difference.output] = max(pair, key=lambda item: (item.beyond, item.elements))
    return list(worst.values())


def array_difference(
    name: str, actual: NDArray[Any], expected: NDArray[Any], tolerance: Tolerance
) -> Difference | None:
    """Return how two arrays differ; None if all bits are equal.

    Arrays are compared in pieces, so that two mapped files are never both in memory. The
    difference counts elements with other bits, and those beyond the tolerance.
    """
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        reason = (
            f"{actual.dtype}{list(actual.shape)} instead of "
            f"{expected.dtype}{list(expected.shape)}"
        )
        beyond = expected.size or 1  # 0 would count as equal within the tolerance
        return Difference(name, expected.size, float("inf"), beyond, reason)
    different_count = beyond_count = 0
    largest_distance = 0.0
    flat_actual, flat_expected = actual.reshape(-1), expected.reshape(-1)
    for start in range(0, flat_actual.size, _ELEMENTS_AT_ONCE):
        piece = slice(start, start + _ELEMENTS_AT_ONCE)
        left, right = flat_actual[piece], flat_expected[piece]
        is_different = _have_other_bits(left, right)
        count = int(np.count_nonzero(is_different))
        if not count:
            continue
        distance, within_count = _distance(left[is_different], right[is_different], tolerance)
        different_count += count
        beyond_count += count - within_count
        largest_distance = max(largest_distance, distance)
    if not different_count:
        return None
    return Difference(name, different_count, largest_distance, beyond_count)


def _have_other_bits(left: NDArray[Any], right: NDArray[Any]) -> NDArray[np.bool_]:
    """Return for each element whether its bits differ; any two NaN are equal.

    Only floats can be equal with other bits, or differ from themselves (ONNX Runtime has no complex
    tensors). Elements of other types are compared by value.
    """
    if left.dtype.kind != "f":
        return np.asarray(left != right, dtype=np.bool_)
    word = f"u{left.dtype.itemsize}"  # the unsigned integers of the same width
    left_bits, right_bits = (np.ascontiguousarray(array).view(word) for array in (left, right))
    is_different = left_bits != right_bits
    if is_different.any():
        is_different &= ~(np.isnan(left) & np.isnan(right))
    return np.asarray(is_different, dtype=np.bool_)


def _distance(
    actual: NDArray[Any], expected: NDArray[Any], tolerance: Tolerance
) -> tuple[float, int]:
    """Return the largest distance of two elements, and how many are within the tolerance.

    The arrays have one axis, are not empty, and differ in every element (`_have_other_bits`). The
    distance is infinite if one element is infinite or NaN, or if elements are not numbers: no tolerance allows it.
    """
    if actual.dtype.kind not in "fiub":
        return float("inf"), 0
    left, right = actual.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore"):
        distances = np.abs(left - right)
    distances[np.isnan(distances)] = np.inf
    largest = float(distances.max())
    if tolerance.exact:  # 0.0 and -0.0 are not equal either, although their distance is 0
        return largest, 0
    with np.errstate(invalid="ignore"):
        allowed = tolerance.atol + tolerance.rtol * np.abs(right)
    return largest, int(np.count_nonzero((distances <= allowed) & (distances < np.inf)))
