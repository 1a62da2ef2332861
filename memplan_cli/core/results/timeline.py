"""Timeline of a plan: the node that runs at each tick, and the bytes live there.

Everything is read off the plan, so that what a report draws is what the plan says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.core.problem import Problem, pressure

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from memplan_cli.core.problem import Buffer
    from memplan_cli.core.results.placements import ArenaFacts, Placement
    from memplan_cli.core.results.plan import Plan


class Moment(NamedTuple):
    """One node on the clock; one with subgraphs has a last tick, ``end``, after them."""

    start: int
    end: int
    block: str
    node: str

    @property
    def label(self) -> str:
        """Return the node with its block, as people read it."""
        return f"{self.block}/{self.node}" if self.block else self.node


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Bytes that one tensor, or several that share them, occupy at ticks of one arena."""

    tensor: Placement
    members: tuple[Placement, ...]
    first: int
    last: int

    @property
    def bytes(self) -> int:
        """Return the size, in units of the arena."""
        return max(tensor.bytes for tensor in self.members)

    def live_at(self, tick: int) -> bool:
        """Whether the bytes are in use at this tick."""
        return self.first <= tick < self.last


def moments(plan: Plan) -> tuple[Moment, ...]:
    """Return every node of every block with its ticks, in order of their start."""
    orders = {order.block: order.nodes for order in plan.order}
    found = _moments("", 0, orders, _bodies(orders))
    return tuple(sorted(found, key=lambda moment: moment.start))


def control_flow_nodes(plan: Plan) -> Mapping[str, Moment]:
    """Return the control-flow node of each subgraph, by the subgraph's path."""
    orders = {order.block: order.nodes for order in plan.order}
    found = {(moment.block, moment.node): moment for moment in moments(plan)}
    bodies = _bodies(orders).items()
    return {path: found[node] for node, paths in bodies for path in paths if node in found}


def nodes_at(plan: Plan) -> Mapping[int, str]:
    """Return the label of the node at each tick: its first and its last one."""
    found = {}
    for moment in moments(plan):
        found[moment.end] = found[moment.start] = moment.label
    return found


def occupancies(plan: Plan) -> tuple[Occupancy, ...]:
    """Return what each piece of memory is used for, in order of first use."""
    groups: dict[str, list[Placement]] = {}
    for tensor in plan.tensors:
        groups.setdefault(tensor.alias_of or tensor.id, []).append(tensor)
    found = (
        Occupancy(
            plan.by_id[name],
            tuple(members),
            min(tensor.first for tensor in members),
            max(tensor.last for tensor in members),
        )
        for name, members in groups.items()
    )
    return tuple(sorted(found, key=lambda item: (item.first, item.tensor.id)))


def main_arena(plan: Plan) -> ArenaFacts | None:
    """Return the arena to draw: the one of fixed sizes, if it is not empty, or the largest."""
    fixed = [arena for arena in plan.arenas if arena.unit == "1" and arena.height]
    if len(plan.arenas) == len(fixed) == 1:
        return fixed[0]
    return max(plan.arenas, key=lambda arena: (arena.height, -arena.id), default=None)


def curve(plan: Plan, arena: ArenaFacts | None) -> tuple[tuple[int, int], ...]:
    """Return ``(tick, bytes live from it on)`` for an arena; its maximum is the live peak."""
    for facts, (problem, _) in zip(plan.arenas, plan.problems, strict=True):
        if facts == arena:
            return _without_padding(problem.buffers)
    return ()


def peak_tick(points: tuple[tuple[int, int], ...]) -> int:
    """Return the first tick at which most bytes are live."""
    return max(points, key=lambda point: (point[1], -point[0]), default=(0, 0))[0]


def _without_padding(buffers: tuple[Buffer, ...]) -> tuple[tuple[int, int], ...]:
    return tuple(pressure(Problem(buffers)))


def _moments(
    block: str,
    tick: int,
    orders: Mapping[str, Sequence[str]],
    bodies: Mapping[tuple[str, str], list[str]],
) -> Iterator[Moment]:
    for node in orders.get(block, ()):
        end = tick
        mine = bodies.get((block, node), ())
        for body in mine:
            inner = tuple(_moments(body, end + 1, orders, bodies))
            yield from inner
            end = max((moment.end for moment in inner), default=end)
        end = end + 1 if mine else end
        yield Moment(tick, end, block, node)
        tick = end + 1


def _bodies(orders: Mapping[str, Sequence[str]]) -> dict[tuple[str, str], list[str]]:
    """Return the subgraphs of each ``(block, node)``; a subgraph's path names its node."""
    if len(orders) == 1:
        return {}
    nodes = {block: frozenset(names) for block, names in orders.items()}
    found: dict[tuple[str, str], list[str]] = {}
    for path in orders:
        if not path:
            continue
        parent = path.rpartition("/")[0]
        # Names may hold slashes too: the parent is the longest prefix that is a block.
        while parent and parent not in orders:
            parent = parent.rpartition("/")[0]
        label = path.removeprefix(f"{parent}/" if parent else "").rpartition(".")[0]
        # A node without a name is `Type#index` in a path and `#index` in an order.
        for node in (label, f"#{label.rpartition('#')[2]}"):
            if node in nodes.get(parent, ()):
                found.setdefault((parent, node), []).append(path)
                break
    return found
