"""The nodes of the outermost block as an ordering sees them: what each begins, reads and needs.

The tables are those of groups of nodes that run one right after the other; a group goes by
the place of one of its nodes. `fusions` makes groups, everything else only reads.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memplan_cli.checking.certificates.graph import reads
from memplan_cli.checking.certificates.operators import (
    DRAWING,
    DROPOUT_TRAINS,
    STATISTICS,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from memplan_cli.checking.certificates.tensors import Tensor
    from memplan_cli.checking.clock import Node, Region

    Overwrites = Mapping[str, tuple[int, ...]]


END = -1
"""Stands among the users of what a block gives: it is there when all groups have run."""


@dataclass(slots=True)
class Task:
    """A group of nodes.

    Attributes:
        preds: The groups that have to run before it.
        succs: Those that have to run after it.
        begins: The tensors that it makes and other groups read.
        touches: Those, and the ones that it reads.
        replaces: The tensors whose bytes its first result reuses if they end here.
        saved: The bytes that it needs less then.
        need: What its step takes beyond what was live before.
    """

    preds: set[int] = field(default_factory=set)
    succs: set[int] = field(default_factory=set)
    begins: set[str] = field(default_factory=set)
    touches: set[str] = field(default_factory=set)
    replaces: set[str] = field(default_factory=set)
    saved: int = 0
    need: int = 0


@dataclass(slots=True)
class Tasks:
    """All groups by their ids.

    Attributes:
        weight: The bytes of each tensor.
        users: The groups that make or read each tensor, where there are two or more.
        always: The bytes that are live at every step.
    """

    groups: dict[int, Task]
    weight: dict[str, int]
    users: dict[str, set[int]]
    always: int

    def taken(self, group: int) -> int:
        """Return the bytes that a group begins and leaves to others."""
        return sum(self.weight[tensor] for tensor in self.groups[group].begins)

    def saving(self, group: int) -> int:
        """Return what a group saves if it can replace a tensor."""
        task = self.groups[group]
        return task.saved if task.replaces else 0


def read_tasks(
    block: Region,
    tensors: Mapping[str, Tensor],
    roots: Mapping[str, str],
    overwrites: Overwrites,
    inside: Mapping[str, int],
) -> Tasks:
    """Return the nodes of a block, each a group of its own.

    Args:
        block: One of the model's, in the planned order. What a subgraph is given is left out.
        tensors: What the plan places.
        roots: The tensor whose bytes each of them shows.
        overwrites: The inputs that an operator's first result may be written over.
        inside: Bytes that subgraphs need in any order of their nodes, by path.
    """
    groups = {node.index: Task() for node in block.nodes}
    always = 0
    if block.parent is None:
        always = sum(t.size.coefficient for t in tensors.values() if t.row.pinned is not None)
    tasks = Tasks(groups, {}, {}, always)
    given = {roots.get(value.identity, "") for value in block.outputs}
    for node in block.nodes:
        _add(node, tasks, tensors, roots, given)
        if node.repeats:
            groups[node.index].need += _need_inside(node, tensors, roots, inside)
        _let_replace(node, tasks, overwrites, (tensors, roots))
    for first, second in _edges(block):
        groups[first].succs.add(second)
        groups[second].preds.add(first)
    for tensor, users in list(tasks.users.items()):
        if len(users) == 1:  # dead when it is made: only its own step needs it
            (only,) = users
            groups[only].begins.discard(tensor)
            groups[only].touches.discard(tensor)
            del tasks.users[tensor]
    return tasks


def _add(
    node: Node,
    tasks: Tasks,
    tensors: Mapping[str, Tensor],
    roots: Mapping[str, str],
    given: Collection[str],
) -> None:
    task = tasks.groups[node.index]
    for value in node.outputs:
        if value is not None and roots.get(value.identity) == value.identity:
            size = tensors[value.identity].size.coefficient
            if size:
                tasks.weight[value.identity] = size
                tasks.users[value.identity] = {END} if value.identity in given else set()
                task.begins.add(value.identity)
    # While one of two branches runs, what the other reads may be gone, and no result is there.
    if not node.bodies or node.repeats:
        task.need = sum(tasks.weight[tensor] for tensor in task.begins)
    read = reads(node)
    found = (roots.get(value.identity, "") for value in read)
    task.touches = task.begins | {root for root in found if root in tasks.weight}
    for tensor in task.touches:
        tasks.users[tensor].add(node.index)


def _need_inside(
    node: Node,
    tensors: Mapping[str, Tensor],
    roots: Mapping[str, str],
    inside: Mapping[str, int],
) -> int:
    """Return what the subgraphs of a node that repeats them need beside its results.

    What they are given is there for as long as the node runs.
    """
    known = [body for body in node.bodies if body.path in inside]
    if not known:
        return 0
    given = [v.identity for body in node.bodies for v in body.inputs]
    own = sum(tensors[v].size.coefficient for v in given if roots.get(v) == v)
    return own + max(inside[body.path] for body in known)


def _let_replace(
    node: Node,
    tasks: Tasks,
    overwrites: Overwrites,
    known: tuple[Mapping[str, Tensor], Mapping[str, str]],
) -> None:
    """Find the tensors over which the first result may be written, if they end there."""
    tensors, roots = known
    result = node.outputs[0] if node.outputs else None
    if node.bodies or result is None or result.identity not in tasks.weight:
        return
    task, allowed = tasks.groups[node.index], overwrites.get(node.kind, ())
    for at in allowed:
        value = node.inputs[at] if at < len(node.inputs) else None
        if (
            value is None
            or value.identity not in roots
            or roots[value.identity] not in tasks.weight
        ):
            continue
        root = roots[value.identity]
        same = [
            (place, other)
            for place, other in enumerate(node.inputs)
            if other is not None and roots.get(other.identity) == root
        ]
        only = all(place in allowed and other is value for place, other in same)
        only = only and END not in tasks.users[root]
        if only and tensors[value.identity].size == tensors[result.identity].size:
            task.replaces.add(root)
            task.saved = tasks.weight[result.identity]


def _edges(block: Region) -> Iterator[tuple[int, int]]:
    """Yield which node has to run before which."""
    maker = {id(v): node.index for node in block.nodes for v in node.outputs if v is not None}
    statistics = _statistics(block)
    latest: dict[str, int] = {}
    for node in block.nodes:
        read = list(reads(node))
        yield from ((maker[id(v)], node.index) for v in read if id(v) in maker)
        kinds = {*_in_turn(node), *(statistics[id(v)] for v in read if id(v) in statistics)}
        for kind in kinds:
            if kind in latest:
                yield latest[kind], node.index
            latest[kind] = node.index


def _in_turn(node: Node) -> Iterator[str]:
    """Yield what a node changes that others of its kind change too, each in its turn."""
    inside = list(_inside(node))
    if any(map(_draws, inside)):
        yield "random"
    if any(each.kind.startswith("Sequence") for each in inside):
        yield "sequence"


def _draws(node: Node) -> bool:
    told = node.kind == "Dropout" and len(node.proto.input) >= DROPOUT_TRAINS
    return told or node.kind in DRAWING


def _inside(node: Node) -> Iterator[Node]:
    yield node
    for body in node.bodies:
        for each in body.nodes:
            yield from _inside(each)


def _statistics(block: Region) -> Mapping[int, str]:
    """Return the values that are overwritten while others read them, by what they began as."""
    oldest: dict[int, str] = {}
    results = {id(value) for value in block.outputs}
    nodes: Sequence[Node] = [each for node in block.nodes for each in _inside(node)]
    for node in nodes:
        if node.proto.op_type != "BatchNormalization":
            continue
        for read, made in STATISTICS:
            new = node.outputs[made] if made < len(node.outputs) else None
            old = node.inputs[read] if read < len(node.inputs) else None
            if new is not None and old is not None and id(new) not in results:
                oldest[id(new)] = oldest.setdefault(id(old), old.identity)
    return oldest
