"""ONNX Runtime 1.31.1: the same model runs its nodes in another order in another process.

Run it in an empty folder, on a processor with AVX2. Four convolutions read one input and are
joined below each other. Each session puts a ReorderOutput behind each convolution, in an order that
follows addresses; by default nodes run in an order that follows from it, and so do the peaks.
"""

import collections
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

PROCESSES = 8


def write() -> None:
    rng = np.random.default_rng(0)
    nodes, weights, made = [], [], []
    for index, height in enumerate((1, 3, 5, 7)):
        kernel = rng.standard_normal((32, 16, height, 3)).astype(np.float32)
        weights.append(numpy_helper.from_array(kernel, f"w{index}"))
        nodes.append(helper.make_node("Conv", ["x", f"w{index}"], [f"c{index}"]))
        made.append(f"c{index}")
    nodes.append(helper.make_node("Concat", made, ["y"], axis=2))
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 16, 66, 66))
    joined = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "branches", [given], [joined], weights)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), "branches.onnx")


def show() -> None:
    """Print the order in which this process would run the convolutions."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = "dumped.onnx"
    ort.InferenceSession("branches.onnx", options, providers=["CPUExecutionProvider"])
    graph = onnx.load("dumped.onnx").graph
    print(*(node.output[0] for node in graph.node if node.op_type == "ReorderOutput"))


if "show" in sys.argv:
    show()
else:
    write()
    again = [sys.executable, __file__, "show"]
    runs = [
        subprocess.run(again, capture_output=True, text=True, check=True)
        for _ in range(PROCESSES)
    ]
    for order, count in collections.Counter(run.stdout.strip() for run in runs).items():
        print(f"{count} of {PROCESSES} processes: {order}".rstrip())
