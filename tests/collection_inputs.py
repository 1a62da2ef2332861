"""Inputs of the model collection, drawn as the files beside its models say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.bindings import FeedSpec

if TYPE_CHECKING:
    from collections.abc import Mapping


def specs_from_json(document: Mapping[str, object]) -> tuple[FeedSpec, ...]:
    """Read ``{"inputs": {name: {"shape", "dtype", "gen"}}}``, as in the model collection.

    Generators: ``normal [scale]``, ``zeros``, ``ones``, ``const V``, ``randint LOW HIGH``.
    """
    inputs = document["inputs"]
    assert isinstance(inputs, dict)
    return tuple(_spec_from_json(name, entry) for name, entry in inputs.items())


def _spec_from_json(name: str, entry: Mapping[str, object]) -> FeedSpec:
    shape = tuple(int(dim) for dim in entry["shape"])  # type: ignore[attr-defined]
    dtype, (kind, *numbers) = str(entry["dtype"]), str(entry["gen"]).split()
    if kind == "randint":
        return FeedSpec(name, dtype, shape, "integers", int(numbers[0]), int(numbers[1]))
    if kind == "normal":
        scale = float(numbers[0]) if numbers else 1.0
        return FeedSpec(name, dtype, shape, "normal", scale=scale)
    value = {"zeros": 0, "ones": 1}.get(kind)
    values = (int(float(numbers[0])) if value is None else value,)
    return FeedSpec(name, dtype, shape, "values", values=values)
