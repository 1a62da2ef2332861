"""The sections of the plan report on constant folding and on weights outside the model file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.quantities import counted, format_size
from memplan_cli.reporting import document as doc

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memplan_cli.core.results.report import Report


def foldable_section(report: Report, max_rows: int) -> Iterator[doc.Block]:
    """Yield the tensors live at the peak that depend on constants only, and the option that folds them.

    The bytes of the tensors live at the peak are the lower bound of the plan's memory. Nothing is
    yielded if none of these tensors depends on constants only.
    """
    tensors = report.foldable
    if not tensors:
        return
    total = sum(tensor.bytes for tensor in tensors)
    # `left` is the reason why a tensor cannot be folded, empty if it can.
    foldable = sum(tensor.bytes for tensor in tensors if not tensor.left)
    line = f"{format_size(total)} of the lower bound depend on initializers and constants only"
    if foldable:
        share = "them" if foldable == total else f"{format_size(foldable)} of them"
        line += f"; --fold-constants computes {share} once and stores the result in the model"
    rows = [
        (doc.Name(tensor.name), tensor.op, format_size(tensor.bytes), tensor.left or "yes")
        for tensor in tensors
    ]
    heads = ("tensor", "made by", ">bytes", "can be folded")
    table = doc.first_rows(heads, rows, "tensors", max_rows)
    yield from doc.section("Foldable", doc.Paragraph(line, "soft"), table)


def folded_section(report: Report, max_rows: int) -> Iterator[doc.Block]:
    """Yield the folded constants, those that were not folded and why, and the change of weights.

    Nothing is yielded if the model was not searched for constants to fold, or has none.
    """
    folded = report.folded
    if not folded.tensors and not folded.left:
        return
    line = f"{counted(len(folded.tensors), 'constant')} folded into initializers"
    if folded.added:
        line += f": {format_size(folded.added)} more weights"
        # Each folded constant is computed from weights: a Constant node counts as a weight.
        if folded.dropped:
            line += f", {format_size(folded.dropped)} of unused weights removed"
        else:
            line += "; the weights that they depend on are used elsewhere, and stay"
    ranked = sorted(folded.tensors, key=lambda tensor: (-tensor.bytes, tensor.name))
    rows = [(doc.Name(tensor.name), tensor.op, format_size(tensor.bytes)) for tensor in ranked]
    heads = ("tensor", "made by", ">bytes")
    table = doc.first_rows(heads, rows, "tensors", max_rows)
    names_by_reason: dict[str, list[str]] = {}
    for refusal in folded.left:
        names_by_reason.setdefault(refusal.reason, []).append(refusal.name)
    refused_rows = [
        (str(len(names)), reason, doc.Name(names[0]))
        for reason, names in names_by_reason.items()
    ]
    refused_heads = (">not folded", "why", "for example")
    refused = doc.first_rows(refused_heads, refused_rows, "reasons", max_rows)
    yield from doc.section("Folded constants", doc.Paragraph(line, "soft"), table, refused)


def external_weights_section(report: Report, max_rows: int) -> Iterator[doc.Block]:
    """Yield how many bytes of weights were moved out of the model file, and where to.

    Nothing is yielded if no weights were moved. ``max_rows`` has no effect: there is no table.
    """
    del max_rows
    external = report.external_weights
    if external.bytes:
        line = (
            f"{format_size(external.bytes)} of weights were moved from the model file to "
            f"{external.file}, which the runtime maps instead of copying it "
            "(--external-weights keep leaves them in the model)"
        )
        yield from doc.section("Weights", doc.Paragraph(line, "soft"))
