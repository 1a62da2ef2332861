"""Graphs in which an exporter wrote each step of a loop out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import onnx
from onnx import helper, numpy_helper, shape_inference

BATCH, WIDTH = 2, 8

_READ = 13
"""The opset from which Squeeze and Unsqueeze read their axes."""


@dataclass
class Unrolled:
    """A graph that is written node by node."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    outputs: list[onnx.ValueInfoProto] = field(default_factory=list)

    def node(self, kind: str, *inputs: str, outputs: int = 1, **said: Any) -> Any:  # noqa: ANN401
        """Add a node; return the name of what it makes, or their names."""
        stem = f"{kind.lower()}_{len(self.nodes)}"
        names = [f"{stem}_{at}" for at in range(outputs)] if outputs > 1 else [stem]
        self.nodes.append(helper.make_node(kind, inputs, names, f"n_{stem}", **said))
        return names if outputs > 1 else stem

    def weight(self, name: str, *shape: int) -> str:
        """Add a matrix that is drawn by its name."""
        drawn = np.random.default_rng(sum(name.encode())).standard_normal(shape)
        self.weights.append(numpy_helper.from_array((0.3 * drawn).astype(np.float32), name))
        return name

    def number(self, *values: int) -> str:
        """Add a small constant."""
        name = f"number_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.array(values, np.int64), name))
        return name

    def scalar(self, value: int) -> str:
        """Add a number without dims."""
        name = f"scalar_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.array(value, np.int64), name))
        return name

    def given_one(self) -> str:
        """Return a one, of which there is one."""
        if all(tensor.name != "one" for tensor in self.weights):
            self.weights.append(numpy_helper.from_array(np.ones((), np.float32), "one"))
        return "one"

    def squeezed(self, value: str, opset: int) -> str:
        """Take an axis away, the second."""
        if opset < _READ:
            return self.node("Squeeze", value, axes=[1])  # type: ignore[no-any-return]
        return self.node("Squeeze", value, self.number(1))  # type: ignore[no-any-return]

    def unsqueezed(self, value: str, axis: int, opset: int) -> str:
        """Add an axis."""
        if opset < _READ:
            return self.node("Unsqueeze", value, axes=[axis])  # type: ignore[no-any-return]
        return self.node("Unsqueeze", value, self.number(axis))  # type: ignore[no-any-return]

    def given(self, name: str, *shape: int | str) -> str:
        """Add an input."""
        self.inputs.append(helper.make_tensor_value_info(name, 1, shape))
        return name

    def result(self, name: str, called: str, *shape: int | str) -> None:
        """Give a value, by an Identity."""
        self.nodes.append(helper.make_node("Identity", [name], [called]))
        self.outputs.append(helper.make_tensor_value_info(called, 1, shape))

    def model(self, opset: int = 18) -> onnx.ModelProto:
        """Return it, checked, with the types of its values."""
        graph = helper.make_graph(self.nodes, "g", self.inputs, self.outputs, self.weights)
        version = [helper.make_opsetid("", opset)]
        model = helper.make_model(graph, ir_version=8, opset_imports=version)
        onnx.checker.check_model(model)
        return shape_inference.infer_shapes(model, strict_mode=True)


Reads = Literal["Gather", "Split", "Slice", "nothing"]
Joins = Literal["Concat", "features", "outputs", "last"]


@dataclass(frozen=True)
class Net:
    """A recurrent net, and how it was exported.

    Attributes:
        steps: written out.
        reads: how a step takes its part of the input.
        joins: what becomes of what steps give.
        axis: along which a Concat joins them.
        backwards: whether the first step reads the last part.
        batch: samples, or the name of their number.
        states: what is carried besides the hidden state.
        opset: of the operators.
    """

    steps: int = 40
    reads: Reads = "Gather"
    joins: Joins = "Concat"
    axis: int = 1
    backwards: bool = False
    batch: int | str = BATCH
    states: int = 0
    opset: int = 18


def recurrent(net: Net) -> onnx.ModelProto:
    """Return a net with all its steps written out: ``h = tanh(x Wx + h Wh)``, times a gate."""
    graph = Unrolled()
    graph.given("x", net.batch, net.steps, WIDTH)
    hidden = graph.given("h0", net.batch, WIDTH)
    others = [graph.given(f"s{at}", net.batch, WIDTH) for at in range(net.states)]
    operands = [graph.weight(name, WIDTH, WIDTH) for name in ("Wx", "Wh", "Wo")]
    parts = _parts(graph, net)
    given = []
    for part in parts:
        hidden, others, out = _step(graph, part, hidden, others, operands)
        given.append(out)
    _finish(graph, net, hidden, given)
    return graph.model(net.opset)


def _parts(graph: Unrolled, net: Net) -> list[str]:
    """Return what each step reads, of the input."""
    order = range(net.steps)[:: -1 if net.backwards else 1]
    if net.reads == "nothing":
        return [""] * net.steps
    if net.reads == "Gather":
        return [graph.node("Gather", "x", graph.scalar(at), axis=1) for at in order]
    if net.reads == "Slice":
        axis = graph.number(1)
        pieces = [
            graph.node("Slice", "x", graph.number(at), graph.number(at + 1), axis)
            for at in order
        ]
    else:
        said = {"num_outputs": net.steps} if net.opset >= _SAID else {}
        split = graph.node("Split", "x", outputs=net.steps, axis=1, **said)
        pieces = [split[at] for at in order]
    return [graph.squeezed(piece, net.opset) for piece in pieces]


_SAID = 18
"""The opset from which Split says how many outputs it has."""


def _step(
    graph: Unrolled, part: str, hidden: str, others: list[str], operands: list[str]
) -> tuple[str, list[str], str]:
    read, kept, given = operands
    moved = graph.node("MatMul", hidden, kept)
    if part:
        moved = graph.node("Add", graph.node("MatMul", part, read), moved)
    active = graph.node("Tanh", moved)
    new = [graph.node("Mul", other, graph.node("Sigmoid", active)) for other in others]
    for other in new:
        active = graph.node("Add", active, other)
    return active, new, graph.node("Relu", graph.node("MatMul", active, given))


def _finish(graph: Unrolled, net: Net, hidden: str, given: list[str]) -> None:
    graph.result(hidden, "last", net.batch, WIDTH)
    if net.joins == "outputs":
        for at, name in enumerate(given):
            graph.result(name, f"y{at}", net.batch, WIDTH)
    elif net.joins == "features":
        joined = graph.node("Concat", *given, axis=1)
        graph.result(joined, "y", net.batch, net.steps * WIDTH)
    elif net.joins == "last":
        graph.result(given[-1], "y", net.batch, WIDTH)
    else:
        alone = [graph.unsqueezed(name, net.axis, net.opset) for name in given]
        shape: list[int | str] = [net.batch, WIDTH]
        shape.insert(net.axis, net.steps)
        graph.result(graph.node("Concat", *alone, axis=net.axis), "y", *shape)


def feeds(model: onnx.ModelProto, batch: int = BATCH) -> dict[str, np.ndarray]:
    """Return inputs."""
    random = np.random.default_rng(0)
    return {
        value.name: random.standard_normal(
            [dim.dim_value or batch for dim in value.type.tensor_type.shape.dim]
        ).astype(np.float32)
        for value in model.graph.input
    }
