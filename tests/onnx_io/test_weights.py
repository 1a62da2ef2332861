"""Weights that say one size and hold another are refused; sound ones and empty ones are not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from memplan_cli.api.models.model_file import read_model
from memplan_cli.errors import ModelError
from memplan_cli.onnx_io.weights.sizes import check_initializers, check_tensor
from memplan_cli.onnx_io.weights.stored import stored_model

if TYPE_CHECKING:
    from pathlib import Path


def weight(kind: int, *dims: int, **data: object) -> TensorProto:
    return TensorProto(name="w", data_type=kind, dims=dims, **data)


@pytest.mark.parametrize(
    "tensor",
    [
        weight(TensorProto.FLOAT, 2, 3, raw_data=bytes(24)),
        weight(TensorProto.FLOAT, 2, 3, float_data=[0.5] * 6),
        weight(TensorProto.FLOAT, 2, 3),
        weight(TensorProto.FLOAT, raw_data=bytes(4)),
        weight(TensorProto.FLOAT, 0, 3),
        weight(TensorProto.FLOAT16, 5, int32_data=[1] * 5),
        weight(TensorProto.COMPLEX64, 5, float_data=[1] * 10),
        weight(TensorProto.INT4, 5, int32_data=[1] * 3),
        weight(TensorProto.INT4, 5, raw_data=bytes(3)),
        weight(TensorProto.UINT32, 5, uint64_data=[1] * 5),
        weight(TensorProto.STRING, 2, string_data=[b"a", b"b"]),
        helper.make_tensor("w", TensorProto.INT4, (5,), [1, 2, 3, 4, 5]),
        numpy_helper.from_array(np.ones((3, 4), np.complex128), "w"),
        numpy_helper.from_array(np.ones((3, 4), bool), "w"),
    ],
)
def test_data_of_its_dims_or_none_at_all_is_sound(tensor: TensorProto) -> None:
    check_tensor(tensor)


@pytest.mark.parametrize(
    ("tensor", "said"),
    [
        (weight(TensorProto.FLOAT, 2, 3, raw_data=bytes(23)), "24 bytes, and its data has 23"),
        (weight(TensorProto.FLOAT, 2, 3, raw_data=bytes(25)), "its data has 25 bytes"),
        (weight(TensorProto.FLOAT, 2, 3, float_data=[1]), "its data has 1 values"),
        (weight(TensorProto.INT64, 2, int64_data=[1, 2, 3]), "its data has 3 values"),
        (weight(TensorProto.INT4, 5, raw_data=bytes(5)), "its data has 5 bytes"),
        (weight(TensorProto.FLOAT, 2, -3), "negative dim"),
        (weight(TensorProto.FLOAT, 1 << 62), "no machine has that much"),
    ],
)
def test_data_of_another_size_is_refused(tensor: TensorProto, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        check_tensor(tensor)


def test_data_elsewhere_is_as_long_as_it_says() -> None:
    tensor = weight(TensorProto.FLOAT, 2, 3, data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="w.bin")
    check_tensor(tensor)
    length = tensor.external_data.add(key="length", value="24")
    check_tensor(tensor)
    length.value = "20"
    with pytest.raises(ModelError, match="24 bytes, and its data has 20 bytes"):
        check_tensor(tensor)


def test_packed_elements_of_external_data_share_bytes(tmp_path: Path) -> None:
    tensor = weight(TensorProto.INT4, 5, data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="w.bin")
    graph = helper.make_graph([], "g", [], [], [tensor])
    onnx.save(helper.make_model(graph), tmp_path / "model.onnx")
    (stored,) = stored_model(tmp_path / "model.onnx").weights
    assert stored.size == 3


def test_large_weights_cannot_take_more_than_the_file() -> None:
    graph = onnx.GraphProto()
    graph.initializer.append(weight(TensorProto.FLOAT, 1 << 20, raw_data=bytes(1 << 22)))
    check_initializers(graph, graph.ByteSize())
    graph.initializer.append(weight(TensorProto.FLOAT, 1 << 30))
    graph.initializer[1].name = "taken out"
    check_initializers(graph, graph.ByteSize())
    graph.initializer[1].raw_data = b"1234"
    with pytest.raises(ModelError, match="'taken out' is float32"):
        check_initializers(graph, graph.ByteSize())


def test_weights_in_bodies_and_attributes_are_looked_at(tmp_path: Path) -> None:
    short = weight(TensorProto.FLOAT, 2, 3, raw_data=bytes(8))
    body = helper.make_graph(
        [helper.make_node("Identity", ["w"], ["a"])],
        "body", [], [helper.make_tensor_value_info("a", 1, None)], [short],
    )  # fmt: skip
    for at, node in enumerate(
        (
            helper.make_node("If", ["x"], ["y"], then_branch=body, else_branch=body),
            helper.make_node("Constant", [], ["y"], value=short),
        )
    ):
        graph = helper.make_graph(
            [node], "g", [helper.make_tensor_value_info("x", TensorProto.BOOL, [])],
            [helper.make_tensor_value_info("y", 1, None)],
        )  # fmt: skip
        path = tmp_path / f"{at}.onnx"
        path.write_bytes(helper.make_model(graph).SerializeToString())
        with pytest.raises(ModelError, match="its data has 8 bytes"):
            read_model(path)


def test_data_of_weights_that_can_fit_into_the_file_is_not_counted() -> None:
    graph = onnx.GraphProto()
    graph.initializer.append(weight(TensorProto.FLOAT, 1 << 20, raw_data=b"1234"))
    check_initializers(graph, 1 << 22)
    with pytest.raises(ModelError, match="'w' is float32"):
        check_initializers(graph, (1 << 22) - 1)
