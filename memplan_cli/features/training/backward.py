"""The reverse sweep: from the gradient of a result to the gradients of what it came from."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

from memplan_cli.core.operators import STANDARD_DOMAINS, operator, qualified_name
from memplan_cli.errors import ModelError
from memplan_cli.features.training.forward.tensors import FLOATS
from memplan_cli.features.training.rules import (
    RESULTS_WITH_RULES,
    UNFELT_INPUTS,
)
from memplan_cli.features.training.tape import Call
from memplan_cli.onnx_io.traversal import reads

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from onnx import NodeProto

    from memplan_cli.features.training.tape import Tape


class NoRuleError(ModelError):
    """An operator between a parameter and the loss has no gradient rule."""


@dataclass(slots=True)
class _Sums:
    """The gradient of each tensor so far: a new contribution is added at once."""

    tape: Tape
    parts: dict[str, str]

    def add(self, name: str, gradient: str) -> None:
        known = self.parts.get(name)
        self.parts[name] = self.tape.emit("Add", known, gradient) if known else gradient


def sweep(
    nodes: Sequence[NodeProto],
    seeds: Mapping[str, str],
    leaves: Collection[str],
    tape: Tape,
) -> dict[str, str]:
    """Write the gradient nodes of ``nodes`` to the tape.

    Args:
        nodes: Forward nodes in order.
        seeds: The gradients of their results, by tensor.
        leaves: The tensors whose gradients are wanted.
        tape: Where the gradient nodes go, and what knows the forward tensors.

    Returns:
        The gradient of every tensor that has one, in the order in which they were done;
        a leaf is missing when nothing flows to it.

    Raises:
        NoRuleError: gradient reaches a node without a rule that depends on a leaf, or a
            rule knows nothing of the input that does.
    """
    needs = dependants(nodes, leaves, tape)
    sums = _Sums(tape, dict(seeds))
    done: dict[str, str] = {}
    for node in reversed(nodes):
        gradients = tuple(sums.parts.get(name, "") for name in node.output)
        inputs = felt(node)
        wanted = tuple(name in needs for name in inputs)
        if not any(gradients) or not any(wanted):
            continue
        done.update((n, g) for n, g in zip(node.output, gradients, strict=True) if g)
        call = Call(node, inputs, gradients, wanted, tape, sweep)
        for name, part in zip_longest(inputs, _apply(call), fillvalue=""):
            if name not in needs:
                continue
            if not part:
                raise _unknown(call, f"its input {name!r}, which depends on a parameter")
            sums.add(name, part)
    for leaf in leaves:
        if leaf in sums.parts:
            done[leaf] = sums.parts[leaf]
    return done


def dependants(
    nodes: Sequence[NodeProto], leaves: Collection[str], tape: Tape
) -> frozenset[str]:
    """Return the leaves and every tensor a small change of them can change."""
    found = set(leaves)
    for node in nodes:
        if found.isdisjoint(felt(node)):
            continue
        found.update(o for o in node.output if o and tape.dtype(o) in {*FLOATS, 0})
    return frozenset(found)


def felt(node: NodeProto) -> tuple[str, ...]:
    """Return what a node reads, ``""`` for inputs of which a small change changes nothing."""
    names = reads(node)
    if node.domain not in STANDARD_DOMAINS:
        return names
    if operator(node).has_zero_gradient:
        return ("",) * len(names)
    unfelt = UNFELT_INPUTS.get(node.op_type, frozenset())
    if node.op_type == "BatchNormalization" and _trains(node):
        unfelt = _RUNNING
    return tuple("" if index in unfelt else name for index, name in enumerate(names))


_RUNNING = frozenset({3, 4})
"""The running statistics, which a batch normalisation in training does not normalise by."""


def _trains(node: NodeProto) -> bool:
    return any(a.name == "training_mode" and a.i for a in node.attribute)


def _apply(call: Call) -> tuple[str, ...]:
    node = call.node
    rule = call.tape.rules.get(node.op_type) if node.domain in STANDARD_DOMAINS else None
    if rule is None:
        kind = qualified_name(node)
        raise NoRuleError(
            f"operator {kind} has no gradient rule; node {node.name or node.output[0]!r}"
            " is between a trained parameter and the loss",
            hint="freeze the parameters before it (--freeze), or replace the operator",
        )
    for name in node.output[RESULTS_WITH_RULES.get(node.op_type, 1) :]:
        index = list(node.output).index(name)
        if index < len(call.gradients) and call.gradients[index]:
            raise _unknown(call, f"its result {name!r}, which the loss depends on")
    return rule(call)


def _unknown(call: Call, of: str) -> NoRuleError:
    node = call.node
    return NoRuleError(
        f"the gradient rule of {node.op_type} knows nothing of {of}; the node is"
        f" {node.name or node.output[0]!r}",
        hint="freeze the parameters before it (--freeze), or replace the operator",
    )
