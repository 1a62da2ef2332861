"""ONNX Runtime 1.31.1: weights that a subgraph reads are held until all of its nodes are packed.

Run it on Linux in an empty folder. Products with constants are packed when a session is made, and
the constants unmapped. In the main graph each goes before the next is packed. Where a subgraph
reads them all stay mapped, read and resident until its last node is packed.
"""

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

PRODUCTS, WIDTH = 12, 1024


def write(name: str, *, in_loop: bool) -> None:
    rng = np.random.default_rng(0)
    shapes = [(f"w{index}", (WIDTH, WIDTH)) for index in range(PRODUCTS)]
    weights = [
        numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), weight)
        for weight, shape in shapes
    ]
    values = ["x", *(f"t{index}" for index in range(PRODUCTS - 1)), "y"]
    nodes = [
        helper.make_node("MatMul", [values[index], f"w{index}"], [values[index + 1]])
        for index in range(PRODUCTS)
    ]
    given, made = (
        helper.make_tensor_value_info(at, TensorProto.FLOAT, (1, WIDTH)) for at in "xy"
    )
    if in_loop:
        turn = helper.make_tensor_value_info("turn", TensorProto.INT64, ())
        on, still = (
            helper.make_tensor_value_info(at, TensorProto.BOOL, ()) for at in ("on", "still")
        )
        nodes.append(helper.make_node("Identity", ["on"], ["still"]))
        body = helper.make_graph(nodes, "turn", [turn, on, given], [still, made])
        nodes = [helper.make_node("Loop", ["turns", "", "start"], ["end"], body=body)]
        weights.append(numpy_helper.from_array(np.array(1), "turns"))
        given, made = (
            helper.make_tensor_value_info(at, TensorProto.FLOAT, (1, WIDTH))
            for at in ("start", "end")
        )
    graph = helper.make_graph(nodes, "products", [given], [made], weights)
    opset = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=8)
    Path(f"{name}.data").unlink(missing_ok=True)
    onnx.save(model, name, save_as_external_data=True, location=f"{name}.data")


def highest() -> int:
    """Return the highest resident size of this process so far, kB."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def show(name: str) -> None:
    """Print by how much this process grows while a session is made, MB."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    before = highest()
    ort.InferenceSession(name, options, providers=["CPUExecutionProvider"])
    print(round((highest() - before) * 1024 / 1e6))


if len(sys.argv) > 1:
    show(sys.argv[1])
else:
    for name, in_loop in (("main.onnx", False), ("loop.onnx", True)):
        write(name, in_loop=in_loop)
        again = [sys.executable, __file__, name]
        done = subprocess.run(again, capture_output=True, text=True, check=True)
        print(
            f"{PRODUCTS} products of 4 MiB in the {name.partition('.')[0]}: {done.stdout.strip()} MB"
        )
