"""What must be known of a model that is to be run, and which models are made to be run."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING

from onnx import TensorProto, helper

from memplan_cli.core.operators import is_random
from memplan_cli.onnx_io.load import graphs, load_model
from memplan_cli.onnx_io.weights.external_data import external_tensors

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from onnx import GraphProto, ModelProto

READ_SUFFIX = "__memplan_read"
"""What is put behind the name of a tensor that nobody reads, for its reader."""


def missing_weights(path: Path, model: ModelProto | None = None) -> tuple[str, ...]:
    """Return the external data files that a model names and that are not there.

    Args:
        path: the file.
        model: what is in it, where it was read already.

    Raises:
        ModelError: the file is no model.
    """
    named = {
        entry.value
        for tensor in external_tensors(load_model(path) if model is None else model)
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


def smallest_model() -> bytes:
    """Return ``y = exp(x)`` on four floats, to try a provider with."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Exp", ["x"], ["y"])], "probe", [x], [y])
    opset = [helper.make_opsetid("", 17)]
    model: bytes = helper.make_model(
        graph, opset_imports=opset, ir_version=8
    ).SerializeToString()
    return model


def give_every_output(graph: GraphProto) -> None:
    """Make each value at the top an output, types left open."""
    known = {value.name for value in graph.output}
    for node in graph.node:
        for name in node.output:
            if name and name not in known:
                known.add(name)
                graph.output.add().name = name


def unread_outputs(model: ModelProto) -> tuple[str, ...]:
    """Return what ops at the top make and nobody, in any block, reads or gives."""
    read: set[str] = set()
    for graph in graphs(model.graph):
        read.update(value.name for value in graph.output)
        for node in graph.node:
            read.update(node.input)
    made = (name for node in model.graph.node for name in node.output)
    return tuple(name for name in made if name and name not in read)


def with_readers(model: ModelProto, names: Collection[str]) -> ModelProto:
    """Return a copy in which each of these outputs is read right after it was made.

    ONNX Runtime keeps a tensor without a reader to the end of the run; a Shape node of a few
    bytes ends that. It helps only where optimisation is off: it is dead code otherwise.
    """
    read = deepcopy(model)
    del read.graph.node[:]
    for node in model.graph.node:
        read.graph.node.append(node)
        for name in node.output:
            if name in names:
                made = f"{name}{READ_SUFFIX}"
                read.graph.node.append(helper.make_node("Shape", [name], [made], name=made))
    return read
