"""What must be known of a model that is to be run, and which models are made to be run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnx import TensorProto, ValueInfoProto, helper

from memplan_cli.core.program import RANDOM
from memplan_cli.onnx_io.load import graphs, load_model
from memplan_cli.onnx_io.weights.external_data import external_tensors

if TYPE_CHECKING:
    from pathlib import Path

    from onnx import ModelProto, NodeProto


def missing_weights(path: Path) -> tuple[str, ...]:
    """Return the external data files that a model names and that are not there.

    Raises:
        ModelError: the file is no model.
    """
    named = {
        entry.value
        for tensor in external_tensors(load_model(path))
        for entry in tensor.external_data
        if entry.key == "location"
    }
    return tuple(sorted(name for name in named if not (path.parent / name).is_file()))


def random_ops(model: ModelProto) -> tuple[str, ...]:
    """Return the types of the ops whose results change from run to run, each once."""
    return tuple(
        dict.fromkeys(
            node.op_type
            for graph in graphs(model.graph)
            for node in graph.node
            if is_random(node)
        )
    )


def is_random(node: NodeProto) -> bool:
    """Whether a node draws random numbers; a Dropout does where it may be training."""
    return node.op_type in RANDOM or (node.op_type == "Dropout" and len(node.input) > 2)


def smallest_model() -> bytes:
    """Return ``y = exp(x)`` on four floats, to try a provider with."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Exp", ["x"], ["y"])], "probe", [x], [y])
    opset = [helper.make_opsetid("", 17)]
    model: bytes = helper.make_model(
        graph, opset_imports=opset, ir_version=8
    ).SerializeToString()
    return model


def with_every_output(model: ModelProto) -> bytes:
    """Return the model with each value at its top as an output, types left open."""
    twin = type(model)()
    twin.CopyFrom(model)
    known = {value.name for value in twin.graph.output}
    for node in model.graph.node:
        for name in node.output:
            if name and name not in known:
                known.add(name)
                twin.graph.output.append(ValueInfoProto(name=name))
    data: bytes = twin.SerializeToString()
    return data
