"""Gradient of If: a second If that computes the taken branch again, and its gradients."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING

from onnx import NodeProto, TensorProto, helper

from memplan_cli.core.operators import is_random
from memplan_cli.errors import ModelError
from memplan_cli.features.training.tape import Tape
from memplan_cli.onnx_io.graph_editor import live_nodes, rename_values
from memplan_cli.onnx_io.traversal import captures, graphs, subgraphs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from onnx import GraphProto

    from memplan_cli.features.training.tape import Call, ConstantPool, Rule

    Gradients = tuple[str, ...]


def if_(call: Call) -> Gradients:
    """Y = A(captures) if c else B(captures): each capture's gradient is the taken branch's.

    The branch's forward nodes run again in the backward pass. Their results cannot be outputs of the
    forward If: both branches would have to compute them.

    Raises:
        ModelError: a branch draws random numbers, which would be others the second time.
    """
    _reject_random_branches(call)
    tape, input_count = call.tape, len(call.node.input)
    names = captures(call.node)
    wanted = [name for index, name in enumerate(names, input_count) if call.wants(index)]
    branches = {
        kind: _branch_gradients(call, call.attribute(kind), wanted)
        for kind in ("then_branch", "else_branch")
    }
    outputs = tape.emit_many("If", [call.input(0)], len(wanted), **branches)
    gradients = dict(zip(wanted, outputs, strict=True))
    return (*[""] * input_count, *(gradients.get(name, "") for name in names))


def _reject_random_branches(call: Call) -> None:
    """Raise ModelError if a branch contains an operator that draws random numbers."""
    branches = [branch for _, branch in subgraphs(call.node)]
    for node in (n for branch in branches for graph in graphs(branch) for n in graph.node):
        if is_random(node):
            raise ModelError(
                f"{node.op_type} {node.name or node.output[0]!r} in a branch of If"
                f" {call.label!r} draws random numbers, and would draw others"
                " when the branch runs again for its gradient",
                hint="take it out of the branch",
            )


def _branch_gradients(call: Call, branch: GraphProto, wanted: Sequence[str]) -> GraphProto:
    """Return a branch that computes a branch again, and outputs the gradient of each wanted capture.

    The gradient is zeros if none flows to the capture. Nodes that read only captures may be added to the
    forward pass of the call's tape.
    """
    new_names = _new_names(call.tape, branch)
    tape = _branch_tape(call.tape, new_names)
    nodes = [_renamed_copy(node, new_names, tape.pool) for node in branch.node]
    branch_outputs = [new_names.get(value.name, value.name) for value in branch.output]
    assert call.sweep is not None  # noqa: S101 - there is no gradient without a sweep
    seeds = _summed_gradients(tape, branch_outputs, call.gradients)
    gradients = call.sweep(nodes, seeds, wanted, tape)
    results = _distinct_results(tape, wanted, gradients)
    _move_additions_outward(tape, nodes, call.tape)
    branch_nodes = live_nodes([*tape.forward_nodes(nodes), *tape.nodes], results)
    outputs = [
        helper.make_tensor_value_info(result, tape.dtype(name), tape.tensor(name).shape)
        for name, result in zip(wanted, results, strict=True)
    ]
    weights = [
        _renamed_tensor(tensor, new_names[tensor.name]) for tensor in branch.initializer
    ]
    return helper.make_graph(branch_nodes, f"{branch.name}_grad", [], outputs, weights)


def _summed_gradients(
    tape: Tape, outputs: Sequence[str], gradients: Sequence[str]
) -> dict[str, str]:
    """Return the gradient of each tensor that a branch outputs, from those of the If's outputs.

    A branch may return one tensor as several outputs: their gradients are added. Tensors to whose
    outputs no gradient flows are left out.
    """
    sums: dict[str, str] = {}
    for name, gradient in zip(outputs, gradients, strict=True):
        if gradient:
            sums[name] = tape.emit("Add", sums[name], gradient) if name in sums else gradient
    return sums


def _move_additions_outward(tape: Tape, nodes: Sequence[NodeProto], outer: Tape) -> None:
    """Add to the outer tape the forward nodes that rules added behind captures of a branch.

    A rule may add nodes behind a tensor of unknown size. If no node of the branch computes the
    tensor, it is a capture, as the sizes of weights are known. Such nodes belong to the graph around
    the If, where the capture is computed; `Tape.forward_nodes` leaves them out of the branch.

    Args:
        tape: The tape of the branch.
        nodes: The nodes of the branch.
        outer: The tape of the graph around the If.
    """
    computed = {name for node in nodes for name in node.output}
    for name, additions in tape.forward_additions.items():
        if name not in computed:
            for node in additions:
                outer.add_to_forward(name, node)


def _distinct_results(
    tape: Tape, names: Sequence[str], gradients: Mapping[str, str]
) -> list[str]:
    """Return for each name its gradient or zeros, as distinct outputs of nodes on the tape.

    Outputs of a graph must be distinct and computed in it, so other gradients are copied.
    """
    computed = {name for node in tape.nodes for name in node.output}
    results: list[str] = []
    for name in names:
        if name not in gradients:
            result = tape.zeros_like(name)
        elif gradients[name] in computed and gradients[name] not in results:
            result = gradients[name]
        else:
            result = tape.emit("Identity", gradients[name])
        results.append(result)
    return results


def _new_names(tape: Tape, branch: GraphProto) -> dict[str, str]:
    """Return a fresh name for each weight and node output of a branch."""
    defined = [tensor.name for tensor in branch.initializer]
    defined += [name for node in branch.node for name in node.output if name]
    return {name: tape.pool.fresh(f"{name}/again") for name in defined}


def _branch_tape(outer: Tape, names: Mapping[str, str]) -> Tape:
    """Return a tape for the copy of a branch: the outer one's pool, types and values, the renamed too."""
    tensors, values = dict(outer.tensors), dict(outer.values)
    for old, new in names.items():
        if old in tensors:
            tensors[new] = tensors[old]
        if old in values:
            values[new] = values[old]
    return Tape(tensors, values, outer.pool, opset=outer.opset, rules=outer.rules)


def _renamed_copy(node: NodeProto, names: Mapping[str, str], pool: ConstantPool) -> NodeProto:
    """Return a copy of a node with a new name, whose inputs, outputs and captures have new names."""
    copy = deepcopy(node)
    copy.name = pool.fresh(f"{node.name}/again") if node.name else ""
    rename_values([copy], names)
    return copy


def _renamed_tensor(tensor: TensorProto, name: str) -> TensorProto:
    copy = deepcopy(tensor)
    copy.name = name
    return copy


RULES: Mapping[str, Rule] = {
    "If": if_,
}
"""The rule of each operator of this family."""
