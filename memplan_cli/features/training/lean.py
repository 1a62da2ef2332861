"""Lean backward passes: several tensors kept for gradients become one that they come from.

A normalisation written in single operators leaves X - m, (X - m) / s and more behind, each
as large as X, for its gradient. All come from X and small tensors by one or two
element-wise operators: they are computed again where they are read, and only X is kept.

    forward    X ---- D = X - m ---- H = D / s        D and H are freed here
    backward   X ---- D' ---- H'                      made again, right before their use
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan_cli.core.operators import Family, operator
from memplan_cli.features.training.rules.broadcast import repeated_axes
from memplan_cli.features.training.tape import Phase, mark
from memplan_cli.onnx_io.graph_editor import consumers, producer_nodes

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from onnx import NodeProto

    from memplan_cli.features.training.tape import Tape

_CHEAP = frozenset({"Add", "Cast", "Div", "Identity", "Mul", "Neg", "Not", "Sub"})
"""Element-wise operators that cost about as much as reading their operands."""

_HEAVY = frozenset({Family.CONTRACTION, Family.CONVOLUTION, Family.MATRIX_PRODUCT})
"""With Transpose, readers whose operand stays kept: the forward pass made it for their like."""

_LONGEST = 4
"""Operators in a row that are run again at most."""


@dataclass(slots=True)
class _Forward:
    """What makes each tensor, and what the backward pass reads of them, by which readers."""

    producers: dict[str, NodeProto]
    tape: Tape
    readers: dict[str, list[NodeProto]]

    def is_kept(self, name: str) -> bool:
        """Whether a tensor stays alive into the backward pass whatever happens here."""
        return name not in self.producers or any(map(_is_heavy, self.readers.get(name, ())))

    def cheap_source(self, name: str) -> str:
        """Return the one large tensor that a cheap node made this one from, else ``""``."""
        node = self.producers.get(name)
        if node is None or node.op_type not in _CHEAP or node.domain:
            return ""
        large = [n for n in dict.fromkeys(node.input) if not self._is_small(n, name)]
        return str(large[0]) if len(large) == 1 else ""

    def _is_small(self, name: str, beside: str) -> bool:
        if name not in self.producers:
            return self.tape.tensor(name).shape != self.tape.tensor(beside).shape
        one, two = self.tape.tensor(name).shape, self.tape.tensor(beside).shape
        return one is not None and two is not None and bool(repeated_axes(one, two))

    def chain(self, name: str) -> list[str]:
        """Return the tensors from this one up to one to keep, which is the last."""
        found = [name]
        while len(found) <= _LONGEST:
            source = self.cheap_source(found[-1])
            if not source:
                break
            found.append(source)
            if self.is_kept(source):
                break
        return found


def _is_heavy(reader: NodeProto) -> bool:
    traits = operator(reader)
    return traits.family in _HEAVY or traits.name == "Transpose"


def keep_less(
    forward: Sequence[NodeProto],
    backward: Sequence[NodeProto],
    kept: Collection[str],
    tape: Tape,
) -> list[NodeProto]:
    """Return the backward nodes with cheap copies of forward nodes where that saves memory.

    Args:
        forward: The forward pass in order.
        backward: The backward pass in order; its nodes are changed to read the copies.
        kept: Tensors that are alive at the end anyway, such as outputs.
        tape: Knows shapes and gives names.
    """
    producers = producer_nodes(forward)
    readers = {name: by for name, by in consumers(backward).items() if name in producers}
    facts = _Forward(producers, tape, readers)
    chains = {name: facts.chain(name) for name in facts.readers if not facts.is_kept(name)}
    roots: dict[str, list[str]] = {}
    for name, chain in chains.items():
        roots.setdefault(chain[-1], []).append(name)
    again: set[str] = set()
    for root, names in roots.items():
        made = [name for name in names if name != root and name not in kept]
        alive = facts.is_kept(root) or root in facts.readers or root in kept
        if len(made) > 1 or (made and alive):
            again.update(made)
    return _with_copies(backward, _needed(again, chains), facts)


def _needed(again: Collection[str], chains: dict[str, list[str]]) -> frozenset[str]:
    """Return what is made again: the wanted tensors and all between them and their roots."""
    return frozenset(step for name in again for step in chains[name][:-1])


def _with_copies(
    backward: Sequence[NodeProto], again: frozenset[str], facts: _Forward
) -> list[NodeProto]:
    found: list[NodeProto] = []
    names: dict[str, str] = {}

    def copy_of(name: str) -> str:
        if name not in again:
            return name
        if name not in names:
            node = deepcopy(facts.producers[name])
            for index, source in enumerate(node.input):
                node.input[index] = copy_of(source)
            names[name] = node.output[0] = facts.tape.pool.fresh(f"{name}/again")
            node.name = facts.tape.pool.fresh(f"{node.name or node.op_type}/again")
            mark(node, Phase.BACKWARD)
            facts.tape.note(names[name], name)
            found.append(node)
        return names[name]

    for node in backward:
        for index, name in enumerate(node.input):
            node.input[index] = copy_of(name)
        found.append(node)
    return found
