"""The nodes of a block as an ordering problem, and fusions of nodes into groups.

A group is a set of nodes that run one right after the other, named by the index of one of them.
At first every node is a group. A fusion is allowed if some order with the lowest peak runs both
groups together. Both rules are exchange arguments: any order can be changed so that the two groups
run one right after the other, and no step then needs more.

*Late*: ``node`` frees nothing and only ``into`` waits for it. Moved to just before ``into``, it
makes every step between them smaller, and its own step needs no more than that of ``into``.

*Early*: ``node`` waits for ``into`` only, the tensors that both alone use have at least the bytes
that ``node`` produces, and its step needs no more than that of ``into``. Moved to just after
``into``, it leaves no more live.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memplan_cli.checking.certificates.planned_graph import require
from memplan_cli.checking.operators import (
    BATCH_NORM_STATISTICS,
    DROPOUT_INPUTS_WITH_TRAINING_MODE,
    RANDOM,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from memplan_cli.checking.certificates.planned_graph import PlannedGraph
    from memplan_cli.checking.timeline import Block, Node
    from memplan_cli.core.results.certificate import Fusion

BLOCK_END = -1
"""A user, besides groups, of each tensor that is an output of the block: it runs last."""


@dataclass(slots=True)
class NodeGroup:
    """A group of nodes that run one right after the other.

    Attributes:
        produced: tensors that the group produces and other groups, or the block's end, use.
        used: ``produced`` and the tensors that the group reads.
        replaceable: tensors over which the group may write its first output, if they end here.
        saved_bytes: bytes saved if the group overwrites one of these.
        need: bytes that its step needs beyond those live before it, without any saving.
    """

    predecessors: set[int] = field(default_factory=set)
    successors: set[int] = field(default_factory=set)
    produced: set[str] = field(default_factory=set)
    used: set[str] = field(default_factory=set)
    replaceable: set[str] = field(default_factory=set)
    saved_bytes: int = 0
    need: int = 0


@dataclass(slots=True)
class GroupGraph:
    """All groups of a block.

    Attributes:
        sizes: the bytes of each tensor.
        users: the groups that produce or read each tensor; tensors with one user are left out.
        pinned_bytes: bytes live at every step.
    """

    groups: dict[int, NodeGroup]
    sizes: dict[str, int]
    users: dict[str, set[int]]
    pinned_bytes: int

    def produced_bytes(self, group: int) -> int:
        """Return the bytes that a group produces for other groups."""
        return sum(self.sizes[tensor] for tensor in self.groups[group].produced)

    def possible_saving(self, group: int) -> int:
        """Return the bytes that a group saves if it can overwrite a tensor."""
        node_group = self.groups[group]
        return node_group.saved_bytes if node_group.replaceable else 0

    def least_bytes_at(self, group: int) -> int:
        """Return the bytes at the step of a group in any order: what it reads and produces."""
        node_group = self.groups[group]
        read = node_group.used - node_group.produced
        read_bytes = sum(self.sizes[tensor] for tensor in read)
        return self.pinned_bytes + read_bytes + node_group.need - self.possible_saving(group)

    def frees_nothing(self, group: int) -> bool:
        """Return whether no tensor can end at a group: all it reads are outputs of the block."""
        node_group = self.groups[group]
        read = node_group.used - node_group.produced
        return not node_group.replaceable and all(
            BLOCK_END in self.users[tensor] for tensor in read
        )


def block_groups(
    block: Block, planned: PlannedGraph, subgraph_bytes: Mapping[str, int]
) -> GroupGraph:
    """Return the nodes of a block, each as a group of its own.

    The inputs of a subgraph are left out. ``subgraph_bytes`` are the bytes that subgraphs need in
    any order of their nodes, by path.
    """
    groups = {node.index: NodeGroup() for node in block.nodes}
    pinned_bytes = 0
    if block.parent is None:
        pinned_bytes = sum(t.bytes for t in planned.tensors.values() if t.row.pinned)
    graph = GroupGraph(groups, {}, {}, pinned_bytes)
    outputs = {planned.view_bases.get(value.tensor_id, "") for value in block.outputs}
    for node in block.nodes:
        _add_tensors(node, graph, planned, outputs)
        if node.repeats:
            groups[node.index].need += _repeated_subgraph_need(node, planned, subgraph_bytes)
        _add_replaceable(node, graph, planned)
    for first, second in _order_constraints(block):
        groups[first].successors.add(second)
        groups[second].predecessors.add(first)
    for tensor, users in list(graph.users.items()):
        if len(users) == 1:  # live at the step of its producer only
            (producer,) = users
            groups[producer].produced.discard(tensor)
            groups[producer].used.discard(tensor)
            del graph.users[tensor]
    return graph


def _add_tensors(
    node: Node, graph: GroupGraph, planned: PlannedGraph, block_outputs: Collection[str]
) -> None:
    """Add the tensors that a node produces and uses to the graph, and to the node's group.

    Views, pinned tensors and tensors without bytes are left out.
    """
    group, view_bases = graph.groups[node.index], planned.view_bases
    for value in node.outputs:
        tensor = "" if value is None else value.tensor_id
        if value is not None and view_bases.get(tensor) == tensor:
            size = planned.tensors[tensor].bytes
            if size:
                graph.sizes[tensor] = size
                graph.users[tensor] = {BLOCK_END} if tensor in block_outputs else set()
                group.produced.add(tensor)
    # An If has no outputs yet while a branch runs, and what only the other branch reads may be gone.
    if not node.subgraphs or node.repeats:
        group.need = sum(graph.sizes[tensor] for tensor in group.produced)
    bases = (view_bases.get(value.tensor_id, "") for value in node.reads())
    group.used = group.produced | {base for base in bases if base in graph.sizes}
    for tensor in group.used:
        graph.users[tensor].add(node.index)


def _repeated_subgraph_need(
    node: Node, planned: PlannedGraph, subgraph_bytes: Mapping[str, int]
) -> int:
    """Return the bytes that the subgraphs of a repeating node need besides the node's outputs.

    The inputs of the subgraphs are live for the whole node. 0 if no subgraph has a known need.
    """
    needs = [
        subgraph_bytes[subgraph.path]
        for subgraph in node.subgraphs
        if subgraph.path in subgraph_bytes
    ]
    if not needs:
        return 0
    inputs = [value.tensor_id for subgraph in node.subgraphs for value in subgraph.inputs]
    own_bytes = [
        planned.tensors[each].bytes for each in inputs if planned.view_bases.get(each) == each
    ]
    return sum(own_bytes) + max(needs)


def _add_replaceable(node: Node, graph: GroupGraph, planned: PlannedGraph) -> None:
    """Set the tensors over which the first output of a node may be written.

    Such a tensor has the output's size, is no output of the block, and is read only as one value
    and only at inputs that the operator may overwrite.
    """
    output = node.outputs[0] if node.outputs else None
    if node.subgraphs or output is None or output.tensor_id not in graph.sizes:
        return
    view_bases, tensors = planned.view_bases, planned.tensors
    in_place = planned.in_place_inputs.get(node.operator, ())
    group = graph.groups[node.index]
    for position in in_place:
        value = node.inputs[position] if position < len(node.inputs) else None
        base = "" if value is None else view_bases.get(value.tensor_id, "")
        if value is None or base not in graph.sizes or BLOCK_END in graph.users[base]:
            continue
        is_read_in_place_only = all(
            index in in_place and other is value
            for index, other in enumerate(node.inputs)
            if other is not None and view_bases.get(other.tensor_id) == base
        )
        has_same_size = tensors[value.tensor_id].size == tensors[output.tensor_id].size
        if is_read_in_place_only and has_same_size:
            group.replaceable.add(base)
            group.saved_bytes = graph.sizes[output.tensor_id]


def _order_constraints(block: Block) -> Iterator[tuple[int, int]]:
    """Yield pairs of nodes of which the first must run before the second.

    A node runs after the producers of what it reads. Nodes that use the same changing state run in
    the order of the block: the random generator, sequences, and statistics that a
    BatchNormalization overwrites.
    """
    producers = {
        id(value): node.index
        for node in block.nodes
        for value in node.outputs
        if value is not None
    }
    statistics = _overwritten_statistics(block)
    last_user_of_state: dict[str, int] = {}
    for node in block.nodes:
        read_ids = [id(value) for value in node.reads()]
        yield from ((producers[i], node.index) for i in read_ids if i in producers)
        states = {statistics[i] for i in read_ids if i in statistics}
        nodes = list(_with_nodes_inside(node))
        if any(map(_draws_random_numbers, nodes)):
            states.add("random")
        if any(inner.operator.startswith("Sequence") for inner in nodes):
            states.add("sequence")
        for state in states:
            if state in last_user_of_state:
                yield last_user_of_state[state], node.index
            last_user_of_state[state] = node.index


def _draws_random_numbers(node: Node) -> bool:
    """Return whether a node can draw from the random generator of the run."""
    if node.operator == "Dropout":
        return len(node.proto.input) >= DROPOUT_INPUTS_WITH_TRAINING_MODE
    return node.operator in RANDOM


def _with_nodes_inside(node: Node) -> Iterator[Node]:
    """Yield a node and all nodes of its subgraphs, nested ones included."""
    yield node
    for subgraph in node.subgraphs:
        for inner in subgraph.nodes:
            yield from _with_nodes_inside(inner)


def _overwritten_statistics(block: Block) -> Mapping[int, str]:
    """Return the running statistics of BatchNormalization nodes that share one memory.

    A runtime may write the updated mean and variance over the old ones. The result maps the
    ``id`` of an old or updated statistic to the tensor id of the first one in its chain of
    updates. Updates that are outputs of the block have memory of their own and are left out.
    """
    first_in_chain: dict[int, str] = {}
    block_outputs = {id(value) for value in block.outputs}
    nodes = [inner for node in block.nodes for inner in _with_nodes_inside(node)]
    for node in nodes:
        if node.proto.op_type != "BatchNormalization":
            continue
        for input_at, output_at in BATCH_NORM_STATISTICS:
            old = node.inputs[input_at] if input_at < len(node.inputs) else None
            new = node.outputs[output_at] if output_at < len(node.outputs) else None
            if new is not None and old is not None and id(new) not in block_outputs:
                first = first_in_chain.setdefault(id(old), old.tensor_id)
                first_in_chain[id(new)] = first
    return first_in_chain


def fuse_groups(graph: GroupGraph, fusions: Iterable[Fusion]) -> None:
    """Fuse pairs of groups of a graph, one after the other.

    Raises:
        ProofError: the rule of a fusion does not hold.
    """
    for node, into, rule in fusions:
        title = f"the fusion of {node} into {into}"
        require(node in graph.groups, f"{title}: there is no group {node}")
        require(into in graph.groups, f"{title}: there is no group {into}")
        inner_tensors = {
            tensor for tensor in graph.groups[node].used if graph.users[tensor] <= {node, into}
        }
        if rule == "late":
            _apply_late_rule(graph, node, into, inner_tensors, title)
        else:
            _apply_early_rule(graph, node, into, inner_tensors, title)
        _merge_groups(graph, node, into, inner_tensors)


def _apply_late_rule(
    graph: GroupGraph, node: int, into: int, inner_tensors: set[str], title: str
) -> None:
    """Check the rule *late*: group ``node`` may run just before group ``into``.

    The bytes that ``node`` produces are added to the need of ``into``. ``inner_tensors`` are the
    tensors of ``node`` that only these two groups use; ``title`` names the fusion in errors.

    Raises:
        ProofError: the rule *late* does not hold.
    """
    group, target = graph.groups[node], graph.groups[into]
    require(group.successors == {into}, f"{title}: other groups wait for it too")
    require(graph.frees_nothing(node), f"{title}: it frees a tensor")
    produced, saving = graph.produced_bytes(node), graph.possible_saving(into)
    require(group.need <= produced + target.need - saving, f"{title}: its step needs more")
    # An inner tensor ends at the fused group in any order, so the saving is certain.
    if target.replaceable & inner_tensors:
        target.need -= saving
        target.replaceable = set()
    target.need += produced


def _apply_early_rule(
    graph: GroupGraph, node: int, into: int, inner_tensors: set[str], title: str
) -> None:
    """Check the rule *early*: group ``node`` may run just after group ``into``.

    Tensors that ``node`` uses are removed from those that ``into`` can overwrite, because they
    no longer end at ``into``. ``inner_tensors`` are the tensors of ``node`` that only these two
    groups use; ``title`` names the fusion in errors.

    Raises:
        ProofError: the rule *early* does not hold.
    """
    group, target = graph.groups[node], graph.groups[into]
    require(group.predecessors == {into}, f"{title}: it waits for other groups too")
    # An inner tensor ends at ``node`` in any order, so the saving is certain.
    step = group.need - (group.saved_bytes if group.replaceable & inner_tensors else 0)
    # Just after ``into``, its products are live besides, at most, all that was live before it.
    require(step <= target.need - graph.produced_bytes(into), f"{title}: its step needs more")
    # Run earlier, ``node`` frees its inner tensors earlier, and holds what it produces for longer.
    freed = sum(graph.sizes[tensor] for tensor in inner_tensors)
    require(graph.produced_bytes(node) <= freed, f"{title}: it leaves more live")
    target.replaceable -= group.used


def _merge_groups(graph: GroupGraph, node: int, into: int, inner_tensors: set[str]) -> None:
    """Remove group ``node`` and the inner tensors; ``into`` gets its tensors and constraints."""
    removed, target = graph.groups.pop(node), graph.groups[into]
    for tensor in removed.used:
        graph.users[tensor].discard(node)
        graph.users[tensor].add(into)
    for tensor in inner_tensors:
        del graph.users[tensor]
    target.used = (target.used | removed.used) - inner_tensors
    target.produced = (target.produced | removed.produced) - inner_tensors
    for other in removed.predecessors:
        graph.groups[other].successors.discard(node)
        if other != into:
            graph.groups[other].successors.add(into)
            target.predecessors.add(other)
    for other in removed.successors:
        graph.groups[other].predecessors.discard(node)
        if other != into:
            graph.groups[other].predecessors.add(into)
            target.successors.add(other)
