"""Check of what a plan file says of time: order, releases and peak agree.

The order gives each node its ticks, tensors live between ticks, and what dies at a node is
released behind it: three tellings of one clock, which have to agree. Which node makes a
tensor only the model knows, so two nodes that release nothing may have changed places.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.core.results.timeline import moments
from memplan_cli.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memplan_cli.core.results.plan import Plan
    from memplan_cli.core.results.timeline import Moment


def check_clock(plan: Plan) -> None:
    """Refuse a plan whose order, live ranges, releases and peak are not those of one clock.

    Raises:
        PlanError: naming what does not agree.
    """
    _check_order(plan)
    try:
        clock = moments(plan)
    except RecursionError as error:
        raise PlanError("the plan's blocks are nested too deeply") from error
    _check_ranges(plan, clock)
    entries = {order.block: frozenset(order.nodes) for order in plan.order}
    named = [_Named(moment, entries[moment.block]) for moment in clock]
    ends = {node.moment.end: node for node in named}
    _check_releases(plan, ends)
    _check_peak(plan, {**{node.moment.start: node for node in named}, **ends})


class _Named(NamedTuple):
    """A node on the clock, beside the names of its block."""

    moment: Moment
    entries: frozenset[str]

    def is_called(self, label: str) -> bool:
        """Whether a label is that of this node, which may be in the order by its index."""
        node = self.moment.node
        if label == node:
            return True
        if not node.startswith("#") or label in self.entries:
            return False
        # A name that several nodes have says less than an index: it may be any of them.
        index = f"#{label.rpartition('#')[2]}"
        return index == node or index not in self.entries


def _check_order(plan: Plan) -> None:
    blocks = Counter(order.block for order in plan.order)
    for order in plan.order:
        if blocks[order.block] > 1:
            raise PlanError(f"the order has block {order.block[:120]!r} twice")
        if len(set(order.nodes)) < len(order.nodes):
            twice = Counter(order.nodes).most_common(1)[0][0]
            raise PlanError(f"the order has node {twice[:120]!r} twice")


def _check_ranges(plan: Plan, clock: tuple[Moment, ...]) -> None:
    nodes = sum(len(order.nodes) for order in plan.order)
    if len(clock) != nodes:
        raise PlanError(f"the order has {nodes} nodes, and {len(clock)} of them are reached")
    end = max((moment.end for moment in clock), default=-1) + 1
    for tensor in plan.tensors:
        if tensor.last > end:
            raise PlanError(
                f"tensor {tensor.id[:120]!r} is live until tick {tensor.last}, "
                f"the order ends at {end}"
            )


def _check_releases(plan: Plan, ends: Mapping[int, _Named]) -> None:
    """Refuse a release before or after the last use, twice, or behind another node."""
    due = _due(plan, [node.moment for node in ends.values()])
    left = set(due)
    before = -1
    for release in plan.releases:
        node = ends.get(release.step)
        if node is None or not node.is_called(release.node):
            there = repr(node.moment.node[:120]) if node else "that none does"
            raise PlanError(
                f"releases: {release.node[:120]!r} is recorded to end at step {release.step}, "
                f"the order says {there}"
            )
        if release.step <= before:
            raise PlanError(f"releases: step {release.step} comes too late, or twice")
        before = release.step
        for name in release.tensors:
            if name not in left:
                why = "occurs twice" if name in due else "is pinned, or not planned"
                raise PlanError(f"releases: tensor {name[:120]!r} {why}")
            left.remove(name)
            if due[name] != release.step:
                raise PlanError(
                    f"releases: tensor {name[:120]!r} is let go at step {release.step}, "
                    f"it is last needed at {due[name]}"
                )
    # What crosses the end of a subgraph is released by whoever runs it.
    kept = sorted(name for name in left if not plan.by_id[name].block)
    if kept:
        raise PlanError(f"releases: tensor {kept[0][:120]!r} is never let go")


def _due(plan: Plan, clock: Sequence[Moment]) -> dict[str, int]:
    """Return the step behind which each tensor that is not pinned can be released.

    The last reader may be in a subgraph: what goes then, goes behind the node of its own block.
    """
    blocks: dict[str, dict[int, int]] = {}
    for moment in clock:
        ends = blocks.setdefault(moment.block, {})
        ends.update(dict.fromkeys(range(moment.start, moment.end + 1), moment.end))
    return {
        tensor.id: blocks.get(tensor.block, {}).get(tensor.last - 1, -1)
        for tensor in plan.tensors
        if not tensor.pinned
    }


def _check_peak(plan: Plan, nodes: Mapping[int, _Named]) -> None:
    """Refuse a peak at another node than the order has at its step."""
    peak = plan.report.peak
    if peak is None:
        return
    node = nodes.get(peak.step)
    if peak.node if node is None else not node.is_called(peak.node):
        raise PlanError(f"peak is recorded at {peak.node[:120]!r}, step {peak.step}")
