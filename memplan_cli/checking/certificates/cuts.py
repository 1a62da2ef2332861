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
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan_cli.checking.certificates.groups import BLOCK_END
from memplan_cli.checking.certificates.planned_graph import ProofError, require

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from memplan_cli.checking.certificates.groups import GroupGraph
    from memplan_cli.core.results.certificate import Cut, Dual


def check_cuts(
    graph: GroupGraph, cuts: Sequence[Cut], tensors: Sequence[str], bound: int
) -> None:
    """Check that one cut, or each cut of a pair, proves that every order has a step of ``bound`` bytes.

    A single cut proves the bytes of the step of one node, ``cut.node``, in every order. The two cuts of a pair cover all
    orders together: one those in which node 3 runs before node 5, say, the other those in which node 5 runs before
    node 3. Cuts refer to ``tensors`` by index.

    Raises:
        ProofError: with the reason.
    """
    if len(cuts) == 1:
        cut = cuts[0]
        assumes_order = (cut.before, cut.after) != (None, None)
        require(not assumes_order, f"the cut at {cut.node} assumes an order of two nodes")
    else:
        _check_pair(cuts)
    for cut in cuts:
        needed = _needed_bytes(graph, cut, tensors)
        require(
            needed >= bound, f"the cut at {cut.node} shows {needed} bytes only, not {bound}"
        )


