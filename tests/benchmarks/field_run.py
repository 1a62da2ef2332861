"""One run of a model with every intermediate as an output, by ONNX Runtime and nothing else.

    python -m tests.benchmarks.field_run MODEL INPUTS.npz

Prints what the run says, as JSON: whether ONNX Runtime runs the model with these inputs,
the bytes of each intermediate of the top graph, to hold a plan's tensors against, and those
of the outputs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort


def _session(model: bytes | str) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def bytes_of_intermediates(path: Path, feed: dict[str, Any]) -> dict[str, int]:
    """Return the bytes of what the nodes make, less constants and outputs, where tensors."""
    model = onnx.load(path)
    known = {value.name for value in model.graph.output}
    made = [
        name
        for node in model.graph.node
        if node.op_type != "Constant"
        for name in node.output
        if name and name not in known
    ]
    if not made:
        return {}
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in made)
    results = _session(model.SerializeToString()).run(made, feed)
    return {
        name: int(result.nbytes)
        for name, result in zip(made, results, strict=True)
        if isinstance(result, np.ndarray) and result.dtype != object
    }


def main() -> None:
    path = Path(sys.argv[1])
    found: dict[str, object] = {"runs": False, "tensors": {}, "outputs": None, "error": ""}
    try:
        with np.load(sys.argv[2]) as file:
            feed = {name: file[name] for name in file.files}
        made = _session(str(path)).run(None, feed)
        found["runs"] = True
        found["outputs"] = sum(int(getattr(one, "nbytes", 0)) for one in made)
        found["tensors"] = bytes_of_intermediates(path, feed)
    except Exception as error:  # noqa: BLE001 - whatever the runtime says is the answer
        found["error"] = " ".join(str(error).split())[:300]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
