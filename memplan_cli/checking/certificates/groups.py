"""The nodes of a block as an ordering problem, and fusions of nodes into groups.

A *group* is a set of nodes that run one right after the other, named by the index of one of them.
At first every node is a group. A *step* runs one group. A tensor *ends* at a step if the group
produces or reads it and all its other users have run before. In bytes:

    bytes at a step  = bytes live before it + need - saving
    bytes live after = bytes live before it + produced - freed

*need* is what the group allocates, *produced* is the part of it that later groups use, *freed* are
the tensors that end at the step, and *saving* is the size of the first output if the group writes
it over a tensor that ends. The *peak* of an order is its highest step. A proof shows that no order
has a peak below a bound.

A fusion is allowed if some order with the lowest peak runs both groups together. The two rules,
*late* and *early*, are exchange arguments: in any order, group ``node`` can be moved to just before
or just after group ``into``, and the peak does not rise.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memplan_cli.checking.certificates.planned_graph import require
from memplan_cli.checking.operators import BATCH_NORM_STATISTICS

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
        predecessors: groups that must run before this one.
        successors: groups that must run after this one.
        produced: tensors that the group produces and other groups, or the block's end, use.
        used: ``produced`` and the tensors that the group reads.
        replaceable: tensors over which the group may write its first output, if they end at its
            step. The output is written over one of them.
        saved_bytes: the bytes of the first output, which are saved if such a tensor ends.
        need: bytes that the group allocates: its step needs them beyond those live before it,
            unless it saves some. Tensors that no other group uses are included.
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
        groups: the groups by number: the index of one of their nodes.
        sizes: the bytes of each tensor.
        users: the groups that produce or read each tensor, and `BLOCK_END` for an output of the
            block; tensors with one user are left out.
        pinned_bytes: bytes of pinned tensors, which are live at every step.
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
    """Return a block's nodes, each as a group of its own, with the outputs of all nodes and the order constraints.

    The ``need`` of a group is the bytes that its node allocates. For a node with a subgraph these are found from
    ``subgraph_bytes``: the proven bytes that each subgraph needs in any order of its nodes, by path.
    """
    groups = {node.index: NodeGroup() for node in block.nodes}
    pinned_bytes = 0
    # Bytes of a subgraph are added to those of the main graph, where pinned tensors are counted.
    if block.parent is None:
        pinned_bytes = sum(t.bytes for t in planned.tensors.values() if t.row.pinned)
    graph = GroupGraph(groups, sizes={}, users={}, pinned_bytes=pinned_bytes)
    view_bases = planned.view_bases
    outputs = {
        view_bases[value.tensor_id] for value in block.outputs if value.tensor_id in view_bases
    }
    for node in block.nodes:
        _add_tensors(node, graph, planned, outputs)  # to ``sizes`` and ``users`` too
        groups[node.index].need = _allocated_bytes(node, graph, planned, subgraph_bytes)
        _add_replaceable(node, graph, planned)
    for first, second in _order_constraints(block):
        groups[first].successors.add(second)
        groups[second].predecessors.add(first)
    # Tensors used by their producer alone are left out: they are live at its step only, and counted in its ``need``.
    for number, group in groups.items():
        unread = {tensor for tensor in group.produced if graph.users[tensor] == {number}}
        group.produced -= unread
        group.used -= unread
        for tensor in unread:
            del graph.users[tensor]
    return graph


def _add_tensors(
    node: Node, graph: GroupGraph, planned: PlannedGraph, block_outputs: Collection[str]
) -> None:
    """Add the tensors that a node produces and reads to the graph, and to the node's group.

    Tensors without bytes of their own are left out; a read view counts as the tensor that it views.
    """
    group = graph.groups[node.index]
    for tensor in [value.tensor_id for value in node.outputs if value is not None]:
        size = planned.own_bytes(tensor)
        if size:
            graph.sizes[tensor] = size
            graph.users[tensor] = {BLOCK_END} if tensor in block_outputs else set()
            group.produced.add(tensor)
    # A tensor that is no view is its own base; a pinned one has none.
    bases = (planned.view_bases.get(value.tensor_id, "") for value in node.reads())
    group.used = group.produced | {base for base in bases if base in graph.sizes}
    for tensor in group.used:
        graph.users[tensor].add(node.index)


def _allocated_bytes(
    node: Node, graph: GroupGraph, planned: PlannedGraph, subgraph_bytes: Mapping[str, int]
) -> int:
    """Return a lower bound of the bytes that a node needs in addition to those that are live before it.

    ``subgraph_bytes`` has, by path, proven lower bounds of what the nodes of a subgraph allocate.
    """
    if node.subgraphs and not node.repeats:
        # An If allocates its outputs after its branch. Tensors that the branch read may be freed by then, and
        # their bytes may be reused for the outputs.
        return 0
    output_bytes = graph.produced_bytes(node.index)
    bounds = [subgraph_bytes[s.path] for s in node.subgraphs if s.path in subgraph_bytes]
    if not bounds:  # no subgraphs, or none with a proof: a lower bound may leave out the rest
        return output_bytes
    # The outputs of a Loop or Scan and the inputs of its subgraph are live as long as the node runs, and the nodes of the
    # subgraph allocate the rest.
    inputs = [value for subgraph in node.subgraphs for value in subgraph.inputs]
    input_bytes = sum(planned.own_bytes(value.tensor_id) for value in inputs)
    return output_bytes + input_bytes + max(bounds)


def _add_replaceable(node: Node, graph: GroupGraph, planned: PlannedGraph) -> None:
    """Set, in a node's group, the tensors that its first output may be written over, and the bytes that this saves.

    Such a tensor has the output's size, is no output of the block, and is read by the node only at inputs that
    may be overwritten. Other nodes may read it too: the order decides whether this node is the last reader.
    """
    output = node.outputs[0] if node.outputs else None
    if node.subgraphs or output is None or output.tensor_id not in graph.sizes:
        return
    group = graph.groups[node.index]
    overwritable_positions = planned.in_place_inputs.get(node.operator, ())
    output_size = planned.tensors[output.tensor_id].size
    input_ids = ["" if value is None else value.tensor_id for value in node.inputs]
    # For each input the tensor whose bytes it has; None for a weight, and for a pinned or omitted input.
    bases = [planned.view_bases.get(tensor_id) for tensor_id in input_ids]
    overwritable = {
        bases[position] for position in overwritable_positions if position < len(bases)
    }
    for tensor in group.used & overwritable:
        positions = {position for position, base in enumerate(bases) if base == tensor}
        # ``Add(a, a)`` may overwrite ``a``, but not if one of its inputs is a view of ``a``.
        is_one_value = len({input_ids[position] for position in positions}) == 1
        may_overwrite = is_one_value and positions.issubset(overwritable_positions)
        is_block_output = BLOCK_END in graph.users[tensor]
        has_same_size = planned.tensors[tensor].size == output_size
        if may_overwrite and has_same_size and not is_block_output:
            group.replaceable.add(tensor)
            group.saved_bytes = graph.sizes[output.tensor_id]


def _order_constraints(block: Block) -> Iterator[tuple[int, int]]:
    """Yield pairs of nodes of which the first must run before the second."""
    producers = {
        id(value): node.index
        for node in block.nodes
        for value in node.outputs
        if value is not None
    }
    for node in block.nodes:
        for value in node.reads():
            if id(value) in producers:
                yield producers[id(value)], node.index
    yield from _state_constraints(block)
    yield from _name_constraints(block)


def _state_constraints(block: Block) -> Iterator[tuple[int, int]]:
    """Yield pairs of nodes that use the same changing state one after the other.

    States are the random generator, and statistics that a BatchNormalization overwrites. Their users
    run in the order of the block.
    """
    statistics = _overwritten_statistics(block)
    last_user_of_state: dict[tuple[str, str], int] = {}
    for node in block.nodes:
        states = {
            ("statistic", statistics[id(value)])
            for value in node.reads()
            if id(value) in statistics
        }
        if any(inner.draws_random_numbers for inner in node.with_nodes_inside()):
            states.add(("random", ""))
        for state in states:
            if state in last_user_of_state:
                yield last_user_of_state[state], node.index
            last_user_of_state[state] = node.index


def _name_constraints(block: Block) -> Iterator[tuple[int, int]]:
    """Yield ``(earlier, later)`` nodes where ``later`` outputs a name that a subgraph of ``earlier`` defines.

    If ``later`` ran first, the subgraph would define the name of a value that it can see, which ONNX
    forbids.
    """
    definers_inside: defaultdict[str, list[int]] = defaultdict(list)
    for node in block.nodes:
        for name in node.proto.output:
            yield from ((earlier, node.index) for earlier in definers_inside.get(name, ()))
        nodes_inside = [inner for inner in node.with_nodes_inside() if inner is not node]
        for name in {name for inner in nodes_inside for name in inner.proto.output if name}:
            definers_inside[name].append(node.index)


def _overwritten_statistics(block: Block) -> Mapping[int, str]:
    """Return the running statistics of BatchNormalization nodes that share one memory.

    A runtime may write the updated mean and variance over the old ones. The result maps the
    ``id`` of an old or updated statistic to the tensor id of the first one in its chain of
    updates. Updates that are outputs of the block have memory of their own and are left out.
    """
    first_in_chain: dict[int, str] = {}
    block_outputs = {id(value) for value in block.outputs}
    nodes = [inner for node in block.nodes for inner in node.with_nodes_inside()]
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
    """Fuse pairs of groups of a graph, one after the other: ``into`` becomes the fused group. The graph is changed.

    The rule says where ``node`` can move in any order without raising the peak: to just before ``into`` (*late*) or to
    just after ``into`` (*early*). The rule's check shows that the step of ``into`` needs the more bytes of the two. So
    the fused group has only this step: ``need`` and ``replaceable`` of ``node`` no longer count.

    Raises:
        ProofError: the rule of a fusion does not hold.
    """
    for node, into, rule in fusions:
        title = f"the fusion of {node} into {into}"
        require(node in graph.groups, f"{title}: there is no group {node}")
        require(into in graph.groups, f"{title}: there is no group {into}")
        require(node != into, f"{title}: it is one group")
        group, target = graph.groups[node], graph.groups[into]
        # Tensors that one of the two groups produces and the other alone reads: users are the producer and all readers.
        inner_tensors = {name for name in group.used if graph.users[name] <= {node, into}}
        if rule == "late":  # ``node``, then ``into``
            _check_late_rule(graph, node, into, title)
            # At the step of ``into``, the outputs of ``node`` are live too.
            target.need += graph.produced_bytes(node)
            if target.replaceable & inner_tensors:
                # In any order ``into`` is the last reader of an inner tensor and writes its output over a tensor.
                # So the saving is certain: it is subtracted here, and must not be subtracted again.
                target.need -= target.saved_bytes
                target.replaceable = set()
        else:  # "early": ``into``, then ``node``. Certificates with other rules cannot be read.
            _check_early_rule(graph, node, into, inner_tensors, title)
            # At the step of ``into``, the outputs of ``node`` are not live yet, so ``need`` stays. But ``into`` cannot
            # write its output over a tensor that ``node`` reads afterwards.
            target.replaceable = target.replaceable - group.used
        _merge_groups(graph, node, into, inner_tensors)


def _check_late_rule(graph: GroupGraph, node: int, into: int, title: str) -> None:
    """Check the rule *late*: in any order ``node`` can move to just before ``into``, and the peak does not rise.

    ``title`` names the fusion in errors.

    Raises:
        ProofError: with the reason.
    """
    group, target = graph.groups[node], graph.groups[into]
    require(group.successors == {into}, f"{title}: other groups wait for it too")
    # The steps between the old place of ``node`` and ``into`` lose the outputs of ``node``. They would gain the tensors
    # that ``node`` frees, so it must free none.
    require(graph.frees_nothing(node), f"{title}: it frees a tensor")
    # At the new place, ``into`` runs right after ``node`` and must be the higher step of the two. Say ``node`` needs 4
    # bytes for its output, which stays, and ``into`` needs 3: the steps have 4 and 4 + 3 bytes.
    output_bytes = graph.produced_bytes(node)
    # ``into`` needs less in orders in which it overwrites a tensor. It must be the higher step in these too.
    least_need_of_into = target.need - graph.possible_saving(into)
    require(group.need <= output_bytes + least_need_of_into, f"{title}: its step needs more")


def _check_early_rule(
    graph: GroupGraph, node: int, into: int, inner_tensors: set[str], title: str
) -> None:
    """Check the rule *early*: in any order ``node`` can move to just after ``into``, and the peak does not rise.

    ``inner_tensors`` are those that ``into`` produces for ``node`` alone. ``title`` names the fusion in errors.
    ``need`` of a group is what its step allocates. It is ``saved_bytes`` less if the step writes over a tensor.

    Raises:
        ProofError: with the reason.
    """
    group, target = graph.groups[node], graph.groups[into]
    require(group.predecessors == {into}, f"{title}: it waits for other groups too")
    # The bytes of both steps in addition to those live before ``into``. If ``into`` writes over a tensor, both steps have
    # the bytes of that tensor less, so the comparison leaves it out.
    bytes_at_into = target.need
    live_after_into = graph.produced_bytes(into)
    bytes_at_node = live_after_into + group.need
    if group.replaceable & inner_tensors:
        # An inner tensor ends at ``node``, its only reader, so that ``node`` always writes over a tensor.
        bytes_at_node -= group.saved_bytes
    require(bytes_at_node <= bytes_at_into, f"{title}: its step needs more")
    # Steps between the new and the old place of ``node`` have its outputs live in place of the inner tensors.
    output_bytes = graph.produced_bytes(node)
    inner_bytes = sum(graph.sizes[tensor] for tensor in inner_tensors)
    require(output_bytes <= inner_bytes, f"{title}: it leaves more live")


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