def _check_pair(cuts: Sequence[Cut]) -> None:
    """Check that two cuts assume the two possible orders of the same two groups.

    A cut is about one group, ``cut.node``. It assumes that the group ``cut.before`` runs before this group,
    or that the group ``cut.after`` runs after it.

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
    """Return the bytes that the step of the group ``cut.node`` needs at least, in all orders that the cut assumes.

    At its step the group overwrites one of its ``replaceable`` tensors, or none. For each of them the cut has a *dual*:
    numbers that prove the bytes that the step needs if this tensor or none is overwritten. If the duals prove 30 bytes
    for one tensor and 28 for another, the step needs 28 bytes in any case.

    Raises:
        ProofError: the cut is not about a group, or a dual is missing or wrong.
    """
    require(cut.node in graph.groups, f"there is no group {cut.node} to cut at")
    replaced = [
        None if dual.replaced is None else _tensor_name(dual.replaced, tensors)
        for dual in cut.duals
    ]
    replaceable = graph.groups[cut.node].replaceable
    # A group that can overwrite nothing has one dual, for None.
    expected: set[str | None] = {*replaceable} if replaceable else {None}
    require(
        set(replaced) == expected and len(replaced) == len(expected),
        f"the cut at {cut.node} does not have one dual for each tensor that its output may overwrite",
    )
    runs_before = _runs_before_step(graph, cut)
    return min(
        _Step(graph, cut.node, runs_before, tensor).least_bytes(dual, tensors)
        for dual, tensor in zip(cut.duals, replaced, strict=True)
    )


def _tensor_name(index: int, tensors: Sequence[str]) -> str:
    """Return the name of a tensor that a certificate refers to by index.

    Raises:
        ProofError: there is no such index.
    """
    require(0 <= index < len(tensors), f"there is no tensor {index} in the certificate")
    return tensors[index]


def _runs_before_step(graph: GroupGraph, cut: Cut) -> Mapping[int, bool]:
    """Return the groups that run before a step in every order (True) or in no order (False).

    The step is that of the group with the number ``cut.node``. True are the direct and indirect predecessors of this
    group. False are the group itself, its direct and indirect successors, and the block's end. The cut assumes that ``cut.before`` is a predecessor too, or ``cut.after`` a
    successor. Groups that can run before or after the step are left out.

    Raises:
        ProofError: the cut's assumption contradicts the order constraints.
    """
    for assumed in {cut.before, cut.after} - {None}:
        require(assumed in graph.groups, f"there is no group {assumed} for a pair")
    group = graph.groups[cut.node]
    before, after = set(group.predecessors), set(group.successors)
    if cut.before is not None:
        before.add(cut.before)
    if cut.after is not None:
        after.add(cut.after)
    _close(before, lambda number: graph.groups[number].predecessors)
    _close(after, lambda number: graph.groups[number].successors)
    never_before = {*after, cut.node, BLOCK_END}  # no successor of a group is `BLOCK_END`
    # A group that runs before the step cannot run after it, and the group of the step runs neither before nor after.
    contradictions = (before & after) | ({cut.node} & (before | after))
    if contradictions:
        number = min(contradictions)
        raise ProofError(f"the cut at {cut.node} has group {number} before it and after it")
    return {**dict.fromkeys(before, True), **dict.fromkeys(never_before, False)}


def _close(numbers: set[int], neighbors: Callable[[int], Iterable[int]]) -> None:
    """Add to a set of groups all groups that can be reached from them by ``neighbors``."""
    pending = [*numbers]
    while pending:
        found = set(neighbors(pending.pop())) - numbers
        numbers |= found
        pending += found


@dataclass(frozen=True, slots=True)
class _Step:
    """The step of one group, in all orders that a cut assumes.

    Attributes:
        graph: the groups of the block.
        group: the number of the group that runs at the step.
        runs_before: the groups that run before the step in every one of these orders (True) or in none
            (False). Groups that run before the step in some of the orders are left out.
        replaced: the tensor that the group overwrites if it ends at the step; None if the group can
            overwrite no tensor.
    """

    graph: GroupGraph
    group: int
    runs_before: Mapping[int, bool]
    replaced: str | None

    def least_bytes(self, dual: Dual, tensors: Sequence[str]) -> int:
        """Return the least bytes at the step in any order, as the numbers of a dual prove them.

        A dual gives groups coefficients. In each order the step needs at least the certain bytes plus the coefficients
        of all groups that run before it. For example, with 20 certain bytes, 8 for a group that always runs before the
        step and -2 for a group that may, the step needs 20 + 8 - 2 = 26 bytes or more.

        Raises:
            ProofError: the dual is wrong.
        """
        least = self._certain_bytes()
        for group, coefficient in self._coefficients(dual, tensors).items():
            runs_before = self.runs_before.get(group)
            if runs_before is None:  # in some orders, not in all
                least += min(coefficient, 0)
            elif runs_before:  # in every order; False, in no order, adds nothing
                least += coefficient
        return least

    def _coefficients(self, dual: Dual, tensors: Sequence[str]) -> Mapping[int, int]:
        """Return the coefficient of each group: the bytes that it adds to the bound if it runs before the step.

        The coefficients are sums of the numbers of a proof, the ``dual``:

        - A *share* is a part of a tensor's bytes that is live from the producer to one reader. 8 bytes with producer 1
          and reader 4 are 8 for group 1, and -8 for group 4.
        - A *multiple* belongs to two groups with a fixed order. 3 bytes for group 1, which must run before group 2,
          are -3 for group 1, and 3 for group 2. They never raise the bound: if both groups or none run before the
          step, they add 0, and -3 if only group 1 does.

        Raises:
            ProofError: a share, a pair of groups or a multiple of the dual is wrong.
        """
        coefficients: defaultdict[int, int] = defaultdict(int)
        for tensor, reader, share in self._checked_shares(dual, tensors):
            coefficients[self._producer(tensor)] += share
            coefficients[reader] -= share
        groups = self.graph.groups
        for first, second, multiple in dual.holds:  # ``first`` must run before ``second``
            require(
                multiple > 0, f"the cut at {self.group} has a multiple of {multiple} bytes"
            )
            require(
                second in groups and first in groups[second].predecessors,
                f"the cut at {self.group} holds {first} before {second}, which does not need it",
            )
            coefficients[first] -= multiple
            coefficients[second] += multiple
        return coefficients

    def _checked_shares(
        self, dual: Dual, tensors: Sequence[str]
    ) -> Iterator[tuple[str, int, int]]:
        """Yield the tensor, the reader and the bytes of each share of a dual, after checking them.

        A share is a part of the bytes of one tensor, and counts as live until one reader of the tensor runs.

        Raises:
            ProofError: a share is not allowed for its reader, or the shares of a tensor are too large.
        """
        total_shares: defaultdict[str, int] = defaultdict(int)  # by tensor
        for index, reader, share in dual.shares:
            tensor = _tensor_name(index, tensors)
            name = f"tensor {tensor[:120]!r}"
            require(share > 0, f"{name} has a share of {share} bytes")
            self._check_reader(tensor, reader)
            # Bytes that the step needs in every order have no shares: `_certain_bytes` counts them.
            shareable = self._uncertain_bytes(tensor)
            total_shares[tensor] += share
            require(
                total_shares[tensor] <= shareable,
                f"{name} has {shareable} bytes, but its shares are {total_shares[tensor]}",
            )
            yield tensor, reader, share

    def _certain_bytes(self) -> int:
        """Return a lower bound of the bytes at the step: those that are needed in every order."""
        graph, group = self.graph, self.graph.groups[self.group]
        live_bytes = sum(graph.sizes[t] for t in graph.users if self._is_surely_live(t))
        allocated_bytes = group.need  # with memory of its own for each output of the group
        if self.replaced is not None and not self._is_read_later(self.replaced):
            # There can be orders without a later reader, in which the first output is written over ``replaced``.
            allocated_bytes -= group.saved_bytes
        return graph.pinned_bytes + live_bytes + allocated_bytes

    def _uncertain_bytes(self, tensor: str) -> int:
        """Return the bytes that the step needs because of a tensor in some orders, but not in all.

        Raises:
            ProofError: the step needs them in all orders, and `_certain_bytes` counts them already.
        """
        if tensor == self.replaced:
            # The step needs bytes for its output, unless the output is written over the tensor. That is not possible
            # in orders in which another group reads the tensor later.
            uncertain_bytes = self.graph.groups[self.group].saved_bytes
            in_all_orders = self._is_read_later(tensor)
        else:
            # The tensor itself is live at the step in orders in which it is produced before, and read at the step or later.
            uncertain_bytes = self.graph.sizes[tensor]
            in_all_orders = self._is_surely_live(tensor)
        name = f"tensor {tensor[:120]!r}"
        require(not in_all_orders, f"{name} has a share, but is counted already")
        return uncertain_bytes

    def _check_reader(self, tensor: str, reader: int) -> None:
        """Check the reader of a *share*: bytes of a tensor that count at the step if the tensor is produced before the step.

        - If ``reader`` is a group that reads the tensor, the bytes count only in orders in which this group has not run
          before the step. In these the tensor is live.
        - If ``reader`` is the group of the step, the bytes always count. So a group must read the tensor at the step or
          later: another one, or that of the step if it cannot write its output over the tensor (``self.replaced``).

        Raises:
            ProofError: with the reason.
        """
        name = f"tensor {tensor[:120]!r}"
        require(  # ``graph.users`` leaves out a tensor with one user: it is live at one step only
            tensor in self.graph.users, f"{name} has a share, but fewer than two groups use it"
        )
        readers = self._readers(tensor)
        if reader != self.group:
            require(
                reader in readers, f"{name} has a share for {reader}, which does not read it"
            )
            return
        keepers = readers - {self.group} if tensor == self.replaced else readers
        is_live_until_step = any(map(self._runs_at_step_or_later, keepers))
        require(is_live_until_step, f"{name} has a share for {reader}, but may have ended")

    def _producer(self, tensor: str) -> int:
        """Return the group that produces a tensor."""
        users, groups = self.graph.users[tensor], self.graph.groups
        return next(u for u in users if u != BLOCK_END and tensor in groups[u].produced)

    def _readers(self, tensor: str) -> set[int]:
        """Return the users of a tensor without its producer."""
        return self.graph.users[tensor] - {self._producer(tensor)}

    def _runs_at_step_or_later(self, group: int) -> bool:
        """Return whether a group runs at the step or later in every order."""
        return self.runs_before.get(group) is False

    def _is_read_later(self, tensor: str) -> bool:
        """Return whether a reader of a tensor, other than the group of the step, runs later in every order."""
        return any(map(self._runs_at_step_or_later, self._readers(tensor) - {self.group}))

    def _is_surely_live(self, tensor: str) -> bool:
        """Return whether a tensor is live before the step in any order."""
        is_produced = self.runs_before.get(self._producer(tensor), False)
        return is_produced and any(map(self._runs_at_step_or_later, self.graph.users[tensor]))
