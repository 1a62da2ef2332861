"""Gradient of If: a second If that runs the taken branch again and goes back through it."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING

from onnx import NodeProto, helper

from memplan_cli.core.operators import is_random
from memplan_cli.errors import ModelError
from memplan_cli.features.training.tape import Tape
from memplan_cli.onnx_io.graph_editor import live_nodes, rename_values
from memplan_cli.onnx_io.traversal import captures, graphs, subgraphs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from onnx import GraphProto

    from memplan_cli.features.training.tape import Call, Rule

    Gradients = tuple[str, ...]


def if_(call: Call) -> Gradients:
    """Y = A(captures) if c else B(captures): each capture's gradient is the taken branch's.

    The branch's forward nodes run again in the backward pass: what they made is gone by
    then, and only tensors that both branches make could be passed on.

    Raises:
        ModelError: a branch draws random numbers, which would be others the second time.
    """
    _refuse_random(call)
    tape, first = call.tape, len(call.node.input)
    names = captures(call.node)
    wanted = [name for index, name in enumerate(names, first) if call.wants(index)]
    branches = {
        kind: _branch_gradients(call, call.attribute(kind), wanted)
        for kind in ("then_branch", "else_branch")
    }
    given = tape.emit_many("If", [call.input(0)], len(wanted), **branches)
    found = dict(zip(wanted, given, strict=True))
    return (*[""] * first, *(found.get(name, "") for name in names))


def _refuse_random(call: Call) -> None:
    bodies = [body for _, body in subgraphs(call.node)]
    for node in (node for body in bodies for inner in graphs(body) for node in inner.node):
        if not is_random(node):
            continue
        raise ModelError(
            f"{node.op_type} {node.name or node.output[0]!r} in a branch of If"
            f" {call.node.name or call.output()!r} draws random numbers, and would draw others"
            " when the branch runs again for its gradient",
            hint="take it out of the branch",
        )


def _branch_gradients(call: Call, body: GraphProto, wanted: list[str]) -> GraphProto:
    """Return a branch that gives the gradient of each wanted capture, zeros where none."""
    tape, names = _inner_tape(call.tape, body)
    nodes = [_renamed(node, names) for node in body.node]
    seeds: dict[str, str] = {}
    for value, gradient in zip(body.output, call.gradients, strict=True):
        name = names.get(value.name, value.name)
        if gradient:
            known = seeds.get(name)
            seeds[name] = tape.emit("Add", known, gradient) if known else gradient
    assert call.sweep is not None  # noqa: S101 - there is no gradient without a sweep
    done = call.sweep(nodes, seeds, wanted, tape)
    made = {name for node in tape.nodes for name in node.output}
    results = []
    for name in wanted:
        result = done.get(name) or tape.zeros_like(name)
        outside = result not in made and name in done
        again = result in results
        results.append(tape.emit("Identity", result) if outside or again else result)
    forward = _with_inner_additions(call.tape, tape, nodes)
    kept = live_nodes([*forward, *tape.nodes], results)
    outputs = [
        helper.make_tensor_value_info(result, tape.dtype(name), tape.tensor(name).shape)
        for name, result in zip(wanted, results, strict=True)
    ]
    weights = []
    for tensor in body.initializer:
        weights.append(deepcopy(tensor))
        weights[-1].name = names[tensor.name]
    return helper.make_graph(kept, f"{body.name}_grad", [], outputs, weights)


def _inner_tape(outer: Tape, body: GraphProto) -> tuple[Tape, dict[str, str]]:
    """Return a tape for a branch, and new names for all that the branch defines."""
    defined = [tensor.name for tensor in body.initializer]
    defined += [name for node in body.node for name in node.output if name]
    names = {name: outer.pool.fresh(f"{name}/again") for name in defined}
    tensors, values = dict(outer.tensors), dict(outer.values)
    for old, new in names.items():
        if old in tensors:
            tensors[new] = tensors[old]
        if old in values:
            values[new] = values[old]
    inner = Tape(tensors, values, outer.pool, opset=outer.opset, rules=outer.rules)
    return inner, names


def _renamed(node: NodeProto, names: dict[str, str]) -> NodeProto:
    copy = deepcopy(node)
    copy.name = f"{node.name}/again" if node.name else ""
    rename_values([copy], names)
    return copy


def _with_inner_additions(outer: Tape, inner: Tape, nodes: list[NodeProto]) -> list[NodeProto]:
    """Put in what the rules added; what reads a tensor from outside goes outside."""
    inside = {name for node in nodes for name in node.output}
    found: list[NodeProto] = []
    for node in nodes:
        for new in inner.instead.get(node.output[0], [node]):
            found.append(new)
            for name in new.output:
                found.extend(inner.after.get(name, ()))
    for name, added in inner.after.items():
        if name not in inside:
            for node in added:
                outer.place_after(name, node)
    return found


RULES: Mapping[str, Rule] = {
    "If": if_,
}
"""The rule of each operator of this family."""
