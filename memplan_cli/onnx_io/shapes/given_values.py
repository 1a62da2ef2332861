"""Values given of inputs that are small enough to decide shapes, and conditions, before a run.

While a model is inferred such an input is a constant of it; afterwards it is an input again.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from memplan_cli.onnx_io.shapes.lattice import merged, shape_in, with_shape

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from onnx import ModelProto, TensorProto, ValueInfoProto

    from memplan_cli.core.bindings import Feed, Feeds

_MOST = 1024
"""Elements up to which a value may decide a shape; a longer one is data."""


def small_values(feeds: Feeds) -> Mapping[str, TensorProto]:
    """Return the values of the small tensors among feeds, by name.

    One value for whatever shape is bound comes as a tensor without dims.
    """
    return {name: tensor for name, feed in feeds.items() for tensor in _small(feed)}


def _small(feed: Feed) -> Iterator[TensorProto]:
    if feed.container != "tensor" or len(feed.files) != 1 or prod(feed.shape or ()) > _MOST:
        return
    import numpy as np
    from onnx import numpy_helper

    array = np.load(feed.files[0], allow_pickle=False)
    if array.dtype.kind == "V":  # numpy has no such type
        return
    plain = array.astype(object) if array.dtype.kind == "U" else array
    yield numpy_helper.from_array(plain if feed.shape is not None else plain.reshape(()))


def as_constants(model: ModelProto, values: Mapping[str, TensorProto]) -> list[ValueInfoProto]:
    """Make constants, in place, of the inputs whose values are given; return these inputs."""
    graph = model.graph
    fixed: list[ValueInfoProto] = []
    for at in reversed(range(len(graph.input) if values else 0)):
        value = graph.input[at]
        tensor = _fitting(value, values[value.name]) if value.name in values else None
        if tensor is not None:
            graph.initializer.append(tensor)
            fixed.append(type(value)())
            kind = merged(value.type, with_shape(value.type, tuple(tensor.dims)))
            fixed[-1].CopyFrom(value)
            fixed[-1].type.CopyFrom(kind)
            del graph.input[at]
    return fixed


def _fitting(value: ValueInfoProto, given: TensorProto) -> TensorProto | None:
    """Return a value in the shape that its input has; None where it does not fit."""
    import numpy as np
    from onnx import numpy_helper

    shape, element = shape_in(value.type), value.type.tensor_type.elem_type
    array: Any = numpy_helper.to_array(given)
    if element != given.data_type:
        return None
    if shape is not None:
        sizes = [dim for dim in shape if isinstance(dim, int)]
        if not given.dims and len(sizes) == len(shape) and prod(sizes) <= _MOST:
            array = np.full(sizes, array)
        if len(array.shape) != len(shape) or not all(
            isinstance(dim, str) or dim in (None, length)
            for dim, length in zip(shape, array.shape, strict=True)
        ):
            return None
    return numpy_helper.from_array(array, value.name)


def as_inputs(model: ModelProto, fixed: Sequence[ValueInfoProto]) -> ModelProto:
    """Make inputs, in place, of the constants that stand for them."""
    names = {value.name for value in fixed}
    weights = model.graph.initializer
    for at in reversed(range(len(weights) if fixed else 0)):
        if weights[at].name in names:
            del weights[at]
    model.graph.input.extend(fixed)
    return model
