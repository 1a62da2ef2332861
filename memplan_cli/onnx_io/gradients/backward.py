"""The reverse sweep: from the gradient of a result to the gradients of what it came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan_cli.errors import ModelError
from memplan_cli.onnx_io.gradients import RULES, WITHOUT_GRADIENT
from memplan_cli.onnx_io.gradients.tape import Call
from memplan_cli.onnx_io.gradients.tensors import FLOATS, reads

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from onnx import NodeProto

    from memplan_cli.onnx_io.gradients.tape import Tape


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
        NoRuleError: gradient reaches a node without a rule that depends on a leaf.
    """
    needs = dependants(nodes, leaves, tape)
    sums = _Sums(tape, dict(seeds))
    done: dict[str, str] = {}
    for node in reversed(nodes):
        gradients = tuple(sums.parts.get(name, "") for name in node.output)
        inputs = reads(node)
        wanted = tuple(name in needs for name in inputs)
        if not any(gradients) or not any(wanted):
            continue
        done.update((n, g) for n, g in zip(node.output, gradients, strict=True) if g)
        call = Call(node, inputs, gradients, wanted, tape)
        for name, part in zip(inputs, _apply(call), strict=False):
            if part and name in needs:
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
        if node.op_type in WITHOUT_GRADIENT or found.isdisjoint(reads(node)):
            continue
        found.update(o for o in node.output if o and tape.dtype(o) in {*FLOATS, 0})
    return frozenset(found)


def _apply(call: Call) -> tuple[str, ...]:
    node = call.node
    rule = RULES.get(node.op_type) if node.domain in ("", "ai.onnx") else None
    if rule is None:
        kind = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        raise NoRuleError(
            f"operator {kind} has no gradient rule; node {node.name or node.output[0]!r}"
            " lies between a trained parameter and the loss",
            hint="freeze the parameters before it (--freeze), or replace the operator",
        )
    return rule(call)
