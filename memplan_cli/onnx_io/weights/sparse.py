"""Weights that a graph holds by the places of their few elements, and the same held whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.onnx_io.weights.external_data import loaded

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from onnx import GraphProto, SparseTensorProto, TensorProto


def sparse_weights(graph: GraphProto) -> Iterator[tuple[str, SparseTensorProto]]:
    """Yield a graph's sparse weights, initializers and Constants, by name."""
    for sparse in graph.sparse_initializer:
        yield sparse.values.name, sparse
    for node in graph.node:
        if node.op_type == "Constant":
            for attribute in node.attribute:
                if attribute.name == "sparse_value":
                    yield node.output[0], attribute.sparse_tensor


def dense(sparse: SparseTensorProto, folder: Path) -> TensorProto:
    """Return the same weight with all its elements, as a session makes it."""
    import numpy as np
    from onnx import numpy_helper

    values = numpy_helper.to_array(loaded(sparse.values, folder))
    places = numpy_helper.to_array(loaded(sparse.indices, folder))
    whole = np.zeros(tuple(sparse.dims), values.dtype)
    # Places are one number an element, or one an axis.
    whole[np.unravel_index(places, whole.shape) if places.ndim == 1 else tuple(places.T)] = (
        values
    )
    return numpy_helper.from_array(whole)
