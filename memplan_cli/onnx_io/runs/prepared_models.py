"""Models prepared to be run: small probe models, random seeds, more outputs, readers of unused results."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING
from zlib import crc32

from onnx import TensorProto, helper

from memplan_cli.core.operators import NCHWC, is_random
from memplan_cli.onnx_io.graph_editor import fresh_names
from memplan_cli.onnx_io.load import load_model
from memplan_cli.onnx_io.traversal import graphs
from memplan_cli.onnx_io.weights.external_data import (
    copy_along,
    entries_of,
    external_tensors,
    locations,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from onnx import GraphProto, ModelProto, NodeProto

READ_SUFFIX = "__memplan_read"
"""Begins the suffix of the result of a Shape node that is added to read an unused value."""

_EXACT_FLOAT32 = (1 << 24) - 1
"""Ints up to this one are exact in a float32 attribute."""


def missing_weights(path: Path, model: ModelProto | None = None) -> tuple[str, ...]:
    """Return the external data files that a model names and that do not exist.

    Args:
        path: The model file.
        model: Its content, if it was parsed already.

    Raises:
        ModelError: the file is no model.
    """
    tensors = external_tensors(load_model(path) if model is None else model)
    names = {entries_of(tensor).get("location", "") for tensor in tensors} - {""}
    return tuple(sorted(name for name in names if not (path.parent / name).is_file()))


def random_ops(model: ModelProto) -> tuple[str, ...]:
    """Return the types of the nodes whose results change from run to run, each once."""
    nodes = (node for graph in graphs(model.graph) for node in graph.node)
    return tuple(dict.fromkeys(node.op_type for node in nodes if is_random(node)))


def smallest_model() -> bytes:
    """Return the model ``y = exp(x)`` of four floats, to try a provider with."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Exp", ["x"], ["y"])], "probe", [x], [y])
    opsets = [helper.make_opsetid("", 17)]
    model: ModelProto = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    data: bytes = model.SerializeToString()
    return data


def model_in_blocks(dims: tuple[int, int, int, int]) -> ModelProto:
    """Return a model whose ``y`` is its input ``x``, of these dims, in ONNX Runtime's NCHWc layout."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    node = helper.make_node("ReorderInput", ["x"], ["y"], domain=NCHWC)
    graph = helper.make_graph([node], "blocks", [x], [y])
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid(NCHWC, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def give_every_output(graph: GraphProto) -> None:
    """Make the results of all nodes of a graph its outputs, in place; their types stay open."""
    outputs = {value.name for value in graph.output}
    for node in graph.node:
        for name in node.output:
            if name and name not in outputs:
                outputs.add(name)
                graph.output.add().name = name


def unread_outputs(model: ModelProto) -> tuple[str, ...]:
    """Return the results of main-graph nodes that no node of any graph reads and no graph outputs."""
    read: set[str] = set()
    for graph in graphs(model.graph):
        read.update(value.name for value in graph.output)
        for node in graph.node:
            read.update(node.input)
    results = (name for node in model.graph.node for name in node.output)
    return tuple(name for name in results if name and name not in read)


def with_readers(model: ModelProto, names: Collection[str]) -> ModelProto:
    """Return a copy in which a Shape node reads each of these results right after its producer.

    ONNX Runtime keeps a result without a consumer until the run ends; the added node, whose own
    result has a few bytes, ends its life. This works only if graph optimization is disabled, which
    would remove the node.
    """
    fresh = fresh_names(model).fresh
    copy = deepcopy(model)
    del copy.graph.node[:]
    for node in model.graph.node:
        copy.graph.node.append(node)
        for name in node.output:
            if name in names:
                result = fresh(f"{name}{READ_SUFFIX}")
                copy.graph.node.append(
                    helper.make_node("Shape", [name], [result], name=result)
                )
    return copy


def seeded_twins(one: Path, other: Path, folder: Path) -> tuple[Path, Path] | None:
    """Write copies of two models whose random nodes draw the same numbers in their first run.

    External data is copied along. Returns None if the models differ in their random nodes.

    Raises:
        ModelError: a file is no model, or its data cannot be copied.
    """
    copies = (folder / "seeded-0.onnx", folder / "seeded-1.onnx")
    random_nodes = [
        sorted(write_seeded(path, copy))
        for path, copy in zip((one, other), copies, strict=True)
    ]
    return copies if random_nodes[0] == random_nodes[1] else None


def write_seeded(path: Path, out: Path) -> tuple[str, ...]:
    """Write a copy of a model whose random nodes have seeds; return a label of each such node.

    A seed is the hash of the node's result name. Without one, ONNX Runtime takes a seed from the
    session or from the node's place in the file, which a rewritten model changes. External data is
    copied along.

    Raises:
        ModelError: the file is no model, or its data cannot be copied.
    """
    model = load_model(path)
    labels = tuple(_add_seeds(model))
    copy_along(locations(external_tensors(model)), path.parent, out.parent)
    out.write_bytes(model.SerializeToString())
    return labels


def _add_seeds(model: ModelProto) -> Iterator[str]:
    """Yield a label of each random node, and add a seed to those that have none, in place.

    Nodes are changed only as the labels are consumed.
    """
    for graph in graphs(model.graph):
        for node in filter(is_random, graph.node):
            yield f"{node.op_type} {node.output[0]}"
            if not any(attribute.name == "seed" for attribute in node.attribute):
                # From 1 to `_EXACT_FLOAT32`.
                _add_seed(node, 1 + crc32(node.output[0].encode()) % _EXACT_FLOAT32)


def _add_seed(node: NodeProto, seed: int) -> None:
    """Add a ``seed`` to a node, in place: an int for Dropout, a float for all other operators."""
    value = seed if node.op_type == "Dropout" else float(seed)
    node.attribute.append(helper.make_attribute("seed", value))
