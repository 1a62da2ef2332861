"""Fusions: two groups of nodes become one, where some best order runs them together.

Both rules rest on an exchange: any order can be changed so that the two run one right after
the other, and no step of it then takes more.

*Late*: ``node`` frees nothing and one group waits for it. Moved to just before that one, it
makes every step between them smaller, and its own step takes no more than that one's.

*Early*: one group comes before ``node``, what both alone touch is at least what ``node``
makes, and its step takes no more. Moved to just after that group, it leaves no more behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.checking.certificates.refused import refuse_unless
from memplan_cli.checking.certificates.tasks import END

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from memplan_cli.checking.certificates.tasks import Tasks
    from memplan_cli.core.results.certificate import Fusion


def fuse(tasks: Tasks, fusions: Iterable[Fusion]) -> None:
    """Fuse groups, one pair after the other.

    Raises:
        RefusedError: a rule does not hold where it is said to.
    """
    for node, into, rule in fusions:
        what = f"the fusion of {node} into {into}"
        refuse_unless(node in tasks.groups, f"{what}: there is no group {node}")
        refuse_unless(into in tasks.groups, f"{what}: there is no group {into}")
        inner = _between(tasks, node, into)
        _RULES[rule](tasks, node, into, inner, what)
        _merge(tasks, node, into, inner)


def _late(tasks: Tasks, node: int, into: int, inner: set[str], what: str) -> None:
    one, other = tasks.groups[node], tasks.groups[into]
    refuse_unless(one.succs == {into}, f"{what}: others wait for it too")
    refuse_unless(is_late(tasks, node), f"{what}: it frees something")
    taken, saved = tasks.taken(node), tasks.saving(into)
    refuse_unless(one.need <= taken + other.need - saved, f"{what}: its step takes more")
    if other.replaces & inner:
        other.need -= saved
        other.replaces = set()
    other.need += taken


def is_late(tasks: Tasks, group: int) -> bool:
    """Whether a group frees nothing, as what a block gives is freed by none."""
    task = tasks.groups[group]
    return not task.replaces and all(
        END in tasks.users[tensor] for tensor in task.touches - task.begins
    )


def _early(tasks: Tasks, node: int, into: int, inner: set[str], what: str) -> None:
    one, other = tasks.groups[node], tasks.groups[into]
    refuse_unless(one.preds == {into}, f"{what}: it waits for others too")
    room = other.need - tasks.taken(into)
    step = one.need - (one.saved if one.replaces & inner else 0)
    refuse_unless(step <= room, f"{what}: its step takes more")
    freed = sum(tasks.weight[tensor] for tensor in inner)
    refuse_unless(tasks.taken(node) <= freed, f"{what}: it leaves more behind")
    other.replaces -= one.touches


_RULES: Mapping[str, Callable[[Tasks, int, int, set[str], str], None]] = {
    "late": _late,
    "early": _early,
}


def _between(tasks: Tasks, node: int, into: int) -> set[str]:
    """Return the tensors that nobody but the two groups ever touches."""
    both = {node, into}
    return {t for t in tasks.groups[node].touches if tasks.users[t] <= both}


def _merge(tasks: Tasks, node: int, into: int, inner: set[str]) -> None:
    gone, kept = tasks.groups.pop(node), tasks.groups[into]
    for tensor in gone.touches:
        tasks.users[tensor].discard(node)
        tasks.users[tensor].add(into)
    for tensor in inner:
        del tasks.users[tensor]
    kept.touches = (kept.touches | gone.touches) - inner
    kept.begins = (kept.begins | gone.begins) - inner
    for other in gone.preds:
        tasks.groups[other].succs.discard(node)
        if other != into:
            tasks.groups[other].succs.add(into)
            kept.preds.add(other)
    for other in gone.succs:
        tasks.groups[other].preds.discard(node)
        if other != into:
            tasks.groups[other].preds.add(into)
            kept.succs.add(other)
