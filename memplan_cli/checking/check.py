"""All checks of a plan against the model beside it, each on what those before have shown."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from memplan_cli.checking.bindings import check_bindings
from memplan_cli.checking.clock import read_clock
from memplan_cli.checking.donation import check_donation
from memplan_cli.checking.figures import check_figures
from memplan_cli.checking.layout import check_layout, storages
from memplan_cli.checking.notes import check_notes
from memplan_cli.checking.order import check_order
from memplan_cli.checking.releases import check_releases
from memplan_cli.checking.rows import Placed, check_rows
from memplan_cli.checking.sharing import check_sharing
from memplan_cli.checking.subject import Origin, Subject

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from onnx import ModelProto  # noqa: TID251 - types only; onnx_io makes them

    from memplan_cli.core.program import Shape
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.core.symbolic.bounds import Bounds

MOST = 20
"""Disagreements of one kind that are said; more say no more."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """What a plan and a model say alike, and what they do not."""

    disagreements: tuple[str, ...]
    nodes: int
    tensors: int
    believed: int
    """Tensors whose size the model does not say, only the plan."""

    def described(self) -> str:
        """Return what was held against each other, in a sentence."""
        found = (
            f"the plan is the model's: {self.nodes} nodes and {self.tensors} tensors with "
            "their live ranges, places, notes and totals"
        )
        if self.believed:
            found += f"; the sizes of {self.believed} are the plan's own word"
        return found


def compared(
    model: ModelProto,
    plan: Plan,
    types: Sequence[Mapping[str, tuple[str, Shape | None]]],
    bounds: Bounds,
    origin: Origin | None = None,
) -> Agreement:
    """Hold a plan against the written model that it belongs to.

    Args:
        model: the written model.
        plan: its plan, as it was read.
        types: dtype and shape by name of each block, outermost first, in order of execution.
        bounds: of the dims that the plan's sizes are the largest for.
        origin: what the plan was made of.
    """
    pinned = {row.name for row in plan.tensors if row.pinned and not row.block}
    exposed = pinned if plan.settings.get("expose") else set()
    clock = read_clock(model.graph, exposed)
    subject = Subject(model, plan, clock, types, origin)
    placed = Placed()
    found = _first(subject, placed, bounds)
    nodes = sum(len(region.nodes) for region in clock.regions)
    return Agreement(found, nodes, len(placed.rows), len(set(placed.believed)))


def _first(subject: Subject, placed: Placed, bounds: Bounds) -> tuple[str, ...]:
    """Return what the first check finds that finds anything."""
    for checks in _stages(subject, placed, bounds):
        found = tuple(islice(checks, MOST))
        if found:
            return found
    return ()


def _stages(subject: Subject, placed: Placed, bounds: Bounds) -> Iterator[Iterator[str]]:
    yield iter(subject.clock.flaws)
    yield _origin(subject)
    yield check_order(subject)
    yield check_rows(subject, bounds, placed)
    yield check_sharing(subject, placed)
    everything = storages(subject.plan.tensors)
    yield check_layout(subject, everything)
    yield check_releases(subject, placed)
    yield check_donation(subject)
    yield check_bindings(subject, bounds)
    yield check_figures(subject, placed, bounds)
    yield check_notes(subject, placed)


def _origin(subject: Subject) -> Iterator[str]:
    origin, plan = subject.origin, subject.plan
    if origin is None:
        return
    if plan.graph_sha256 != origin.graph_sha256:
        yield "the plan is about another graph than the original's: their digests differ"
    elif plan.report.model.sha256 != origin.sha256:
        yield "the plan is about another file than the original: their digests differ"
