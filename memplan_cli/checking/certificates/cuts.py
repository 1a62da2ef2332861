"""Proofs that the step of one group needs some bytes in any order.

A *cut* is a proof for the step of one group ``s``. In some order, let x(g) be 1 for a group g that
runs before this step, and 0 for ``s`` and each group that runs after it. A tensor is live before
the step if x(producer) = 1 and x(reader) = 0 for at least one reader.

A *share* is a number of a tensor's bytes, assigned to one reader. The shares of a tensor add up to
its bytes at most. So, for each tensor,

    live bytes >= sum over its readers of share * (x(producer) - x(reader))

If group ``first`` must run before group ``second``, then x(first) - x(second) >= 0. Any *multiple*
of this difference, a number of bytes >= 0, may be subtracted on the right. What remains is a
constant plus a sum of coefficient * x(g). Each x(g) is 0 or 1, so

    live bytes >= constant + all negative coefficients

The shares and multiples of a cut are its *dual*: a solution of the dual of the linear program whose
variables are the x(g).

Example: group 1 runs before ``s`` and group 3 after it, group 2 before or after. Tensor a (8 bytes)
is produced by 1 and read by 2, tensor b (6 bytes) is produced by 2 and read by 3. With all bytes as
shares, 8 * (x(1) - x(2)) + 6 * (x(2) - x(3)) = 8 - 2 * x(2) >= 6 bytes are live in any order.
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
    """Check that one cut, or each cut of a pair, reaches a bound.

    One cut assumes nothing. Two cuts assume the two orders of a pair of groups, so one of both
    holds in any order. Cuts refer to ``tensors`` by index.

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
    """Return the bytes that the step of a cut needs at least, in any order that it assumes.

    The cut has a dual for each tensor that the group may overwrite, which bounds the step if no
    other tensor is overwritten. Only one is, so the smallest of these bounds holds in any order. In
    an order in which none of them ends, each bound holds. A group that can overwrite no tensor has
    a single dual, with None in place of the tensor.

    Raises:
        ProofError: the cut is not about a group, or a dual is missing or wrong.
    """
    require(cut.node in graph.groups, f"there is no group {cut.node} to cut at")
    replaced = [
        None if dual.replaced is None else _tensor_name(dual.replaced, tensors)
        for dual in cut.duals
    ]
    replaceable = graph.groups[cut.node].replaceable
    expected: set[str | None] = {*replaceable} if replaceable else {None}
    require(
        set(replaced) == expected and len(replaced) == len(expected),
        f"the cut at {cut.node} does not have one dual for each tensor that its output may overwrite",
    )
    decided_x = _decided_x(graph, cut)
    bounds: list[int] = []
    for dual, tensor in zip(cut.duals, replaced, strict=True):
        step_bytes = _StepBytesSum(graph, cut.node, decided_x, tensor)
        step_bytes.add_dual(dual, tensors)
        bounds.append(step_bytes.minimum())
    return min(bounds)


def _tensor_name(index: int, tensors: Sequence[str]) -> str:
    """Return the name of a tensor that a certificate refers to by index.

    Raises:
        ProofError: there is no such index.
    """
    require(0 <= index < len(tensors), f"there is no tensor {index} in the certificate")
    return tensors[index]


def _decided_x(graph: GroupGraph, cut: Cut) -> Mapping[int, int]:
    """Return x of the groups that run before the step of a cut in any order (1), or never (0).

    These are the direct and indirect predecessors and successors of the cut's group, and of the
    group that the cut assumes before or after it. The cut's group and the block's end have 0.

    Raises:
        ProofError: the cut's assumption contradicts the order constraints.
    """
    decided_x: dict[int, int] = {cut.node: 0, BLOCK_END: 0}
    group_at_cut = graph.groups[cut.node]
    for assumed, x in ((cut.before, 1), (cut.after, 0)):
        stack = [*(group_at_cut.predecessors if x else group_at_cut.successors)]
        if assumed is not None:
            require(assumed in graph.groups, f"there is no group {assumed} for a pair")
            stack.append(assumed)
        while stack:
            number = stack.pop()
            if number in decided_x:
                require(
                    decided_x[number] == x and number != cut.node,
                    f"the cut at {cut.node} has group {number} before it and after it",
                )
                continue
            decided_x[number] = x
            group = graph.groups[number]
            stack.extend(group.predecessors if x else group.successors)
    return decided_x


