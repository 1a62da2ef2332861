"""Elements of small constants that are read from a model."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from memplan_cli.onnx_io.constants import small_numbers


def test_a_small_constant_without_its_data_has_no_known_elements() -> None:
    tensor = onnx.TensorProto(data_type=onnx.TensorProto.INT64, dims=[3])
    assert small_numbers(tensor) is None
    tensor.int64_data.extend([1, 2, 3])
    assert small_numbers(tensor) == (1, 2, 3)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "int64"])
def test_numbers_of_these_types_are_known(dtype: str) -> None:
    assert small_numbers(numpy_helper.from_array(np.array([2, 3], dtype))) == (2, 3)
