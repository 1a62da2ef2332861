"""Values that a model may be fed, from what its ops do with each input."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

from onnx import TensorProto, helper

from memplan_cli.core.bindings import FeedSpec
from memplan_cli.onnx_io.interface import fed_inputs, tensor_dims
from memplan_cli.onnx_io.runs.expectations import Trace, bound_shape
from memplan_cli.onnx_io.types import tensor_type

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from onnx import ModelProto, ValueInfoProto

    from memplan_cli.core.bindings import Feed, Feeds
    from memplan_cli.onnx_io.runs.expectations import Rule

_WHOLE_RANGE: Mapping[str, tuple[str, int, int]] = {
    "bool": ("integers", 0, 2),
    "int8": ("integers", -128, 128),
    "uint8": ("integers", 0, 256),
}
"""Bytes are quantised data and may be anything; wider integers are masks more often."""


class Feeder:
    """How the inputs of one model may be fed, at whatever numbers its dims have.

    Its weights may be absent; functions are written out.
    """

    def __init__(self, model: ModelProto, feeds: Feeds | None = None) -> None:
        self._values = fed_inputs(model)
        self._trace = Trace(model)
        self._feeds = feeds or {}

    def specs(self, dims: Mapping[str, int]) -> tuple[FeedSpec, ...]:
        """Return how to draw each graph input that is no initializer, in graph order.

        A dim without a number is 1; what is known of an input that was given is not drawn.

        Raises:
            ModelError: an input has a type that cannot be fed (a map, say).
        """
        return tuple(self._spec(value, dims) for value in self._values)

    def _spec(self, value: ValueInfoProto, dims: Mapping[str, int]) -> FeedSpec:
        drawn = _spec(value, dims, self._trace)
        given = self._feeds.get(value.name)
        return drawn if given is None else _given(drawn, given)


def feed_specs(
    model: ModelProto, dims: Mapping[str, int], feeds: Feeds | None = None
) -> tuple[FeedSpec, ...]:
    """Return how to feed a model at these numbers for its dims; see `Feeder.specs`.

    Raises:
        ModelError: an input has a type that cannot be fed (a map, say).
    """
    return Feeder(model, feeds).specs(dims)


def _given(drawn: FeedSpec, feed: Feed) -> FeedSpec:
    """Return a spec by what was given: its shape, its data or one value for all of it."""
    if feed.shape is None:
        return replace(drawn, kind="fill", files=feed.files)
    if not feed.files and feed.container == "tensor":
        return replace(drawn, shape=feed.shape)
    return replace(
        drawn, shape=feed.shape, kind="file", container=feed.container, files=feed.files
    )


def _spec(value: ValueInfoProto, dims: Mapping[str, int], trace: Trace) -> FeedSpec:
    container, tensor = tensor_type(value)
    bound = bound_shape(tensor_dims(value, tensor, trace.taken), dims)
    shape = tuple(1 if dim is None else dim for dim in bound)
    if tensor.elem_type == TensorProto.STRING:
        return FeedSpec(value.name, "str", shape, "strings", container=container)
    dtype = str(helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    rules = tuple(trace.rules(value.name, dims))
    kind, low, high, values = _settled(
        dtype, rules, is_number=len(shape) < 2 and prod(shape) == 1
    )
    return FeedSpec(value.name, dtype, shape, kind, low, high, 1.0, values, container)


def _settled(
    dtype: str, rules: Sequence[Rule], *, is_number: bool
) -> tuple[str, int, int, tuple[int, ...]]:
    """Choose one way to draw that meets every rule.

    A number that is compared with others (a sample rate) is the first of them.
    """
    kinds = ("values", "equal") if is_number else ("values",)
    fixed = next((rule.values for rule in rules if rule.kind in kinds), None)
    if fixed is not None:
        return "values", 0, 0, fixed
    positive = any(rule.kind == "positive" for rule in rules)
    if not dtype.startswith(("int", "uint", "bool")):
        return ("positive" if positive else "normal"), 0, 0, ()
    limits = [rule.high for rule in rules if rule.kind == "index"]
    if limits:
        return "integers", 0, min(limits), ()
    if positive:
        return "integers", 1, 4, ()
    kind, low, high = _WHOLE_RANGE.get(dtype, ("mask", 0, 2))
    return kind, low, high, ()
