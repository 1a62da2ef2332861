"""Constant expressions in a report: what folding would save, or what it did."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.quantities import format_size
from memplan_cli.reporting import document as doc

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memplan_cli.core.results.report import Report


def foldable(report: Report, most: int) -> Iterator[doc.Block]:
    """Yield what of the peak hangs on initializers alone, and the option that folds it."""
    found = report.foldable
    if not found:
        return
    whole = sum(tensor.bytes for tensor in found)
    exact = sum(tensor.bytes for tensor in found if not tensor.left)
    line = f"{format_size(whole)} of the lower bound hang on initializers and constants alone"
    if exact:
        share = "them" if exact == whole else f"{format_size(exact)} of them"
        line += f"; --fold-constants computes {share} once, into the model"
    rows = (
        (doc.Name(tensor.name), tensor.op, format_size(tensor.bytes), tensor.left or "yes")
        for tensor in found[:most]
    )
    table = doc.first_rows(
        ("tensor", "made by", ">bytes", "can be folded"), rows, len(found) - most, "tensors"
    )
    yield from doc.section("Foldable", doc.Paragraph(line), table)


def folded(report: Report, most: int) -> Iterator[doc.Block]:
    """Yield which constants were folded, which were not and why, and what the file takes."""
    facts = report.folded
    if not facts.tensors and not facts.left:
        return
    line = f"{len(facts.tensors)} constants are initializers now: {format_size(facts.added)}"
    if facts.dropped:
        line += f" more weights, {format_size(facts.dropped)} less that nobody else reads"
    elif facts.added:
        line += " more weights; what they are made of is read elsewhere too, and stays"
    ranked = sorted(facts.tensors, key=lambda tensor: (-tensor.bytes, tensor.name))
    rows = (
        (doc.Name(tensor.name), tensor.op, format_size(tensor.bytes))
        for tensor in ranked[:most]
    )
    heads = ("tensor", "made by", ">bytes")
    table = doc.first_rows(heads, rows, len(ranked) - most, "tensors")
    reasons: dict[str, list[str]] = {}
    for var in facts.left:
        reasons.setdefault(var.reason, []).append(var.name)
    left = (
        (str(len(names)), reason, doc.Name(names[0]))
        for reason, names in list(reasons.items())[:most]
    )
    others = doc.first_rows(
        (">not folded", "why", "for example"), left, len(reasons) - most, "reasons"
    )
    yield from doc.section("Folded constants", doc.Paragraph(line), table, others)


def moved(report: Report) -> Iterator[doc.Block]:
    """Yield which weights left the model file."""
    found = report.external_weights
    if found.bytes:
        line = f"{format_size(found.bytes)} of weights left the model file for {found.file}: "
        line += "loading it does not copy them (--external-weights keep leaves them inside)"
        yield from doc.section("Weights", doc.Paragraph(line))