class _StepBytesSum:
    """A lower bound of the bytes at a step: constant + sum of coefficient * x(group).

    At first it has the bytes that are needed in any order, and no coefficients. `add_dual` adds the
    terms of a proof: bytes of tensors that are live in some orders only. Only undecided groups have
    a coefficient: the term of a decided group is a number, and added to the constant.

    Args of the constructor:
        graph: the groups of a block.
        node: the group that runs at the step.
        decided_x: x of the decided groups: 1 if a group runs before the step in any order, 0 if
            it never does.
        replaced: the tensor that the group overwrites if it ends at the step; None if the group
            can overwrite no tensor.
    """

    def __init__(
        self,
        graph: GroupGraph,
        node: int,
        decided_x: Mapping[int, int],
        replaced: str | None,
    ) -> None:
        self._graph, self._node = graph, node
        self._decided_x, self._replaced = decided_x, replaced
        self._coefficients: defaultdict[int, int] = defaultdict(int)
        """Undecided group -> the coefficient of x(group)."""
        self._shares: defaultdict[str, int] = defaultdict(int)
        """Tensor -> the sum of its shares so far."""
        self._constant = self._certain_bytes()

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
        """Add a dual to the sum, which remains a lower bound of the bytes at the step.

        Each share adds share * (x(producer) - x(reader)). Each multiple of an order constraint
        subtracts multiple * (x(first) - x(second)), which is not negative.

        Raises:
            ProofError: a share or a constraint of the dual is wrong.
        """
        groups = self._graph.groups
        for index, reader, share in dual.shares:
            tensor = _tensor_name(index, tensors)
            require(share > 0, f"tensor {tensor[:120]!r} has a share of {share} bytes")
            self._add_share(tensor, reader, share)
        for first, second, multiple in dual.holds:
            require(
                multiple > 0, f"the cut at {self._node} has a multiple of {multiple} bytes"
            )
            require(
                second in groups and first in groups[second].predecessors,
                f"the cut at {self._node} holds {first} before {second}, which does not need it",
            )
            self._add_term(first, -multiple)
            self._add_term(second, multiple)

    def _add_share(self, tensor: str, reader: int, share: int) -> None:
        """Add share * (x(producer) - x(reader)) to the sum.

        These are bytes of a tensor that is live before the step if this reader runs later. The
        tensor may not be counted yet as live in any order, and its shares may not exceed its bytes.

        The tensor that the group of the step may overwrite is counted already, without the bytes
        that are saved if it ends here. If another reader runs later, these bytes are not saved. So
        its readers are the other ones, and its shares may not exceed the saved bytes.

        Raises:
            ProofError: the tensor is counted already or has too many shares, or does not have this
                reader.
        """
        graph, name = self._graph, f"tensor {tensor[:120]!r}"
        require(tensor in graph.users, f"{name} has a share, but fewer than two groups use it")
        if tensor == self._replaced:
            readers = self._readers(tensor) - {self._node}
            limit = graph.groups[self._node].saved_bytes
            is_counted = self._is_read_later(tensor)
        else:
            readers = self._readers(tensor)
            limit = graph.sizes[tensor]
            is_counted = self._is_surely_live(tensor)
        require(not is_counted, f"{name} has a share, but is counted already")
        self._shares[tensor] += share
        require(
            self._shares[tensor] <= limit,
            f"{name} has {limit} bytes, but its shares are {self._shares[tensor]}",
        )
        if reader == self._node:
            # The group of the step stands for any reader that never runs before it: x is 0.
            require(
                self._any_runs_after(readers),
                f"{name} has a share for {reader}, but may have ended",
            )
        else:
            require(
                reader in readers, f"{name} has a share for {reader}, which does not read it"
            )
        self._add_term(self._producer(tensor), share)
        self._add_term(reader, -share)

    def _add_term(self, group: int, coefficient: int) -> None:
        """Add coefficient * x(group): to the constant if the group is decided."""
        if group in self._decided_x:
            self._constant += coefficient * self._decided_x[group]
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
        """Return whether at least one of these groups never runs before the step."""
        return any(self._decided_x.get(group) == 0 for group in groups)

    def _is_read_later(self, tensor: str) -> bool:
        """Return whether another reader of a tensor than the group of the step surely runs later."""
        return self._any_runs_after(self._readers(tensor) - {self._node})

    def _is_surely_live(self, tensor: str) -> bool:
        """Return whether a tensor is live before the step in any order."""
        is_produced = self._decided_x.get(self._producer(tensor)) == 1
        return is_produced and self._any_runs_after(self._graph.users[tensor])
