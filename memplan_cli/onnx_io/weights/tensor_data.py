"""The data of single weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from memplan_cli.errors import ModelError
from memplan_cli.onnx_io.weights.external_data import loaded, locations

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray
    from onnx import GraphProto, SparseTensorProto, TensorProto

    from memplan_cli.core.results.rewrites import Cut


def read_tensor(tensor: TensorProto, folder: Path) -> NDArray[Any]:
    """Return a tensor's values; data in another file is mapped.

    Raises:
        ModelError: that file is not there or too short.
    """
    import numpy as np
    from onnx import helper, numpy_helper

    if tensor.data_location != tensor.EXTERNAL:
        _refuse_without_data(tensor)
        return np.asarray(numpy_helper.to_array(tensor))
    (name,) = locations([tensor])
    entries = {entry.key: entry.value for entry in tensor.external_data}
    shape, dtype = tuple(tensor.dims), helper.tensor_dtype_to_np_dtype(tensor.data_type)
    if 0 in shape:
        return np.empty(shape, dtype)
    try:
        offset = int(entries.get("offset", "0"))
        return np.memmap(folder / name, dtype, "r", offset, shape)
    except (OSError, ValueError) as error:
        raise ModelError(
            f"the weights in {folder / name} cannot be read: constants cannot be folded",
            hint="bring the file, or leave --fold-constants out",
        ) from error


def _refuse_without_data(tensor: TensorProto) -> None:
    if 0 not in tensor.dims and not any(len(getattr(tensor, part)) for part in _DATA):
        raise ModelError(
            f"{tensor.name[:120]!r} has no data: constants cannot be folded",
            hint="give the model its weights, or leave --fold-constants out",
        )


_DATA = ("raw_data", "float_data", "double_data", "int32_data", "int64_data", "uint64_data")


_LEAST = 1024
"""Bytes from which a tensor is worth a place in another file, as the runtime's own dump."""


_PAGE = 4096
"""Data is mapped where it begins on a page."""


_CHUNK = 16 << 20
"""Bytes that are put in order in memory at a time."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file beside the model that new weights are written into, and its name there."""

    name: str
    file: BinaryIO

    def hold(self, tensor: TensorProto, value: NDArray[Any]) -> None:
        """Write a tensor's value, a part at a time, and let the tensor refer to it."""
        if value.nbytes < _LEAST:
            inside(tensor, value)
            return
        self.file.write(b"\0" * (-self.file.tell() % _PAGE))
        place = {"location": self.name, "offset": self.file.tell(), "length": value.nbytes}
        for part in _parts(value):
            self.file.write(part)
        tensor.data_location = tensor.EXTERNAL
        for key, entry in place.items():
            tensor.external_data.add(key=key, value=str(entry))


def inside(tensor: TensorProto, value: NDArray[Any]) -> None:
    """Put a value into a tensor."""
    tensor.raw_data = b"".join(_parts(value))


Hold = Callable[["TensorProto", "NDArray[Any]"], None]
"""Puts a value where it is to be: `inside`, or `DataFile.hold`."""


def _parts(value: NDArray[Any]) -> Iterator[bytes]:
    """Yield the bytes of an array in the order of its elements; a view is never copied whole."""
    rows = max(1, _CHUNK * len(value) // max(value.nbytes, 1)) if value.ndim else 1
    if not value.ndim or rows >= len(value):
        yield value.tobytes()
        return
    for start in range(0, len(value), rows):
        yield value[start : start + rows].tobytes()


def cut_weight(tensor: TensorProto, cut: Cut, folders: Sequence[Path]) -> TensorProto:
    """Return a range of a weight, without a name.

    Rows of a weight in a file are bytes one after the other, and the part says where they are.
    Other ranges are put into the model.

    Args:
        tensor: The weight.
        cut: The axis, and where the range begins and ends.
        folders: Where external data may be.
    """
    from onnx import numpy_helper

    if tensor.data_location == tensor.EXTERNAL and prod(tensor.dims[: cut.axis]) == 1:
        return _view(tensor, cut)
    name = next((e.value for e in tensor.external_data if e.key == "location"), "")
    folder = next((each for each in folders if (each / name).is_file()), Path())
    values = numpy_helper.to_array(loaded(tensor, folder))
    places = (slice(None),) * cut.axis + (slice(cut.start, cut.stop),)
    return numpy_helper.from_array(values[places])


def _view(tensor: TensorProto, cut: Cut) -> TensorProto:
    """Return a weight that is some of the bytes of another in the same file."""
    from onnx import helper

    part = type(tensor)()
    part.data_type, part.data_location = tensor.data_type, tensor.EXTERNAL
    part.dims.extend(tensor.dims)
    part.dims[cut.axis] = cut.stop - cut.start
    row = (
        prod(tensor.dims[cut.axis + 1 :])
        * helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    )
    told = {entry.key: entry.value for entry in tensor.external_data}
    offset = int(told.get("offset", 0)) + cut.start * row
    place = {"location": told["location"], "offset": offset}
    place["length"] = (cut.stop - cut.start) * row
    for key, value in place.items():
        part.external_data.add(key=key, value=str(value))
    return part


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
