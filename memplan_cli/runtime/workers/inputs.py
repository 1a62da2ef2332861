"""The inputs of a run: those that were given, and seeded arrays as the model's ops expect them."""

from __future__ import annotations

import zlib
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from numpy.typing import NDArray

    from memplan_cli.core.bindings import FeedSpec

    Array = NDArray[np.generic]
    Value = Array | list[Array] | dict[Any, Any]
    Feed = dict[str, Value]

_IN_TURN = ("normal", "positive", "integers", "values")
"""Kinds of inputs of which a smaller one is the beginning of a larger one."""

_SEVERAL = 2
"""Tensors in an input that is a sequence, and entries in one that is a map."""

_KEYS = {"map of text": ("s0", "s1"), "map of numbers": (0, 1)}
"""Keys of an input that is a map."""


def draw_all(specs: Iterable[FeedSpec], *, seed: int = 0) -> Feed:
    """Draw every input of a list, each from a generator of its own."""
    return {spec.name: draw(spec, seed=seed) for spec in specs}


class InputsAhead:
    """The inputs of requests of several sizes, in memory that is taken once.

    Drawn for each request, they would fragment the heap of a process that is measured, whose
    growth would not be the model's.
    """

    def __init__(self, sizes: Iterable[Iterable[FeedSpec]], *, seed: int = 0) -> None:
        self._seed = seed
        specs = sorted((each for size in sizes for each in size), key=lambda s: prod(s.shape))
        largest = {spec.name: spec for spec in specs}
        drawn = draw_all(largest.values(), seed=seed)
        self.largest = list(drawn.values())
        self._flat = {
            replace(spec, shape=()): np.asarray(drawn[name]).reshape(-1)
            for name, spec in largest.items()
            if spec.kind in _IN_TURN and spec.container in ("tensor", "optional")
        }

    def of(self, specs: Iterable[FeedSpec]) -> Feed:
        """Return the inputs of one size, as `draw_all` does; other kinds are drawn."""
        return {spec.name: self._one(spec) for spec in specs}

    def _one(self, spec: FeedSpec) -> Value:
        flat = self._flat.get(replace(spec, shape=()))
        if flat is None:
            return draw(spec, seed=self._seed)
        return flat[: prod(spec.shape)].reshape(spec.shape)


def draw(spec: FeedSpec, *, seed: int = 0) -> Value:
    """Draw one input, or read it; it depends on the seed and the name, not on the others."""
    if spec.kind in _GIVEN:
        return _GIVEN[spec.kind](spec)
    generator = np.random.default_rng([seed, zlib.crc32(spec.name.encode())])
    if spec.container == "sequence":
        return [_tensor(spec, generator) for _ in range(_SEVERAL)]
    if spec.container in _KEYS:
        drawn = _tensor(replace(spec, shape=(_SEVERAL,)), generator).tolist()
        return dict(zip(_KEYS[spec.container], drawn, strict=True))
    return _tensor(spec, generator)


def _tensor(spec: FeedSpec, generator: np.random.Generator) -> Array:
    match spec.kind:
        case "strings":
            words = [f"s{number}" for number in generator.integers(0, 8, spec.shape).flat]
            return np.array(words, dtype=object).reshape(spec.shape)
        case "values":
            return np.resize(np.array(spec.values), spec.shape).astype(_element(spec.dtype))
        case "integers":
            return generator.integers(spec.low, spec.high, spec.shape).astype(
                _element(spec.dtype)
            )
        case "mask":
            return _mask(spec, generator)
    drawn = generator.standard_normal(spec.shape, dtype=np.float32) * np.float32(spec.scale)
    if spec.kind == "positive":
        drawn = np.abs(drawn) + np.float32(1e-3)
    return np.asarray(drawn).astype(_element(spec.dtype))


def _element(name: str) -> np.dtype[np.generic]:
    """Return the type of that name; numpy knows bfloat16 once the package that has it is there."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes  # of onnx's, which has no lighter way to such types

        known: np.dtype[np.generic] = np.dtype(getattr(ml_dtypes, name))
        return known


def _mask(spec: FeedSpec, generator: np.random.Generator) -> Array:
    drawn = (generator.random(spec.shape) < 0.8).astype(_element(spec.dtype))
    if drawn.ndim and drawn.size:
        # A row of nothing but zeros makes attention give NaN, which hides differences.
        drawn[..., 0] = 1
    return np.asarray(drawn)


def _read(file: str, dtype: str) -> Array:
    """Return the array in a file of ours, in the type that the input has.

    Types of which numpy itself knows only the width are kept as bytes.
    """
    array: Array = np.load(file, allow_pickle=False)
    if dtype == "str":
        return array.astype(object)
    wanted = _element(dtype)
    return array.view(wanted) if array.dtype.kind == "V" else array.astype(wanted)


def _stored(spec: FeedSpec) -> Array | list[Array]:
    arrays = [_read(file, spec.dtype) for file in spec.files]
    return arrays if spec.container == "sequence" else arrays[0]


def _filled(spec: FeedSpec) -> Array:
    value = _read(spec.files[0], spec.dtype)
    return np.full(spec.shape, value.reshape(()), value.dtype)


_GIVEN: Mapping[str, Callable[[FeedSpec], Array | list[Array]]] = {
    "file": _stored,
    "fill": _filled,
}
"""How data that was given is read, by the spec's kind."""
