"""Replacement of forward operators without a gradient rule by operators that have one.

RNN, GRU, LSTM, Loop and Scan of a fixed length are unrolled; Attention, and other operators for
which ONNX defines a function body, are decomposed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from memplan_cli.core.operators import STANDARD_DOMAINS, operator
from memplan_cli.features.training.backward import dependents
from memplan_cli.features.training.expansion.attention import attention
from memplan_cli.features.training.expansion.inline import (
    inline_function,
    unroll_loop,
    unroll_scan,
)
from memplan_cli.features.training.expansion.recurrent import gru, lstm, rnn
from memplan_cli.features.training.tape import Call, ConstantPool, Phase, Tape
from memplan_cli.features.training.tensors import (
    UNKNOWN,
    constant_values,
    fold_shapes,
    infer_tensors,
)
from memplan_cli.onnx_io.graph_editor import live_nodes, names_in, replace_nodes
from memplan_cli.onnx_io.load import standard_opset
from memplan_cli.onnx_io.traversal import reads, subgraphs

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from onnx import GraphProto, ModelProto, NodeProto

    from memplan_cli.features.training.tape import Rule

Expansion = Callable[[Call], None]
"""Writes nodes that compute the outputs of a call's node to the call's tape."""

EXPANSIONS: Mapping[str, Expansion] = {
    "Attention": attention,
    "GRU": gru,
    "LSTM": lstm,
    "Loop": unroll_loop,
    "RNN": rnn,
    "Scan": unroll_scan,
}

_MAX_ROUNDS = 8
"""Each round expands one level of nested subgraphs and function bodies."""


def expand(
    model: ModelProto, loss: str, parameters: Sequence[str], rules: Mapping[str, Rule]
) -> None:
    """Replace the nodes between the parameters and the loss that have no gradient rule, in place.

    The nodes in place of such a node may have no rule either, so this is repeated up to `_MAX_ROUNDS`
    times. Operators for which no expansion is known stay.

    Raises:
        ModelError: a loop's length is not fixed, or an operator has a form that is not supported.
    """
    if _has_unknown_rank(model):  # often because the target of a Reshape is computed
        fold_shapes(model)
    for _ in range(_MAX_ROUNDS):
        tape = Tape(
            infer_tensors(model),
            constant_values(model.graph),
            ConstantPool(names_in(model.graph)),
            Phase.FORWARD,
            opset=standard_opset(model),
            rules=rules,
        )
        needs_gradient = dependents(model.graph.node, parameters, tape)
        on_path = {
            node.output[0]
            for node in live_nodes(model.graph.node, [loss])
            if not needs_gradient.isdisjoint(node.output)
        }
        changed = _expand_nodes(model.graph, tape, on_path)
        model.graph.initializer.extend(tape.pool.initializers)
        if not changed:
            return
        fold_shapes(model)


def _has_unknown_rank(model: ModelProto) -> bool:
    """Whether shape inference leaves the rank of any tensor of the main graph unknown."""
    tensors = infer_tensors(model)
    outputs = (name for node in model.graph.node for name in node.output if name)
    return any(tensors.get(name, UNKNOWN).shape is None for name in outputs)


def _expand_nodes(graph: GraphProto, tape: Tape, on_path: Collection[str]) -> bool:
    """Expand nodes of a graph and of its If branches, in place; return whether any was expanded.

    ``on_path`` has the first output of each node through which gradient flows.
    """
    nodes: list[NodeProto] = []
    changed = False
    for node in graph.node:
        if node.output[0] not in on_path:
            nodes.append(node)
            continue
        if node.op_type == "If":
            for _, branch in subgraphs(node):
                # All nodes of a branch count: which of them the parameters reach is not known here.
                inner = {n.output[0] for n in branch.node if not operator(n).has_zero_gradient}
                changed |= _expand_nodes(branch, tape, inner)
        expansion = _expansion(node, tape)
        changed |= expansion is not None
        nodes.extend([node] if expansion is None else expansion)
    if changed:
        replace_nodes(graph, nodes)
    return changed


def _expansion(node: NodeProto, tape: Tape) -> list[NodeProto] | None:
    """Return nodes in place of a node, None if it has a gradient rule or no expansion is known.

    An expansion writes them to the tape, which is empty before and after.
    """
    if node.domain not in STANDARD_DOMAINS or node.op_type in tape.rules:
        return None
    call = Call(node, reads(node), (), (), tape)
    if node.op_type in EXPANSIONS:
        EXPANSIONS[node.op_type](call)
    elif not inline_function(call):
        return None
    return tape.take_nodes()
