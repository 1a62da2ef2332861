"""Elements of small constants that are read from a model."""

from __future__ import annotations

import onnx

from memplan_cli.onnx_io.constants import small_numbers


def test_a_small_constant_without_its_data_has_no_known_elements() -> None:
    tensor = onnx.TensorProto(data_type=onnx.TensorProto.INT64, dims=[3])
    assert small_numbers(tensor) is None
    tensor.int64_data.extend([1, 2, 3])
    assert small_numbers(tensor) == (1, 2, 3)
