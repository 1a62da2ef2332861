"""The timeline of a plan: the node that runs at each tick, and the bytes that are live then.

Computed from the plan alone, without the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.core.problem import Problem, pressure

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from memplan_cli.core.results.placements import Placement, PlannedArena
    from memplan_cli.core.results.plan import Plan


class Moment(NamedTuple):
    """The first and the last tick of a node, inclusive. They differ for nodes with subgraphs."""

    start: int
    end: int
    block: str
    node: str

    @property
    def label(self) -> str:
        """The name of the node, after the path of its block."""
        return f"{self.block}/{self.node}" if self.block else self.node


@dataclass(frozen=True, slots=True)
class Occupancy:
    """The use of bytes of an arena by one tensor and its aliases.

    Attributes:
        tensor: the tensor that owns the bytes.
        members: the tensor and its aliases.
        first, last: the first tick of any of them, and the tick after the last.
    """

    tensor: Placement
    members: tuple[Placement, ...]
    first: int
    last: int

    @property
    def bytes(self) -> int:
        """The size, in units of the arena."""
        return max(tensor.bytes for tensor in self.members)

    def live_at(self, tick: int) -> bool:
        """Return whether the bytes are in use at this tick."""
        return self.first <= tick < self.last


def moments(plan: Plan) -> tuple[Moment, ...]:
    """Return every node of every block with its ticks, ascending by first tick."""
    orders = {order.block: order.nodes for order in plan.order}
    unsorted = _moments("", 0, orders, _subgraph_paths(orders))
    return tuple(sorted(unsorted, key=lambda moment: moment.start))


def control_flow_nodes(plan: Plan) -> Mapping[str, Moment]:
    """Return, by the path of each subgraph, the node that it belongs to, with its ticks.

    Subgraphs of a node that the main graph does not reach are left out.
    """
    orders = {order.block: order.nodes for order in plan.order}
    moment_of = {(moment.block, moment.node): moment for moment in moments(plan)}
    return {
        path: moment_of[node]
        for node, paths in _subgraph_paths(orders).items()
        for path in paths
        if node in moment_of
    }


def nodes_at(plan: Plan) -> Mapping[int, str]:
    """Return the label of the node that starts or ends at each tick."""
    labels = {}
    for moment in moments(plan):
        labels[moment.end] = labels[moment.start] = moment.label
    return labels


def occupancies(plan: Plan) -> tuple[Occupancy, ...]:
    """Return each tensor with bytes of its own, its aliases and their ticks, ascending by first tick."""
    groups: dict[str, list[Placement]] = {}
    for tensor in plan.tensors:
        groups.setdefault(tensor.alias_of or tensor.id, []).append(tensor)
    unsorted = (
        Occupancy(
            plan.by_id[name],
            tuple(members),
            min(tensor.first for tensor in members),
            max(tensor.last for tensor in members),
        )
        for name, members in groups.items()
    )
    return tuple(sorted(unsorted, key=lambda item: (item.first, item.tensor.id)))


def main_arena(plan: Plan) -> PlannedArena | None:
    """Return the arena to draw: the only one, or the largest of several; None if there is none."""
    return max(plan.arenas, key=lambda arena: (arena.height, -arena.id), default=None)


def curve(plan: Plan, arena: PlannedArena | None) -> tuple[tuple[int, int], ...]:
    """Return the live bytes of an arena over time, in the arena's unit and without padding.

    Each point is ``(tick, bytes live from that tick on)``. The maximum is the live peak. There are
    no points if ``arena`` is None, the `main_arena` of a plan without arenas.
    """
    for facts, (problem, _) in zip(plan.arenas, plan.problems, strict=True):
        if facts == arena:
            # Without the arena's alignment: the live peak counts bytes before padding.
            return tuple(pressure(Problem(problem.buffers, alignment=1)))
    return ()


def peak_tick(points: tuple[tuple[int, int], ...]) -> int:
    """Return the first tick at which most bytes are live; 0 if there are no points."""
    return max(points, key=lambda point: (point[1], -point[0]), default=(0, 0))[0]


def _moments(
    block: str,
    tick: int,
    orders: Mapping[str, Sequence[str]],
    subgraphs: Mapping[tuple[str, str], list[str]],
) -> Iterator[Moment]:
    """Yield the nodes of a block whose first node runs at ``tick``, those of subgraphs included.

    A node takes one tick. A node with subgraphs takes a first tick, then those of its subgraphs one
    after the other, then a last tick.

    ``orders`` has the nodes of each block, by its path, and ``subgraphs`` the paths of the subgraphs
    of each ``(block, node)``.
    """
    for node in orders.get(block, ()):
        end = tick
        paths = subgraphs.get((block, node), ())
        for path in paths:
            inner = tuple(_moments(path, end + 1, orders, subgraphs))
            yield from inner
            end = max((moment.end for moment in inner), default=end)
        if paths:
            end += 1
        yield Moment(tick, end, block, node)
        tick = end + 1


def _subgraph_paths(
    orders: Mapping[str, Sequence[str]],
) -> dict[tuple[str, str], list[str]]:
    """Return the paths of the subgraphs of each ``(path of a block, name of a node in it)``.

    ``orders`` has the names of the nodes of each block, by its path; that of the main graph is empty. For
    ``{"": ["x", "a"], "a.body": ["b"], "a.body/b.body": []}`` this is
    ``{("", "a"): ["a.body"], ("a.body", "b"): ["a.body/b.body"]}``. A subgraph of a node without a place in the
    order is left out.
    """
    nodes = {block: frozenset(names) for block, names in orders.items()}
    paths: dict[tuple[str, str], list[str]] = {}
    for path in orders:
        if not path:
            continue
        parent = _parent_block(path, orders)
        label = path.removeprefix(f"{parent}/" if parent else "").rpartition(".")[0]
        # A node without a name is `Type#index` in a path and `#index` in an order.
        nameless = f"#{label.rpartition('#')[2]}"
        node = label if label in nodes.get(parent, ()) else nameless
        if node in nodes.get(parent, ()):
            paths.setdefault((parent, node), []).append(path)
    return paths


def _parent_block(path: str, blocks: Collection[str]) -> str:
    """Return the path of the block around a subgraph; empty for the main graph.

    Node names may contain slashes, so it is the longest prefix before a slash that is a block.
    """
    parent = path.rpartition("/")[0]
    while parent and parent not in blocks:
        parent = parent.rpartition("/")[0]
    return parent
