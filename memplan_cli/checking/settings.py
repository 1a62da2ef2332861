"""Checks of the settings in a plan against the plan's contents and the written model.

A setting is checked by its effect. Settings without an effect that the files show, such as those that
only guide a search, are listed in docs/formats.md.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from memplan_cli.checking.order import is_in_file_order
from memplan_cli.checking.plan_figures import Comparison, mismatches
from memplan_cli.core.results.report import DonationSummary
from memplan_cli.core.results.rewrites import (
    CacheSummary,
    ChunkingSummary,
    FoldingSummary,
    RecomputeSummary,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memplan_cli.checking.timeline import PlannedModel

_CHOSEN_ALIGNMENTS = (64, 32, 16, 8, 4, 2, 1)
"""The alignment that the planner chooses at level 2, and smaller ones for models of tiny tensors."""


def check_settings(planned: PlannedModel) -> Iterator[str]:
    """Yield a message for each setting that contradicts the plan or the written model."""
    yield from mismatches(_compare_rewrites(planned))
    yield from mismatches(_compare_choices(planned))
    yield from mismatches(_compare_target_and_loss(planned))
    yield from mismatches(_compare_budgets(planned))
    yield from _check_alignments(planned)
    yield from _check_donated_names(planned)
    yield from _check_exposed(planned)
    yield from _check_order_kept(planned)


def _compare_rewrites(planned: PlannedModel) -> Iterator[Comparison]:
    """Compare the results of each rewrite that the settings do not ask for with the results of no rewrite."""
    settings, report = planned.plan.settings, planned.plan.report
    not_asked = "which the settings do not ask for,"
    if settings.get("recompute", "none") == "none":
        yield Comparison(f"recomputation, {not_asked}", report.recompute, RecomputeSummary())
    if settings.get("chunk", "none") == "none":
        yield Comparison(f"chunking, {not_asked}", report.chunked, ChunkingSummary())
    if settings.get("fold_constants", False) is False:
        yield Comparison(f"folding, {not_asked}", report.folded, FoldingSummary())
    if settings.get("donate", {}) == {}:
        yield Comparison(f"donations, {not_asked}", report.donated, DonationSummary())


def _compare_choices(planned: PlannedModel) -> Iterator[Comparison]:
    """Compare the choices of the settings with those of the report: caches, target and loss."""
    settings, report = planned.plan.settings, planned.plan.report
    capacity = report.caches.capacity or None
    yield Comparison("settings.capacity", settings.get("capacity"), capacity)
    kv_cache = "in-place" if report.caches != CacheSummary() else "keep"
    yield Comparison("settings.kv_cache", settings.get("kv_cache", "keep"), kv_cache)
    yield Comparison("settings.target", settings.get("target", report.target), report.target)
    if settings.get("loss") is not None:
        yield Comparison("settings.loss", settings["loss"], report.loss)


def _compare_target_and_loss(planned: PlannedModel) -> Iterator[Comparison]:
    """Compare the target and the loss of a report with the models.

    The target must be ``portable`` exactly if ONNX Runtime did not optimize the original before it was planned.
    The loss must be an output of a node of the main graph. A report without a loss has None.
    """
    report, original = planned.plan.report, planned.original
    if original is not None:
        is_recorded_portable = report.target == "portable"
        is_portable = not original.was_optimized
        yield Comparison("whether the target is portable", is_recorded_portable, is_portable)
    outputs = (value for node in planned.timeline.main.nodes for value in node.outputs)
    computed_ids = {value.tensor_id for value in outputs if value is not None}
    if report.loss not in computed_ids:  # then the report must have no loss
        yield Comparison("loss", report.loss, None)


def _compare_budgets(planned: PlannedModel) -> Iterator[Comparison]:
    """Compare the budgets that a report records for recomputation and for chunks with that of the settings.

    A rewrite that was not done has an empty record, without a budget. A budget that is a share of the original's
    bytes (a float) is not checked.
    """
    settings, report = planned.plan.settings, planned.plan.report
    budget = settings.get("budget")
    if isinstance(budget, float):
        return
    recompute, chunked = report.recompute, report.chunked
    # Recomputation with the setting "auto" keeps to the budget, that between "checkpoints" has no budget.
    is_automatic = settings.get("recompute") == "auto" and recompute != RecomputeSummary()
    yield Comparison("recompute.budget", recompute.budget, budget if is_automatic else None)
    is_chunked = chunked != ChunkingSummary()  # its setting can only be "auto"
    yield Comparison("chunked.budget", chunked.budget, budget if is_chunked else None)


def _check_alignments(planned: PlannedModel) -> Iterator[str]:
    """Yield a message for each arena with an alignment that is not allowed.

    Allowed is the alignment that the settings request, or without a request each one that the planner chooses.
    """
    requested, plan = planned.plan.settings.get("alignment"), planned.plan
    # The slots of levels 0 and 1 have no offsets to align.
    chosen = _CHOSEN_ALIGNMENTS if plan.report.level == 2 else (1,)
    allowed = (requested,) if requested else chosen
    text = " or ".join(map(str, allowed))
    for arena in plan.arenas:
        if arena.alignment not in allowed:
            yield f"arena {arena.id} is recorded with alignment {arena.alignment}, it is {text}"


def _check_donated_names(planned: PlannedModel) -> Iterator[str]:
    """Yield patterns of donations that match no input and output, and donated pairs without a pattern.

    A pattern for inputs goes with one for outputs. A ``*`` in both stands for the same text.
    """
    patterns = planned.plan.settings.get("donate") or {}
    main = planned.timeline.main
    outputs = {value.name for value in main.outputs}
    requested: set[tuple[str, str]] = set()
    for input_pattern, output_pattern in patterns.items():
        expression = re.escape(input_pattern).replace(r"\*", "(.*)", 1)
        pairs = set()
        for value in main.inputs:
            if match := re.fullmatch(expression, value.name, re.DOTALL):
                starred_text = "".join(match.groups())  # empty without a ``*``
                pairs.add((value.name, output_pattern.replace("*", starred_text)))
        requested |= pairs
        if not any(output in outputs for _, output in pairs):
            yield f"the settings donate {input_pattern[:120]!r}, which matches no input and output"
    for name, output in planned.plan.report.donated.pairs:
        if (name, output) not in requested:
            yield f"{name[:120]!r} is donated to {output[:120]!r}, which the settings do not ask for"


def _check_exposed(planned: PlannedModel) -> Iterator[str]:
    """Yield each excluded tensor of the main graph that contradicts the setting ``expose``.

    With the setting, the written model has each such tensor as an output in addition to those of the original.
    Without the setting, no such tensor is an added output. Nothing is yielded if the original is not at hand.
    """
    if planned.original is None:
        return
    added = {value.name for value in planned.model.graph.output} - planned.original.outputs
    is_exposed = bool(planned.plan.settings.get("expose"))
    for row in planned.plan.tensors:
        is_excluded = (row.pinned or "").startswith("excluded") and not row.block
        if is_excluded and (row.name in added) != is_exposed:
            state = "is" if row.name in added else "is not"
            yield (
                f"excluded tensor {row.name[:120]!r} {state} an output of the model, the setting "
                f"expose is recorded as {is_exposed}"
            )


def _check_order_kept(planned: PlannedModel) -> Iterator[str]:
    """Yield a message if the settings keep the order of the file and the plan has another one."""
    if planned.plan.settings.get("order") == "keep" and is_in_file_order(planned) is False:
        yield "the settings keep the order of the file, and the plan has another one"
