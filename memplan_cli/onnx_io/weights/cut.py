"""Ranges of weights as weights of their own: the same external bytes where they lie together."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.onnx_io.weights.external_data import loaded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onnx import TensorProto

    from memplan_cli.core.results.chunks import Cut


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
