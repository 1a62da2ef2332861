"""Make the sample models: small graphs with seeded weights, each with something to plan.

    python sample_models/build.py [FOLDER]

The files in the repository are what this script writes; a test compares them.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper, save

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


@dataclass
class Graph:
    """Nodes and seeded weights of a graph under construction."""

    name: str
    nodes: list[NodeProto] = field(default_factory=list)
    weights: list[TensorProto] = field(default_factory=list)

    def op(self, kind: str, inputs: str, output: str, **attributes: object) -> str:
        outputs = output.split()
        node = helper.make_node(
            kind, inputs.split(), outputs, name=f"{outputs[0]}/{kind}", **attributes
        )
        self.nodes.append(node)
        return outputs[0]

    def weight(self, name: str, *shape: int) -> str:
        rng = np.random.default_rng([len(name), *name.encode()])
        scale = 1 / np.sqrt(max(1, int(np.prod(shape[1:]))))
        values = (rng.standard_normal(shape) * scale).astype(np.float32)
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def const(self, name: str, values: object, dtype: type = np.int64) -> str:
        self.weights.append(numpy_helper.from_array(np.array(values, dtype), name))
        return name

    def model(self, inputs: list[object], outputs: list[object]) -> ModelProto:
        graph = helper.make_graph(self.nodes, self.name, inputs, outputs, self.weights)
        opset = [helper.make_opsetid("", 20)]
        return helper.make_model(
            graph, opset_imports=opset, ir_version=10, producer_name="memplan samples"
        )


def value(name: str, kind: int, *shape: int | str) -> object:
    return helper.make_tensor_value_info(name, kind, list(shape))


def branchy_cnn() -> ModelProto:
    """A CNN whose branches are written breadth first, the way exporters like to."""
    g = Graph("branchy_cnn")
    stem = g.op("Conv", f"image {g.weight('stem.w', 16, 3, 3, 3)}", "stem", pads=[1, 1, 1, 1])
    stem = g.op("Relu", stem, "stem_relu")
    wide = [
        g.op(
            "Conv",
            f"{stem} {g.weight(f'b{i}.w', 32, 16, 3, 3)}",
            f"b{i}_conv",
            pads=[1, 1, 1, 1],
        )
        for i in range(4)
    ]
    active = [g.op("Relu", name, f"b{i}_relu") for i, name in enumerate(wide)]
    small = [
        g.op("MaxPool", name, f"b{i}_pool", kernel_shape=[4, 4], strides=[4, 4])
        for i, name in enumerate(active)
    ]
    joined = g.op("Concat", " ".join(small), "joined", axis=1)
    flat = g.op("Flatten", g.op("GlobalAveragePool", joined, "pooled"), "flat")
    fc1 = g.op("Gemm", f"{flat} {g.weight('fc1.w', 128, 64)} {g.weight('fc1.b', 64)}", "fc1")
    fc1 = g.op("Relu", fc1, "fc1_relu")
    fc2 = g.op("Gemm", f"{fc1} {g.weight('fc2.w', 64, 10)} {g.weight('fc2.b', 10)}", "fc2")
    g.op("Softmax", fc2, "prob", axis=-1)
    return g.model([value("image", FLOAT, 1, 3, 32, 32)], [value("prob", FLOAT, 1, 10)])


def train_mlp() -> ModelProto:
    """One training step of a two-layer net: forward, backward, SGD."""
    g = Graph("train_mlp")
    for name, number in (("lr", 0.1), ("two", 2.0), ("count", 640.0)):
        g.const(name, number, np.float32)
    g.const("rows", [0])
    h = g.op("Add", f"{g.op('MatMul', 'x in.fc1.w', 'fc1_product')} in.fc1.b", "fc1")
    a = g.op("Relu", h, "fc1_relu")
    y = g.op("Add", f"{g.op('MatMul', f'{a} in.fc2.w', 'fc2_product')} in.fc2.b", "fc2")
    error = g.op("Sub", f"{y} target", "error")
    square = g.op("Mul", f"{error} {error}", "square")
    g.op("ReduceMean", square, "loss", keepdims=0)
    dy = g.op("Div", f"{g.op('Mul', f'{error} two', 'error2')} count", "fc2_grad")
    g.op("MatMul", f"{g.op('Transpose', a, 'fc1_relu_t', perm=[1, 0])} {dy}", "fc2.w_grad")
    g.op("ReduceSum", f"{dy} rows", "fc2.b_grad", keepdims=0)
    w2t = g.op("Transpose", "in.fc2.w", "fc2.w_t", perm=[1, 0])
    da = g.op("MatMul", f"{dy} {w2t}", "fc1_relu_grad")
    zero = g.const("zero", 0.0, np.float32)
    mask = g.op("Cast", g.op("Greater", f"{h} {zero}", "fc1_positive"), "fc1_mask", to=FLOAT)
    dh = g.op("Mul", f"{da} {mask}", "fc1_grad")
    g.op("MatMul", f"{g.op('Transpose', 'x', 'x_t', perm=[1, 0])} {dh}", "fc1.w_grad")
    g.op("ReduceSum", f"{dh} rows", "fc1.b_grad", keepdims=0)
    shapes = {"fc1.w": (32, 128), "fc1.b": (128,), "fc2.w": (128, 10), "fc2.b": (10,)}
    for name in shapes:
        step = g.op("Mul", f"{name}_grad lr", f"{name}_step")
        g.op("Sub", f"in.{name} {step}", f"new.{name}")
    inputs = [value("x", FLOAT, 64, 32), value("target", FLOAT, 64, 10)]
    inputs += [value(f"in.{name}", FLOAT, *shape) for name, shape in shapes.items()]
    outputs = [value("loss", FLOAT)]
    outputs += [value(f"new.{name}", FLOAT, *shape) for name, shape in shapes.items()]
    return g.model(inputs, outputs)


def _branch(name: str, factor: str, weight: str) -> GraphProto:
    g = Graph(name)
    product = g.op("MatMul", f"state {g.weight(weight, 64, 64)}", f"{name}_product")
    scaled = g.op("Mul", f"{product} {g.const(factor, 0.1, np.float32)}", f"{name}_scaled")
    g.op("Tanh", scaled, f"{name}_out")
    return helper.make_graph(
        g.nodes, name, [], [value(f"{name}_out", FLOAT, 32, 64)], g.weights
    )


def nested_if_loop() -> ModelProto:
    """A loop that chooses a branch each turn; both branches read the loop's state."""
    body = Graph("body")
    body.op("Identity", "keep_going", "keep_going_out")
    body.op("ReduceMean", "state", "mean", keepdims=0)
    zero = body.const("threshold", 0.0, np.float32)
    body.op("Greater", f"mean {zero}", "is_positive")
    branches = {
        "then_branch": _branch("cool", "cool_factor", "cool.w"),
        "else_branch": _branch("heat", "heat_factor", "heat.w"),
    }
    body.op("If", "is_positive", "change", **branches)
    body.op("Add", "change context", "shifted")
    body.op("Add", "state shifted", "next_state")
    given = [value("turn", INT64), value("keep_going", BOOL), value("state", FLOAT, 32, 64)]
    made = [value("keep_going_out", BOOL), value("next_state", FLOAT, 32, 64)]
    loop = helper.make_graph(body.nodes, "body", given, made, body.weights)
    g = Graph("nested_if_loop")
    context = g.op(
        "Tanh", g.op("MatMul", f"x {g.weight('proj.w', 64, 64)}", "projected"), "context"
    )
    trips, going = g.const("trips", 5), g.const("going", True, np.bool_)  # noqa: FBT003 - a tensor's value
    g.op("Loop", f"{trips} {going} {context}", "last_state", body=loop)
    g.op("Relu", "last_state", "y")
    return g.model([value("x", FLOAT, 32, 64)], [value("y", FLOAT, 32, 64)])


