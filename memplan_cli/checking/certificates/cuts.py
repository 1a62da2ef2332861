"""Proofs that one step needs some bytes in any order: the dual of a linear program, added up.

Let x(g) be 1 for a group that runs before the step and 0 for one that runs after it. A tensor is
live at the step if x(producer) = 1 and x(reader) = 0 for some reader. So if a proof assigns shares
of a tensor's bytes to its readers, the live bytes are at least the sum of
share * (x(producer) - x(reader)). If group ``second`` needs group ``first``, then
x(first) - x(second) >= 0, and any multiple of this difference may be subtracted. What remains is a
constant plus a sum of coefficient * x(g). As each x(g) is 0 or 1, the live bytes are at least the
constant plus all negative coefficients.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from memplan_cli.checking.certificates.groups import BLOCK_END
from memplan_cli.checking.certificates.planned_graph import require

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from memplan_cli.checking.certificates.groups import GroupGraph
    from memplan_cli.core.results.certificate import Cut, Dual


def check_cuts(
    graph: GroupGraph, cuts: Sequence[Cut], tensors: Sequence[str], bound: int
) -> None:
    """Check that one cut, or a pair of cuts of which one holds in any order, reaches a bound.

    There is one cut without an assumption, or two that assume the two orders of a pair of groups.
    Cuts refer to ``tensors`` by index.

    Raises:
        ProofError: with the reason.
    """
    if len(cuts) == 1:
        cut = cuts[0]
        require(
            cut.before is None and cut.after is None,
            f"the cut at {cut.node} assumes an order of two nodes",
        )
    else:
        _check_pair(cuts)
    for cut in cuts:
        needed = _needed_bytes(graph, cut, tensors)
        require(
            needed >= bound, f"the cut at {cut.node} shows {needed} bytes only, not {bound}"
        )


def _check_pair(cuts: Sequence[Cut]) -> None:
    """Check that two cuts assume the two possible orders of the same two groups.

    Each cut assumes that the group ``before`` runs before its own group, or ``after`` after it.

    Raises:
        ProofError: with the reason.
    """
    require(len(cuts) == 2, "a pair has two cuts")
    assumed_orders = []
    for cut in cuts:
        require(
            (cut.before is None) != (cut.after is None),
            f"the cut at {cut.node} does not say which node of the pair is first",
        )
        is_second = cut.after is None
        assumed_orders.append((cut.before, cut.node) if is_second else (cut.node, cut.after))
    (first, second), other_order = assumed_orders
    require(
        other_order == (second, first) and first != second,
        "the two cuts are not for both orders of two nodes",
    )


def _needed_bytes(graph: GroupGraph, cut: Cut, tensors: Sequence[str]) -> int:
    """Return the bytes that the step of a cut needs at least.

    The group may overwrite one of its replaceable tensors. The cut has a dual for each of them, and
    the smallest result counts.

    Raises:
        ProofError: the cut is not about a group, or a dual is missing or wrong.
    """
    require(cut.node in graph.groups, f"there is no group {cut.node} to cut at")
    replaced = [
        None if dual.replaced is None else _tensor_name(dual.replaced, tensors)
        for dual in cut.duals
    ]
    replaceable: set[str | None] = {*graph.groups[cut.node].replaceable} or {None}
    require(
        set(replaced) == replaceable and len(replaced) == len(replaceable),
        f"the cut at {cut.node} does not have one dual for each tensor that its output may overwrite",
    )
    runs_before = _decided_groups(graph, cut)
    bounds: list[int] = []
    for dual, tensor in zip(cut.duals, replaced, strict=True):
        live_bytes = _LiveBytesSum(graph, cut.node, runs_before, tensor)
        live_bytes.add_dual(dual, tensors)
        bounds.append(live_bytes.minimum())
    return min(bounds)


def _tensor_name(index: int, tensors: Sequence[str]) -> str:
    """Return the name of a tensor that a certificate refers to by index.

    Raises:
        ProofError: there is no such index.
    """
    require(index < len(tensors), f"there is no tensor {index} in the certificate")
    return tensors[index]


def _decided_groups(graph: GroupGraph, cut: Cut) -> Mapping[int, int]:
    """Return x of the groups that run before the step of a cut in any order (1), or never (0).

    These are the direct and indirect predecessors and successors of the cut's group, and of the
    group that the cut assumes before or after it. The cut's group and the block's end have 0.

    Raises:
        ProofError: the cut's assumption contradicts the order constraints.
    """
    runs_before: dict[int, int] = {cut.node: 0, BLOCK_END: 0}
    group_at_cut = graph.groups[cut.node]
    for assumed, value in ((cut.before, 1), (cut.after, 0)):
        stack = [*(group_at_cut.predecessors if value else group_at_cut.successors)]
        if assumed is not None:
            require(assumed in graph.groups, f"there is no group {assumed} for a pair")
            stack.append(assumed)
        while stack:
            number = stack.pop()
            if number in runs_before:
                require(
                    runs_before[number] == value and number != cut.node,
                    f"the cut at {cut.node} has group {number} before it and after it",
                )
                continue
            runs_before[number] = value
            group = graph.groups[number]
            stack.extend(group.predecessors if value else group.successors)
    return runs_before


class _LiveBytesSum:
    """A lower bound of the bytes at a step: constant + sum of coefficient * x(group).

    At first it is the bytes that are live in any order. `add_dual` adds the terms of a proof. Only
    undecided groups have a coefficient: a term of another group is added to the constant.

    Args of the constructor:
        graph: the groups of a block.
        node: the group that runs at the step.
        runs_before: x of the decided groups: 1 if a group runs before the step, else 0.
        replaced: the tensor that the group overwrites if it ends at the step, or None.
    """

    def __init__(
        self,
        graph: GroupGraph,
        node: int,
        runs_before: Mapping[int, int],
        replaced: str | None,
    ) -> None:
        self._graph, self._node = graph, node
        self._runs_before, self._replaced = runs_before, replaced
        self._constant = self._certain_bytes()
        self._coefficients: defaultdict[int, int] = defaultdict(int)
        """Undecided group -> the coefficient of x(group)."""
        self._shares: defaultdict[str, int] = defaultdict(int)
        """Tensor -> the sum of its shares so far."""

    def _certain_bytes(self) -> int:
        """Return the bytes at the step in any order: live before it, and needed by its group."""
        graph, group = self._graph, self._graph.groups[self._node]
        live_bytes = sum(graph.sizes[t] for t in graph.users if self._is_surely_live(t))
        certain = graph.pinned_bytes + live_bytes + group.need
        if self._replaced is not None and not self._is_read_later(self._replaced):
            certain -= group.saved_bytes  # the group may overwrite the tensor
        return certain

    def minimum(self) -> int:
        """Return the smallest value of the sum: each x(group) is 1 if its coefficient is negative."""
        return self._constant + sum(c for c in self._coefficients.values() if c < 0)

    def add_dual(self, dual: Dual, tensors: Sequence[str]) -> None:
        """Add the shares of a dual, and subtract its multiples of x(first) - x(second).

        Raises:
            ProofError: a share or a constraint of the dual is wrong.
        """
        groups = self._graph.groups
        for index, reader, share in dual.shares:
            self._add_share(_tensor_name(index, tensors), reader, share)
        for first, second, multiple in dual.holds:
            require(
                second in groups and first in groups[second].predecessors,
                f"the cut at {self._node} holds {first} before {second}, which does not need it",
            )
            self._add_term(first, -multiple)
            self._add_term(second, multiple)

    def _add_share(self, tensor: str, reader: int, share: int) -> None:
        """Add share * (x(producer) - x(reader)) to the sum: bytes of a tensor live for this reader.

        The shares of a tensor may not exceed its bytes, and the tensor may not be counted yet as
        live in any order. The group of the step has x = 0 and stands for any reader that is known
        to run later. The tensor that the group overwrites is special: if another reader runs later,
        it cannot be overwritten, so its shares are of the saved bytes. Its producer is known to run
        before, so x(producer) is 1.

        Raises:
            ProofError: the tensor is counted already or has too many shares, or does not have this
                reader.
        """
        graph, name = self._graph, f"tensor {tensor[:120]!r}"
        require(tensor in graph.users, f"{name} has a share, but fewer than two groups use it")
        readers = self._readers(tensor)
        if tensor == self._replaced:
            readers -= {self._node}
            limit = graph.groups[self._node].saved_bytes
            is_counted = self._is_read_later(tensor)
            self._constant += share
        else:
            limit = graph.sizes[tensor]
            is_counted = self._is_surely_live(tensor)
            self._add_term(self._producer(tensor), share)
        require(not is_counted, f"{name} has a share, but is counted already")
        self._shares[tensor] += share
        require(
            self._shares[tensor] <= limit,
            f"{name} has {limit} bytes, but its shares are {self._shares[tensor]}",
        )
        if reader == self._node:
            require(
                self._any_runs_after(readers),
                f"{name} has a share for {reader}, but may have ended",
            )
        else:
            require(
                reader in readers, f"{name} has a share for {reader}, which does not read it"
            )
            self._add_term(reader, -share)

    def _add_term(self, group: int, coefficient: int) -> None:
        """Add coefficient * x(group): to the constant if the group is decided."""
        if group in self._runs_before:
            self._constant += coefficient * self._runs_before[group]
        else:
            self._coefficients[group] += coefficient

    def _producer(self, tensor: str) -> int:
        """Return the group that produces a tensor."""
        users, groups = self._graph.users[tensor], self._graph.groups
        return next(u for u in users if u != BLOCK_END and tensor in groups[u].produced)

    def _readers(self, tensor: str) -> set[int]:
        """Return the users of a tensor without its producer."""
        return self._graph.users[tensor] - {self._producer(tensor)}

    def _any_runs_after(self, groups: Iterable[int]) -> bool:
        """Return whether at least one of these groups is known not to run before the step."""
        return any(self._runs_before.get(group) == 0 for group in groups)

    def _is_read_later(self, tensor: str) -> bool:
        """Return whether a reader of a tensor, besides the group of the step, surely runs later."""
        return self._any_runs_after(self._readers(tensor) - {self._node})

    def _is_surely_live(self, tensor: str) -> bool:
        """Return whether a tensor is live at the step in any order, and was produced before."""
        is_produced = self._runs_before.get(self._producer(tensor)) == 1
        return is_produced and self._any_runs_after(self._graph.users[tensor])
