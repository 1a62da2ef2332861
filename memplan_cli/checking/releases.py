"""Releases of a plan: each tensor once, after the node that needs it last."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from memplan_cli.checking.order import label_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memplan_cli.checking.rows import Placed
    from memplan_cli.checking.subject import Subject


def check_releases(subject: Subject, placed: Placed) -> Iterator[str]:
    """Yield where the plan lets go of other tensors than those that the model is done with."""
    due: defaultdict[int, list[str]] = defaultdict(list)
    for identity, (row, value) in placed.rows.items():
        if value.release is not None and not value.leaves and row.pinned is None:
            due[value.release.end].append(identity)
    said = {release.step: release for release in subject.plan.releases}
    if len(said) != len(subject.plan.releases):
        yield "releases: one step is there twice"
    labels = {
        node.end: label_of(node, entry)
        for region, order in zip(subject.clock.regions, subject.plan.order, strict=True)
        for node, entry in zip(region.nodes, order.nodes, strict=True)
    }
    for step in sorted(due.keys() | said.keys()):
        wanted = sorted(due.get(step, ()))
        release = said.get(step)
        given = [] if release is None else sorted(release.tensors)
        if given != wanted:
            name = min(set(given) ^ set(wanted), default=(given or wanted)[0])
            how = "is" if name in wanted else "is not"
            yield f"releases: tensor {name[:120]!r} {how} done with at step {step}"
        elif release is not None and release.node != labels[step]:
            yield (
                f"releases: step {step} is said to be {release.node[:120]!r}, the model has "
                f"{labels[step][:120]!r} there"
            )
