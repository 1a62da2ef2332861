"""Witnesses of bounds on orders of programs whose nodes have subgraphs.

What a subgraph needs in any order of its own nodes is shown like a graph's bound, innermost
first. A node that repeats one needs that much on its step, beside its results and what the
subgraph is given. A branch may run or not, and what only the other one reads may be gone: it
bounds the whole alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING

from memplan_cli.core.results.certificate import NOT_CHECKABLE, BlockProof, OrderProof
from memplan_cli.transforms.ordering.bounds.certify import cut_bound
from memplan_cli.transforms.ordering.build import (
    Inner,
    least_taken,
    result_bytes,
    task_graph,
    tensor_names,
)
from memplan_cli.transforms.ordering.graph import trace
from memplan_cli.transforms.ordering.witness import order_witness

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from memplan_cli.core.program import Block, Op
    from memplan_cli.transforms.ordering.build import Storage
    from memplan_cli.transforms.ordering.graph import TaskGraph


@dataclass(frozen=True, slots=True)
class _Nodes:
    """The nodes of a block, with what subgraphs below are shown to need in any order.

    ``floor`` is the path and the need of the one that needs most of the block's own.
    """

    graph: TaskGraph
    names: Sequence[str]
    below: tuple[BlockProof, ...]
    floor: tuple[str, int]

    def witness(self, bound: int) -> OrderProof:
        """Return what shows a bound, by a subgraph alone where that is enough."""
        path, need = self.floor
        if need and self.graph.start + need >= bound:
            return OrderProof(bound, "inside", inside=path)
        return order_witness(self.graph, self.names, bound)


def nested_witness(
    block: Block, facts: Storage, bound: int
) -> tuple[OrderProof, tuple[BlockProof, ...]]:
    """Return what shows that no order of a program has a peak below ``bound``.

    Args:
        block: The program's outermost, in the planned order.
        facts: From `storage_facts`.
        bound: What the planner says of it.
    """
    alone = {at: result_bytes(op, facts) if op.repeats else 0 for at, op in _holders(block)}
    found = order_witness(task_graph(block, facts, alone), tensor_names(block, facts), bound)
    if found.method != NOT_CHECKABLE or not alone:
        return found, ()
    nodes = _with_below(block, facts)
    proof = nodes.witness(bound)
    return proof, nodes.below if proof.method != NOT_CHECKABLE else ()


def _holders(block: Block) -> Iterator[tuple[int, Op]]:
    return ((at, op) for at, op in enumerate(block.ops) if op.bodies)


def _with_below(block: Block, facts: Storage) -> _Nodes:
    below: list[BlockProof] = []
    taken: dict[int, int] = {}
    floor = ("", 0)
    for at, op in _holders(block):
        bodies: list[Inner] = []
        for body in op.bodies:
            below += (shown := _most_shown(body, facts))
            need = shown[-1].order.bound if shown and shown[-1].block == body.path else 0
            inputs = sum(facts.numbers[v] for v in body.inputs if facts.roots.get(v) == v)
            bodies.append(Inner(inputs, 0, 0, need))
            floor = max(floor, (body.path, need), key=itemgetter(1))
        taken[at] = least_taken(op, facts, bodies)
    graph = task_graph(block, facts, taken)
    return _Nodes(graph, tensor_names(block, facts), tuple(below), floor)


def _most_shown(body: Block, facts: Storage) -> tuple[BlockProof, ...]:
    """Return the proof of a subgraph's need, if there is one, behind those that it leans on."""
    nodes = _with_below(body, facts)
    order = range(nodes.graph.size)
    reached = max(trace(nodes.graph, order)[0], default=0)
    for found in (reached, cut_bound(nodes.graph, order)):
        bound = max(found, nodes.floor[1])
        proof = nodes.witness(bound)
        if bound and proof.method != NOT_CHECKABLE:
            return (*nodes.below, BlockProof(body.path, proof))
    return nodes.below
