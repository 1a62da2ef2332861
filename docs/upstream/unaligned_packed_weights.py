"""ONNX Runtime 1.31.1: a packed weight that lies unaligned in the external file crashes.

Run it in an empty folder. It writes a model of two nodes, lets ONNX Runtime save the
optimized graph with packed weights in the external file, and runs that file.
"""

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

rng = np.random.default_rng(0)
# 33 floats, 132 bytes: what is written behind them is aligned to four bytes.
odd = numpy_helper.from_array(rng.standard_normal(33).astype(np.float32), "odd")
weight = numpy_helper.from_array(rng.standard_normal((96, 288)).astype(np.float32), "weight")


def value(name: str, *shape: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


graph = helper.make_graph(
    [
        helper.make_node("Add", ["a", "odd"], ["b"]),
        helper.make_node("MatMul", ["x", "weight"], ["y"]),
    ],
    "unaligned",
    [value("a", 33), value("x", 4, 96)],
    [value("b", 33), value("y", 4, 288)],
    [odd, weight],
)
opset = [helper.make_opsetid("", 17)]
onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), "plain.onnx")

save = ort.SessionOptions()
save.log_severity_level = 3
save.optimized_model_filepath = "packed.onnx"
for key, entry in {
    "session.optimized_model_external_initializers_file_name": "packed.onnx.data",
    "session.optimized_model_external_initializers_min_size_in_bytes": "128",
    "session.save_external_prepacked_constant_initializers": "1",
}.items():
    save.add_session_config_entry(key, entry)
ort.InferenceSession("plain.onnx", save, providers=["CPUExecutionProvider"])
for tensor in onnx.load("packed.onnx", load_external_data=False).graph.initializer:
    print(tensor.name, {entry.key: entry.value for entry in tensor.external_data})

run = ort.SessionOptions()
run.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
session = ort.InferenceSession("packed.onnx", run, providers=["CPUExecutionProvider"])
print("loaded", flush=True)
session.run(None, {"a": np.ones(33, np.float32), "x": np.ones((4, 96), np.float32)})
print("ran")
