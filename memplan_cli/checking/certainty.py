"""Checks of how certain the numbers of a report are recorded to be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.checking.operators import ELEMENT_BITS
from memplan_cli.checking.plan_figures import Comparison
from memplan_cli.checking.timeline import ValueKind
from memplan_cli.core.results.memory import BOUND, EXACT, OBSERVED, PARTIAL, UNKNOWN, weakest
from memplan_cli.core.symbolic.bounds import largest_size
from memplan_cli.core.symbolic.sizes import size_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from memplan_cli.checking.timeline import PlannedModel, Value
    from memplan_cli.core.program import Shape
    from memplan_cli.core.symbolic.bounds import Bounds


def compare_certainty(planned: PlannedModel) -> Iterator[Comparison]:
    """Compare the certainty of each number of a report with the one derived from the model and the tensors.

    A sum is as certain as its weakest part: ``resident`` has outputs and planned bytes, ``total`` weights
    and inputs besides. A number that the report does not have is unknown.
    """
    report, main = planned.plan.report, planned.timeline.main
    recorded = report.certainty
    weights = (v for v in planned.timeline.values() if v.kind is ValueKind.WEIGHT)
    weight_types = [planned.type_of(weight) for weight in weights]
    is_size_missing = any(size_of(shape, dtype) is None for dtype, shape in weight_types)
    certainty = {
        "weights": PARTIAL if is_size_missing else EXACT,
        # The recorded certainty is taken where the model cannot tell: see `_interface_certainty`.
        "inputs": _interface_certainty(planned, main.inputs, recorded.get("inputs")),
        # An output that is an input or a weight has no bytes of its own.
        "outputs": _interface_certainty(
            planned, [v for v in main.outputs if v.is_computed], recorded.get("outputs")
        ),
        **dict.fromkeys(("naive", "live_peak", "planned"), _tensor_certainty(planned)),
    }
    certainty["resident"] = weakest(certainty["outputs"], certainty["planned"])
    for name in certainty:
        if getattr(report.memory, name) is None and name not in report.symbolic:
            certainty[name] = UNKNOWN
    parts = (certainty[name] for name in ("weights", "inputs", "outputs", "planned"))
    certainty["total"] = weakest(*parts)  # unknown if a part is
    for name in sorted(certainty.keys() | recorded.keys()):
        # A plan file may record numbers of any name.
        yield Comparison(f"certainty of {name[:40]}", recorded.get(name), certainty.get(name))


def _tensor_certainty(planned: PlannedModel) -> str:
    """Return how certain the bytes of the plan's tensors are."""
    plan = planned.plan
    if plan.report.partial:
        return PARTIAL
    if any(_is_bounded(row.shape, row.dtype, planned.bounds) for row in plan.tensors):
        return BOUND
    return OBSERVED if plan.settings.get("profile_shapes") else EXACT


def _interface_certainty(
    planned: PlannedModel, values: Iterable[Value], recorded: str | None
) -> str:
    """Return how certain the sum of the bytes of the model's inputs, or of its outputs, is.

    ``recorded`` is the sum's certainty in the report. If the report lacks the sum, the caller ignores the result.
    """
    types = [planned.type_of(value) for value in values]
    # An "unknown" dtype does not make a sum partial: either a run observed the bytes, or the report lacks the sum.
    dtypes_in_sum = {*ELEMENT_BITS, "unknown"}
    if any(dtype not in dtypes_in_sum for dtype, _ in types):
        return PARTIAL  # strings and sequences are not in the sum
    if any(_is_bounded(shape, dtype, planned.bounds) for dtype, shape in types):
        return BOUND  # the sum is the largest for dims within their bounds
    # With ``profile_shapes`` a plan has the shapes of one run. The model does not tell which values got their shapes
    # from the run, so the report decides: the sum is that of the run (observed) or of any data (exact).
    may_be_observed = bool(planned.plan.settings.get("profile_shapes"))
    return OBSERVED if may_be_observed and recorded == OBSERVED else EXACT


def _is_bounded(shape: Shape | None, dtype: str, bounds: Bounds) -> bool:
    """Return whether a size is the largest within bounds of dims."""
    size = size_of(shape, dtype)
    return size is not None and bool(largest_size(size, bounds).bound_of)
