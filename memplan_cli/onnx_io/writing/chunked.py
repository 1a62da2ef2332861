"""A model with regions of its graph in pieces, as a program says."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING

from memplan_cli.core.program import VarId
from memplan_cli.core.results.rewrites import Cut
from memplan_cli.onnx_io.graph_editor import INT64, keep, replace_nodes
from memplan_cli.onnx_io.read import plain_attributes
from memplan_cli.onnx_io.weights.tensor_data import cut_weight

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from onnx import ModelProto, NodeProto, ValueInfoProto

    from memplan_cli.core.program import Op, Program, Var
    from memplan_cli.core.results.rewrites import NewWeight


def chunked_model(
    model: ModelProto,
    program: Program,
    constants: Mapping[VarId, NewWeight],
    folders: Sequence[Path] = (),
) -> tuple[ModelProto, Program]:
    """Return a copy whose top graph has the ops of a program, and the program for the copy.

    Inputs and outputs are declared with the program's dims, for which the pieces are cut.

    Args:
        model: The model that the program was read from, before regions were put in pieces.
        program: Its ops; copies share the source of their node, what was inserted has none.
        constants: What the weights that are new are: int64 values, or ranges of weights.
        folders: Where the model's external data may be.
    """
    from onnx import helper

    copy = deepcopy(model)
    graph = copy.graph
    replace_nodes(graph, [_node(program, op, model) for op in program.body.ops])
    names = {var.name for var in program.vars.values() if not var.block}
    given = {value.name for value in graph.input}
    keep(graph.value_info, lambda value: value.name in names)
    keep(graph.initializer, lambda tensor: tensor.name in names or tensor.name in given)
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    for var, values in constants.items():
        name = program.vars[var].name
        if isinstance(values, Cut):
            part = cut_weight(weights[values.weight], values, folders)
            part.name = name
            graph.initializer.append(part)
        else:
            graph.initializer.append(helper.make_tensor(name, INT64, [len(values)], values))
    for value in (*graph.input, *graph.output):
        _fix_dims(value, program.vars.get(VarId(value.name)))
    ops = tuple(op._replace(source=at) for at, op in enumerate(program.body.ops))
    return copy, replace(program, body=replace(program.body, ops=ops))


def _fix_dims(value: ValueInfoProto, var: Var | None) -> None:
    """Declare the numbers that a program has for dims: pieces are cut for them alone."""
    if var is None or var.shape is None or not value.type.HasField("tensor_type"):
        return
    for dim, known in zip(value.type.tensor_type.shape.dim, var.shape, strict=False):
        if isinstance(known, int):
            dim.dim_value = known


def _node(program: Program, op: Op, model: ModelProto) -> NodeProto:
    """Return the node of an op: the file's, a copy of one with other values, or a new one."""
    from onnx import helper

    inputs = [program.vars[var].name if var else "" for var in op.inputs]
    outputs = [program.vars[var].name if var else "" for var in op.outputs]
    if op.source < 0:
        return helper.make_node(
            op.type, inputs, outputs, op.name, domain=op.domain, **op.attributes
        )
    node = model.graph.node[op.source]
    if (op.name, inputs, outputs) == (node.name, node.input[:], node.output[:]):
        return node
    copy = deepcopy(node)
    copy.name = op.name
    copy.input[:], copy.output[:] = inputs, outputs
    said = plain_attributes(node)
    changed = {name: value for name, value in op.attributes.items() if said.get(name) != value}
    keep(copy.attribute, lambda attribute: attribute.name not in changed)
    copy.attribute.extend(helper.make_attribute(*pair) for pair in changed.items())
    return copy
