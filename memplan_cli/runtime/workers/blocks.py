"""How many channels lie beside each other where the runtime lays them out in blocks."""

from __future__ import annotations

BLOCKED = "com.microsoft.nchwc"
"""The domain of ONNX Runtime's operators over blocks of channels."""

_CHANNELS = 64
"""A multiple of any block."""


def block_size() -> int:
    """Return the channels of a block on this machine, by putting numbers into blocks.

    Two columns of each channel: the first channel's second one comes behind the first block.
    """
    import numpy as np
    import onnxruntime
    from onnx import TensorProto, helper

    dims = 1, _CHANNELS, 1, 2
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    node = helper.make_node("ReorderInput", ["x"], ["y"], domain=BLOCKED)
    graph = helper.make_graph([node], "blocks", [given], [made])
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid(BLOCKED, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    numbers = np.arange(2 * _CHANNELS, dtype=np.float32).reshape(dims)
    found = np.asarray(session.run(None, {"x": numbers})[0]).ravel()
    return int(np.flatnonzero(found == 1.0)[0])
