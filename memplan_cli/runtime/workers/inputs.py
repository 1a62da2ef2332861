"""Inputs of a run: arrays from files, and seeded random arrays that the model's ops accept."""

from __future__ import annotations

import zlib
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from memplan_cli.core.bindings import FeedSpec

    Array = NDArray[np.generic]
    Value = Array | list[Array] | dict[Any, Any]
    Feed = dict[str, Value]

_PREFIX_KINDS = ("normal", "positive", "integers", "values")
"""Kinds of inputs whose elements are drawn in order: a smaller one is a prefix of a larger one."""

_ELEMENTS = 2
"""The number of tensors in an input that is a sequence, and of entries in one that is a map."""

_MAP_KEYS = {"map of text": ("s0", "s1"), "map of numbers": (0, 1)}
"""The keys of an input that is a map, by its container."""


def draw_all(specs: Iterable[FeedSpec], *, seed: int = 0) -> Feed:
    """Return a value for each input, by name, each from its own generator."""
    return {spec.name: draw(spec, seed=seed) for spec in specs}


class PreparedInputs:
    """The inputs of requests of several sizes, as views of the largest inputs.

    Inputs that are drawn for each request would fragment the heap of a process whose memory is
    measured. An input of one of the `_PREFIX_KINDS` is equal to the first elements of a larger one
    whose spec differs only in the shape, so it is a view of them.

    Attributes:
        largest: the value of each input at its largest shape, in any order.
    """

    def __init__(self, requests: Iterable[Iterable[FeedSpec]]) -> None:
        """Draw each input at its largest shape. ``requests`` are the specs of the inputs of each request."""
        specs = [spec for request in requests for spec in request]
        by_size = sorted(specs, key=lambda spec: prod(spec.shape))
        # Later entries of a name replace earlier ones, so that the largest spec of each input stays.
        largest_specs = {spec.name: spec for spec in by_size}
        values = draw_all(largest_specs.values())
        self.largest = list(values.values())  # for callers, in any order
        # Keyed without the shape: `feed` returns a smaller value as a view of the first elements of the largest.
        self._flat_largest = {
            _without_shape(spec): np.asarray(values[name]).reshape(-1)
            for name, spec in largest_specs.items()
            if spec.kind in _PREFIX_KINDS and spec.container in ("tensor", "optional")
        }

    def feed(self, specs: Iterable[FeedSpec]) -> Feed:
        """Return the inputs of one size, equal to `draw_all`, as views where possible."""
        return {spec.name: self._value(spec) for spec in specs}

    def _value(self, spec: FeedSpec) -> Value:
        """Return one input: a view of the largest value of its kind, or a new one."""
        flat = self._flat_largest.get(_without_shape(spec))
        if flat is None:
            return draw(spec)
        return flat[: prod(spec.shape)].reshape(spec.shape)


def _without_shape(spec: FeedSpec) -> FeedSpec:
    """Return a spec that is equal for all sizes of an input."""
    return replace(spec, shape=())


def draw(spec: FeedSpec, *, seed: int = 0) -> Value:
    """Return one input: read from its files, or drawn by a generator seeded by seed and name."""
    match spec.kind:
        case "file":
            arrays = [_read(file, spec.dtype) for file in spec.files]
            return arrays if spec.container == "sequence" else arrays[0]
        case "fill":
            value = _read(spec.files[0], spec.dtype)
            return np.full(spec.shape, value.reshape(()), value.dtype)
    generator = np.random.default_rng([seed, zlib.crc32(spec.name.encode())])
    if spec.container == "sequence":
        return [_draw_tensor(spec, generator) for _ in range(_ELEMENTS)]
    if spec.container in _MAP_KEYS:
        values = _draw_tensor(replace(spec, shape=(_ELEMENTS,)), generator).tolist()
        return dict(zip(_MAP_KEYS[spec.container], values, strict=True))
    return _draw_tensor(spec, generator)


def _draw_tensor(spec: FeedSpec, generator: np.random.Generator) -> Array:
    """Return a random tensor of a spec's kind, shape and element type."""
    match spec.kind:
        case "strings":
            words = [f"s{number}" for number in generator.integers(0, 8, spec.shape).flat]
            return np.array(words, dtype=object).reshape(spec.shape)
        case "values":
            values = np.resize(np.array(spec.values), spec.shape)
            return values.astype(_numpy_dtype(spec.dtype))
        case "integers":
            integers = generator.integers(spec.low, spec.high, spec.shape)
            return integers.astype(_numpy_dtype(spec.dtype))
        case "mask":
            mask = (generator.random(spec.shape) < 0.8).astype(_numpy_dtype(spec.dtype))
            if mask.ndim and mask.size:
                # Attention over a row of zeros gives NaN, which would hide differences.
                mask[..., 0] = 1
            return np.asarray(mask)
    normal = generator.standard_normal(spec.shape, dtype=np.float32) * np.float32(spec.scale)
    if spec.kind == "positive":
        normal = np.abs(normal) + np.float32(1e-3)
    return np.asarray(normal).astype(_numpy_dtype(spec.dtype))


def _numpy_dtype(name: str) -> np.dtype[np.generic]:
    """Return the dtype of that name, from the package ml_dtypes if numpy does not have it."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes  # a dependency of onnx

        dtype: np.dtype[np.generic] = np.dtype(getattr(ml_dtypes, name))
        return dtype


def _read(file: str, dtype: str) -> Array:
    """Return the array in a ``.npy`` file that memplan wrote, in an input's element type.

    Elements of types that numpy does not have lie in the file as raw bytes.
    """
    array: Array = np.load(file, allow_pickle=False)
    if dtype == "str":
        return array.astype(object)
    numpy_dtype = _numpy_dtype(dtype)
    is_raw = array.dtype.kind == "V"
    return array.view(numpy_dtype) if is_raw else array.astype(numpy_dtype)
