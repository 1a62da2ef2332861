"""The fields of a plan file and of a certificate that nothing recomputes.

All other fields are checked: counted again from the model, or compared with a checked field.
docs/formats.md has the same tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

PLAN_FIELDS: Mapping[str, Mapping[str, str]] = {
    "memory and time of runs": {
        "report.runtime.version": "if the target is portable",
        "report.runtime.predicted": "",
        "report.runtime.observed": "",
        "report.runtime.settings": "they are those of the model, under which its outputs are compared; "
        "the memory that they need is not checked",
        "report.runtime.time": "",
        "report.runtime.idle": "",
        "report.validation": "",
        "report.files": "",
    },
    "numbers of other orders, levels, budgets and sizes": {
        "report.memory.order_bound": "a certificate proves it",
        "report.original": "if the plan has another order or other nodes than the file",
        "report.levels": "of other levels than the plan's; their order is checked",
        "report.orders.candidates": "",
        "report.orders.chosen": "which of the orders that are not the file's",
        "report.profiles": "but for the sums",
        "report.bindings.*": "of a dim with bounds: which number within them was run",
        "report.recompute.flops_increase": "",
        "report.recompute.budget": "if the setting is a share",
        "report.recompute.bound": "memplan verify-certificate counts it",
        "report.recompute.resident_bound": "",
        "report.recompute.curve": "",
        "report.chunked.regions": "",
        "report.chunked.flops_increase": "",
        "report.chunked.budget": "if the setting is a share",
        "report.chunked.bound": "",
        "report.chunked.bound_node": "",
        "report.chunked.bound_tensors": "",
        "report.chunked.curve": "",
        "report.chunked.ended_early": "",
        "report.donated.refused": "",
        "report.training_estimate": "",
    },
    "phases, constants and caches of the original": {
        "report.phases": "but for the sum",
        "report.loss": "which of the computed values",
        "report.foldable.*.left": "",
        "report.folded.left": "",
        "report.folded.dropped": "",
        "report.caches.kept": "",
        "report.caches.bytes": "",
        "report.caches.before": "",
        "report.caches.steps": "",
        "report.bindings.*.source": "of a dim that the settings bind",
    },
    "settings without a visible effect": {
        "settings.mem_param.optimize_train": "of a model for inference",
        "settings.mem_param.optimize_test": "of a training step",
        "settings.mem_param.exclude_blob": "tensors that are not planned",
        "settings.exclude": "tensors that are not planned",
        "settings.expose": "if no tensor is excluded",
        "settings.phase": "",
        "settings.skip_grads": "",
        "settings.order": "if the plan has the order of the file, or not `keep`",
        "settings.recompute": "if nothing is recomputed, or `auto` and `checkpoints`",
        "settings.checkpoints": "",
        "settings.chunk": "if nothing is chunked",
        "settings.budget": "if it is a share",
        "settings.best_effort": "",
        "settings.donate": "for pairs that are not donated",
        "settings.fold_constants": "if nothing is folded",
        "settings.alignment": "whether it was given",
        "settings.external_weights": "",
        "settings.time_limit": "",
        "settings.allow_partial": "",
        "settings.run": "",
    },
    "sizes observed in a run": {
        "settings.profile_shapes": "",
        "settings.dims": "if sizes were observed",
        "settings.shapes": "if sizes were observed",
        "report.certainty.inputs": "if sizes were observed",
        "report.certainty.outputs": "if sizes were observed",
        "report.interface": "if sizes were observed, or a symbol of the shape has no number",
        "report.memory.outputs": "if a symbol of their shapes has no number",
    },
    "texts": {
        "producer.version": "",
        "report.model.path": "",
        "unplanned.*.reason": "of tensors of unknown size",
        "report.unplanned.*.reason": "of tensors of unknown size",
        "report.fallbacks": "",
        "report.warnings": "",
    },
}
"""What is not checked -> the paths of its fields, with ``*`` for indices and names -> when, or what of it.

A path covers everything below it.
"""

NOTE_FIELDS: Mapping[str, Mapping[str, str]] = {
    "the machine": {"pkg.memplan.hardware": "with a target"},
    "unmeasured settings of a model that must not be optimized": {
        "pkg.memplan.settings": "if the report has none; outputs are compared under them",
    },
}
"""The same table for the notes in a written model."""

CERTIFICATE_FIELDS: Mapping[str, Mapping[str, str]] = {
    "texts": {
        "producer.version": "",
        "order.why": "",
        "blocks.*.order.why": "",
    },
    "witnesses that prove the bound too": {
        "order.tensors": "",
        "order.fusions": "",
        "order.cuts": "",
        "order.states": "",
        "order.inside": "",
        "blocks": "their bounds are in no plan",
    },
}
"""The same table for certificates. Another witness of the same bound is as good."""

PLAN_SENTENCE = f"not checked (docs/formats.md): {'; '.join(PLAN_FIELDS)}"
"""Ends the verdict of ``memplan validate`` on a plan that matches its model."""

CERTIFICATE_SENTENCE = (
    "Checked: the proofs, and the order, sizes and live ranges that they are about. Not checked: the other "
    "numbers of the plan, which memplan validate compares with the model."
)
"""Follows the verdict of ``memplan verify-certificate`` that all bounds are proved."""