def dynamic_batch() -> ModelProto:
    """A residual block and a classifier whose batch is not known before the run."""
    g = Graph("dynamic_batch")
    x = g.op("Conv", f"image {g.weight('stem.w', 16, 3, 3, 3)}", "stem", pads=[1, 1, 1, 1])
    for i in range(2):
        y = g.op(
            "Conv", f"{x} {g.weight(f'r{i}.w', 16, 16, 3, 3)}", f"r{i}_conv", pads=[1, 1, 1, 1]
        )
        x = g.op("Add", f"{x} {g.op('Relu', y, f'r{i}_relu')}", f"r{i}")
    flat = g.op("Flatten", g.op("GlobalAveragePool", x, "pooled"), "flat")
    g.op("Gemm", f"{flat} {g.weight('fc1.w', 16, 10)}", "fc1")
    return g.model(
        [value("image", FLOAT, "batch", 3, 16, 16)], [value("fc1", FLOAT, "batch", 10)]
    )


def tied_head() -> ModelProto:
    """A language model in small: its head is the table of its embedding, transposed."""
    g = Graph("tied_head")
    table = g.weight("embedding.w", 256, 32)
    x = g.op("Gather", f"{table} tokens", "embedded")
    x = g.op("Relu", g.op("MatMul", f"{x} {g.weight('fc1.w', 32, 32)}", "fc1"), "fc1_relu")
    head = g.op("Transpose", table, "head", perm=[1, 0])
    g.op("MatMul", f"{x} {head}", "logits")
    return g.model([value("tokens", INT64, 1, 8)], [value("logits", FLOAT, 1, 8, 256)])


MODELS = (branchy_cnn, train_mlp, nested_if_loop, dynamic_batch, tied_head)


def main(folder: Path) -> None:
    for build in MODELS:
        path = folder / f"{build.__name__}.onnx"
        save(build(), path)
        print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
