"""Inputs in a folder of ``input_*.pb``, as the test data of ONNX's model zoo has them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import SequenceProto, TensorProto, helper, numpy_helper

from memplan_cli.core.untrusted_files import refuse_endless
from memplan_cli.errors import SettingsError
from memplan_cli.onnx_io.runs.input_files.found import Found, bytes_of, count_of, within_limit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    from onnx import ValueInfoProto

_LARGEST_TENSOR = (1 << 31) - 1
"""Bytes of a protobuf message; none that is larger can be parsed."""


def read_folder(path: Path, wanted: Sequence[ValueInfoProto]) -> Iterator[Found]:
    """Yield the tensors of ``input_*.pb``, by name where an input has it, else by number."""
    numbered = sorted(
        (int(found[1]), file)
        for file in path.iterdir()
        if (found := re.fullmatch(r"input_(\d{1,9})\.pb", file.name))
    )
    if not numbered:
        inner = next((p.parent for p in sorted(path.glob("*/input_*.pb"))), None)
        raise SettingsError(
            f"there is no input_*.pb in {path}", hint=f"did you mean {inner}?" if inner else ""
        )
    by_name = {value.name: value for value in wanted}
    for number, file in numbered:
        refuse_endless(file, SettingsError, _LARGEST_TENSOR)
        data = bytes_of(file, _LARGEST_TENSOR)
        name = TensorProto.FromString(data).name
        at = wanted[number] if number < len(wanted) else None
        value = by_name.get(name, at)
        if value is None:
            raise SettingsError(
                f"{file} is for no input: the model takes {len(wanted)}"
                + (f", and none is called {name[:100]!r}" if name else "")
            )
        yield _from_pb(value, data, str(file))


def _from_pb(value: ValueInfoProto, data: bytes, where: str) -> Found:
    kind = value.type
    if kind.HasField("optional_type"):
        kind = kind.optional_type.elem_type
    if kind.HasField("sequence_type"):
        arrays = [_array(t, where) for t in SequenceProto.FromString(data).tensor_values]
        dtype = _name_of(arrays[0]) if arrays else ""
        return Found(value.name, where, (), dtype, lambda: arrays, is_sequence=True)
    tensor = TensorProto.FromString(data)
    array = _array(tensor, where)
    return Found(value.name, where, array.shape, _name_of(array), lambda: (array,))


def _array(tensor: TensorProto, where: str) -> NDArray[Any]:
    """Return the data of a tensor that has it with it."""
    if tensor.data_location == TensorProto.EXTERNAL or tensor.external_data:
        raise SettingsError(f"{where} keeps its data in another file, which is not read")
    try:
        element = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    except KeyError as error:
        raise SettingsError(f"{where} holds no tensor") from error
    if any(dim < 0 for dim in tensor.dims):
        raise SettingsError(f"{where} has a negative dim")
    within_limit(where, count_of(tensor.dims) * element.itemsize)
    if sum(bool(getattr(tensor, name)) for name in _DATA) > 1:
        raise SettingsError(f"{where} has its data twice")
    return np.asarray(numpy_helper.to_array(tensor))


_DATA = (
    *("raw_data", "float_data", "int32_data", "int64_data"),
    *("double_data", "uint64_data", "string_data"),
)
"""Where a tensor may have its values; in one of them."""


def _name_of(array: NDArray[Any]) -> str:
    return "str" if array.dtype.kind in "OUS" else array.dtype.name
