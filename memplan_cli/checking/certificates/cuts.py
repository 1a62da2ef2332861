"""Steps that need so much in any order: the weights of a linear program, added up.

Let x be 1 for a group that ran before the step and 0 for one that did not. A tensor is live at
the step if its maker has x = 1 and some reader x = 0. So what a certificate charges to pairs
of maker and reader, within the tensor's bytes, is live at least as the sum of charge times
(x of the maker - x of the reader). For a group and one that needs it, x of the first is not
less than x of the second: their difference, times whatever is not negative, may be taken
off. What remains is a sum of coefficients times x, and none below its negative ones alone.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memplan_cli.checking.certificates.refused import refuse_unless
from memplan_cli.checking.certificates.tasks import END

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from memplan_cli.checking.certificates.tasks import Tasks
    from memplan_cli.core.results.certificate import Cut, Dual


def check_cuts(tasks: Tasks, cuts: Sequence[Cut], tensors: Sequence[str], bound: int) -> None:
    """Refuse one cut, or two of which either must hold, that do not reach a bound.

    Raises:
        RefusedError: with the reason.
    """
    if len(cuts) == 1:
        only = cuts[0]
        refuse_unless(
            only.before is None and only.after is None,
            f"the cut at {only.node} takes an order of two nodes for granted",
        )
    else:
        _check_cases(cuts)
    for cut in cuts:
        found = _bound(tasks, cut, tensors)
        refuse_unless(
            found >= bound, f"the cut at {cut.node} shows {found} bytes only, not {bound}"
        )


def _check_cases(cuts: Sequence[Cut]) -> None:
    """Refuse two cuts that are not for both orders of the same two nodes."""
    refuse_unless(len(cuts) == 2, "a pair has two cuts")
    cases = []
    for cut in cuts:
        refuse_unless(
            (cut.before is None) != (cut.after is None),
            f"the cut at {cut.node} does not say which node of the pair is first",
        )
        cases.append((cut.node, cut.after) if cut.before is None else (cut.before, cut.node))
    (first, second), other = cases
    refuse_unless(
        other == (second, first) and first != second,
        "the two cuts are not for both orders of two nodes",
    )


def _bound(tasks: Tasks, cut: Cut, tensors: Sequence[str]) -> int:
    """Return what the step needs at least, in the worst of the tensors that it may replace."""
    refuse_unless(cut.node in tasks.groups, f"there is no group {cut.node} to cut at")
    step = tasks.groups[cut.node]
    said: list[str | None] = [
        None if dual.replaced is None else _tensor(dual.replaced, tensors)
        for dual in cut.duals
    ]
    wanted: set[str | None] = {*step.replaces} or {None}
    refuse_unless(
        set(said) == wanted and len(said) == len(wanted),
        f"the cut at {cut.node} has not one dual for each tensor that its result may replace",
    )
    ran = _decided(tasks, cut)
    pairs = zip(cut.duals, said, strict=True)
    return min(
        _Sum(tasks, cut.node, ran, replaced).of(dual, tensors) for dual, replaced in pairs
    )


def _tensor(number: int, tensors: Sequence[str]) -> str:
    refuse_unless(number < len(tensors), f"there is no tensor {number} in the certificate")
    return tensors[number]


def _decided(tasks: Tasks, cut: Cut) -> Mapping[int, int]:
    """Return 1 for the groups that surely ran before the step, 0 for those that did not."""
    ran: dict[int, int] = {cut.node: 0, END: 0}
    for start, value in ((cut.before, 1), (cut.after, 0)):
        step = tasks.groups[cut.node]
        stack = [*(step.preds if value else step.succs)]
        if start is not None:
            refuse_unless(start in tasks.groups, f"there is no group {start} for a pair")
            stack.append(start)
        while stack:
            group = stack.pop()
            if group in ran:
                refuse_unless(
                    ran[group] == value and group != cut.node,
                    f"the cut at {cut.node} has group {group} before it and after it",
                )
                continue
            ran[group] = value
            task = tasks.groups[group]
            stack.extend(task.preds if value else task.succs)
    return ran


@dataclass(slots=True)
class _Sum:
    """A sum that is live at the least: a constant, and coefficients of what is not decided."""

    tasks: Tasks
    node: int
    ran: Mapping[int, int]
    replaced: str | None
    constant: int = 0
    coefficients: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    charged: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))

    def of(self, dual: Dual, tensors: Sequence[str]) -> int:
        """Return the least that the sum can be."""
        tasks, step = self.tasks, self.tasks.groups[self.node]
        self.constant = tasks.always + step.need - (step.saved if self.replaced else 0)
        self.constant += sum(tasks.weight[t] for t in tasks.users if self._is_live(t))
        if self.replaced is not None and self._stays(self._others(self.replaced)):
            self.constant += step.saved
        for number, reader, much in dual.shares:
            self._charge(_tensor(number, tensors), reader, much)
        for first, second, much in dual.holds:
            refuse_unless(
                second in tasks.groups and first in tasks.groups[second].preds,
                f"the cut at {self.node} holds {first} before {second}, which does not need it",
            )
            self._add(second, much)
            self._add(first, -much)
        return self.constant + sum(c for c in self.coefficients.values() if c < 0)

    def _charge(self, tensor: str, reader: int, much: int) -> None:
        tasks, name = self.tasks, f"tensor {tensor[:120]!r}"
        refuse_unless(tensor in tasks.users, f"{name} is charged, and no two groups use it")
        self.charged[tensor] += much
        if tensor == self.replaced:
            users, limit = self._others(tensor), tasks.groups[self.node].saved
            refuse_unless(not self._stays(users), f"{name} is charged, and counted already")
            self.constant += much
        else:
            users, limit = self._readers(tensor), tasks.weight[tensor]
            maker = self._maker(tensor)
            refuse_unless(not self._is_live(tensor), f"{name} is charged, and counted already")
            self._add(maker, much)
        refuse_unless(
            self.charged[tensor] <= limit,
            f"{name} has {limit} bytes, and {self.charged[tensor]} are charged",
        )
        if reader == self.node:
            refuse_unless(
                self._stays(users), f"{name} is charged to {reader}, and may be gone"
            )
        else:
            refuse_unless(
                reader in users, f"{name} is charged to {reader}, which does not read it"
            )
            self._add(reader, -much)

    def _add(self, group: int, much: int) -> None:
        """Add so much where a group ran before the step."""
        if group in self.ran:
            self.constant += much * self.ran[group]
        else:
            self.coefficients[group] += much

    def _maker(self, tensor: str) -> int:
        users, groups = self.tasks.users[tensor], self.tasks.groups
        return next(u for u in users if u != END and tensor in groups[u].begins)

    def _readers(self, tensor: str) -> set[int]:
        return self.tasks.users[tensor] - {self._maker(tensor)}

    def _others(self, tensor: str) -> set[int]:
        return self._readers(tensor) - {self.node}

    def _stays(self, users: Iterable[int]) -> bool:
        """Whether one of some groups surely did not run before the step."""
        return any(self.ran.get(user) == 0 for user in users)

    def _is_live(self, tensor: str) -> bool:
        """Whether a tensor is surely live at the step, and not made there."""
        users = self.tasks.users[tensor]
        return self.ran.get(self._maker(tensor)) == 1 and self._stays(users)
