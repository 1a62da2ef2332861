"""A model with its main graph rewritten to the ops of a chunked program."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING

from memplan_cli.core.program import VarId
from memplan_cli.onnx_io.graph_editor import INT64, keep, replace_nodes, with_values
from memplan_cli.onnx_io.read import plain_attributes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from onnx import ModelProto, NodeProto, ValueInfoProto

    from memplan_cli.core.program import Op, Program, Var


def chunked_model(
    model: ModelProto,
    program: Program,
    constants: Mapping[VarId, tuple[int, ...]],
) -> tuple[ModelProto, Program]:
    """Return a copy of a model whose main graph has the ops of a program, and the copy's program.

    Inputs and outputs are declared with the fixed dims of the program: its slices have constant bounds, which
    hold for these dims only.

    Args:
        model: The model before it was chunked.
        program: The chunked program. The ``source`` of its ops is the index of a node of ``model``, which
            may have several ops; that of an inserted op is -1.
        constants: The int64 values of new weights.

    Returns:
        The chunked model, and the program with the indices of its nodes as ``source``.
    """
    from onnx import helper

    copy = deepcopy(model)
    graph = copy.graph
    replace_nodes(graph, [_node(program, op, model) for op in program.body.ops])
    names = {var.name for var in program.vars.values() if not var.block}
    graph_inputs = {value.name for value in graph.input}
    keep(graph.value_info, lambda value: value.name in names)
    # An initializer that is a graph input too stays even if it is unused: callers may feed it.
    keep(graph.initializer, lambda tensor: tensor.name in names or tensor.name in graph_inputs)
    for var, values in constants.items():
        name = program.vars[var].name
        graph.initializer.append(helper.make_tensor(name, INT64, [len(values)], values))
    for value in (*graph.input, *graph.output):
        _fix_dims(value, program.vars.get(VarId(value.name)))
    # The node of each op is at the op's own position now.
    ops = tuple(op._replace(source=index) for index, op in enumerate(program.body.ops))
    return copy, replace(program, body=replace(program.body, ops=ops))


def _fix_dims(value: ValueInfoProto, var: Var | None) -> None:
    """Declare the fixed dims of a var in a graph input or output, in place."""
    if var is None or var.shape is None or not value.type.HasField("tensor_type"):
        return
    # A value may be declared without a shape.
    for declared, dim in zip(value.type.tensor_type.shape.dim, var.shape, strict=False):
        if isinstance(dim, int):
            declared.dim_value = dim


def _node(program: Program, op: Op, model: ModelProto) -> NodeProto:
    """Return the node of an op: the model's own, a changed copy of it, or a new one for an inserted op.

    Attributes of the model's node that the op lacks stay: an op has only those that are numbers and strings.
    """
    from onnx import helper

    inputs = [program.vars[var].name if var else "" for var in op.inputs]
    outputs = [program.vars[var].name if var else "" for var in op.outputs]
    if op.source < 0:
        return helper.make_node(
            op.type, inputs, outputs, op.name, domain=op.domain, **op.attributes
        )
    original = model.graph.node[op.source]
    node = with_values(original, op.name, inputs, outputs)
    old_attributes = plain_attributes(original)
    changed = {
        n: value for n, value in op.attributes.items() if old_attributes.get(n) != value
    }
    if not changed:
        return node
    copy = deepcopy(node)
    keep(copy.attribute, lambda attribute: attribute.name not in changed)
    copy.attribute.extend(helper.make_attribute(*pair) for pair in changed.items())
    return copy
