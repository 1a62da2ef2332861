"""Recomputation of cheap forward tensors in the backward pass, so that fewer tensors are kept.

A normalization of single operators leaves X - m, (X - m) / s and more for its gradient, each as
large as X. They follow from X and small tensors by one or two element-wise operators, so they are
computed again where the backward pass reads them, and only X is kept.

    forward    X ---- D = X - m ---- H = D / s        D and H are freed here
    backward   X ---- D' ---- H'                      computed again, right before their use

D and H are *cheap*: results of such an operator with one *large* input, which is as large as the
result (m and s are small). The *chain* of H is [H, D, X], and X, at its end, is its *root*.
"""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING

from memplan_cli.features.training.rules.broadcast import repeated_axes
from memplan_cli.features.training.tape import Phase, set_phase
from memplan_cli.onnx_io.graph_editor import producer_nodes
from memplan_cli.onnx_io.traversal import reads

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from onnx import NodeProto

    from memplan_cli.features.training.tape import Tape

_CHEAP = frozenset({"Add", "Cast", "Div", "Identity", "Mul", "Neg", "Not", "Sub"})
"""Element-wise operators that cost about as much as reading their operands."""

_MAX_CHAIN = 4
"""Most operators in a row that are computed again."""


def recompute_cheap_tensors(
    forward: Sequence[NodeProto],
    backward: Sequence[NodeProto],
    outputs: Collection[str],
    tape: Tape,
) -> list[NodeProto]:
    """Return the backward nodes with copies of cheap forward nodes, where that saves memory.

    A tensor that the backward pass reads may be computed again from its root, another tensor, by cheap nodes
    (`_chain`). The root, which is as large, is then alive in place of the tensor. That saves memory in two
    cases: the root is alive anyway, or several tensors are computed from it.

    Args:
        forward: The forward pass in order.
        backward: The backward pass in order; its nodes are changed to read the copies.
        outputs: Forward tensors that are alive until the end, because they are outputs of the step.
        tape: Has the shapes of tensors; records types and names of the copies.
    """
    producers = producer_nodes(forward)
    read_tensors = {name for node in backward for name in reads(node)}
    chains = {
        name: _chain(name, producers, tape) for name in read_tensors if name in producers
    }
    by_root: dict[str, list[str]] = {}  # root -> tensors computed from it, and maybe itself
    for name, chain in chains.items():
        root = chain[-1]
        by_root.setdefault(root, []).append(name)
    recomputed: set[str] = set()
    for root, names in by_root.items():
        candidates = [name for name in names if name != root and name not in outputs]
        # Graph inputs and weights, which no node produces, are alive too.
        root_is_alive = root not in producers or root in read_tensors or root in outputs
        if len(candidates) > 1 or root_is_alive:
            for tensor in candidates:
                recomputed.update(chains[tensor][:-1])  # all tensors of the chain but the root
    return _with_copies(backward, recomputed, producers, tape)


def _chain(name: str, producers: Mapping[str, NodeProto], tape: Tape) -> list[str]:
    """Return the chain of a tensor: itself, its cheap producer's large input, and so on to the root.

    For D = X - m and H = D / s, with small m and s, the chain of H is [H, D, X]. A tensor without a cheap
    source is its own root. After `_MAX_CHAIN` producers, the chain ends at a root that may be cheap too.
    """
    chain = [name]
    while len(chain) <= _MAX_CHAIN:
        source = _cheap_source(chain[-1], producers, tape)
        if not source:
            break
        chain.append(source)
    return chain


def _cheap_source(name: str, producers: Mapping[str, NodeProto], tape: Tape) -> str:
    """Return the large input of the cheap node that produces a tensor.

    Empty if its producer is not cheap, or does not have exactly one large input: with two,
    recomputation would keep two large tensors for one.
    """
    node = producers.get(name)
    if node is None or node.op_type not in _CHEAP or node.domain:
        return ""
    large = [source for source in dict.fromkeys(node.input) if _is_large(source, name, tape)]
    return str(large[0]) if len(large) == 1 else ""


def _is_large(name: str, result: str, tape: Tape) -> bool:
    """Whether an input of a node is as large as its result, that is, not repeated by broadcasting.

    It counts as large if a shape is unknown. A wrong answer may cost memory, and never changes a value.
    """
    shape, full = tape.tensor(name).shape, tape.tensor(result).shape
    return shape is None or full is None or not repeated_axes(shape, full)


def _with_copies(
    backward: Sequence[NodeProto],
    recomputed: Collection[str],
    producers: Mapping[str, NodeProto],
    tape: Tape,
) -> list[NodeProto]:
    """Let the backward nodes read copies of the recomputed tensors, in place; return them with the copies.

    A copy of a tensor's producer, which is a cheap node with one output, is placed before the first
    backward node that reads the tensor.
    """
    result: list[NodeProto] = []
    copies: dict[str, str] = {}  # tensor -> its copy
    positions = {name: position for position, name in enumerate(producers)}
    for node in backward:
        for name in node.input:
            missing = _missing_copies(name, recomputed, copies, producers)
            for tensor in sorted(missing, key=positions.__getitem__):
                copy = _copy_node(producers[tensor], copies, tape)
                copies[tensor] = copy.output[0]
                result.append(copy)
        node.input[:] = [copies.get(name, name) for name in node.input]
        result.append(node)
    return result


def _missing_copies(
    name: str,
    recomputed: Collection[str],
    copies: Collection[str],
    producers: Mapping[str, NodeProto],
) -> set[str]:
    """Return the tensors that have to be copied before a copy of ``name`` can be read.

    They are ``name`` and the recomputed tensors that it is computed from, without those in
    ``copies``. Empty if ``name`` is not recomputed.
    """
    missing: set[str] = set()
    waiting = [name]
    while waiting:
        tensor = waiting.pop()
        if tensor in recomputed and tensor not in copies and tensor not in missing:
            missing.add(tensor)
            waiting.extend(producers[tensor].input)
    return missing


def _copy_node(node: NodeProto, copies: Mapping[str, str], tape: Tape) -> NodeProto:
    """Return a copy of a cheap node for the backward pass, which reads copies where there are some.

    The copy and its output get new names; the tape records the output's type.
    """
    output = node.output[0]
    copy = deepcopy(node)
    copy.input[:] = [copies.get(source, source) for source in node.input]
    copy.output[0] = tape.pool.fresh(f"{output}/again")
    copy.name = tape.pool.fresh(f"{node.name or node.op_type}/again")
    set_phase(copy, Phase.BACKWARD)
    tape.copy_type(copy.output[0], output)
    return copy
