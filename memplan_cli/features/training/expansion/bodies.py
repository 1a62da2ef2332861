"""Copying a subgraph's nodes into the block around it, under new names."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING

from memplan_cli.features.training.tape import Phase, mark
from memplan_cli.onnx_io.graph_editor import rename_values

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from onnx import GraphProto, NodeProto

    from memplan_cli.features.training.tape import Tape


def paste(
    tape: Tape, nodes: Iterable[NodeProto], given: Mapping[str, str], label: str
) -> dict[str, str]:
    """Copy nodes to a tape.

    Args:
        tape: Where the copies go.
        nodes: A subgraph's nodes.
        given: What stands for the names that the nodes read from the subgraph.
        label: A prefix for the names that they define.

    Returns:
        The new name of everything given or defined.
    """
    names = dict(given)
    for node in nodes:
        copy = deepcopy(node)
        copy.name = tape.pool.fresh(f"{label}/{node.name or node.op_type}")
        for name in node.output:
            if name and name not in given:
                names[name] = tape.pool.fresh(f"{label}/{name}")
        rename_values([copy], names)
        mark(copy, Phase.FORWARD)
        tape.nodes.append(copy)
    return names


def lift_weights(tape: Tape, body: GraphProto, label: str) -> dict[str, str]:
    """Make a subgraph's initializers the graph's, once, and return their new names."""
    names = {}
    for tensor in body.initializer:
        copy = deepcopy(tensor)
        copy.name = names[tensor.name] = tape.pool.fresh(f"{label}/{tensor.name}")
        tape.pool.tensors.append(copy)
    return names


def give(tape: Tape, name: str, output: str) -> None:
    """Make a tensor known by the name that the replaced node gave it."""
    if output:
        node = tape.make("Identity", [name])
        node.output[0] = output
        tape.nodes.append(node)


def steps_of(tape: Tape, name: str, count: int, axis: int) -> list[str]:
    """Cut a tensor into ``count`` slices along an axis, which they lose."""
    if count == 1:
        return [tape.emit("Squeeze", name, tape.ints(axis))]
    parts = tape.emit_many("Split", [name], count, axis=axis, num_outputs=count)
    return [tape.emit("Squeeze", part, tape.ints(axis)) for part in parts]


def stacked(tape: Tape, names: list[str], axis: int) -> str:
    """Put slices one behind the other along a new axis."""
    parts = [tape.emit("Unsqueeze", name, tape.ints(axis)) for name in names]
    return tape.emit("Concat", *parts, axis=axis) if len(parts) > 1 else parts[0]
