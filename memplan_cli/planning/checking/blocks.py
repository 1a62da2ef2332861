"""Checks that a plan file's tensors keep to their blocks, and share bytes across them as they may.

What a subgraph makes is dead when its control-flow node is done. It may share bytes with what
the node gives in one case: it is a branch's result, and the output is made at the node's last step
(an If's; a Loop's are there from its first step on). One output takes one result of a
branch. That a tensor is a view, or replaces an input that dies, only the model can tell.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import TYPE_CHECKING

from memplan_cli.core.results.timeline import control_flow_nodes
from memplan_cli.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from memplan_cli.core.results.placements import Placement
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.core.results.timeline import Moment


def check_blocks(plan: Plan) -> None:
    """Refuse a plan whose tensors outlive their subgraph, or share with what its node gives.

    Raises:
        PlanError: naming the tensor.
    """
    if len(plan.order) < 2:
        return
    nodes = control_flow_nodes(plan)
    for tensor in plan.tensors:
        node = nodes.get(tensor.block)
        if node is None or tensor.pinned:
            continue
        if tensor.first < node.start or tensor.last > node.end + 1:
            raise PlanError(
                f"tensor {tensor.id[:120]!r} is live from tick {tensor.first} to {tensor.last}, "
                f"its control-flow node runs from {node.start} to {node.end}"
            )
    for tensors in _shared(plan):
        _check_group(tensors, nodes)


def _shared(plan: Plan) -> Iterator[Sequence[Placement]]:
    """Yield the tensors of each piece of memory that has some in several blocks."""
    groups: dict[str, list[Placement]] = {}
    for tensor in plan.tensors:
        groups.setdefault(tensor.alias_of or tensor.id, []).append(tensor)
    for tensors in groups.values():
        if any(tensor.block != tensors[0].block for tensor in tensors):
            yield tensors


def _check_group(tensors: Sequence[Placement], nodes: Mapping[str, Moment]) -> None:
    """Refuse a group in which what an op gives is beside what no branch of it gives."""
    starts: dict[str, list[int]] = {}
    for tensor in sorted(tensors, key=_start):
        starts.setdefault(tensor.block, []).append(tensor.first)
    for node in _above(starts, nodes):
        if _any_within(starts.get(node.block, ()), node.start, node.end):
            shared = tensors[0].alias_of or tensors[0].id
            raise PlanError(
                f"what {node.label[:120]!r} gives shares the bytes of {shared[:120]!r}, "
                "which its subgraph uses before that is made"
            )
    crossing = Counter(
        [t.block for t in tensors if t.block in nodes and t.last > nodes[t.block].end]
    )
    for block, results in crossing.items():
        node = nodes[block]
        given = _any_within(starts.get(node.block, ()), node.end, node.end + 1)
        if results > 1 and given:
            raise PlanError(
                f"tensors {[t.id[:120] for t in tensors if t.block == block][:4]} share the "
                f"bytes of what {node.label[:120]!r} gives: no more than one can be that"
            )


def _above(blocks: Iterable[str], nodes: Mapping[str, Moment]) -> Iterator[Moment]:
    """Yield the control-flow nodes of some blocks and of those above them, once each."""
    seen: set[str] = set()
    for block in blocks:
        here = block
        while here in nodes and here not in seen:
            seen.add(here)
            yield nodes[here]
            here = nodes[here].block


def _start(tensor: Placement) -> int:
    return tensor.first


def _any_within(starts: Sequence[int], start: int, end: int) -> bool:
    """Whether any of some ascending ticks lies in ``[start, end)``."""
    at = bisect_left(starts, start)
    return at < len(starts) and starts[at] < end
