"""The verdict on a certificate, as text and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.quantities import format_size
from memplan_cli.core.results.certificate import VERIFIED, CertificateVerdict, PartVerdict
from memplan_cli.reporting import document as doc
from memplan_cli.reporting.media import result_renderers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_PROOF_METHODS: Mapping[str, str] = {
    "cut": "a weighted cut at one step",
    "pair": "weighted cuts for both orders of two nodes",
    "search": "a search of all states below the bound",
    "load": "the tensors that are live at one step",
    "slots": "tensors of one kind that are live together",
    "step": "the tensors that one node reads and writes",
}
"""What proves a bound, by the method in the certificate."""

_CHECKED = (
    "Checked: the proofs, and the order, sizes and live ranges that they are about. Not checked: the other "
    "numbers of the plan, which memplan validate compares with the model."
)
"""Follows the verdict that all bounds are proved."""


def document(certified: CertificateVerdict) -> doc.Document:
    """Return a row for each bound, and whether all of them were proved."""
    rows = tuple(map(_row, certified.parts))
    columns = doc.columns("part", ">bound", "verdict", "proof")
    proved = sum(part.status == VERIFIED for part in certified.parts)
    text = f"{proved} of {len(certified.parts)} bounds of the plan are proved."
    if certified.passed:
        text = "Every bound of the plan is proved."
    blocks: list[doc.Block] = [doc.Table(columns, rows), doc.Check(text, certified.passed)]
    if certified.passed:
        blocks.append(doc.Paragraph(_CHECKED, "soft"))
    return doc.Document("Bounds of the plan and their proofs", tuple(blocks))


def _row(part: PartVerdict) -> tuple[str, str, str, str]:
    """Return the name of a bound, its bytes, the verdict, and the proof or what is wrong."""
    proof_or_reason = (
        _PROOF_METHODS.get(part.method, "") if part.status == VERIFIED else part.reason
    )
    # The unit 1 means bytes; other units are products of symbols, such as batch*seq.
    unit = f" x {part.unit}" if part.unit != "1" else ""
    return part.part, format_size(part.bound) + unit, part.status, proof_or_reason


VERIFY: Mapping[str, Callable[[CertificateVerdict], str]] = result_renderers(
    "verified", document, "text"
)
