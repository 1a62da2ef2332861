"""The data of single weights: read from or written to a file, or made dense."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from memplan_cli.errors import ModelError
from memplan_cli.onnx_io.weights.external_data import (
    data_range,
    loaded,
    locations,
)
from memplan_cli.onnx_io.weights.sizes import TYPED_FIELDS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray
    from onnx import GraphProto, SparseTensorProto, TensorProto


PAGE = 4096
"""Bytes: data in a file starts at a multiple of this, so that systems with pages of this size map it."""

LARGE_BYTES = 1 << 20
"""Data of at least this size starts at a multiple of `LARGE_BOUNDARY`."""

LARGE_BOUNDARY = 1 << 16
"""Bytes: a multiple of the pages of Apple's processors (16 KiB), and what Windows maps at."""

MIN_EXTERNAL_BYTES = 1024
"""Smaller tensors stay in the model file, as with ONNX Runtime's own external data."""

_CHUNK = 16 << 20
"""Bytes of an array that are made contiguous at a time."""


def read_tensor(tensor: TensorProto, folder: Path) -> NDArray[Any]:
    """Return the values of a tensor; external data is memory-mapped.

    Elements of external data must have whole bytes: smaller ones, such as int4, are packed in a file.
    No caller reads those: folding leaves them to the runtime, and other rewrites do not support them.

    Raises:
        ModelError: the tensor has no data, or its file in ``folder`` is missing or too short. The message is for
            folding: other rewrites read files that a session has just written.
    """
    import numpy as np
    from onnx import helper, numpy_helper

    shape = tuple(tensor.dims)
    if tensor.data_location != tensor.EXTERNAL:
        fields = ("raw_data", *TYPED_FIELDS)
        if 0 not in shape and not any(len(getattr(tensor, field)) for field in fields):
            raise ModelError(
                f"{tensor.name[:120]!r} has no data: constants cannot be folded",
                hint="give the model its weights, or leave --fold-constants out",
            )
        return np.asarray(numpy_helper.to_array(tensor))
    (location,) = locations([tensor])
    dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    if 0 in shape:
        return np.empty(shape, dtype)
    try:
        return np.memmap(folder / location, dtype, "r", data_range(tensor)[0], shape)
    except (OSError, ValueError) as error:
        raise ModelError(
            f"the weights in {folder / location} cannot be read: constants cannot be folded",
            hint="bring the file, or leave --fold-constants out",
        ) from error


Store = Callable[["TensorProto", "NDArray[Any]"], None]
"""Stores an array as the data of a tensor: `store_inside`, or `DataFile.store`."""


def store_inside(tensor: TensorProto, array: NDArray[Any]) -> None:
    """Store an array in the ``raw_data`` of a tensor."""
    tensor.raw_data = b"".join(_chunks(array))


@dataclass(frozen=True, slots=True)
class DataFile:
    """An open file of external data, and the location ``name`` by which tensors refer to it."""

    name: str
    file: BinaryIO

    def store(self, tensor: TensorProto, array: NDArray[Any]) -> None:
        """Append an array to the file and let the tensor refer to it; small ones go inside."""
        if array.nbytes < MIN_EXTERNAL_BYTES:
            store_inside(tensor, array)
            return
        offset = fill_to_boundary(self.file, array.nbytes)
        for chunk in _chunks(array):
            self.file.write(chunk)
        refer_to_file(tensor, self.name, offset, array.nbytes)


def fill_to_boundary(file: BinaryIO, size: int) -> int:
    """Fill a file with zeros up to where data of ``size`` bytes may start; return that offset."""
    boundary = PAGE if is_small(size) else LARGE_BOUNDARY
    file.write(b"\0" * (-file.tell() % boundary))
    return file.tell()


def is_small(size: int) -> bool:
    """Whether data of ``size`` bytes may start on any page.

    As a sort key it puts large data first. Between small data, each large one costs up to 60 KiB of zeros.
    """
    return size < LARGE_BYTES


def refer_to_file(tensor: TensorProto, location: str, offset: int, length: int) -> None:
    """Let a tensor without external data refer to bytes of a file."""
    tensor.data_location = tensor.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))


def _chunks(array: NDArray[Any]) -> Iterator[bytes]:
    """Yield the bytes of an array in C order, some rows at a time: a view is not copied whole."""
    # As many rows as fit into `_CHUNK` bytes.
    rows = max(1, _CHUNK * len(array) // max(array.nbytes, 1)) if array.ndim else 1
    if not array.ndim or rows >= len(array):
        yield array.tobytes()
        return
    for start in range(0, len(array), rows):
        yield array[start : start + rows].tobytes()


def sparse_weights(graph: GraphProto) -> Iterator[tuple[str, SparseTensorProto]]:
    """Yield the sparse initializers and sparse Constants of a graph by name."""
    for sparse in graph.sparse_initializer:
        yield sparse.values.name, sparse
    for node in graph.node:
        if node.op_type == "Constant":
            for attribute in node.attribute:
                if attribute.name == "sparse_value":
                    yield node.output[0], attribute.sparse_tensor


def dense(sparse: SparseTensorProto, folder: Path) -> TensorProto:
    """Return a sparse tensor as a dense one, as ONNX Runtime's session makes it."""
    import numpy as np
    from onnx import numpy_helper

    values = numpy_helper.to_array(loaded(sparse.values, folder))
    indices = numpy_helper.to_array(loaded(sparse.indices, folder))
    whole = np.zeros(tuple(sparse.dims), values.dtype)
    # Indices are flat, or one column for each axis.
    is_flat = indices.ndim == 1
    where = np.unravel_index(indices, whole.shape) if is_flat else tuple(indices.T)
    whole[where] = values
    return numpy_helper.from_array(whole)
