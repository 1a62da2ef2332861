"""The comparison of a plan with the written model beside it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from memplan_cli.checking.figures import check_bindings, check_figures
from memplan_cli.checking.notes import check_notes
from memplan_cli.checking.order import check_order, check_releases
from memplan_cli.checking.settings import check_settings
from memplan_cli.checking.sharing import check_donation, check_sharing
from memplan_cli.checking.tensors import check_layout, check_tensors
from memplan_cli.checking.timeline import planned_model

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from onnx import ModelProto  # noqa: TID251 - types only; onnx_io makes them

    from memplan_cli.checking.timeline import OriginalModel, PlannedModel, TensorTypes
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.core.symbolic.bounds import Bounds

MAX_DISAGREEMENTS = 20

_NOT_CHECKED = (
    "not checked (docs/formats.md): memory and time of runs; numbers of other orders, levels, budgets and "
    "sizes; phases, constants and caches of the original; settings without a visible effect; sizes observed "
    "in a run; texts"
)
"""What nothing recomputes. docs/formats.md has the fields, and a test tries all others."""


@dataclass(frozen=True, slots=True)
class PlanComparison:
    """The result of comparing a plan with the written model.

    Attributes:
        disagreements: one sentence each, at most `MAX_DISAGREEMENTS`; empty if the plan is right.
        nodes: nodes of the model, subgraphs included.
        tensors: tensors of the plan that are intermediates of the model.
        unverified_sizes: tensors whose dtype or shape only the plan contains.
    """

    disagreements: tuple[str, ...]
    nodes: int
    tensors: int
    unverified_sizes: int

    def summary(self) -> str:
        """Return a sentence for a plan without disagreements: what was compared, and what was not."""
        text = (
            f"the plan matches the model: {self.nodes} nodes and {self.tensors} tensors with "
            f"their live ranges, offsets, notes and totals; {_NOT_CHECKED}"
        )
        if self.unverified_sizes:
            text += (
                f"; the sizes of {self.unverified_sizes} tensors are known from the plan only"
            )
        return text


def compare_plan(
    model: ModelProto,
    plan: Plan,
    types: Sequence[TensorTypes],
    bounds: Bounds,
    original: OriginalModel | None = None,
) -> PlanComparison:
    """Compare a plan with the written model that it belongs to.

    Each check relies on those before it, so that the first check with disagreements is the last
    one. The arguments are those of `planned_model`.
    """
    planned = planned_model(model, plan, types, bounds, original)
    disagreements: tuple[str, ...] = ()
    for check in _checks(planned):
        disagreements = tuple(islice(check, MAX_DISAGREEMENTS))
        if disagreements:
            break
    nodes = sum(len(block.nodes) for block in planned.timeline.blocks)
    unverified = 0
    if not disagreements:  # `PlanComparison.summary` is about a plan that matches
        for dtype, shape in (planned.type_of(t.value) for t in planned.tensors.values()):
            unverified += dtype == "unknown" or shape is None or None in shape
    return PlanComparison(disagreements, nodes, len(planned.tensors), unverified)


def _checks(planned: PlannedModel) -> Iterator[Iterator[str]]:
    """Yield all checks in the order in which they run. A check yields its disagreements."""
    yield iter(planned.timeline.errors)
    yield _check_original(planned)
    yield check_order(planned)
    yield check_tensors(planned)
    yield check_sharing(planned)
    yield check_layout(planned.plan)
    yield check_releases(planned)
    yield check_donation(planned)
    yield check_bindings(planned)
    yield check_figures(planned)
    yield check_settings(planned)
    yield check_notes(planned)


def _check_original(planned: PlannedModel) -> Iterator[str]:
    """Yield a message if the plan was made for another graph or file than the original at hand."""
    original, plan = planned.original, planned.plan
    if original is None:
        return
    if plan.graph_sha256 != original.graph_sha256:
        yield "the plan was made for another graph than the original's: their digests differ"
    elif plan.report.model.sha256 != original.sha256:
        yield "the plan is about another file than the original: their digests differ"
