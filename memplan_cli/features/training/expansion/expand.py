"""Expansion of operators, for differentiation, into the operators they stand for.

Recurrent networks, loops and scans of a fixed count are unrolled, attention and other
operators that ONNX defines by a function are expanded; what comes out has gradient rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from memplan_cli.core.operators import STANDARD_DOMAINS, operator
from memplan_cli.features.training.backward import dependants
from memplan_cli.features.training.expansion.attention import attention
from memplan_cli.features.training.expansion.fold import fold_shapes
from memplan_cli.features.training.expansion.function import expand_function
from memplan_cli.features.training.expansion.loop import loop, scan
from memplan_cli.features.training.expansion.recurrent import gru, lstm, rnn
from memplan_cli.features.training.forward.tensors import (
    UNKNOWN,
    constant_values,
    infer_tensors,
)
from memplan_cli.features.training.tape import Call, Phase, Pool, Tape
from memplan_cli.onnx_io.graph_editor import live_nodes, names_in, replace_nodes
from memplan_cli.onnx_io.load import standard_opset
from memplan_cli.onnx_io.traversal import reads, subgraphs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onnx import GraphProto, ModelProto, NodeProto

    from memplan_cli.features.training.tape import Rule

Expansion = Callable[[Call], None]
"""Writes nodes that give the outputs of a call's node to its tape."""

EXPANSIONS: Mapping[str, Expansion] = {
    "Attention": attention,
    "GRU": gru,
    "LSTM": lstm,
    "Loop": loop,
    "RNN": rnn,
    "Scan": scan,
}

_ROUNDS = 8
"""Subgraphs in subgraphs and functions of functions deeper than this are left alone."""


def expand(
    model: ModelProto, loss: str, parameters: Sequence[str], rules: Mapping[str, Rule]
) -> None:
    """Replace, in place, what has no rule between the parameters and the loss.

    Raises:
        ModelError: a loop whose count is not fixed, or a form that cannot be unrolled.
    """
    if _some_rank_is_unknown(model):
        fold_shapes(model)
    for _ in range(_ROUNDS):
        tape = Tape(
            infer_tensors(model),
            constant_values(model.graph),
            Pool(names_in(model.graph)),
            Phase.FORWARD,
            opset=standard_opset(model),
            rules=rules,
        )
        if not _expand_once(model, tape, (loss, parameters)):
            return
        fold_shapes(model)


def _some_rank_is_unknown(model: ModelProto) -> bool:
    tensors = infer_tensors(model)
    outputs = (name for node in model.graph.node for name in node.output if name)
    return any(tensors.get(name, UNKNOWN).shape is None for name in outputs)


def _expand_once(model: ModelProto, tape: Tape, path: tuple[str, Sequence[str]]) -> bool:
    loss, parameters = path
    graph, opset = model.graph, standard_opset(model)
    needs = dependants(graph.node, parameters, tape)
    on_path = {
        node.output[0]
        for node in live_nodes(graph.node, [loss])
        if not needs.isdisjoint(node.output)
    }
    changed = _expand_nodes(graph, tape, on_path, opset)
    graph.initializer.extend(tape.pool.tensors)
    return changed


def _expand_nodes(graph: GraphProto, tape: Tape, on_path: set[str], opset: int) -> bool:
    kept: list[NodeProto] = []
    changed = False
    for node in graph.node:
        if node.output[0] in on_path:
            if node.op_type == "If":
                for _, body in subgraphs(node):
                    inner = {
                        n.output[0] for n in body.node if not operator(n).has_zero_gradient
                    }
                    changed |= _expand_nodes(body, tape, inner, opset)
            written = _written(node, tape, opset)
            if written is not None:
                kept.extend(written)
                changed = True
                continue
        kept.append(node)
    if changed:
        replace_nodes(graph, kept)
    return changed


def _written(node: NodeProto, tape: Tape, opset: int) -> list[NodeProto] | None:
    """Return what stands for a node; None where the node has a rule or nothing is known."""
    if node.domain not in STANDARD_DOMAINS or node.op_type in tape.rules:
        return None
    call = Call(node, reads(node), (), (), tape)
    tape.nodes = []
    if node.op_type in EXPANSIONS:
        EXPANSIONS[node.op_type](call)
    elif not expand_function(call, opset):
        return None
    return tape.nodes
