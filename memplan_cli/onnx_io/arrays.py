"""Arrays of element types that numpy does not know, to bytes and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import TensorProto, numpy_helper
from onnx.helper import np_dtype_to_tensor_dtype, tensor_dtype_to_np_dtype

from memplan_cli.onnx_io.types import dtype_name, element_type

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


def packed(array: NDArray[Any], dtype: str) -> bytes:
    """Return an array's values as ONNX keeps a type: several in a byte where they are small.

    Args:
        array: Values that the type has.
        dtype: Our name of an element type, ``bfloat16`` or ``int4``, say.
    """
    values = array.astype(tensor_dtype_to_np_dtype(element_type(dtype)))
    return bytes(numpy_helper.from_array(values).raw_data)


def unpacked(raw: bytes, dtype: str, shape: Sequence[int]) -> NDArray[np.float32]:
    """Return what bytes of a type hold, as float32: the types here are exact in it."""
    tensor = TensorProto(data_type=element_type(dtype), dims=shape, raw_data=raw)
    return np.asarray(numpy_helper.to_array(tensor), np.float32)


def array_dtype(array: NDArray[Any]) -> str:
    """Return our name of an array's element type."""
    return dtype_name(np_dtype_to_tensor_dtype(array.dtype))
