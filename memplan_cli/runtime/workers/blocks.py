"""How many channels lie beside each other where the runtime lays them out in blocks."""

from __future__ import annotations

from memplan_cli.onnx_io.runs.prepared_models import model_in_blocks

_CHANNELS = 64
"""A multiple of any block."""


def block_size() -> int:
    """Return the channels of a block on this machine, by putting numbers into blocks.

    Two columns of each channel: the first channel's second one comes behind the first block.
    """
    import numpy as np
    import onnxruntime

    dims = 1, _CHANNELS, 1, 2
    session = onnxruntime.InferenceSession(
        model_in_blocks(dims).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    numbers = np.arange(2 * _CHANNELS, dtype=np.float32).reshape(dims)
    found = np.asarray(session.run(None, {"x": numbers})[0]).ravel()
    return int(np.flatnonzero(found == 1.0)[0])
