"""Checks of everything in a plan file that depends on time, without the model.

The order gives each node its ticks, tensors are live between ticks, and a tensor is released after
the node that needs it last. These three must agree. (A plan file calls a tick a *step*.) Only the
model tells which node produces a tensor, so two nodes that release nothing may have been exchanged
without notice.

A subgraph's tensors are dead after its control-flow node. They may share bytes with an output of
that node in one case: the tensor is the result of a branch of If, whose outputs are defined at its
last tick. (Outputs of Loop exist from its first tick on.) Only the model tells whether a
tensor is a view, or is written over an input that dies.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.core.results.timeline import control_flow_nodes, moments
from memplan_cli.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from memplan_cli.core.results.placements import Placement
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.core.results.timeline import Moment


class _OrderedNode(NamedTuple):
    """A node of the plan's order.

    Attributes:
        moment: the node and its ticks.
        block_entries: the entries of all nodes of its block, by which a label is told apart.
    """

    moment: Moment
    block_entries: frozenset[str]

    def has_label(self, label: str) -> bool:
        """Return whether a label in a release, or in the peak, can mean this node.

        Its entry in the plan's order may differ from its label. ``block_entries`` are the entries of the whole block.

        =============================  ==========  ========
        node 2 of the file             label       entry
        =============================  ==========  ========
        the only one named ``head``    ``head``    ``head``
        a Conv without a name          ``Conv#2``  ``#2``
        one of several named ``head``  ``head``    ``#2``
        =============================  ==========  ========
        """
        entry = self.moment.node
        if label in self.block_entries:
            return label == entry
        _, mark, index = label.rpartition("#")
        if mark and f"#{index}" in self.block_entries:
            return f"#{index}" == entry
        # The plan does not tell which nodes have the name: each node whose entry is an index can be meant.
        return entry.startswith("#")


def check_clock(plan: Plan) -> None:
    """Refuse a plan whose order, live ranges, releases and peak do not agree."""
    _check_order(plan)
    try:
        clock = moments(plan)  # each node of each block, with its first and its last tick
    except RecursionError as error:
        raise PlanError("the plan's blocks are nested too deeply") from error
    _check_live_ranges(plan, clock)
    # A label in a release or the peak may be a name that two nodes of a block share. To find out, it is compared
    # with the entries of all nodes of the block (`has_label`).
    entries_by_block = {order.block: frozenset(order.nodes) for order in plan.order}
    nodes = [_OrderedNode(moment, entries_by_block[moment.block]) for moment in clock]
    _check_releases(plan, {node.moment.end: node for node in nodes})
    _check_released_tensors(plan, clock)
    _check_peak_node(plan, nodes)


def _check_peak_node(plan: Plan, nodes: Iterable[_OrderedNode]) -> None:
    """Refuse a peak that names another node than the one that starts or ends at its step."""
    peak = plan.report.peak
    if peak is None:
        return
    node_at: dict[int, _OrderedNode] = {}
    for node in nodes:  # no two nodes start or end at the same tick
        node_at[node.moment.start] = node_at[node.moment.end] = node
    node_at_peak = node_at.get(peak.step)
    # At a step without a node, as in a plan without nodes, the peak must not name one.
    agrees = not peak.node if node_at_peak is None else node_at_peak.has_label(peak.node)
    if not agrees:
        raise PlanError(f"peak is recorded at {peak.node[:120]!r}, step {peak.step}")


def _check_order(plan: Plan) -> None:
    """Refuse an order that lists a block or a node twice."""
    block_counts = Counter(order.block for order in plan.order)
    for order in plan.order:
        if block_counts[order.block] > 1:
            raise PlanError(f"the order has block {order.block[:120]!r} twice")
        if len(set(order.nodes)) < len(order.nodes):
            repeated = Counter(order.nodes).most_common(1)[0][0]
            raise PlanError(f"the order has node {repeated[:120]!r} twice")


def _check_live_ranges(plan: Plan, clock: Sequence[Moment]) -> None:
    """Refuse blocks without a control-flow node, and tensors that are live after the last tick.

    The clock reaches a block only through the node that has it as a subgraph, so nodes of a
    block without such a node are missing in it.
    """
    node_count = sum(len(order.nodes) for order in plan.order)
    if len(clock) != node_count:
        raise PlanError(
            f"the order has {node_count} nodes, and {len(clock)} of them are reached"
        )
    last_tick = max((moment.end for moment in clock), default=-1)
    for tensor in plan.tensors:
        last_use = tensor.last - 1  # ``last`` is exclusive, the end of a node inclusive
        if last_use > last_tick:
            raise PlanError(
                f"tensor {tensor.id[:120]!r} is live until tick {tensor.last}, "
                f"the order ends at {last_tick + 1}"
            )


def _check_releases(plan: Plan, nodes_by_end: Mapping[int, _OrderedNode]) -> None:
    """Refuse releases whose steps do not ascend, or are not the last ticks of their nodes.

    ``nodes_by_end`` has all nodes, by their last tick.
    """
    previous_step = -1
    for release in plan.releases:
        node = nodes_by_end.get(release.step)
        if node is None or not node.has_label(release.node):
            node_there = repr(node.moment.node[:120]) if node else "that none does"
            raise PlanError(
                f"releases: {release.node[:120]!r} is recorded to end at step {release.step}, "
                f"the order says {node_there}"
            )
        if release.step <= previous_step:
            raise PlanError(f"releases: step {release.step} comes too late, or twice")
        previous_step = release.step


def _check_released_tensors(plan: Plan, clock: Sequence[Moment]) -> None:
    """Refuse releases that are missing, occur twice, or are not at the step of the tensor's last use.

    Each unpinned tensor of the main graph must be released once, at the last tick of the node that uses
    it last. A tensor of a subgraph may be released there, or not at all.
    """
    due_step_of = _release_steps(plan, clock)
    unreleased = set(due_step_of)
    for release in plan.releases:
        for name in release.tensors:
            if name not in unreleased:
                reason = "occurs twice" if name in due_step_of else "is pinned, or not planned"
                raise PlanError(f"releases: tensor {name[:120]!r} {reason}")
            unreleased.remove(name)
            if due_step_of[name] != release.step:
                raise PlanError(
                    f"releases: tensor {name[:120]!r} is let go at step {release.step}, "
                    f"it is last needed at {due_step_of[name]}"
                )
    # A subgraph's result that lives on is released in the outer block, as the node's output.
    missing = sorted(name for name in unreleased if not plan.by_id[name].block)
    if missing:
        raise PlanError(f"releases: tensor {missing[0][:120]!r} is never let go")


def _release_steps(plan: Plan, clock: Sequence[Moment]) -> dict[str, int]:
    """Return the step at which each unpinned tensor is to be released, by the tensor's id.

    The step is the last tick of a node of the tensor's own block: the node that runs at the tick of the
    tensor's last use. If the last reader is in a subgraph, that is the control-flow node around it.

    The step is -1 if no node of the block runs at that tick: the result of a subgraph is last used when
    the control-flow node ends.
    """
    # By block: for each tick at which a node runs, the last tick of the node.
    end_of_node: dict[str, dict[int, int]] = {}
    for moment in clock:
        block_ends = end_of_node.setdefault(moment.block, {})
        ticks = range(moment.start, moment.end + 1)
        block_ends.update(dict.fromkeys(ticks, moment.end))
    release_steps: dict[str, int] = {}
    for tensor in plan.tensors:
        if not tensor.pinned:
            last_use = tensor.last - 1  # ``last`` is exclusive
            release_steps[tensor.id] = end_of_node.get(tensor.block, {}).get(last_use, -1)
    return release_steps


def check_blocks(plan: Plan) -> None:
    """Refuse tensors of subgraphs that are live too long, or wrongly share bytes with tensors of other blocks."""
    if len(plan.order) < 2:  # each block has an order: there are no subgraphs
        return
    control_flow = control_flow_nodes(plan)
    _check_subgraph_lifetimes(plan, control_flow)
    _check_shared_buffers(plan, control_flow)


def _check_subgraph_lifetimes(plan: Plan, control_flow: Mapping[str, Moment]) -> None:
    """Refuse unpinned tensors of a subgraph that are live before or after its control-flow node runs."""
    for tensor in plan.tensors:
        node = control_flow.get(tensor.block)
        if node is None or tensor.pinned:
            continue
        last_use = tensor.last - 1  # ``last`` is exclusive, the end of a node inclusive
        if tensor.first < node.start or last_use > node.end:
            raise PlanError(
                f"tensor {tensor.id[:120]!r} is live from tick {tensor.first} to {tensor.last}, "
                f"its control-flow node runs from {node.start} to {node.end}"
            )


def _check_shared_buffers(plan: Plan, control_flow: Mapping[str, Moment]) -> None:
    """Refuse a plan in which an output of a control-flow node shares bytes with a tensor of the node's subgraph.

    An output of an If may share its bytes with one result of each branch, since that result becomes the output.
    ``control_flow`` has the control-flow node of each subgraph, by the path of the subgraph.
    """
    tensors_by_buffer: dict[str, list[Placement]] = {}
    for tensor in plan.tensors:
        tensors_by_buffer.setdefault(tensor.alias_of or tensor.id, []).append(tensor)
    for tensors in tensors_by_buffer.values():
        starts_by_block: dict[str, list[int]] = {}
        for tensor in sorted(tensors, key=lambda tensor: tensor.first):
            starts_by_block.setdefault(tensor.block, []).append(tensor.first)
        if len(starts_by_block) > 1:  # tensors of several blocks are on the same bytes
            # Refuses outputs that start before the subgraph has run, as all outputs of a Loop do.
            _check_starts(tensors, starts_by_block, control_flow)
            # Refuses two results of one branch beside an output of the If, which can be only one of them.
            _check_results(tensors, starts_by_block, control_flow)


def _check_starts(
    tensors: Sequence[Placement],
    starts_by_block: Mapping[str, Sequence[int]],
    control_flow: Mapping[str, Moment],
) -> None:
    """Refuse an output on bytes of its node's subgraph if the output starts before the node's last tick.

    If a Loop runs from tick 3 to 9, its outputs start at tick 3, and would overwrite bytes that its subgraph
    uses until tick 9. Outputs of an If start at its last tick, when its subgraph has run.

    ``tensors`` are all on the same bytes, and ``starts_by_block`` has their first ticks, ascending.
    ``control_flow`` has the node of each subgraph, by the subgraph's path.
    """
    for node in _enclosing_nodes(starts_by_block, control_flow):
        # In the block that contains the node, only outputs of the node start while the node runs.
        output_starts = starts_by_block.get(node.block, ())
        # The last tick, ``node.end``, is not in the interval.
        starts_before_last_tick = _has_tick_within(output_starts, node.start, node.end)
        if starts_before_last_tick:
            shared = tensors[0].alias_of or tensors[0].id
            raise PlanError(
                f"what {node.label[:120]!r} gives shares the bytes of {shared[:120]!r}, "
                "which its subgraph uses before that is made"
            )


def _check_results(
    tensors: Sequence[Placement],
    starts_by_block: Mapping[str, Sequence[int]],
    control_flow: Mapping[str, Moment],
) -> None:
    """Refuse two results of one branch on the bytes of an output of its If.

    If a branch of ``y, z = If(..)`` returned ``a`` and ``b`` on the same bytes, the value of ``a`` or of ``b``
    would be lost.

    ``tensors`` are all on the same bytes, and ``starts_by_block`` has their first ticks, ascending.
    ``control_flow`` has the node of each subgraph, by the subgraph's path.
    """
    # At the last tick of an If, ``node.end``, its subgraph has run, and the results become outputs of the If. Of the
    # tensors of a subgraph, only results are live at this tick. (``tensor.last`` is exclusive.)
    results_by_block: dict[str, list[Placement]] = {}
    for tensor in tensors:
        node = control_flow.get(tensor.block)
        if node is not None and node.end in range(tensor.first, tensor.last):
            results_by_block.setdefault(tensor.block, []).append(tensor)
    for block, results in results_by_block.items():
        node = control_flow[block]
        # A tensor of the block around an If that starts at the If's last tick is an output of the If. Outputs
        # of a Loop start at the Loop's first tick: these are left to `_check_starts`.
        outer_starts = starts_by_block.get(node.block, ())
        shares_with_output = _has_tick_within(outer_starts, node.end, node.end + 1)
        if len(results) > 1 and shares_with_output:
            names = [tensor.id[:120] for tensor in results][:4]
            raise PlanError(
                f"tensors {names} share the bytes of what {node.label[:120]!r} gives: "
                "no more than one can be that"
            )


def _enclosing_nodes(
    blocks: Iterable[str], control_flow: Mapping[str, Moment]
) -> Iterator[Moment]:
    """Yield the control-flow nodes around some blocks, from each block outwards to the main graph.

    ``control_flow`` has the node of each subgraph, by the subgraph's path; the main graph is not in it.
    """
    visited: set[str] = set()
    for block in blocks:
        subgraph = block
        while subgraph in control_flow and subgraph not in visited:
            visited.add(subgraph)
            yield control_flow[subgraph]
            subgraph = control_flow[subgraph].block  # the block that contains the node


def _has_tick_within(ticks: Sequence[int], start: int, end: int) -> bool:
    """Whether any of some ascending ticks lies in ``[start, end)``."""
    index = bisect_left(ticks, start)
    return index < len(ticks) and ticks[index] < end
