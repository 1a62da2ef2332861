"""Precedence between the ops of a block, and topological orders that respect it.

Besides data dependencies, some ops must keep their relative order:

- Random ops draw from one generator.
- ONNX Runtime writes the new running statistics of a BatchNormalization in training mode over
  the old ones, unless they are graph outputs. Readers of either read the same memory.
- A subgraph may use the name of a value that the outer block defines later. Defined before, the value would be
  hidden, which ONNX forbids.
"""

from __future__ import annotations

from collections import defaultdict
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from memplan_cli.core.program import VarId, blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from memplan_cli.core.program import Block

_RUNNING_STATISTICS = ((3, 1), (4, 2))
"""Of BatchNormalization: (input, output) positions of the running mean and variance."""

Edges = tuple[tuple[int, ...], ...]
"""Per op of a block, by index, the indices of the ops that it is connected to."""


def predecessors(block: Block) -> Edges:
    """Return, per op of a block, the indices of the ops that must run before it, ascending."""
    producer = block.dataflow.producer
    preds = [
        {producer[var] for var in reads if var in producer} for reads in block.dataflow.reads
    ]
    # These pairs of ops keep their order too, although the second op reads no result of the first one.
    pairs_in_order = (*_users_of_one_state(block), *_definers_of_one_name(block))
    for first, second in pairs_in_order:
        preds[second].add(first)
    return tuple(tuple(sorted(before)) for before in preds)


def _users_of_one_state(block: Block) -> Iterator[tuple[int, int]]:
    """Yield pairs of ops that use the same changing state one after the other.

    States are the random generator, and the bytes of a running statistic that is overwritten. The bytes
    are denoted by the oldest statistic on them.
    """
    oldest_statistic = overwritten_statistics(block)
    last_user: dict[tuple[str, str], int] = {}  # by state, its last user so far
    for index, (op, reads) in enumerate(zip(block.ops, block.dataflow.reads, strict=True)):
        # `is_random` includes the subgraphs of an op.
        states = {("random", "")} if op.is_random else set()
        if oldest_statistic:
            # In a set, so that an op that reads an old and a new statistic is not its own predecessor.
            states |= {
                ("statistic", oldest_statistic[v]) for v in reads if v in oldest_statistic
            }
        for state in states:
            if state in last_user:
                yield last_user[state], index
            last_user[state] = index


def _definers_of_one_name(block: Block) -> Iterator[tuple[int, int]]:
    """Yield pairs of an op with subgraphs and a later op that defines a name of the subgraphs again.

    If op 3 has a subgraph whose node defines ``t``, and op 7 defines ``t`` too, op 7 must stay behind
    op 3: an outer ``t`` before it would be hidden by that node, which ONNX forbids.
    """
    ops_with_name: defaultdict[str, list[int]] = defaultdict(list)
    for index, op in enumerate(block.ops):
        if ops_with_name:
            for name in (_name_in(block, var) for var in op.outputs if var):
                yield from ((earlier, index) for earlier in ops_with_name.get(name, ()))
        names_inside = {
            _name_in(inner, var)
            for body in op.bodies
            for inner in blocks(body)
            for inner_op in inner.ops
            for var in inner_op.outputs
            if var
        }
        for name in names_inside:
            ops_with_name[name].append(index)


def _name_in(block: Block, var: VarId) -> str:
    """Return the ONNX name of a var of a block."""
    return var.removeprefix(f"{block.path}/") if block.path else var


def successors(preds: Sequence[Iterable[int]]) -> Edges:
    """Return, per op, the indices of the ops that must run after it, ascending."""
    succs: list[list[int]] = [[] for _ in preds]
    for op, before in enumerate(preds):
        for pred in before:
            succs[pred].append(op)
    return tuple(map(tuple, succs))


def overwritten_statistics(block: Block) -> Mapping[VarId, VarId]:
    """Return each old and new running statistic -> the oldest statistic on the same bytes.

    A BatchNormalization may write its new statistics over the old ones, so ops that use a var of the result must
    keep their order. If one computes the mean ``m1`` from ``m0``, and the next one ``m2`` from ``m1``, the result
    is ``{m0: m0, m1: m0, m2: m0}``. Those of subgraphs are included.
    """
    oldest: dict[VarId, VarId] = {}
    for inner in blocks(block):
        for op in inner.ops:
            if op.type != "BatchNormalization":
                continue
            for old_position, new_position in _RUNNING_STATISTICS:
                if new_position >= len(op.outputs):
                    continue
                new = op.outputs[new_position]
                # An output of the block has bytes of its own. So has one of a subgraph, which is not excluded:
                # the ops that use it then keep their order without need, which is safe.
                if new and new not in block.outputs:
                    old = op.inputs[old_position]
                    oldest[old] = oldest[new] = oldest.get(old, old)
    return oldest


def nearest_order(
    succs: Sequence[Collection[int]], rank: Callable[[int], int] = int
) -> list[int]:
    """Return the topological order of nodes 0, 1, ... that stays nearest to a ranking.

    Kahn's algorithm with a heap. Nodes on a cycle, and nodes after a cycle, are left out.

    Args:
        succs: Per node, the nodes that have to come after it, each once.
        rank: Of the nodes that may come next, the one of least rank does; ties go to the least
            node. The default keeps the given order where it is topological.
    """
    missing_preds = [0] * len(succs)
    for successors_of_node in succs:
        for node in successors_of_node:
            missing_preds[node] += 1
    ready = [(rank(node), node) for node, count in enumerate(missing_preds) if not count]
    heapify(ready)
    order: list[int] = []
    while ready:
        _, node = heappop(ready)
        order.append(node)
        for succ in succs[node]:
            missing_preds[succ] -= 1
            if not missing_preds[succ]:
                heappush(ready, (rank(succ), succ))
    return order
