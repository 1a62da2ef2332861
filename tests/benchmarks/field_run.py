"""One run of a model with every intermediate as an output, by ONNX Runtime and nothing else.

    python -m tests.benchmarks.field_run MODEL INPUTS.json

Prints what the run says, as JSON: whether ONNX Runtime runs the model with these inputs,
and the bytes of all intermediates of the top graph, to hold ``naive`` against.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

DTYPES = {"float": "float32", "double": "float64", "string": "object"}


def values(told: dict[str, Any]) -> dict[str, Any]:
    """Draw the inputs, the same ones each time."""
    rng = np.random.default_rng(0)
    return {name: _value(entry, rng) for name, entry in told.items()}


def _value(entry: dict[str, Any], rng: np.random.Generator) -> np.ndarray:
    shape, dtype = tuple(entry["shape"]), DTYPES.get(entry["dtype"], entry["dtype"])
    if dtype == "object":
        return np.full(shape, "a", dtype=object)
    if "value" in entry:
        return np.full(shape, entry["value"], dtype=dtype)
    if dtype.startswith(("float", "bfloat")):
        return rng.uniform(entry["low"], entry["high"], shape).astype(dtype)
    return rng.integers(entry["low"], entry["high"] + 1, shape).astype(dtype)


def _session(model: bytes | str) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def total_of_intermediates(path: Path, feed: dict[str, Any]) -> int | None:
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
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in made)
    results = _session(model.SerializeToString()).run(made or None, feed)
    if not made:
        return 0
    if not all(isinstance(result, np.ndarray) for result in results):
        return None
    return sum(int(result.nbytes) for result in results)


def main() -> None:
    path, told = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text())
    found: dict[str, object] = {"runs": False, "naive": None, "error": ""}
    try:
        feed = values(told)
        _session(str(path)).run(None, feed)
        found["runs"] = True
        found["naive"] = total_of_intermediates(path, feed)
    except Exception as error:  # noqa: BLE001 - whatever the runtime says is the answer
        found["error"] = " ".join(str(error).split())[:300]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
