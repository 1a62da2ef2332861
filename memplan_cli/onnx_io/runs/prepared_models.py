"""Models prepared for a run."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING
from zlib import crc32

from onnx import TensorProto, helper

from memplan_cli.core.operators import NCHWC, is_random
from memplan_cli.onnx_io.load import load_model
from memplan_cli.onnx_io.traversal import graphs
from memplan_cli.onnx_io.weights.external_data import copy_along, external_tensors, locations

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from onnx import GraphProto, ModelProto, NodeProto

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


_EXACT = (1 << 24) - 1
"""Whole numbers up to here are exact in the attribute's single precision."""


def seeded_twins(one: Path, other: Path, folder: Path) -> tuple[Path, Path] | None:
    """Write copies of two models that draw the same numbers in their first run.

    External data goes along. None where the models draw for different results.

    Raises:
        ModelError: a file is no model, or its data cannot be brought along.
    """
    twins, names = [], []
    for number, path in enumerate((one, other)):
        twins.append(folder / f"seeded-{number}.onnx")
        names.append(sorted(write_seeded(path, twins[-1])))
    return (twins[0], twins[1]) if names[0] == names[1] else None


def write_seeded(path: Path, out: Path) -> tuple[str, ...]:
    """Write a copy whose random ops have seeds, and return the names that they go by.

    External data goes along.

    Raises:
        ModelError: the file is no model, or its data cannot be brought along.
    """
    model = load_model(path)
    names = tuple(_seeded(model))
    copy_along(locations(external_tensors(model)), path.parent, out.parent)
    out.write_bytes(model.SerializeToString())
    return names


def _seeded(model: ModelProto) -> Iterator[str]:
    """Give each random op a seed, where it has none, and yield the name it goes by."""
    for graph in graphs(model.graph):
        for node in filter(is_random, graph.node):
            yield f"{node.op_type} {node.output[0]}"
            if not any(attribute.name == "seed" for attribute in node.attribute):
                _add_seed(node, 1 + crc32(node.output[0].encode()) % _EXACT)


def _add_seed(node: NodeProto, seed: int) -> None:
    from onnx import helper

    value = seed if node.op_type == "Dropout" else float(seed)
    node.attribute.append(helper.make_attribute("seed", value))


def model_in_blocks(dims: tuple[int, int, int, int]) -> ModelProto:
    """Return a model that gives ``y``, which is ``x`` of these dims with its channels in blocks."""
    from onnx import TensorProto, helper

    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    node = helper.make_node("ReorderInput", ["x"], ["y"], domain=NCHWC)
    graph = helper.make_graph([node], "blocks", [given], [made])
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid(NCHWC, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)
