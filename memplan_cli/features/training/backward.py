"""The backward pass: from the gradient of the loss to the gradients of parameters."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING

from memplan_cli.core.operators import STANDARD_DOMAINS, operator, qualified_name
from memplan_cli.errors import ModelError
from memplan_cli.features.training.rules import DIFFERENTIABLE_OUTPUTS
from memplan_cli.features.training.tape import Call
from memplan_cli.features.training.tensors import FLOATS
from memplan_cli.onnx_io.traversal import reads

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from onnx import NodeProto

    from memplan_cli.features.training.tape import Tape


class NoRuleError(ModelError):
    """An operator between a parameter and the loss has no gradient rule."""


def sweep(
    nodes: Sequence[NodeProto],
    seeds: Mapping[str, str],
    leaves: Collection[str],
    tape: Tape,
) -> dict[str, str]:
    """Write the gradient nodes of forward nodes to the tape, from the last forward node to the first.

    If several nodes read a tensor, its gradient is the sum of theirs.

    Args:
        nodes: Forward nodes in order.
        seeds: The gradients of their results, by tensor.
        leaves: The tensors whose gradients are needed.
        tape: Receives the gradient nodes.

    Returns:
        The gradient of every tensor that has one, in the order in which they were computed. A
        leaf on which no seed depends is missing.

    Raises:
        NoRuleError: gradient flows to a node without a rule that depends on a leaf, or to an
            input or output that the node's rule does not support.
    """
    needs_gradient = dependents(nodes, leaves, tape)
    sums = dict(seeds)
    gradients: dict[str, str] = {}
    for node in reversed(nodes):
        output_gradients = tuple(sums.get(name, "") for name in node.output)
        inputs = differentiable_reads(node)
        wanted = tuple(name in needs_gradient for name in inputs)
        if not any(output_gradients) or not any(wanted):
            continue
        # All readers of the outputs come later in ``nodes``, so the sums are complete here.
        gradients.update(
            (name, gradient)
            for name, gradient in zip(node.output, output_gradients, strict=True)
            if gradient
        )
        call = Call(node, inputs, output_gradients, wanted, tape)
        # A rule may return fewer gradients than there are inputs.
        for name, gradient in zip_longest(inputs, _apply_rule(call), fillvalue=""):
            if name not in needs_gradient:
                continue
            if not gradient:
                raise _unsupported(call, f"input {name!r}, which depends on a parameter")
            sums[name] = tape.emit("Add", sums[name], gradient) if name in sums else gradient
    gradients.update((leaf, sums[leaf]) for leaf in leaves if leaf in sums)
    return gradients


def dependents(
    nodes: Sequence[NodeProto], leaves: Collection[str], tape: Tape
) -> frozenset[str]:
    """Return the leaves and all float tensors that are differentiable functions of a leaf.

    Tensors of unknown element type (0) are included: they may be floats.
    """
    names = set(leaves)
    for node in nodes:
        if not names.isdisjoint(differentiable_reads(node)):
            names.update(o for o in node.output if o and tape.dtype(o) in {*FLOATS, 0})
    return frozenset(names)


_RUNNING_STATISTICS = frozenset({3, 4})
"""Inputs of a BatchNormalization that do not affect its first output in training mode."""


def differentiable_reads(node: NodeProto) -> tuple[str, ...]:
    """Return the inputs and captures of a node, ``""`` for those whose gradient is always zero.

    Of operators of other domains nothing is known, so all their inputs are returned.
    """
    names = reads(node)
    if node.domain not in STANDARD_DOMAINS:
        return names
    if operator(node).has_zero_gradient:
        return ("",) * len(names)
    without_gradient: frozenset[int] = frozenset()
    if node.op_type == "CastLike":
        without_gradient = frozenset({1})  # only its element type is read
    elif node.op_type == "BatchNormalization":
        training_mode = any(a.name == "training_mode" and a.i for a in node.attribute)
        without_gradient = _RUNNING_STATISTICS if training_mode else frozenset()
    return tuple("" if i in without_gradient else name for i, name in enumerate(names))


def _apply_rule(call: Call) -> tuple[str, ...]:
    """Return the gradient of each input, by the rule of the call's operator.

    Raises:
        NoRuleError: there is no rule, or gradient flows to an output that the rule does not support.
    """
    node = call.node
    rule = call.tape.rules.get(node.op_type) if node.domain in STANDARD_DOMAINS else None
    if rule is None:
        raise NoRuleError(
            f"operator {qualified_name(node)} has no gradient rule; node {call.label!r}"
            " is between a trained parameter and the loss",
            hint="freeze the parameters before it (--freeze), or replace the operator",
        )
    supported = DIFFERENTIABLE_OUTPUTS.get(node.op_type, 1)
    for name, gradient in zip(
        node.output[supported:], call.gradients[supported:], strict=True
    ):
        if gradient:
            raise _unsupported(call, f"output {name!r}, which the loss depends on")
    return rule(call)


def _unsupported(call: Call, value: str) -> NoRuleError:
    """Return the error for an input or output, described by ``value``, that a rule does not support."""
    return NoRuleError(
        f"the gradient rule of {call.node.op_type} does not support its {value}; the node is"
        f" {call.label!r}",
        hint="freeze the parameters before it (--freeze), or replace the operator",
    )
