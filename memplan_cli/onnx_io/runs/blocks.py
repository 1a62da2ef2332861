"""A model that puts numbers into blocks of channels as a runtime lays them out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.operators import NCHWC

if TYPE_CHECKING:
    from onnx import ModelProto


def model_in_blocks(dims: tuple[int, int, int, int]) -> ModelProto:
    """Return a model that gives ``y``, which is ``x`` of these dims with its channels in blocks."""
    from onnx import TensorProto, helper

    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    node = helper.make_node("ReorderInput", ["x"], ["y"], domain=NCHWC)
    graph = helper.make_graph([node], "blocks", [given], [made])
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid(NCHWC, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)
